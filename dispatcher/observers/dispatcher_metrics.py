"""The Prometheus metrics of a dispatcher."""

from toolpool.contract.telemetry.families import BUILD, DROPPED, LAG, SECONDS, STALL, Family, Kind

_CALLS = (1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 64.0, 128.0)

ENDED = Family(
    "toolpool_calls_total",
    Kind.COUNTER,
    "Calls that have their result, each counted by one dispatcher; ok for a success.",
    ("tool", "error_type", "code"),
)
FAILED_VALIDATION = Family(
    "toolpool_validation_failures_total",
    Kind.COUNTER,
    "Rejected calls by kind of error; a call with several kinds counts under each.",
    ("tool", "keyword"),
)
FIRST_TRIES = Family(
    "toolpool_first_tries_total",
    Kind.COUNTER,
    "Calls that do not correct a rejected one, and whether their arguments were valid.",
    ("tool", "verdict"),
)
CALL_SECONDS = Family(
    "toolpool_call_duration_seconds",
    Kind.HISTOGRAM,
    "Seconds from the acceptance of a call to its result.",
    ("tool",),
    SECONDS,
)
EXECUTED_UNKNOWN = Family(
    "toolpool_executed_unknown_total",
    Kind.COUNTER,
    "Calls for which it is unknown whether they ran to their end.",
    ("tool",),
)
LOST = Family(
    "toolpool_lost_calls_total",
    Kind.COUNTER,
    "Times that the worker of a call was lost while it ran.",
    ("tool",),
)
REDISPATCHED = Family(
    "toolpool_redispatches_total",
    Kind.COUNTER,
    "Times that a call was sent once more: its worker or its message was lost, or it was given "
    "back.",
    ("tool",),
)
RETRIED = Family(
    "toolpool_retries_total",
    Kind.COUNTER,
    "Retries of failed calls by the pool, because their tool allows it.",
    ("tool",),
)
SHARED = Family(
    "toolpool_shared_calls_total",
    Kind.COUNTER,
    "Calls answered from the run of an equal call: joined while it ran, or cached.",
    ("tool", "how"),
)
HOOK_FAILED = Family(
    "toolpool_hook_failures_total",
    Kind.COUNTER,
    "Failures of hooks, policy rules and the webhook; most of them deny the call.",
    ("hook",),
)
LATE = Family(
    "toolpool_late_results_total",
    Kind.COUNTER,
    "Outcomes that came after their calls had been answered.",
)
BATCH = Family(
    "toolpool_batch_calls", Kind.HISTOGRAM, "Calls in one message to a queue.", buckets=_CALLS
)
WAITING = Family(
    "toolpool_waiting_calls", Kind.SUM, "Accepted calls that no worker has started yet."
)
IN_FLIGHT = Family("toolpool_in_flight_calls", Kind.SUM, "Accepted calls without a result.")
OLDEST = Family(
    "toolpool_oldest_waiting_call_age_seconds",
    Kind.MOST,
    "Age of the oldest call that no worker has started; 0 without such calls. Calls that wait for "
    "a limit of their own tool or session do not count.",
)
APPROVALS = Family("toolpool_waiting_approvals", Kind.SUM, "Calls that wait for a person.")
OLDEST_APPROVAL = Family(
    "toolpool_oldest_waiting_approval_age_seconds",
    Kind.MOST,
    "Age of the oldest call that waits for a person; 0 without such calls.",
)
WORKERS = Family(
    "toolpool_workers_alive", Kind.MOST, "Workers whose leases this dispatcher sees renewed."
)

FAMILIES = (
    BUILD, ENDED, FAILED_VALIDATION, FIRST_TRIES, CALL_SECONDS, EXECUTED_UNKNOWN, LOST,
    REDISPATCHED, RETRIED, SHARED, HOOK_FAILED, LATE, BATCH, WAITING, IN_FLIGHT, OLDEST, APPROVALS,
    OLDEST_APPROVAL, WORKERS, LAG, STALL, DROPPED,
)  # fmt: skip

HOOKS = (
    "before_call", "after_result", "on_approval", "on_event", "on_loop", "rule", "webhook",
)  # fmt: skip
"""The values of the `hook` label; see `HookFailure`."""

KEYWORDS = frozenset({
    "additionalItems", "additionalProperties", "allOf", "anyOf", "const", "contains",
    "contentEncoding", "contentMediaType", "dependencies", "dependentRequired",
    "dependentSchemas", "else", "enum", "exclusiveMaximum", "exclusiveMinimum", "falseSchema",
    "format", "if", "items", "maxContains", "maxItems", "maxLength", "maxProperties", "maximum",
    "minContains", "minItems", "minLength", "minProperties", "minimum", "multipleOf", "not",
    "oneOf", "pattern", "patternProperties", "prefixItems", "properties", "propertyNames",
    "required", "then", "type", "unevaluatedItems", "unevaluatedProperties", "uniqueItems",
    "null", "schema", "tooDeep", "value",
})  # fmt: skip
"""JSON Schema's keywords, then the kinds of problems that only toolpool has: `Problem.kind`."""
