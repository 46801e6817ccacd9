"""Keeps foreign messages from stopping the worker.

Celery 5.7 handles most malformed messages with an exception that ends the process, or with a
reconnect that receives the same message again forever, and logs their content. Here they are
dropped before Celery sees them, counted, and reported without their content.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from queue import Empty
from typing import Any

import kombu
from celery.app.amqp import AMQP
from celery.worker.consumer import Consumer
from kombu.transport import redis as kombu_redis
from kombu.transport.virtual import QoS as VirtualQoS
from redis import Redis
from redis.exceptions import RedisError, ResponseError

from toolpool.contract import logs
from toolpool.contract.errors import MessageRejected
from toolpool.contract.redis_keys import BATCH_TASK
from toolpool.contract.server.redis_clients import RedisClient, is_junk, refuses_writes
from toolpool.workers.celery.message_guard import MessageValidator
from toolpool.workers.supervision.stalled_connections import StalledConnections

log = logs.logger("inbox")


class Inbox(Consumer):
    """Celery's consumer, which gets only batches."""

    app: Any  # a WorkerApp

    def create_task_handler(self, *args: Any, **kwargs: Any) -> Callable[[Any], None]:
        """The function that handles every message of every broker."""
        handle = super().create_task_handler(*args, **kwargs)

        def take(message: Any) -> None:
            try:
                if _is_batch(message):
                    handle(message)
                    return
                reason = "not a message of toolpool"
            except Exception as error:  # noqa: BLE001 - a message from an unknown writer
                reason = _reason(error)
            self._drop(message, reason)

        return take

    def on_decode_error(self, message: Any, exc: Exception) -> None:
        """Drop a message that was refused undecoded. Celery's handler would log its content."""
        self._drop(message, _reason(exc))

    def _drop(self, message: Any, reason: str) -> None:
        self.app.service.reject(reason)
        if not message.acknowledged:
            errors: Any = self.connection_errors  # type: ignore[attr-defined]
            message.reject_log_error(log, errors)

    def perform_pending_operations(self) -> None:
        """Called at each turn if the broker's transport has no event loop."""
        super().perform_pending_operations()
        self.app.service.main_turned()


def _reason(error: Exception) -> str:
    """Why a message was dropped, without its content."""
    return str(error) if isinstance(error, MessageRejected) else type(error).__name__


def _is_batch(message: Any) -> bool:
    """Whether it has the form of a dispatcher's message. Raises what decoding the body raises."""
    headers = message.headers
    if not isinstance(headers, dict) or headers.get("task") != BATCH_TASK:
        return False
    if not isinstance(headers.get("id"), str) or headers.get("eta") or headers.get("expires"):
        return False
    body = message.payload
    if not isinstance(body, list) or len(body) != 3:
        return False
    arguments = body[0]
    return isinstance(arguments, list) and len(arguments) == 1 and isinstance(arguments[0], str)


class _Window(VirtualQoS):
    """The messages that this worker holds and has not acknowledged, in its memory alone.

    kombu's own class also stores each on the server, to deliver it again after an hour if the
    worker dies. Dispatchers recover the calls of a lost message by the ledger, within seconds.
    """

    def restore_unacked(self) -> None:
        """Put the messages back on their queues, so that the oldest is taken first.

        If the server does not take them, the ledger recovers them; kombu would write what they
        contain to a file.
        """
        untyped: Any = self
        untyped._flush()
        with suppress(Exception):
            while untyped._delivered:
                untyped.channel._restore(untyped._delivered.popitem()[1])
        untyped._delivered.clear()


