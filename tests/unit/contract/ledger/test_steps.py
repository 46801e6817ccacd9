"""Words that make a step repeatable are nobody else's."""

import os

from toolpool.contract.ledger.steps import new_nonce


def test_a_forked_host_has_words_of_its_own() -> None:
    """As web servers fork it: it would read its parent's calls."""
    known = {new_nonce() for _ in range(3)}
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(writer, new_nonce().encode())
        os._exit(0)
    os.waitpid(child, 0)
    said = os.read(reader, 100).decode()
    os.close(reader)
    os.close(writer)
    assert said not in known | {new_nonce() for _ in range(3)}
    assert "." not in said
