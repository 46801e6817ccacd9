"""What both sides count, as Prometheus calls it."""

from toolpool.contract.observer_dispatch import PULSE_SECONDS
from toolpool.contract.telemetry.metric_store import LAG_SECONDS, Family, Kind

BUILD = Family(
    "toolpool_build_info", Kind.MOST, "Always 1; its label says which version runs.", ("version",)
)
LAG = Family(
    "toolpool_event_loop_lag_seconds",
    Kind.HISTOGRAM,
    "Seconds by which the event loop came too late to what was due, seen four times a second.",
    buckets=LAG_SECONDS,
)
STALL = Family(
    "toolpool_event_loop_stall_seconds",
    Kind.SINCE,
    "Seconds for which the event loop has not turned, as of now.",
    grace=2 * PULSE_SECONDS,
)
DROPPED = Family(
    "toolpool_observer_drops_total",
    Kind.COUNTER,
    "Moments that observers on threads of their own were too slow for.",
)
