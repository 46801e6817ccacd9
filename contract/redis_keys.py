"""Every queue name and every Redis key, in one place."""

import re

from toolpool.contract.spec import RunIn

BATCH_TASK = "toolpool.batch"
"""The one Celery task: its single argument is a signed batch."""
TASK_TOOLS = frozenset({"task_result", "task_cancel", "task_list"})
"""The pool's own tools, which dispatchers answer."""


_KINDS = frozenset(kind.value for kind in RunIn)
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_QUEUE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SECRET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def toolset_queue(queue: str, toolset: str) -> str:
    """The queue beside `queue` that only workers with this toolset take from."""
    return f"{queue}.{toolset[:8]}"


def common_queue(queue: str) -> str:
    """The queue that `queue`, which may be one of a toolset, stands beside."""
    rest, _, last = queue.rpartition(".")
    return queue if last in _KINDS else rest


def is_prefix(text: str) -> bool:
    """Whether it may stand before every name: no pattern to a server, and no two words."""
    return _PREFIX.fullmatch(text) is not None


def is_queue(text: str) -> bool:
    """Whether tools may name it. Without dots, so that no two deployments mean the same queue."""
    return _QUEUE.fullmatch(text) is not None


def is_secret(text: str) -> bool:
    """Whether a secret may be called so: also the name of a file that is in no other folder."""
    return _SECRET.fullmatch(text) is not None


KEYS_WITHOUT_EXPIRY = frozenset({"epoch", "switches", "unacked", "unacked_index"})
"""Key kinds (the word after the prefix) that may live for ever; every other key must expire."""


class RedisKeys:
    """The Celery queues and Redis keys under one prefix."""

    def __init__(self, prefix: str = "toolpool") -> None:
        self.prefix = prefix
        self.epoch = f"{prefix}:epoch"
        self.catalog = f"{prefix}:catalog"
        self.catalog_version = f"{prefix}:catalog_version"
        self.catalog_ages = f"{prefix}:catalog_ages"
        self.switches = f"{prefix}:switches"
        self.circuits = f"{prefix}:circuits"
        self.workers = f"{prefix}:workers"
        self.toolsets = f"{prefix}:toolsets"
        """When a worker last renewed a lease that names each toolset: a sorted set."""
        self.dispatchers = f"{prefix}:dispatchers"
        self.loops = f"{prefix}:loops"
        self.outputs = f"{prefix}:outputs"
        self.alive = f"{prefix}:alive"
        """Which worker said last that the pool is alive."""
        self.events = f"{prefix}:events"
        self.call_prefix = f"{prefix}:call:"
        self.ran_prefix = f"{prefix}:ran:"
        self.unacked = f"{prefix}:unacked"
        """What Celery has taken and not acknowledged, on Redis; two more stand beside it."""

    def queue(self, queue: str, run_in: RunIn) -> str:
        """The Celery queue of tools declared with `queue=` that run in `run_in`."""
        return f"{self.prefix}.{queue}.{run_in.value}"

    @staticmethod
    def catalog_field(tool: str, digest: str, key_id: str) -> str:
        """The field of one tool's spec, as one signer publishes it, in the catalog hash."""
        return f"{tool}\0{digest}\0{key_id}"

    def toolset(self, digest: str) -> str:
        """What workers of one release offer: a string."""
        return f"{self.prefix}:toolset:{digest}"

    def call(self, key: str) -> str:
        """The ledger record of one call: a hash."""
        return self.call_prefix + key

    def shared(self, digest: str) -> str:
        """The run that equal calls share: a string."""
        return f"{self.prefix}:shared:{digest}"

    def approvals(self, owner: str) -> str:
        """Which calls of a tenant wait for approval, by when that is too late: a sorted set."""
        return f"{self.prefix}:approvals:{owner}"

    def approved(self, owner: str) -> str:
        """Which of a tenant's were approved and not sent, by when to look again: a sorted set."""
        return f"{self.prefix}:approved:{owner}"

    def reply(self, dispatcher: str) -> str:
        """The stream a dispatcher reads its replies from."""
        return f"{self.prefix}:reply:{dispatcher}"

    def background(self, handle: str) -> str:
        """What a handle stands for."""
        return f"{self.prefix}:background:{handle}"

    def ran(self, key: str) -> str:
        """The mark of a call that was claimed and may not run twice; it outlives the record."""
        return self.ran_prefix + key

    def ended(self, key: str) -> str:
        """Says that the tool of a call ended after the call was answered: a string."""
        return f"{self.prefix}:ended:{key}"

    def output(self, handle: str) -> str:
        """The whole output of a call."""
        return f"{self.prefix}:output:{handle}"

    def outputs_of(self, owner: str) -> str:
        """The whole outputs of one session, the oldest first: a sorted set."""
        return f"{self.prefix}:outputs:{owner}"

    def handles(self, owner: str) -> str:
        """The handles of one session, by when they were given: a sorted set."""
        return f"{self.prefix}:handles:{owner}"

    def loop(self, session: str) -> str:
        """What failed in a session: a list of digests."""
        return f"{self.prefix}:loop:{session}"

    def rate(self, limit: str) -> str:
        """The calls that one rate limit counts, by when it no longer does: a sorted set."""
        return f"{self.prefix}:rate:{limit}"

    def trial(self, circuit: str) -> str:
        """Which dispatcher may try the tool of an open circuit: a string."""
        return f"{self.prefix}:trial:{circuit}"

    def turns(self, hour: int) -> str:
        """The turns that calls were dispatched in within an hour of Unix time: a sorted set."""
        return f"{self.prefix}:turns:{hour}"

    def worker(self, worker: str) -> str:
        """A worker's lease: a string that holds its description."""
        return f"{self.prefix}:worker:{worker}"

    def dispatcher(self, dispatcher: str) -> str:
        """A dispatcher's lease, with its signed report. Others leave it its calls meanwhile."""
        return f"{self.prefix}:dispatcher:{dispatcher}"

    def cancel(self, worker: str) -> str:
        """The list a worker takes cancels from."""
        return f"{self.prefix}:cancel:{worker}"
