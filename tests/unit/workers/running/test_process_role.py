"""Where no fleet may be started (R62)."""

import pytest

from toolpool import Dispatcher, SyncDispatcher
from toolpool.contract.errors import Misconfigured
from toolpool.workers.running import process_role


def test_not_while_tools_are_imported() -> None:
    process_role.require_outside()
    with (
        process_role.Importing("shop.py"),
        pytest.raises(Misconfigured, match="in shop.py, put what"),
    ):
        Dispatcher.local()
    process_role.require_outside()


def test_not_in_a_worker_either(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that a module started lives longer than its import."""
    monkeypatch.setattr(process_role, "_is_worker", True)
    with pytest.raises(Misconfigured, match='under `if __name__ == "__main__":`'):
        SyncDispatcher.local()


@pytest.mark.parametrize(("depth", "refused"), [("", False), ("1", False), ("2", True)])
def test_fleets_that_start_each_other_do_not_multiply(
    monkeypatch: pytest.MonkeyPatch, depth: str, refused: bool
) -> None:
    monkeypatch.setenv(process_role.DEPTH, depth)
    if refused:
        with pytest.raises(Misconfigured):
            process_role.require_outside()
    else:
        process_role.require_outside()
