"""The pool's own tools, offered to the model beside any other tool."""

from collections.abc import Mapping
from typing import Any

from toolpool.contract.spec import Effects, ToolSpec, sealed

LONGEST_WAIT_SECONDS = 60.0
LISTED_AT_MOST = 50

_HANDLE = {"type": "string", "description": "The handle that the background call answered with."}


def _spec(
    name: str,
    description: str,
    properties: dict[str, Any],
    *,
    required: bool,
    effects: Effects | None = Effects.READ,
) -> ToolSpec:
    schema: dict[str, Any] = {
        "type": "object",
        "properties": properties,
        "additionalProperties": False,
    }
    if required:
        schema["required"] = ["handle"]
    return sealed(
        ToolSpec(
            name=name,
            description=description,
            input_schema=schema,
            effects=effects,
            idempotent=effects is None,
        )
    )


SPECS: Mapping[str, ToolSpec] = {
    spec.name: spec
    for spec in (
        _spec(
            "task_result",
            "Get the result of a background call, or a page of a long output. Waits for the result "
            "a little; say how long with `wait`.",
            {
                "handle": _HANDLE,
                "wait": {
                    "type": "number",
                    "minimum": 0,
                    "maximum": LONGEST_WAIT_SECONDS,
                    "description": "Seconds to wait for the result. Default: 10.",
                },
                "page": {
                    "type": "integer",
                    "minimum": 1,
                    "description": "Which page of a long output to read. Default: 1.",
                },
            },
            required=True,
        ),
        _spec(
            "task_cancel",
            "Stop a background call whose result is not needed any more.",
            {"handle": _HANDLE},
            required=True,
            effects=None,  # it reads nothing, and later calls need not wait
        ),
        _spec(
            "task_list",
            f"List this conversation's background calls, the newest {LISTED_AT_MOST} at most.",
            {},
            required=False,
        ),
    )
}
"""The pool's own tools, by name."""


def is_own(spec: ToolSpec) -> bool:
    """Whether it is the pool's own tool, and not a worker's tool of the same name."""
    return spec is SPECS.get(spec.name)
