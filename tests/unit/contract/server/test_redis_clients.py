"""Which key a client deletes where a command failed on the value that it holds."""

import pytest

from toolpool.contract.server.redis_clients import removal


@pytest.mark.parametrize(
    ("command", "probe"),
    [
        (("HGETALL", "k"), "HGET"),
        (("LPUSH", "k", "v"), "LLEN"),
        (("BLPOP", ["k"], 1), "LLEN"),
        (("ZADD", "k", 1, "m"), "ZCARD"),
        (("SADD", "k", "m"), "SMEMBERS"),
        (("XREAD", "COUNT", 1, "STREAMS", "k", "0"), "XREVRANGE"),
        (("XREAD", b"COUNT", 1, b"STREAMS", "k", "0"), "XREVRANGE"),
        (("INCR", "k"), "INCRBY"),
        (("GET", "k"), "GET"),
    ],
)
def test_the_key_of_a_command_is_asked_for_what_it_holds(
    command: tuple[object, ...], probe: str
) -> None:
    asked = removal(command)
    assert asked is not None
    assert (asked[0], asked[3], asked[4]) == ("EVAL", "k", probe)


@pytest.mark.parametrize(
    "command",
    [("SET", "k", "v", "NX"), ("SETEX", "k", 1, "v"), ("EVALSHA", "x", 1, "k"), ("PING",)],
)
def test_a_command_that_takes_any_type_or_no_key_deletes_nothing(
    command: tuple[object, ...],
) -> None:
    """Beside another one in a pipeline that failed, its key may hold what is right."""
    assert removal(command) is None
