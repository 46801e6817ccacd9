"""Run in relay's own environment: what relay finds wrong with events and transactions."""

import json
import sys
from typing import Any

from sentry_relay.processing import StoreNormalizer


def faults_of(payload: dict[str, Any]) -> list[str]:
    """What relay would strike out, or refuse it for."""
    try:
        normal = StoreNormalizer(project_id=1).normalize_event(event=payload)
    except Exception as error:  # its classes are made as they are raised
        return [str(error).partition("\n")[0]]
    faults = [json.dumps(error) for error in normal.get("errors") or ()]
    if "_meta" in normal:
        faults.append(json.dumps(normal["_meta"]))
    return faults


def main() -> None:
    """Items on standard input, faults on standard output."""
    checked, faults = 0, []
    for header, payload in json.load(sys.stdin):
        if header["type"] in ("event", "transaction"):
            checked += 1
            faults += faults_of(payload)
    print(json.dumps({"checked": checked, "faults": faults[:20]}))


if __name__ == "__main__":
    main()
