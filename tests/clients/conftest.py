"""The fleet that clients dispatch to."""

from collections.abc import Iterator

import pytest

from toolpool.contract.settings import Settings
from toolpool.local import LocalFleet


@pytest.fixture(scope="session")
def fleet() -> Iterator[LocalFleet]:
    started = LocalFleet(["tests.clients.tools"], Settings())
    yield started
    started.close()