class _Guarded:
    """A Redis channel that skips list elements that kombu cannot decode.

    Such an element was already removed from its list, and is not stored anywhere else.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        channel: Any = self
        channel.QoS = _Window

    def _brpop_read(self, **options: Any) -> Any:
        try:
            return super()._brpop_read(**options)  # type: ignore[misc]
        except (Empty, RedisError, OSError) as error:
            if isinstance(error, ResponseError) and refuses_writes(error):
                time.sleep(_REFUSED_SECONDS)  # taking from a list is a write
                raise Empty from None
            if isinstance(error, ResponseError) and is_junk(error):
                self._remove_junk()
                raise Empty from None
            raise
        except Exception as error:  # noqa: BLE001 - bytes from an unknown writer
            reason = _reason(error)
        self.connection.client.reject(reason)  # type: ignore[attr-defined]
        raise Empty

    def _restore(self, message: Any, leftmost: bool = False) -> None:
        """Put a message back as it was; kombu's own has another form without its copies."""
        info = message.delivery_info
        with self.conn_or_acquire() as client:  # type: ignore[attr-defined]
            self._do_restore_message(  # type: ignore[attr-defined]
                message._raw, info["exchange"], info["routing_key"], client, leftmost
            )

    def _remove_junk(self) -> None:
        with self.conn_or_acquire() as client:  # type: ignore[attr-defined]
            for queue in self.active_queues:  # type: ignore[attr-defined]
                for priority in self.priority_steps:  # type: ignore[attr-defined]
                    client.llen(self._q_for_pri(queue, priority))  # type: ignore[attr-defined]

    def _get_client(self) -> Any:
        found = super()._get_client()  # type: ignore[misc]
        return RedisClient if found is Redis else found

    def _create_client(self, asynchronous: bool = False) -> Any:
        client = super()._create_client(asynchronous)  # type: ignore[misc]
        if asynchronous:  # the connection that receives messages
            client.set_response_callback("BRPOP", self._checked)
        return client

    def _checked(self, answer: Any, **_: Any) -> tuple[Any, Any] | None:
        if not answer:
            return None
        queue, element = answer
        client: GuardedConnection = self.connection.client  # type: ignore[attr-defined]
        if client.form is not None:
            signed = client.form.check_element(element)
            if signed is not None:
                client.receive_ahead(signed)
        return queue, element

    def _connparams(self, asynchronous: bool = False) -> dict[str, Any]:
        options: dict[str, Any] = super()._connparams(asynchronous=asynchronous)  # type: ignore[misc]
        watch: StalledConnections | None = self.connection.client.stalled_connections  # type: ignore[attr-defined]
        if watch is not None:
            options["connection_class"] = watch.watched(options["connection_class"])
        return options

    def close(self) -> None:
        """Close without waiting forever for the reply that kombu reads first.

        A working server answers within a second; a frozen server never does.
        """
        waits_on: Any = getattr(self, "_in_poll", None)
        if waits_on and not _is_readable(waits_on, _LAST_ANSWER_SECONDS):
            self._in_poll = None
            with suppress(Exception):
                waits_on.disconnect()
        super().close()  # type: ignore[misc]


class _RedisChannel(_Guarded, kombu_redis.Channel):
    pass


class _RedisTransport(kombu_redis.Transport):
    Channel = _RedisChannel


class _SentinelChannel(_Guarded, kombu_redis.SentinelChannel):
    pass


class _SentinelTransport(kombu_redis.SentinelTransport):
    Channel = _SentinelChannel


def _is_readable(connection: Any, seconds: float) -> bool:
    try:
        return bool(connection.can_read(timeout=seconds))
    except (RedisError, OSError):
        return True  # the read raises and ends


_REFUSED_SECONDS = 0.1
_LAST_ANSWER_SECONDS = 1.5
_RECONNECT = {"interval_start": 0.5, "interval_step": 0.5, "interval_max": 2.0}
_GUARDED = {
    kombu_redis.Transport: _RedisTransport,
    kombu_redis.SentinelTransport: _SentinelTransport,
}


class GuardedConnection(kombu.Connection):
    """kombu's connection, with a guarded channel if the broker is Redis."""

    def __init__(
        self,
        *args: Any,
        reject: Callable[[str], None] = log.warning,
        form: MessageValidator | None = None,
        stalled_connections: StalledConnections | None = None,
        main_turned: Callable[..., None] = lambda **_: None,
        receive_ahead: Callable[[bytes], None] = lambda _: None,
        **options: Any,
    ) -> None:
        super().__init__(*args, **options)
        self.reject = reject
        self.form = form
        self.stalled_connections = stalled_connections
        self._main_turned = main_turned
        self.receive_ahead = receive_ahead

    def get_transport_cls(self) -> Any:
        """The class of the transport."""
        found: Any = super().get_transport_cls()
        return _GUARDED.get(found, found)

    def channel(self) -> Any:
        """A channel whose messages are checked before they are decoded."""
        channel: Any = super().channel()
        if self.form is not None:
            channel.Message = self.form.guarding(channel.Message)
        return channel

    def ensure_connection(self, *args: Any, **options: Any) -> Any:
        """Connect, retrying every second or two where kombu would back off to thirty.

        A longer wait would delay calls after the server is back.
        """
        callback = options.pop("callback", None)

        def turned() -> None:
            self._main_turned(consumes=False)
            if callback is not None:
                callback()

        return super().ensure_connection(*args, **{**_RECONNECT, **options, "callback": turned})


class GuardedAMQP(AMQP):
    """Creates the connections of a Celery application."""

    app: Any  # a WorkerApp

    def Connection(  # type: ignore[override]
        self, *args: Any, **options: Any
    ) -> GuardedConnection:
        """A connection that reports dropped messages to the application's service."""
        service = self.app.service
        return GuardedConnection(
            *args,
            reject=service.reject,
            form=service.form,
            stalled_connections=service.stalled_connections,
            main_turned=service.main_turned,
            receive_ahead=service.receive_ahead,
            **options,
        )
