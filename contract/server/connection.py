"""Opens Redis clients with toolpool's options and diagnoses servers."""

import asyncio
from collections.abc import Iterable
from functools import cache
from typing import Any
from urllib.parse import parse_qsl, quote, urlencode, urlsplit, urlunsplit

import hiredis
import redis
import redis.asyncio
from redis.asyncio.retry import Retry as AsyncRetry
from redis.backoff import NoBackoff
from redis.exceptions import AuthenticationError, DataError, NoPermissionError, RedisError
from redis.retry import Retry

from toolpool.contract.errors import (
    BrokerUnreachable,
    Misconfigured,
    ServerError,
    ServerUnsuitable,
    SigningKeyMissing,
)
from toolpool.contract.importing import require_package
from toolpool.contract.server.connection_pool import ConnectionPool
from toolpool.contract.server.password_masking import without_password, without_passwords_of
from toolpool.contract.server.redis_clients import AsyncRedisClient, RedisClient
from toolpool.contract.server.unix_sockets import why_not_private
from toolpool.contract.settings import Settings
from toolpool.contract.signing import Keyring

OLDEST_SERVER = (6, 2)
FULL_SERVER = 0.9
"""Above this share of maxmemory new calls are refused, so that open ones can still end."""
_CONNECTIONS = 32
_CONNECTION_WAIT_SECONDS = 30
_UNIX_SCHEMES = ("unix", "redis+socket")
_SCHEMES = (*_UNIX_SCHEMES, "redis", "rediss")


def require_redis_url(settings: Settings) -> str:
    """The Redis URL in redis-py's form. Raises `Misconfigured` if it is missing or invalid."""
    url = settings.redis_url
    if not url:
        raise Misconfigured(
            "no Redis URL: set TOOLPOOL_REDIS_URL=redis://host:6379/0, or leave the server to "
            "toolpool with `toolpool run` or Dispatcher.local()"
        )
    scheme, is_usable = _parts_of(url)
    if scheme not in _SCHEMES:
        raise Misconfigured(
            f"TOOLPOOL_REDIS_URL starts with {scheme or 'no scheme'}://, which is not one of "
            "redis://, rediss:// or unix://"
        )
    if not is_usable:
        raise Misconfigured(
            "TOOLPOOL_REDIS_URL cannot be parsed: write it as redis://:password@host:6379/0, "
            "with a port from 1 to 65535, and the characters / ? # @ [ ] of a password as %2F %3F "
            "%23 %40 %5B %5D"
        )
    url = url.replace("redis+socket://", "unix://", 1)
    if fault := _fault_of_options(url):
        raise Misconfigured(f"TOOLPOOL_REDIS_URL: {fault}")
    return url


@cache
def _fault_of_options(url: str) -> str:
    """The parts of a URL's path and options that redis-py cannot use; empty if there are none."""
    parts = urlsplit(url)
    database = parts.path.strip("/")
    if parts.scheme not in _UNIX_SCHEMES and database and not database.isdecimal():
        return "the path is the number of a database, as in redis://host:6379/0"
    if "retry_on_error" in dict(parse_qsl(parts.query, keep_blank_values=True)):
        return "the option retry_on_error takes exceptions, which a URL cannot name: remove it"
    try:
        redis.ConnectionPool.from_url(url).make_connection()
    except (TypeError, ValueError, RedisError) as error:
        option = without_passwords_of(url, str(error)).rpartition("__() ")[2]
        return f"an option of it cannot be used ({option}): correct or remove it"
    return ""


def _parts_of(url: str) -> tuple[str, bool]:
    """The URL's scheme, and whether host and port are valid.

    The error of `urlsplit` may quote part of a password, so it is dropped.
    """
    scheme = url.partition("://")[0] if "://" in url else ""
    if scheme in _UNIX_SCHEMES:
        return scheme, True
    try:
        return scheme, urlsplit(url).port != 0
    except ValueError:
        return scheme, False


def broker_url(settings: Settings) -> str:
    """The URL for Celery: the broker's own, or the Redis URL in kombu's spelling.

    Raises `Misconfigured` for a broker that Celery does not know, or without kombu.
    """
    if settings.broker_url:
        _require_broker(settings.broker_url)
        return settings.broker_url
    return _for_kombu(require_redis_url(settings)).replace("unix://", "redis+socket://", 1)


