"""Where no fleet may be started (R62)."""

import pytest

from toolpool import Dispatcher, SyncDispatcher
from toolpool.contract.errors import Misconfigured
from toolpool.workers.running import inside


def test_not_while_tools_are_imported() -> None:
    inside.require_outside()
    with inside.Importing("shop.py"), pytest.raises(Misconfigured, match="in shop.py, put what"):
        Dispatcher.local()
    inside.require_outside()


def test_not_in_a_worker_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that a module started lives longer than its import."""
    monkeypatch.setattr(inside, "_is_worker", True)
    with pytest.raises(Misconfigured, match='under `if __name__ == "__main__":`'):
        SyncDispatcher.local()


@pytest.mark.parametrize(("depth", "refused"), [("", False), ("1", False), ("2", True)])
def test_nor_in_a_program_that_fleets_start_in_a_circle(
    monkeypatch: pytest.MonkeyPatch, depth: str, refused: bool
) -> None:
    monkeypatch.setenv(inside.DEPTH, depth)
    if refused:
        with pytest.raises(Misconfigured):
            inside.require_outside()
    else:
        inside.require_outside()
