"""Every setting, read from `TOOLPOOL_*` environment variables. `docs/settings.md` explains them."""

import os
import re
from collections.abc import Mapping
from difflib import get_close_matches
from functools import cache
from pathlib import Path
from typing import Any, Literal

from pydantic import Field, SecretStr, field_validator, model_validator
from pydantic_core import PydanticCustomError
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from toolpool.contract import logs
from toolpool.contract.rates import rate_of
from toolpool.contract.redis_keys import is_prefix
from toolpool.contract.setting_files import IN_FILES, SettingFiles
from toolpool.contract.spec import RunIn

log = logs.logger("settings")

_PROTECTING = ("policy", "before_call", "after_result", "signing_key", "approval_webhook_secret")
"""Settings that protect something: an empty variable is an error, not an unset one."""
_OTHER_VARIABLES = re.compile(
    "|".join(
        [
            "TRACEBACK",
            "WORKER_DEPTH",
            "WORKER_TEXTS",
            "SECRET_.*",
            *(f"{n.upper()}_FILE" for n in IN_FILES),
        ]
    )
)
_KUBERNETES = re.compile(
    r"(.+_)?(SERVICE_HOST|SERVICE_PORT(_.+)?|PORT_\d+_(TCP|UDP|SCTP)(_.+)?)|PORT"
)
"""The variables that Kubernetes sets for a service named `toolpool` or `toolpool-…`."""

_LONGEST_SECONDS = 10 * 366 * 86_400
_KIB = 1024
_MIB = 1024 * 1024


_REMOVED = {
    "background_worker_return": "it is six times TOOLPOOL_WORKER_RETURN_TIMEOUT",
    "catalog_kept": "tools outlive workers by a week",
    "lease_renewed": "a lease is renewed four times in TOOLPOOL_LEASE_TTL",
    "loop_warn": "a blocked event loop is reported after a tenth of TOOLPOOL_EVENT_LOOP_TIMEOUT",
    "max_message": "a message may have twice TOOLPOOL_MAX_ARGUMENT_BYTES",
    "output_kept": "a whole output is kept for an hour",
    "outputs_per_session": "a session may keep 32 MiB of whole outputs",
    "batch_loop": "the number of calls in one message follows from the load",
    "batch_thread": "the number of calls in one message follows from the load",
    "batch_process": "the number of calls in one message follows from the load",
    "batch_bytes": "a message is full at 512 KiB of arguments",
    "feedback_characters": "a rejection has at most 240 characters without a shape",
    "feedback_errors": "at most 5 errors are listed in one rejection",
    "feedback_names": "at most 10 tools are listed for an unknown name",
    "feedback_shape_characters": "a rejection has at most 1,500 characters with a shape",
    "breaker_window": "failures of the last minute count",
    "loop_memory": "the last 32 failed calls of a session are remembered",
    "loop_kept": "failed calls of a session are remembered for an hour",
    "rejections_alert": "half of a tool's last 20 calls rejected raises an alert",
    "record_backup_count": "five rotated files of the record are kept",
    "record_file_bytes": "a file of the record is rotated at 64 MiB",
    "record_files": "five rotated files of the record are kept",
    "record_size": "a file of the record is rotated at 64 MiB",
    "record_value": "values in the record are truncated at 256 KiB",
    "max_calls_per_child": "a child process is replaced after 10,000 calls",
    "child_calls": "a child process is replaced after 10,000 calls",
    "failure_loop_action": "a call in a loop is refused, unless the hook on_loop returns true",
    "loop_action": "a call in a loop is refused, unless the hook on_loop returns true",
    "hook_failure": "a policy that fails denies",
    "secrets_user": "the user is the value of `user` in the context of a call",
    "sentry_fingerprint": "TOOLPOOL_SENTRY_BEFORE_SEND may set the fingerprint of an event",
    "sentry_per_issue": "an issue has a tenth of TOOLPOOL_SENTRY_PER_MINUTE",
}
"""Removed settings, with what applies instead."""

_RENAMED = {
    "queue_wait": "queue_timeout",
    "background_kept": "background_result_ttl",
    "results_kept": "result_ttl",
    "remembered": "dedup_ttl",
    "turns_kept": "turn_ttl",
    "worker_return": "worker_return_timeout",
    "catalog_wait": "catalog_timeout",
    "lease_gone": "lease_ttl",
    "worker_stall": "worker_stall_timeout",
    "loop_stall": "event_loop_timeout",
    "drain_grace": "drain_timeout",
    "max_arguments": "max_argument_bytes",
    "max_result": "max_result_bytes",
    "output_page": "output_page_characters",
    "rate_over": "rate_limit_action",
    "breaker_rate": "circuit_failure_rate",
    "breaker_calls": "circuit_minimum_calls",
    "breaker_pause": "circuit_reset_timeout",
    "retry_pause": "retry_delay",
    "loop_threshold": "failure_loop_threshold",
    "events_kept": "events_maxlen",
    "record_kept": "record_ttl",
    "record_total": "record_folder_bytes",
    "order": "turn_order",
    "unserved_after": "unserved_timeout",
    "feedback_style": "rejection_style",
}
"""Renamed settings: the old name, then the new one."""


