"""Every queue name, every Redis key and the key of every ledger record, in one place."""

import re
import uuid

from toolpool.contract.spec import RunIn

BATCH_TASK = "toolpool.batch"
"""The only Celery task; its single argument is a signed batch."""
TASK_TOOLS = frozenset({"task_result", "task_cancel", "task_list"})
"""The pool's own tools, which dispatchers answer themselves."""


_KINDS = frozenset(kind.value for kind in RunIn)
_PREFIX = re.compile(r"[A-Za-z0-9_.:-]{1,64}")
_QUEUE = re.compile(r"[A-Za-z0-9_-]{1,64}")
_SECRET = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


def toolset_queue(queue: str, toolset: str) -> str:
    """The queue beside `queue` that only workers with this toolset consume."""
    return f"{queue}.{toolset[:8]}"


def common_queue(queue: str) -> str:
    """The base queue of `queue`, which may be a toolset's queue."""
    rest, _, last = queue.rpartition(".")
    return queue if last in _KINDS else rest


def is_prefix(text: str) -> bool:
    """Whether `text` is a valid key prefix: no glob pattern and no whitespace."""
    return _PREFIX.fullmatch(text) is not None


def is_queue(text: str) -> bool:
    """Whether `text` is a valid queue name; without dots, so that deployments cannot collide."""
    return _QUEUE.fullmatch(text) is not None


def is_secret(text: str) -> bool:
    """Whether `text` is a valid secret name, which is also safe as a file name."""
    return _SECRET.fullmatch(text) is not None


KEYS_WITHOUT_EXPIRY = frozenset({"epoch", "switches"})
"""Key kinds (the word after the prefix) that may live forever; every other key must expire."""


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
        """A sorted set: when a worker last renewed a lease with each toolset."""
        self.dispatchers = f"{prefix}:dispatchers"
        self.loops = f"{prefix}:loops"
        self.outputs = f"{prefix}:outputs"
        self.alive = f"{prefix}:alive"
        """The worker that last reported the pool alive."""
        self.events = f"{prefix}:events"
        self.call_prefix = f"{prefix}:call:"
        self.ran_prefix = f"{prefix}:ran:"

    def queue(self, queue: str, run_in: RunIn) -> str:
        """The Celery queue of tools declared with `queue=` that run in `run_in`."""
        return f"{self.prefix}.{queue}.{run_in.value}"

    @staticmethod
    def catalog_field(tool: str, digest: str, key_id: str) -> str:
        """The field in the catalog hash for one signer's spec of one tool."""
        return f"{tool}\0{digest}\0{key_id}"

    def liveness(self, worker: str) -> str:
        """The channel to which a living worker is subscribed, and nothing is published."""
        return f"{self.prefix}:liveness:{worker}"

    def toolset(self, digest: str) -> str:
        """The toolset of one worker release: a string."""
        return f"{self.prefix}:toolset:{digest}"

    def call(self, key: str) -> str:
        """The ledger record of one call: a hash."""
        return self.call_prefix + key

    def shared(self, digest: str) -> str:
        """The run that equal calls share: a string."""
        return f"{self.prefix}:shared:{digest}"

    def approvals(self, owner: str) -> str:
        """A tenant's calls that wait for approval, by expiry: a sorted set."""
        return f"{self.prefix}:approvals:{owner}"

    def approved(self, owner: str) -> str:
        """A tenant's approved calls that were not sent, by next check: a sorted set."""
        return f"{self.prefix}:approved:{owner}"

    def reply(self, dispatcher: str) -> str:
        """The stream a dispatcher reads its replies from."""
        return f"{self.prefix}:reply:{dispatcher}"

    def background(self, handle: str) -> str:
        """The background call behind a handle: a string."""
        return f"{self.prefix}:background:{handle}"

    def ran(self, key: str) -> str:
        """The mark of a claimed call that may not run twice; it outlives the record."""
        return self.ran_prefix + key

    def ended(self, key: str) -> str:
        """Set when a tool ends after its call was answered: a string."""
        return f"{self.prefix}:ended:{key}"

    def output(self, handle: str) -> str:
        """The whole output of a call: a string."""
        return f"{self.prefix}:output:{handle}"

    def outputs_of(self, owner: str) -> str:
        """The whole outputs of one session, oldest first: a sorted set."""
        return f"{self.prefix}:outputs:{owner}"

    def handles(self, owner: str) -> str:
        """The handles of one session, by creation time: a sorted set."""
        return f"{self.prefix}:handles:{owner}"

    def loop(self, session: str) -> str:
        """The failed calls of a session: a list of digests."""
        return f"{self.prefix}:loop:{session}"

    def rate(self, limit: str) -> str:
        """The calls that a rate limit counts, by expiry: a sorted set."""
        return f"{self.prefix}:rate:{limit}"

    def trial(self, circuit: str) -> str:
        """The dispatcher that may try the tool of an open circuit: a string."""
        return f"{self.prefix}:trial:{circuit}"

    def turns(self, hour: int) -> str:
        """The turns whose calls were dispatched in one hour of Unix time: a sorted set."""
        return f"{self.prefix}:turns:{hour}"

    def worker(self, worker: str) -> str:
        """A worker's lease: a string that holds its description."""
        return f"{self.prefix}:worker:{worker}"

    def dispatcher(self, dispatcher: str) -> str:
        """A dispatcher's lease with its report; while it lives, others leave its calls alone."""
        return f"{self.prefix}:dispatcher:{dispatcher}"

    def cancel(self, worker: str) -> str:
        """The list that a worker reads cancels from."""
        return f"{self.prefix}:cancel:{worker}"


_IDEMPOTENCY = uuid.UUID("6f0c3a0e-4d0b-5c8e-9a57-2f1d1c6b8e44")
"""Never change it: APIs behind tools identify calls by the keys that are derived from it."""


def root_of(key: str) -> str:
    """The common part of the keys of a call and its retries."""
    return key.partition(".")[0]


def retry_key(root: str, number: int) -> str:
    """The key of retry `number`, counted from 1; 0 is the call itself."""
    return f"{root}.{number}" if number else root


def retry_of(key: str) -> int:
    """The number of the retry that a key belongs to; 0 for the call itself."""
    number = key.partition(".")[2]
    return int(number) if number.isdecimal() else 0


def idempotency_key(key: str) -> str:
    """One UUID for a call and its retries that does not reveal their keys."""
    return str(uuid.uuid5(_IDEMPOTENCY, root_of(key)))
