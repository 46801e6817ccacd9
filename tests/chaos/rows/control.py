"""The control: the same kills against bare Celery, which must lose calls or the suite is blind."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from functools import partial

from celery import Celery

from tests.chaos.book import Asked
from tests.chaos.rows import row
from tests.chaos.scene import Scene
from tests.chaos.tools import JOURNAL, note
from toolpool.workers.supervision.lifeline import in_lasting_thread, tethered

URL = "CHAOS_CELERY_URL"
_RATE = 20.0
_ALLOWED_SECONDS = 12.0
_START_SECONDS = 60.0
_LONG_SECONDS = 5.0

app = Celery("control", broker=os.environ.get(URL), backend=os.environ.get(URL))
app.conf.update(
    task_acks_late=True,  # what its documentation advises against losing tasks
    task_reject_on_worker_lost=True,
    result_expires=300,
    broker_connection_retry_on_startup=True,
)


@app.task(name="control.work")
def work(key: str, seconds: float) -> str:
    """What the tools of the other rows do."""
    note("start", key, "process")
    time.sleep(seconds)
    note("end", key, "process")
    return key


@row("control", short=4, long=50)
async def control(scene: Scene) -> None:
    """SIGKILL of bare Celery's worker group under load, started again at once as supervisors do."""
    server = await scene.server(listen="port")
    app.conf.broker_url = app.conf.result_backend = server.url
    environment = {**os.environ, URL: server.url, JOURNAL: str(scene.journal.path)}
    environment["PYTHONPATH"] = os.pathsep.join(path for path in sys.path if path)
    log = scene.directory / "celery.log"

    def start() -> "subprocess.Popen[bytes]":
        command = [sys.executable, "-m", "celery", "-A", __name__, "worker"]
        command += ["--pool", "prefork", "--concurrency", "2", "--loglevel", "ERROR"]
        with log.open("ab") as output:
            return in_lasting_thread(
                lambda: subprocess.Popen(
                    tethered(command),
                    env=environment,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            )

    async def kill_now_and_then() -> None:
        process = await scene.off_loop(start)
        try:
            _, first = _ask(scene, 0.0, within=_START_SECONDS)
            await first
            for _ in range(scene.faults):
                await scene.pause(1.0, 4.0)
                key, long = _ask(scene, _LONG_SECONDS, within=_ALLOWED_SECONDS)
                asking.append(long)
                await scene.until(partial(_has_started, scene, key), "a call runs as it is killed")
                _end(process)
                scene.fault()
                process = await scene.off_loop(start)
        finally:
            await asyncio.sleep(_ALLOWED_SECONDS)
            _end(process)

    asking: list[asyncio.Task[None]] = []
    killing = asyncio.ensure_future(kill_now_and_then())
    while scene.figures.faults < scene.faults:
        await asyncio.sleep(scene.rng.expovariate(_RATE))
        seconds = scene.rng.uniform(0.0, 0.1)
        asking.append(_ask(scene, seconds, within=_ALLOWED_SECONDS)[1])
        assert not killing.done() or scene.figures.faults == scene.faults, "Celery did not start"
    await asyncio.gather(*asking, killing)


def _has_started(scene: Scene, key: str) -> bool:
    scene.journal.follow()
    return key in scene.journal.starts


def _ask(scene: Scene, seconds: float, *, within: float) -> tuple[str, "asyncio.Task[None]"]:
    """Have a call made; its key, and what waits for its result."""
    key = f"c{len(scene.book.calls)}"
    scene.book.ask(Asked(key, "plain_process", time.monotonic(), within))
    return key, asyncio.ensure_future(_answer(scene, key, seconds, within))


async def _answer(scene: Scene, key: str, seconds: float, within: float) -> None:
    """Send a task and wait for its result, off the loop: Celery's client blocks."""

    def send() -> object:
        return work.delay(key, seconds)

    result: object = await asyncio.to_thread(send)
    give_up_at = time.monotonic() + within
    while time.monotonic() < give_up_at:
        if await asyncio.to_thread(lambda: result.ready()):  # type: ignore[attr-defined]
            scene.book.said(key, ok=True, code=None, executed="yes", late_by=0.0)
            return
        await asyncio.sleep(0.25)


def _end(process: "subprocess.Popen[bytes]") -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
