"""`toolpool keygen`: a new signing key."""

from toolpool.cli import screen
from toolpool.cli.options import JsonOption


def keygen(json: JsonOption = False) -> None:
    """Print a new signing key.

    Set it as TOOLPOOL_SIGNING_KEY for every dispatcher and worker. To change keys without a stop,
    put the new one behind the old one everywhere (`old,new`), then in front, then drop the old one.
    """
    from toolpool.contract.signing import generate_key

    key = generate_key()
    if json:
        screen.write_json({"key": key})
    else:
        screen.write(key)