class Settings(BaseSettings):
    """Durations are seconds, sizes bytes. Raises pydantic.ValidationError on a bad value.

    Raises `Misconfigured` for a `TOOLPOOL_..._FILE` that cannot be used.
    """

    model_config = SettingsConfigDict(
        env_prefix="TOOLPOOL_",
        env_ignore_empty=True,
        frozen=True,
        extra="ignore",
        hide_input_in_errors=True,
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """In order of precedence: keyword arguments, the environment, files that the environment
        names.
        """
        return init_settings, env_settings, SettingFiles(settings_cls)

    redis_url: str | None = Field(
        default=None, description="Redis or Valkey for records and replies."
    )
    broker_url: str | None = Field(
        default=None, description="Celery broker; the Redis URL by default."
    )
    signing_key: SecretStr | None = Field(
        default=None, description="Comma-separated keys: the first signs, all verify."
    )
    key_prefix: str = Field(default="toolpool", description="Prefix of every Redis key and queue.")
    tenant: str = Field(default="default", description="The tenant of the calls.")
    tools: str = Field(default="", description="Comma-separated tools modules or files.")
    worker_observers: str = Field(
        default="", description="Comma-separated observers of workers, each `module:name`."
    )

    secrets: str = Field(
        default="",
        description="The source of the secrets of tools: `env`, `file:DIRECTORY` or "
        "`module:callable`.",
    )

    log_level: Literal["debug", "info", "warning", "error"] = Field(
        default="info", description="Lowest level that workers and commands log."
    )
    log_format: Literal["text", "json"] = Field(
        default="text", description="`text`, or `json` for a JSON object per line."
    )
    error_texts: bool = Field(
        default=False,
        description="Whether logs and observers get the messages of tools' exceptions.",
    )

    sentry_timeouts: bool = Field(
        default=False, description="Whether calls that timed out are warnings in Sentry."
    )
    sentry_per_minute: int = Field(
        default=100, ge=1, description="Reports to Sentry per minute; a tenth of that per issue."
    )
    sentry_before_send: str = Field(
        default="",
        description="Changes or drops events of workers for Sentry, as `module:function`.",
    )

    metrics_port: int | str = Field(
        default=0,
        description="Port that serves metrics for Prometheus; 0 is off.",
        union_mode="left_to_right",
    )
    metrics_host: str = Field(default="127.0.0.1", description="Address that serves metrics.")

    health_file: str | None = Field(
        default=None, description="File that a worker's supervisor touches while it is alive."
    )

    queue_timeout: float = Field(
        default=30.0, gt=0, description="How long a call may wait to start."
    )
    background_wait: float = Field(
        default=10.0,
        ge=0,
        description="How long to wait for a background call before its handle is returned.",
    )
    background_result_ttl: float = Field(
        default=86_400.0, gt=0, description="How long results of background calls are kept."
    )
    result_ttl: float = Field(default=300.0, gt=0, description="How long a settled record is kept.")
    dedup_ttl: float = Field(
        default=86_400.0,
        gt=0,
        description="How long a claimed call that may not run twice is remembered.",
    )
    turn_ttl: float = Field(
        default=3600.0,
        ge=0,
        description="How long the turns of calls are remembered, to resume a history; 0 is off.",
    )
    worker_return_timeout: float = Field(
        default=10.0,
        ge=0,
        description="How long a call that may not run twice waits for a lost worker to return; "
        "background calls wait six times as long.",
    )
    connect_timeout: float = Field(default=5.0, gt=0, description="How long to wait for Redis.")
    catalog_timeout: float = Field(
        default=10.0, ge=0, description="How long to wait for the first tool."
    )
    unserved_timeout: float = Field(
        default=60.0,
        ge=0,
        description="How long a tool stays offered if no live worker of its queue has it.",
    )
    lease_ttl: float = Field(
        default=8.0, gt=0, description="When a lease that is not renewed expires."
    )
    worker_stall_timeout: float = Field(
        default=10.0, gt=0, description="When a silent worker is killed."
    )
    event_loop_timeout: float = Field(
        default=10.0, gt=0, description="When a blocked event loop ends the worker."
    )
    drain_timeout: float = Field(
        default=10.0, ge=0, description="How long running calls may take when a worker stops."
    )

    max_argument_bytes: int = Field(default=_MIB, gt=0, description="Size of one call's arguments.")
    output_page_characters: int = Field(
        default=32_768, ge=1, description="Characters of one page of an output."
    )
    max_result_bytes: int = Field(
        default=8 * _MIB,
        gt=0,
        description="Size of the largest output of one call that is accepted.",
    )
    slots_loop: int = Field(default=256, ge=1, description="Coroutine tools running at once.")
    slots_thread: int = Field(default=16, ge=1, description="Thread tools running at once.")
    slots_process: int = Field(
        default=max(2, os.cpu_count() or 2), ge=1, description="Child processes running at once."
    )

    turn_order: Literal["effects", "strict"] = Field(
        default="effects",
        description="`strict`: with a write among a turn's calls, they run one after another.",
    )
    calls_per_turn: int = Field(
        default=64, ge=1, description="Calls accepted from one model response."
    )
    in_flight_per_session: int = Field(
        default=64, ge=1, description="Calls of a session on the queue."
    )
    waiting_per_session: int = Field(
        default=10_000, ge=1, description="Calls of a session that wait."
    )
    waiting_per_dispatcher: int = Field(
        default=20_000, ge=1, description="Calls of all sessions that wait."
    )

    session_rate: str | None = Field(
        default=None, description="Rate limit for calls of one session, such as `60/min`."
    )
    tenant_rate: str | None = Field(
        default=None, description="Rate limit for calls of this tenant, such as `1000/min`."
    )
    rate_limit_action: Literal["wait", "refuse"] = Field(
        default="wait", description="Whether a call over a rate limit waits or is refused."
    )

    circuit_failure_rate: float = Field(
        default=0.9, gt=0, le=1, description="Share of failures at which a tool's circuit opens."
    )
    circuit_minimum_calls: int = Field(
        default=50, ge=1, description="Calls of a tool before its circuit can open."
    )
    circuit_reset_timeout: float = Field(
        default=30.0, gt=0, description="How long an open circuit stays open."
    )
    circuit_scope: Literal["dispatcher", "fleet"] = Field(
        default="dispatcher",
        description="Whether a circuit is open for its dispatcher, or for the whole fleet.",
    )
    retry_delay: float = Field(
        default=0.2, gt=0, description="First pause before a retry by the pool."
    )

    rejection_style: Literal["default", "numbered", "pointer", "brief"] = Field(
        default="default", description="Layout of a rejection."
    )
    mask_errors: bool = Field(
        default=False,
        description="Whether the model gets only the class and an id of a tool's exception.",
    )
    failure_loop_threshold: int = Field(
        default=3,
        ge=0,
        description="How often one call may fail in a session before it is a loop; 0 is off.",
    )
    hook_timeout: float = Field(
        default=5.0, gt=0, description="How long a hook or the source of secrets may take."
    )
    policy: str | None = Field(default=None, description="File of rules about calls.")
    policy_required: bool = Field(
        default=False, description="Whether workers run only calls that a policy has judged."
    )
    before_call: str | None = Field(
        default=None, description="Hook that decides about calls, as `module:function`."
    )
    after_result: str | None = Field(
        default=None, description="Hook that may change results, as `module:function`."
    )
    approval_expires: float = Field(
        default=86_400.0,
        gt=0,
        le=10 * 365 * 86_400.0,
        description="How long a person may take to approve a call.",
    )
    approval_webhook: str | None = Field(
        default=None, description="URL that is notified when a call waits for approval."
    )
    approval_webhook_secret: SecretStr | None = Field(
        default=None, description="Secret that signs requests to the approval webhook."
    )
    repair: bool = Field(
        default=True, description="Whether arguments are repaired if only one repair is possible."
    )
    locale: str = Field(
        default="en", description="Language of messages to the model: `en` or `zh`."
    )

    workspace: Path = Field(
        default=Path("."), description="Root that the file tools are confined to."
    )
    bash: bool = Field(default=False, description="Whether the bash tool runs commands.")
    http_private: bool = Field(
        default=False, description="Whether http_get may reach private addresses."
    )

    events: bool = Field(
        default=False,
        description="Whether events are published, so that every process can follow them.",
    )
    events_maxlen: int = Field(
        default=100_000, ge=1_000, description="How many published events are kept."
    )
    record: str | None = Field(
        default=None, description="Session record: a folder, or a file that ends in .jsonl."
    )
    record_sync: Literal["flush", "fsync"] = Field(
        default="flush", description="`fsync`: rows survive a power failure, not only a crash."
    )
    record_ttl: float = Field(
        default=2_592_000.0,
        ge=0,
        description="How long files in the record's folder are kept after their last row.",
    )
    record_folder_bytes: int = Field(
        default=10 * 1024 * _MIB,
        ge=0,
        description="Size at which the oldest files in the record's folder are removed.",
    )

    @field_validator("metrics_host")
    @classmethod
    def _is_not_every_address(cls, host: str) -> str:
        return host or "127.0.0.1"

    @model_validator(mode="before")
    @classmethod
    def _are_known(cls, values: Any) -> Any:
        """Reject unknown names. Pass on empty variables that protect, so that they are rejected."""
        for name in values.keys() - cls.model_fields.keys():
            near = _nearest(name)
            hint = f"; did you mean {near}?" if near else ""
            if name in _RENAMED:
                hint = f": it is {_RENAMED[name]} now"
            if name in _REMOVED:
                hint = f" any more: {_REMOVED[name]}"
            raise PydanticCustomError(
                "unknown", "there is no setting {name}{hint}", {"name": name, "hint": hint}
            )
        for variable in os.environ:
            prefix, _, old = variable.upper().partition("_")
            if prefix != "TOOLPOOL":
                continue
            if new := _RENAMED.get(old.lower()):
                names = {"old": variable, "new": f"TOOLPOOL_{new.upper()}"}
                raise PydanticCustomError("renamed", "rename {old} to {new}", names)
            if why := _REMOVED.get(old.lower()):
                names = {"old": variable, "why": why}
                raise PydanticCustomError("removed", "unset {old}: {why}", names)
        empty = {name.lower() for name, value in os.environ.items() if not value}  # as pydantic
        return {name: "" for name in _PROTECTING if f"toolpool_{name}" in empty} | values

    @field_validator(*_PROTECTING, mode="before")
    @classmethod
    def _is_not_empty(cls, value: Any) -> Any:
        if value == "":
            raise PydanticCustomError(
                "empty",
                "it is empty, which would protect nothing: give it a value, or unset it",
            )
        return value

    @field_validator("*")
    @classmethod
    def _is_countable(cls, value: Any) -> Any:
        """Redis counts the time in milliseconds, which a larger number would overflow."""
        if isinstance(value, float) and not value <= _LONGEST_SECONDS:
            raise PydanticCustomError(
                "duration",
                "it is at most {most}, which is ten years for a time in seconds",
                {"most": _LONGEST_SECONDS},
            )
        return value

    @field_validator("key_prefix")
    @classmethod
    def _is_prefix(cls, prefix: str) -> str:
        if not is_prefix(prefix):
            raise PydanticCustomError(
                "prefix",
                "it is part of the names of keys and queues: use 1 to 64 letters, digits and the "
                "characters _ . - and :",
            )
        return prefix

    @field_validator("session_rate", "tenant_rate")
    @classmethod
    def _is_rate(cls, rate: str | None) -> str | None:
        if not rate:
            return None
        try:
            return str(rate_of(rate))
        except ValueError as error:
            raise PydanticCustomError("rate", "{why}", {"why": str(error)}) from None

    @property
    def lease_interval(self) -> float:
        """The seconds between two renewals of a worker's lease.

        A worker without a fresh lease starts no calls, and a single late renewal must not let the
        lease expire.
        """
        return self.lease_ttl / 4

    @property
    def longest_stall(self) -> float:
        """After how many seconds a worker that stands still is ended, in any case."""
        return max(self.worker_stall_timeout, self.event_loop_timeout)

    @property
    def max_message_bytes(self) -> int:
        """The size limit of one message, which holds its arguments as quoted JSON."""
        return 2 * self.max_argument_bytes

    def slots(self, run_in: RunIn) -> int:
        """How many calls with this `run_in` a worker runs at once."""
        return {
            RunIn.LOOP: self.slots_loop,
            RunIn.THREAD: self.slots_thread,
            RunIn.PROCESS: self.slots_process,
        }[run_in]


def _nearest(name: str) -> str | None:
    """The setting that an operator probably meant."""
    return next(iter(get_close_matches(name, Settings.model_fields, n=1, cutoff=0.7)), None)


def mistyped_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The `TOOLPOOL_*` variables that are not settings, with the setting probably meant.

    Variables that resemble no setting, and those that Kubernetes sets, are left out.
    """
    found = {}
    for variable, value in environ.items():
        prefix, _, name = variable.upper().partition("_")
        if prefix != "TOOLPOOL" or name.lower() in Settings.model_fields:
            continue
        is_address = value.startswith(("tcp://", "udp://", "sctp://"))
        if is_address or _KUBERNETES.fullmatch(name) or _OTHER_VARIABLES.fullmatch(name):
            continue
        if near := _nearest(name.lower()):
            found[variable] = f"TOOLPOOL_{near.upper()}"
    return found


@cache
def warn_of_mistyped_variables() -> None:
    """Log each mistyped variable, once per process."""
    for variable, near in mistyped_variables(os.environ).items():
        log.warning("setting_unknown name=%s: did you mean %s?", variable, near)
