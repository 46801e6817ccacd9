"""Every queue name and every Redis key, in one place."""

from contract.spec import RunIn

BATCH_TASK = "toolpool.batch"
"""The one Celery task: its single argument is a signed batch."""


def queue_name(queue: str, run_in: RunIn) -> str:
    """The Celery queue of tools declared with `queue=` that run in `run_in`."""
    return f"toolpool.{queue}.{run_in.value}"


def toolset_queue(queue: str, toolset: str) -> str:
    """The queue beside `queue` that only workers with this toolset take from."""
    return f"{queue}.{toolset[:8]}"


KEYS_WITHOUT_EXPIRY = frozenset({"epoch", "switches"})
"""Key kinds (the word after the prefix) that may live for ever; every other key must expire."""


class Names:
    """The Redis keys under one prefix."""

    def __init__(self, prefix: str = "toolpool") -> None:
        self.prefix = prefix
        self.epoch = f"{prefix}:epoch"
        self.catalog = f"{prefix}:catalog"
        self.catalog_version = f"{prefix}:catalog_version"
        self.catalog_ages = f"{prefix}:catalog_ages"
        self.switches = f"{prefix}:switches"
        self.workers = f"{prefix}:workers"
        self.loops = f"{prefix}:loops"
        self.outputs = f"{prefix}:outputs"
        self.call_prefix = f"{prefix}:call:"
        self.ran_prefix = f"{prefix}:ran:"

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

    def reply(self, dispatcher: str) -> str:
        """The stream a dispatcher reads its replies from."""
        return f"{self.prefix}:reply:{dispatcher}"

    def background(self, handle: str) -> str:
        """What a handle stands for."""
        return f"{self.prefix}:background:{handle}"

    def ran(self, key: str) -> str:
        """The mark of a call that was claimed and may not run twice; it outlives the record."""
        return self.ran_prefix + key

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

    def worker(self, worker: str) -> str:
        """A worker's lease: a string that holds its description."""
        return f"{self.prefix}:worker:{worker}"

    def dispatcher(self, dispatcher: str) -> str:
        """A dispatcher's lease: while it is there, others leave it the calls it asked for."""
        return f"{self.prefix}:dispatcher:{dispatcher}"

    def cancel(self, worker: str) -> str:
        """The list a worker takes cancels from."""
        return f"{self.prefix}:cancel:{worker}"
