"""The Prometheus metrics of a worker. Its supervisor adds up those of all its processes."""

from toolpool.contract.telemetry.families import BUILD, DROPPED, LAG, SECONDS, STALL, Family, Kind

RAN = Family(
    "toolpool_runs_total",
    Kind.COUNTER,
    "Calls that a worker answered, each attempt separately; ok for a success.",
    ("tool", "error_type", "code", "cause"),
)
RUN_SECONDS = Family(
    "toolpool_run_duration_seconds",
    Kind.HISTOGRAM,
    "Seconds for which a tool ran, from when its call was passed to a task, thread or process.",
    ("tool",),
    SECONDS,
)
QUEUE_WAIT = Family(
    "toolpool_queue_wait_seconds",
    Kind.HISTOGRAM,
    "Seconds from the sending of a call's message to the start of its tool.",
    ("queue",),
    SECONDS,
)
RUNNING = Family(
    "toolpool_running_calls", Kind.SUM, "Calls that run, or are claimed and about to run."
)
STUCK = Family(
    "toolpool_stuck_slots",
    Kind.SUM,
    "Slots held by calls that do not end although they were told to.",
)
RELEASED = Family(
    "toolpool_released_calls_total",
    Kind.COUNTER,
    "Calls that were given back, to be run by another worker.",
    ("tool",),
)
REFUSED = Family(
    "toolpool_refused_messages_total",
    Kind.COUNTER,
    "Messages that were dropped: not from this deployment, malformed, or too late.",
    ("reason",),
)
BLOCKED = Family(
    "toolpool_event_loop_blocked_total",
    Kind.COUNTER,
    "Times that a tool blocked the event loop for a tenth of TOOLPOOL_EVENT_LOOP_TIMEOUT.",
    ("tool",),
)
PROCESSES = Family(
    "toolpool_worker_processes", Kind.SUM, "Worker processes of this supervisor that run."
)
FAILURES = Family(
    "toolpool_worker_process_failures_total",
    Kind.COUNTER,
    "Worker processes that ended by themselves or were killed.",
)

FAMILIES = (
    BUILD, RAN, RUN_SECONDS, QUEUE_WAIT, RUNNING, STUCK, RELEASED, REFUSED, BLOCKED, LAG, STALL,
    DROPPED, PROCESSES, FAILURES,
)  # fmt: skip
