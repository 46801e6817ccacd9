"""A real server that takes what Sentry takes: Bugsink, on a free port, with its own database."""

import json
import os
import secrets
import socket
import subprocess
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.environments import environment
from tests.waiting import wait_until

PACKAGES = ["bugsink==2.6.1"]
_SETTINGS = """
from bugsink.settings.default import *
SECRET_KEY = {secret!r}
SNAPPEA = {{"TASK_ALWAYS_EAGER": True}}
EMAIL_BACKEND = "bugsink.email_backends.QuietConsoleEmailBackend"
BUGSINK = {{
    "BASE_URL": "http://127.0.0.1:{port}",
    "SINGLE_USER": True,
    "SINGLE_TEAM": True,
    "VALIDATE_ON_DIGEST": "strict",
    "MAX_EVENTS_PER_PROJECT_PER_5_MINUTES": 100_000,
    "MAX_EVENTS_PER_PROJECT_PER_HOUR": 100_000,
    "MAX_EVENTS_PER_5_MINUTES": 100_000,
    "MAX_EVENTS_PER_HOUR": 100_000,
}}
"""
_ASK = """
import json
from issues.models import Issue
from events.models import Event
found = []
for issue in Issue.objects.all():
    event = Event.objects.filter(issue=issue).order_by("digest_order").last()
    found.append({
        "type": issue.calculated_type,
        "value": issue.calculated_value,
        "transaction": issue.transaction,
        "count": issue.digested_event_count,
        "tags": event.get_parsed_data().get("tags", {}),
    })
print("FOUND" + json.dumps(found))
"""
_MAKE = """
from projects.models import Project
project = Project.objects.create(name="toolpool", slug="toolpool")
print("FOUND" + __import__("json").dumps([project.id, project.sentry_key.hex]))
"""


class Bugsink:
    """A project of a running server."""

    def __init__(self, programs: Path, home: Path, environ: dict[str, str], port: int) -> None:
        self._manage = str(programs / "bugsink-manage")
        self._home = home
        self._environ = environ
        number, key = self._asked(_MAKE)
        self.dsn = f"http://{key}@127.0.0.1:{port}/{number}"

    def issues(self) -> list[dict[str, Any]]:
        """Every issue, with how many events it has and the tags of the last."""
        found: list[dict[str, Any]] = self._asked(_ASK)
        return found

    def _asked(self, program: str) -> Any:
        done = subprocess.run(
            [self._manage, "shell", "-c", program],
            cwd=self._home, env=self._environ, capture_output=True, text=True, timeout=60,
            check=True,
        )  # fmt: skip
        return json.loads(done.stdout.rpartition("FOUND")[2])


@contextmanager
def bugsink(home: Path) -> Iterator[Bugsink]:
    """A server with its files in `home`, and an empty project."""
    programs = environment("bugsink", PACKAGES)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    (home / "bugsink_conf.py").write_text(_SETTINGS.format(secret=secrets.token_hex(32), port=port))
    environ = {
        **os.environ,
        "PYTHONPATH": str(home),
        "DATABASE_PATH": str(home / "db.sqlite3"),
        "SNAPPEA_DATABASE_PATH": str(home / "snappea.sqlite3"),
    }
    manage = str(programs / "bugsink-manage")
    for database in ("default", "snappea"):
        subprocess.run(
            [manage, "migrate", "--database", database],
            cwd=home, env=environ, capture_output=True, check=True, timeout=120,
        )  # fmt: skip
    with (home / "server.log").open("wb") as log:
        server = subprocess.Popen(
            [str(programs / "gunicorn"), "--bind", f"127.0.0.1:{port}", "--threads", "4",
             "bugsink.wsgi"],
            cwd=home, env=environ, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        wait_until(lambda: _answers(port), "the server answers", 60.0)
        yield Bugsink(programs, home, environ, port)
    finally:
        server.kill()
        server.wait()


def _answers(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health/ready", timeout=5):
            return True
    except urllib.error.HTTPError as answer:
        return answer.code < 500
    except OSError:
        return False