def _for_kombu(url: str) -> str:
    """The URL with login and database where kombu accepts them, and of its options those of TLS.

    The others are redis-py's, and kombu's connections are its own.
    """
    parts = urlsplit(url)
    query = dict(parse_qsl(parts.query, keep_blank_values=True))
    if parts.scheme in _UNIX_SCHEMES:
        place = url.partition("?")[0]
        return f"{place}?{urlencode({'virtual_host': query['db']})}" if "db" in query else place
    netloc = parts.netloc
    asked = query.get("username", ""), query.get("password", "")
    if any(asked):
        login, _, place = netloc.rpartition("@")
        user, _, password = login.partition(":")
        user, password = user or quote(asked[0], safe=""), password or quote(asked[1], safe="")
        netloc = f"{user}:{password}@{place}"
    kept = {name: value for name, value in query.items() if name.startswith("ssl_")}
    path = f"/{query['db']}" if "db" in query else parts.path
    return urlunsplit(parts._replace(netloc=netloc, path=path, query=urlencode(kept)))


def _require_broker(url: str) -> None:
    require_package("kombu", "TOOLPOOL_BROKER_URL")
    from kombu import Connection  # imported late: it loads slowly

    try:
        Connection(url).get_transport_cls()
    except (ImportError, NameError) as error:  # NameError: kombu's optional import failed
        reason = f"needs a package that is not installed ({error})"
    except KeyError:
        reason = "names no broker that Celery knows, such as amqp://, redis:// or sentinel://"
    except ValueError as error:
        reason = f"is no URL ({without_passwords_of(url, str(error))})"
    else:
        return
    raise Misconfigured(f"TOOLPOOL_BROKER_URL={without_password(url)} {reason}")


_REFUSALS = (403, 530)
"""AMQP's codes for a refused user or password, and for a refused virtual host."""


def broker_fault(url: str, error: BaseException) -> BrokerUnreachable:
    """The error to raise if kombu cannot use the broker at `url`."""
    shown = without_password(url)
    reason = without_passwords_of(url, " ".join(str(error).split()) or type(error).__name__)[:200]
    if is_refusal(error):
        return BrokerUnreachable(
            f"the broker at {shown} refuses the user, password or virtual host ({reason}): put "
            "the right ones into TOOLPOOL_BROKER_URL"
        )
    return BrokerUnreachable(
        f"cannot reach the broker at {shown} ({reason}): check that it runs and that "
        "TOOLPOOL_BROKER_URL is right"
    )


def is_refusal(error: BaseException) -> bool:
    """Whether a broker refused the user, so that retrying is pointless."""
    cause = error.__cause__
    is_refused = isinstance(error, AuthenticationError)
    is_refused = is_refused or getattr(error, "reply_code", None) in _REFUSALS
    return is_refused or (cause is not None and is_refusal(cause))


def is_redis(broker: str) -> bool:
    """Whether kombu uses Redis for this broker URL."""
    return urlsplit(broker).scheme.partition("+")[0] in ("redis", "rediss", "sentinel")


def keyring(settings: Settings) -> Keyring:
    """The keys that sign and verify under the key prefix.

    Raises `SigningKeyMissing` for a network server if no key is set.
    """
    if settings.signing_key is not None and settings.signing_key.get_secret_value():
        return Keyring.parse(settings.signing_key.get_secret_value(), settings.key_prefix)
    url = require_redis_url(settings)
    if not settings.broker_url and urlsplit(url).scheme in _UNIX_SCHEMES:
        open_to_others = why_not_private(url)
        if open_to_others is None:
            return Keyring.local(settings.key_prefix)
        raise SigningKeyMissing(
            f"TOOLPOOL_SIGNING_KEY is not set, and {url} is not private: {open_to_others}, and "
            "could run tools; let the server make the socket with `unixsocketperm 700`, as this "
            "user and in a directory of this user's, or make a key with `toolpool keygen` and set "
            "it for every process"
        )
    raise SigningKeyMissing(
        "TOOLPOOL_SIGNING_KEY is not set: dispatchers and workers on a network server must share a "
        "key, or any client could run tools; make one with `toolpool keygen` and set "
        "it for every process"
    )


def open_async(settings: Settings, *, blocking: bool = False) -> "redis.asyncio.Redis":
    """An asyncio client that returns bytes. `blocking`: for blocking reads."""
    pool = ConnectionPool.from_url(
        require_redis_url(settings),
        max_connections=_CONNECTIONS,
        timeout=_CONNECTION_WAIT_SECONDS,  # wait for a connection instead of failing in a burst
        decode_responses=False,
        socket_connect_timeout=settings.connect_timeout,
        socket_timeout=None if blocking else settings.connect_timeout,
        retry=AsyncRetry(NoBackoff(), 0),
        protocol=2,
    )
    kind: Any = pool.connection_class
    pool.connection_class = _lean(kind)
    client: redis.asyncio.Redis = AsyncRedisClient.from_pool(pool)
    return client


