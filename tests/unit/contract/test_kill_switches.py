"""Kill switches hold while signing keys are rotated."""

from typing import Any

import pytest

from toolpool.contract.envelope import Envelope, Switch
from toolpool.contract.kill_switches import KillSwitches
from toolpool.contract.ledger.memory_server import MemoryServer
from toolpool.contract.ledger.protocols import SwitchChange
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


async def set_by(
    server: MemoryServer, switches: KillSwitches, *, on: bool = True, **of: Any
) -> None:
    await switches.follow(server)
    of = {"set_at": 1.0} | of
    switch = Switch(tool="pay", reason="broken", on=on, prefix="toolpool", **of)
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


class Counted(MemoryServer):
    """Counts the steps that change switches."""

    changing = 0

    async def switches(self, *changes: SwitchChange) -> tuple[str, dict[str, bytes]]:
        """See `SwitchLedger.switches`."""
        self.changing += bool(changes)
        return await super().switches(*changes)


async def test_all_switches_that_a_server_lost_are_restored_in_one_step() -> None:
    server, switches = Counted(), holder(A, B)
    for number in range(300):
        await set_by(server, switches, argument="id", value=number)
    stored, server.changing = dict(server.switch_states), 0
    server.switch_states.clear()
    await switches.follow(server)
    assert (server.switch_states, server.changing) == (stored, 1)


async def test_a_later_state_that_only_another_key_signed_is_told() -> None:
    """The fleet's keys were not rotated in order: an earlier state can be read, the last cannot."""
    server, old = MemoryServer(), holder(A)
    await set_by(server, old, on=False)
    await set_by(server, holder(B), set_at=2.0)
    await old.follow(server)
    assert len(old.foreign) == 1
    await set_by(server, holder(A, B), set_at=3.0)
    await old.follow(server)
    assert not old.foreign and old.on


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


def test_arguments_too_large_for_all_switches_are_denied() -> None:
    """Comparing them would hold the event loop for seconds."""
    switches = KillSwitches(Envelope(Keyring.local()), "p")
    on = [Switch(tool="mail", reason="no", argument="to", value=f"eve{n}") for n in range(10)]
    switches.on = {"mail": on}
    assert switches.denial("mail", {"to": ["a"] * 1_000}, "t") is None
    assert switches.denial("mail", {"to": ["a"] * 1_000 + ["eve9"]}, "t") == "no"
    assert "too large" in (switches.denial("mail", {"to": ["a"] * 100_000}, "t") or "")
    assert switches.denial("mail", {"cc": ["a"] * 100_000}, "t") is None
