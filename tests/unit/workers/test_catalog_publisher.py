"""What a worker's release offers, by one digest."""

from toolpool.contract.spec import ToolSpec, sealed
from toolpool.workers.catalog_publisher import toolset_of


def test_the_same_tools_are_the_same_toolset_in_whatever_order() -> None:
    one, two = sealed(ToolSpec(name="a")), sealed(ToolSpec(name="b"))
    made = toolset_of([one, two])
    assert made.tools == {"a": one.digest, "b": two.digest}
    assert made == toolset_of([two, one])
    changed = sealed(ToolSpec(name="b", description="new"))
    assert toolset_of([one, changed]).digest != made.digest
    assert toolset_of([one]).digest != made.digest
