"""Every queue name and every Redis key, in one place."""

from contract.spec import RunIn

BATCH_TASK = "toolpool.batch"
"""The one Celery task: its single argument is a signed batch."""


def queue_name(queue: str, run_in: RunIn) -> str:
    """The Celery queue of tools declared with `queue=` that run in `run_in`."""
    return f"toolpool.{queue}.{run_in.value}"


KEYS_WITHOUT_EXPIRY = frozenset({"epoch", "switches"})
"""Key kinds (the word after the prefix) that may live for ever; every other key must expire."""


class Names:
    """The Redis keys under one prefix."""

    def __init__(self, prefix: str = "toolpool") -> None:
        self.prefix = prefix
        self.epoch = f"{prefix}:epoch"
        self.catalog = f"{prefix}:catalog"
        self.catalog_version = f"{prefix}:catalog_version"
        self.switches = f"{prefix}:switches"
        self.workers = f"{prefix}:workers"
        self.loops = f"{prefix}:loops"
        self.call_prefix = f"{prefix}:call:"

    @staticmethod
    def catalog_field(tool: str, digest: str) -> str:
        """The field of one tool's spec in the catalog hash."""
        return f"{tool}\0{digest}"

    def call(self, key: str) -> str:
        """The ledger record of one call: a hash."""
        return self.call_prefix + key

    def reply(self, dispatcher: str) -> str:
        """The stream a dispatcher reads its replies from."""
        return f"{self.prefix}:reply:{dispatcher}"

    def background(self, handle: str) -> str:
        """What a handle stands for."""
        return f"{self.prefix}:background:{handle}"

    def output(self, handle: str) -> str:
        """The whole output of a call."""
        return f"{self.prefix}:output:{handle}"

    def handles(self, owner: str) -> str:
        """The handles of one session, by when they were given: a sorted set."""
        return f"{self.prefix}:handles:{owner}"

    def loop(self, session: str) -> str:
        """What failed in a session: a list of digests."""
        return f"{self.prefix}:loop:{session}"

    def worker(self, worker: str) -> str:
        """A worker's lease: a string that holds its description."""
        return f"{self.prefix}:worker:{worker}"

    def offers(self, worker: str) -> str:
        """Which tools a worker has, by digest: read beside its lease."""
        return f"{self.prefix}:offers:{worker}"

    def dispatcher(self, dispatcher: str) -> str:
        """A dispatcher's lease: while it is there, others leave it the calls it asked for."""
        return f"{self.prefix}:dispatcher:{dispatcher}"

    def cancel(self, worker: str) -> str:
        """The list a worker takes cancels from."""
        return f"{self.prefix}:cancel:{worker}"
