"""R38: `http_get` connects to public addresses only, however they are written or embedded."""

import asyncio
from typing import Any

import httpcore
import pytest

from toolpool.contract.errors import ToolError
from toolpool.workers.tools.http.addresses import PinnedBackend, refusal, resolve


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("127.0.0.1", "loopback"),
        ("127.255.0.9", "loopback"),
        ("::1", "loopback"),
        ("10.1.2.3", "private"),
        ("172.31.255.1", "private"),
        ("192.168.0.1", "private"),
        ("100.64.0.1", "private"),
        ("fd12:3456::1", "private"),
        ("169.254.169.254", "link-local"),
        ("169.254.170.2", "link-local"),
        ("fe80::1", "link-local"),
        ("fe80::1%eth0", "link-local"),
        ("168.63.129.16", "metadata"),
        ("100.100.100.200", "metadata"),
        ("fd00:ec2::254", "metadata"),
        ("224.0.0.1", "multicast"),
        ("ff02::1", "multicast"),
        ("0.0.0.0", "reserved"),
        ("::", "reserved"),
        ("240.0.0.1", "reserved"),
        ("255.255.255.255", "reserved"),
        ("192.0.2.1", "reserved"),
        ("198.18.0.1", "reserved"),
        ("2001:db8::1", "reserved"),
        ("192.0.0.192", "metadata"),
        ("192.0.0.9", "reserved"),
        ("192.88.99.1", "reserved"),
        ("2001:20::1", "reserved"),
        ("3fff::1", "reserved"),
        ("5f00::1", "reserved"),
        ("fec0::1", "private"),
        # IPv4 inside IPv6: mapped, 6to4, NAT64, compatible, Teredo, local NAT64
        ("::ffff:127.0.0.1", "loopback"),
        ("::ffff:169.254.169.254", "link-local"),
        ("2002:7f00:1::", "loopback"),
        ("2002:a9fe:a9fe::1", "link-local"),
        ("64:ff9b::10.0.0.1", "private"),
        ("64:ff9b::a9fe:a9fe", "link-local"),
        ("::127.0.0.1", "reserved"),
        ("2001:0:4136:e378:8000:63bf:3fff:fdd2", "reserved"),
        ("64:ff9b:1::a00:1", "reserved"),
    ],
)
def test_what_is_not_public_is_refused(address: str, words: str) -> None:
    reason = refusal(address, private=False)
    assert reason is not None
    assert words in reason


@pytest.mark.parametrize(
    "address", ["93.184.216.34", "2606:4700::1111", "64:ff9b::5db8:d822", "::ffff:93.184.216.34"]
)
def test_public_addresses_are_taken(address: str) -> None:
    assert refusal(address, private=False) is None


def test_private_opens_own_networks_but_no_metadata() -> None:
    for address in ("127.0.0.1", "::1", "10.0.0.1", "192.168.1.1", "fd12::1"):
        assert refusal(address, private=True) is None
    for address in (
        *("169.254.169.254", "fe80::1", "fd00:ec2::254", "100.100.100.200", "168.63.129.16"),
        *("::ffff:169.254.169.254", "224.0.0.1", "0.0.0.0"),
    ):
        assert refusal(address, private=True) is not None


@pytest.mark.parametrize("host", ["2130706433", "0x7f.1", "127.1", "localhost", "[::1]"])
async def test_other_spellings_of_loopback_are_seen_through(host: str) -> None:
    """The system decides what a spelling means, and its answer is what is checked."""
    with pytest.raises(ToolError, match=r"loopback address|cannot be resolved"):
        await PinnedBackend(private=False).connect_tcp(host.strip("[]"), 80)


class Recorder(httpcore.AsyncNetworkBackend):
    """Connects to nothing; notes where it should have."""

    def __init__(self, failing: tuple[str, ...] = ()) -> None:
        self.connected: list[str] = []
        self.failing = failing

    async def connect_tcp(self, host: str, port: int, *_: Any, **__: Any) -> Any:
        self.connected.append(host)
        if host in self.failing:
            raise httpcore.ConnectError("refused")
        return object()


def _answers(*rounds: list[str]) -> Any:
    waiting = list(rounds)

    async def answer(host: str, port: int) -> list[str]:
        return waiting.pop(0)

    return answer


async def test_the_checked_address_is_the_one_connected_to() -> None:
    """A name that answers loopback to a second question is not asked one."""
    recorder = Recorder()
    answer = _answers(["93.184.216.34"], ["127.0.0.1"])
    backend = PinnedBackend(private=False, resolve=answer, inner=recorder)
    await backend.connect_tcp("rebind.test", 80)
    assert recorder.connected == ["93.184.216.34"]
    with pytest.raises(ToolError, match=r"rebind\.test \(127\.0\.0\.1\) is a loopback address"):
        await backend.connect_tcp("rebind.test", 80)
    assert recorder.connected == ["93.184.216.34"]


async def test_of_mixed_answers_only_the_public_ones_are_tried() -> None:
    recorder = Recorder(failing=("93.184.216.34",))
    answer = _answers(["10.0.0.1", "93.184.216.34", "::1", "2606:4700::1111"])
    await PinnedBackend(private=False, resolve=answer, inner=recorder).connect_tcp("x.test", 80)
    assert recorder.connected == ["93.184.216.34", "2606:4700::1111"]


async def test_an_unknown_name_is_said_to_be_unknown() -> None:
    async def fail(host: str, port: int) -> list[str]:
        raise OSError

    backend = PinnedBackend(private=False, resolve=fail, inner=Recorder())
    with pytest.raises(ToolError, match=r"nowhere\.test cannot be resolved"):
        await backend.connect_tcp("nowhere.test", 80)


async def test_the_system_resolves_numbers_without_a_network() -> None:
    async with asyncio.timeout(5):
        assert await resolve("127.0.0.1", 80) == ["127.0.0.1"]


async def test_unix_sockets_are_out_of_reach() -> None:
    with pytest.raises(httpcore.ConnectError):
        await PinnedBackend(private=True).connect_unix_socket("/run/docker.sock")
