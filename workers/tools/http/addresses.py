"""Resolves host names, and decides which addresses may be connected to.

The connection uses the checked address, so a name whose address changes after the check (DNS
rebinding) has no effect.
"""

import asyncio
import ipaddress
import socket
from collections.abc import Awaitable, Callable, Iterable
from typing import Any

import httpcore

from toolpool.contract.errors import ToolError

Resolve = Callable[[str, int], Awaitable[list[str]]]
_Address = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = ipaddress.IPv6Network("64:ff9b::/96")  # RFC 6052
# Those of Azure and Oracle have other addresses than link-local ones.
_METADATA = frozenset(map(ipaddress.ip_address, ("168.63.129.16", "192.0.0.192")))
# The networks that "private" may allow; link-local addresses, where metadata services are, never.
_OWN = tuple(
    ipaddress.ip_network(network)
    for network in (
        *("127.0.0.0/8", "10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10"),
        *("::1/128", "fc00::/7"),
    )
)
# Reserved by RFCs 6890, 7526, 9637 and 9602; not every Python knows all of them.
_RESERVED = tuple(
    ipaddress.ip_network(network)
    for network in ("192.0.0.0/24", "192.88.99.0/24", "2001::/23", "3fff::/20", "5f00::/16")
)
_OWN_METADATA = frozenset(
    ipaddress.ip_address(address)
    for address in ("100.100.100.200", "fd00:ec2::254", "fd20:ce::254")
)


def refusal(address: str, *, private: bool) -> str | None:
    """Why `address` must not be connected to; None if it is allowed.

    `private` allows loopback and private networks, nothing else.
    """
    ip: _Address = ipaddress.ip_address(address.partition("%")[0])
    inner = _embedded(ip)
    if inner is not None:
        ip = inner
    if ip in _METADATA or ip in _OWN_METADATA:
        return "a cloud's metadata service"
    if any(ip in network for network in _OWN if network.version == ip.version):
        if private:
            return None
        return "a loopback address" if ip.is_loopback else "a private address"
    for is_one, words in (
        (ip.is_link_local, "a link-local address, where metadata services are"),
        (ip.is_multicast, "a multicast address"),
        (_is_reserved(ip), "a reserved address"),
        (isinstance(ip, ipaddress.IPv6Address) and ip.is_site_local, "a private address"),
    ):
        if is_one:
            return words
    return None


def _is_reserved(ip: _Address) -> bool:
    is_known = ip.is_unspecified or ip.is_reserved or not ip.is_global
    return is_known or any(ip in network for network in _RESERVED)


def _embedded(ip: _Address) -> ipaddress.IPv4Address | None:
    """The IPv4 address that a gateway would extract from `ip`."""
    if isinstance(ip, ipaddress.IPv4Address):
        return None
    if ip in _NAT64:
        return ipaddress.IPv4Address(int(ip) & 0xFFFFFFFF)
    return ip.ipv4_mapped or ip.sixtofour


async def resolve(host: str, port: int) -> list[str]:
    """The addresses of `host` by the system's resolver. Raises OSError."""
    infos = await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM)
    return list(dict.fromkeys(str(info[4][0]) for info in infos))


class PinnedBackend(httpcore.AsyncNetworkBackend):
    """Connects to addresses that it has checked. TLS still verifies the name in the URL."""

    def __init__(
        self,
        *,
        private: bool,
        resolve: Resolve = resolve,
        inner: httpcore.AsyncNetworkBackend | None = None,
    ) -> None:
        self._private = private
        self._resolve = resolve
        self._inner = inner or httpcore.AnyIOBackend()

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[Any] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        """Connect. Raises ToolError for a name without an allowed address."""
        last: Exception | None = None
        for address in await self._allowed(host, port):
            try:
                return await self._inner.connect_tcp(
                    address,
                    port,
                    timeout=timeout,
                    local_address=local_address,
                    socket_options=socket_options,
                )
            except (httpcore.ConnectError, httpcore.ConnectTimeout) as error:
                last = error
        assert last is not None
        raise last

    async def connect_unix_socket(self, *_: Any, **__: Any) -> httpcore.AsyncNetworkStream:
        """Refuse: there are no URLs for unix sockets."""
        raise httpcore.ConnectError("unix sockets are not for http_get")

    async def sleep(self, seconds: float) -> None:
        """Sleep, as the inner backend does."""
        await self._inner.sleep(seconds)

    async def _allowed(self, host: str, port: int) -> list[str]:
        try:
            addresses = await self._resolve(host, port)
        except (OSError, UnicodeError):
            addresses = []
        if not addresses:
            raise ToolError(
                f"The host name {host} cannot be resolved.",
                recommendations=("Check the spelling of the host name.",),
            )
        refusals = {a: refusal(a, private=self._private) for a in addresses}
        allowed = [address for address, reason in refusals.items() if reason is None]
        if not allowed:
            address, reason = next(iter(refusals.items()))
            where = host if host == address else f"{host} ({address})"
            raise ToolError(
                f"{where} is {reason}; this tool reaches public addresses only.",
                recommendations=("Use a public URL. Do not retry this one in another spelling.",),
            )
        return allowed