@cache
def _lean(connection: Any) -> Any:
    """A connection class that packs commands in C, and writes without a task or timer for each.

    Packing in Python takes as long as everything else that a worker does for a short call.
    """
    is_plain = not issubclass(connection, redis.asyncio.SSLConnection)

    class Lean(connection):  # type: ignore[misc]
        def pack_command(self, *args: Any) -> list[bytes]:
            name = args[0]
            if isinstance(name, str) and " " in name:  # as in CLIENT SETINFO
                args = (*name.split(), *args[1:])
            try:
                return [hiredis.pack_command(args)]
            except TypeError as error:
                raise DataError(str(error)) from error

        async def send_packed_command(
            self, command: str | bytes | Iterable[bytes], check_health: bool = True
        ) -> None:
            writer = self._writer
            is_simple = is_plain and not self.health_check_interval
            if isinstance(command, list) and is_simple and writer is not None and _is_free(writer):
                writer.writelines(command)
                if _is_free(writer):
                    return  # the socket took all of it
                command = ()  # redis-py waits until it does, or finds the fault
            await super().send_packed_command(command, check_health)

    return Lean


def _is_free(writer: asyncio.StreamWriter) -> bool:
    """Whether a connection is open, and its socket has taken what was written before."""
    transport = writer.transport
    return not transport.is_closing() and not transport.get_write_buffer_size()


def open_sync(settings: Settings) -> "redis.Redis":
    """The synchronous counterpart of `open_async`."""
    client: redis.Redis = RedisClient.from_url(
        require_redis_url(settings),
        decode_responses=False,
        socket_connect_timeout=settings.connect_timeout,
        socket_timeout=settings.connect_timeout,
        retry=Retry(NoBackoff(), 0),
        protocol=2,
    )
    return client


def is_nearly_full(info: dict[str, Any]) -> bool:
    """Whether dispatchers refuse new calls because the server's memory is nearly full."""
    limit = int(info.get("maxmemory") or 0)
    return limit > 0 and int(info.get("used_memory") or 0) >= FULL_SERVER * limit


def server_faults(info: dict[str, Any], maxmemory_policy: str | None) -> list[str]:
    """The reasons why a server is unsuitable, with remedies. `info` is redis-py's parsed INFO."""
    faults = []
    version = str(info.get("redis_version", "0"))
    if tuple(int(part) for part in version.split(".")[:2] if part.isdigit()) < OLDEST_SERVER:
        faults.append(f"the server is version {version}; toolpool needs Redis 6.2 or Valkey 7.2")
    if info.get("redis_mode") == "cluster" or info.get("cluster_enabled"):
        faults.append(
            "the server is a Redis Cluster, which Celery's transport does not support; "
            "use one server without cluster mode, and for failover one address that always leads "
            "to the primary (a hosted server's own, or a proxy's): toolpool connects again to it"
        )
    if maxmemory_policy not in (None, "noeviction"):
        faults.append(
            f"the server's maxmemory-policy is {maxmemory_policy}, so it may throw away calls; "
            "set it to noeviction (CONFIG SET maxmemory-policy noeviction)"
        )
    return faults


async def require_fit_server(client: "redis.asyncio.Redis", settings: Settings) -> None:
    """Raises `BrokerUnreachable` or `ServerUnsuitable` with a remedy."""
    url = without_password(require_redis_url(settings))
    try:
        async with asyncio.timeout(settings.connect_timeout):
            info: dict[str, Any] = await client.info()
            try:
                config = await client.config_get("maxmemory-policy")
                policy = _text(next(iter(config.values()), None))
            except ServerError:
                policy = info.get("maxmemory_policy")
    except (ServerError, TimeoutError) as error:
        cause = error.__cause__ or error
        if isinstance(cause, AuthenticationError):
            raise BrokerUnreachable(f"{url} refuses the user or password: {cause}") from None
        raise BrokerUnreachable(unreachable(settings, cause)) from None
    faults = server_faults(info, policy)
    if faults:
        raise ServerUnsuitable(f"{url}: " + "; ".join(faults))


def described(settings: Settings) -> str:
    """The Redis URL without its password."""
    return without_password(require_redis_url(settings))


def unreachable(settings: Settings, error: BaseException) -> str:
    """The message for a server that is unreachable or denies permissions."""
    url = described(settings)
    if isinstance(error, NoPermissionError):
        return (
            f"the server at {url} denies its user permissions that toolpool needs: "
            "`toolpool doctor` names what is missing"
        )
    reason = (
        without_passwords_of(settings.redis_url, str(error))
        or f"no answer in {settings.connect_timeout:g} s"
    )
    return (
        f"cannot reach Redis at {url} ({reason}): check that the server runs and that "
        "TOOLPOOL_REDIS_URL is right; `toolpool doctor` says more"
    )


def _text(value: Any) -> str | None:
    return value.decode() if isinstance(value, bytes) else value
