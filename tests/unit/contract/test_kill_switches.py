"""Kill switches hold while signing keys are rotated."""

import pytest

from toolpool.contract.envelope import Envelope, Switch
from toolpool.contract.kill_switches import KillSwitches
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.signing import Keyring, generate_key

A, B, C = generate_key(), generate_key(), generate_key()


def holder(*keys: str) -> KillSwitches:
    """The switches as a process with these keys knows them."""
    return KillSwitches(Envelope(Keyring(keys)), "toolpool")


async def denied(server: MemoryServer, *keys: str) -> bool:
    """Whether a process that starts now, with these keys, denies the tool."""
    switches = holder(*keys)
    await switches.follow(server)
    return bool(switches.on)


async def set_by(server: MemoryServer, switches: KillSwitches, *, on: bool = True) -> None:
    await switches.follow(server)
    switch = Switch(tool="pay", reason="broken", on=on, set_at=1.0, prefix="toolpool")
    switches.take(*await server.switches(switches.change(switch)))


@pytest.mark.parametrize(
    "stages", [[(A,), (A, B), (B, A), (B,)], [(A,), (B, A), (B,)], [(A,), (A, B), (B,)]]
)
async def test_a_switch_outlives_the_key_that_signed_it(stages: list[tuple[str, ...]]) -> None:
    server = MemoryServer()
    await set_by(server, holder(*stages[0]))
    for keys in stages:
        assert await denied(server, *keys)
    await set_by(server, holder(*stages[-1]), on=False)
    assert not await denied(server, *stages[-1])


async def test_processes_with_other_keys_do_not_undo_each_other_s_signatures() -> None:
    server = MemoryServer()
    await set_by(server, holder(A))
    fleet = [holder(A), holder(A, B), holder(B, A), holder(B, C), holder(B)]
    for switches in [*fleet, *fleet]:
        await switches.follow(server)
    version = server.switch_version
    for switches in [*fleet, *reversed(fleet)]:
        await switches.follow(server)
        assert switches.on
    assert server.switch_version == version


async def test_a_switch_that_no_key_of_a_process_signed_is_told_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    server, stranger = MemoryServer(), holder(C)
    await set_by(server, holder(A))
    await stranger.follow(server)
    await stranger.follow(server)
    assert len(stranger.foreign) == caplog.text.count("switches_not_followed switches=1") == 1


async def test_lines_that_a_writer_without_a_key_adds_change_nothing() -> None:
    server, switches = MemoryServer(), holder(A, B)
    await set_by(server, switches)
    [(field, state)] = server.switch_states.items()
    server.switch_states[field] = b"\n".join([b"junk", *state.split(b"\n")[:1], *[b"x"] * 10_000])
    await switches.follow(server)
    assert len(server.switch_states[field].split(b"\n")) <= 8
    assert await denied(server, A) and await denied(server, B)
