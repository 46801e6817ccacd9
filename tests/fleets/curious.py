"""Tools that look for what they must not find."""

import os
from pathlib import Path

from toolpool import tool


def _look(secret: str) -> dict[str, str]:
    """What of this process and its forebears could be read, and whether the secret was in it."""
    found, pid = {}, os.getpid()
    for generation in ("own", "parent", "grandparent"):
        for name in ("environ", "cmdline"):
            try:
                text = Path(f"/proc/{pid}/{name}").read_bytes()
            except OSError:
                found[f"{generation} {name}"] = "closed"
            else:
                found[f"{generation} {name}"] = "told" if secret.encode() in text else "clean"
        status = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        pid = int(status[1])
    return found


@tool(run_in="process")
def look_from_a_child(secret: str) -> dict[str, str]:
    """Look from a child process."""
    return _look(secret)


@tool
async def look_from_the_worker(secret: str) -> dict[str, str]:
    """Look from the worker."""
    found = _look(secret)
    inherited = [name for name, value in os.environ.items() if secret in value]
    return found | {"variables": ",".join(inherited)}
