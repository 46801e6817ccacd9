"""What our processes write: one line an event, that nothing from outside can break out of."""

import asyncio
import gc
import io
import json
import logging
import logging.config
import os
import subprocess
import sys
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace
from typing import Any

import pytest

from tests.waiting import eventually, wait_until
from toolpool.contract import log_writer, logs

log = logs.logger("test_logs")
SECRET = "hunter2"


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, put back as it was."""
    root = logging.getLogger()
    before = root.handlers[:], root.level, logging.getLogger("toolpool").level
    hooks = threading.excepthook, sys.unraisablehook
    yield root
    root.handlers[:], level, of_ours = before
    root.setLevel(level)
    logging.getLogger("toolpool").setLevel(of_ours)
    threading.excepthook, sys.unraisablehook = hooks
    logging.captureWarnings(False)
    logs._own_lines.with_texts = logs._library_lines.with_texts = False
    logs._handler = None


@pytest.fixture
def written(
    root: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Callable[[], list[str]]]:
    """Configures, and answers what gives the lines written since."""

    def configure(**options: object) -> Callable[[], list[str]]:
        stream = io.StringIO()
        monkeypatch.setattr("sys.stderr", stream)
        settings = {"level": "info", "format": "text", "with_texts": False, **options}
        logs.configure(**settings)  # type: ignore[arg-type]

        def lines() -> list[str]:
            logs.flush()
            return stream.getvalue().splitlines()

        return lines

    return configure


def test_a_line_is_an_event_and_its_fields(written: Callable[..., Callable[[], list[str]]]) -> None:
    lines = written()
    log.warning("lease_lost calls=%d worker=%s: %s", 3, "w-1", "the server is away")
    (line,) = lines()
    time, level, name, rest = line.split(" ", 3)
    assert time.endswith("Z")
    assert (level, name) == ("warning", "toolpool.test_logs")
    assert rest == "lease_lost calls=3 worker=w-1: the server is away"


def test_json_has_the_fields_under_their_names(
    written: Callable[..., Callable[[], list[str]]],
) -> None:
    lines = written(format="json")
    log.info("worker_ready id=%s tools=%d session=%s at %.1f%%: %s", "w", 2, None, 9.5, "so")
    (line,) = map(json.loads, lines())
    assert (line["event"], line["level"]) == ("worker_ready", "info")
    assert (line["id"], line["tools"], line["session"]) == ("w", 2, None)
    assert line["message"] == "worker_ready id=w tools=2 session=None at 9.5%: so"


def test_a_value_has_a_name_only_where_the_format_says_so() -> None:
    def of(format: str, *values: object) -> dict[str, object]:
        record = logging.LogRecord("x", logging.INFO, "", 0, format, values, None)
        return dict(logs.fields_of(record))

    assert of("sold id=%s of %d%% in shop=%-8s", "a", 3, "b") == {"id": "a", "shop": "b"}
    assert of("=%s x =%s %%=%s y_1=%05.1f", 1, 2, 3, 4.0) == {"y_1": 4.0}
    assert of("id=%s", "a", "too many") == of("nothing") == {}
    long = "y" * 2_000_000  # a minute's work for a pattern that looks for the name from the left
    assert of(long) == of(long + " %s", 1) == {}
    assert len(next(iter(of(long + "=%s", 1)))) == 64


def test_every_line_is_json_whatever_it_is_given(
    root: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Numbers that are none, an object that holds itself, arguments that do not fit."""
    held: list[object] = []
    held.append(held)
    raw = io.BytesIO()
    monkeypatch.setattr("sys.stderr", io.TextIOWrapper(raw, "ascii", "backslashreplace"))
    logs.configure(level="info", format="json", with_texts=False)
    shop = logging.getLogger("shop")
    shop.warning("loss=%f low=%s", float("nan"), float("-inf"))
    shop.warning("held=%s", held)
    shop.warning("one=%d", SECRET)
    shop.warning("café 😀\x1b")
    logs.flush()
    loss, itself, lost, said = [
        json.loads(line, parse_constant=pytest.fail) for line in raw.getvalue().splitlines()
    ]
    assert (loss["loss"], loss["low"], itself["held"]) == ("nan", "-inf", "[[...]]")
    assert (lost["event"], lost["of"]) == ("log_line_lost", "shop")
    assert "test_logs.py" in lost["at"]
    assert said["message"] == "café 😀\x1b"
    assert SECRET not in raw.getvalue().decode()


def test_a_field_cannot_pass_for_one_of_the_line_s_own(
    written: Callable[..., Callable[[], list[str]]],
) -> None:
    lines = written(format="json")
    log.info("event message=%s time=%s", "mine", "never")
    (line,) = map(json.loads, lines())
    assert line["message"] == "event message=mine time=never"
    assert line["time"] != "never"


@pytest.mark.parametrize("format", ["text", "json"])
def test_text_from_outside_stays_inside_of_its_line(
    written: Callable[..., Callable[[], list[str]]], format: str
) -> None:
    lines = written(format=format)
    log.info("call_rejected tool=%s", "a\n2026 error forged \x1b[31m\u2028" + "x" * 10_000)
    (line,) = lines()
    assert "\x1b" not in line
    assert len(line) < 2_000


@pytest.mark.parametrize("format", ["text", "json"])
def test_what_an_exception_says_is_left_out(
    written: Callable[..., Callable[[], list[str]]], format: str
) -> None:
    lines = written(format=format)
    try:
        raise ValueError(SECRET)
    except ValueError:
        log.exception("observer_failed observer=%s", "Mine")
    text = "\n".join(lines())
    assert SECRET not in text.replace("raise ValueError(SECRET)", "")
    assert "ValueError" in text
    assert "test_logs.py" in text


def test_what_an_exception_says_is_there_where_it_is_allowed(
    written: Callable[..., Callable[[], list[str]]],
) -> None:
    lines = written(with_texts=True)
    try:
        raise ValueError(SECRET)
    except ValueError:
        log.exception("observer_failed")
    try:
        raise ValueError("2026 error forged\n2026 error forged\x1b[0m")
    except ValueError:
        log.exception("observer_failed_too")
    assert f"ValueError: {SECRET}" in lines()
    assert not [line for line in lines() if line.startswith("2026 error") or "\x1b" in line]


def test_a_repeated_line_is_counted(
    written: Callable[..., Callable[[], list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = written()
    for second in range(20):
        log.warning("lease_rejected worker=%s after %.1f s", "w-1", float(second))
    log.warning("lease_rejected worker=%s after %.1f s", "w-2", 0.0)
    assert len(lines()) == 2
    monkeypatch.setattr("time.monotonic", lambda: 1e12)
    log.warning("lease_rejected worker=%s after %.1f s", "w-1", 60.0)
    assert lines()[-1].endswith("after 60.0 s (and 19 times more since it was last written)")


def test_only_so_many_lines_are_remembered() -> None:
    for number in range(3_000):
        log.warning("line %s", str(number))
    assert len(logs._own_lines.repeats.lines) <= 1_000


def test_lines_of_a_library_are_one_line_each_and_counted_by_their_kind(
    written: Callable[..., Callable[[], list[str]]], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines = written()
    consumer = logging.getLogger("celery.worker.consumer")
    logging.getLogger("httpx").warning("slow: %s", "a")
    logging.getLogger("httpx").warning("slow: %s", "b")
    assert len(lines()) == 2, "these are not the same"
    for tries in range(1, 31):
        consumer.error("Cannot connect to %s.\nAgain in 2 s (%d/None)\n", "redis://", tries)
    for _ in range(2):
        consumer.error("%s (%r)", "Something else", LookupError)
    first, other = lines()[2:]
    assert first.endswith("Cannot connect to redis://. Again in 2 s (1/None)")
    assert other.endswith("Something else (<class 'LookupError'>)")
    consumer.error("%s (%r)", "Not that", LookupError)
    assert len(lines()) == 5, "the format says nothing of what is meant"
    monkeypatch.setattr("time.monotonic", lambda: 1e12)
    consumer.error("Cannot connect to %s.\nAgain in 2 s (%d/None)\n", "redis://", 31)
    assert lines()[-1].endswith("(31/None) (and 29 times more since it was last written)")


def test_lines_of_a_tool_are_left_as_they_are(
    written: Callable[..., Callable[[], list[str]]],
) -> None:
    lines = written()
    for _ in range(2):
        logging.getLogger("shop").warning("two\nlines of %s", "mine")
    assert [line.rpartition(" ")[2] for line in lines()] == ["two", "mine"] * 2


async def test_what_a_task_or_a_callback_raised_is_told_without_what_it_says_or_was_given(
    written: Callable[..., Callable[[], list[str]]],
) -> None:
    async def fails() -> None:
        raise ValueError(SECRET)

    def refuses(_given: str) -> None:
        raise LookupError(SECRET)

    lines, loop = written(), asyncio.get_running_loop()
    task = loop.create_task(fails())
    loop.call_soon(refuses, SECRET)
    await eventually(task.done, "both have failed")
    del task
    gc.collect()
    text = "\n".join(lines())
    assert "asyncio Task exception was never retrieved\n" in text
    assert "asyncio Exception in callback\nTraceback" in text
    assert "in refuses" in text
    assert text.count("\nValueError") == text.count("\nLookupError") == 1
    assert "in fails" in text
    assert SECRET not in text
    with_texts = written(with_texts=True)
    logging.getLogger("asyncio").error("Exception in %s", f"<Handle f({SECRET!r})>")
    assert SECRET in with_texts()[-1]


def test_what_a_thread_or_a_finalizer_raised_is_told_without_what_it_says(
    written: Callable[..., Callable[[], list[str]]],
) -> None:
    class Fails:
        def __del__(self) -> None:
            raise LookupError(SECRET)

    class Lies:
        def __getattr__(self, name: str) -> str:
            raise ValueError(SECRET)

    def fails() -> None:
        raise ValueError(SECRET)

    lines = written()
    for ends in (fails, sys.exit):
        thread = threading.Thread(target=ends, name=ends.__name__)
        thread.start()
        thread.join()
    Fails()
    gc.collect()
    with ThreadPoolExecutor(1) as pool:
        pool.submit(int).add_done_callback(lambda _: fails())
    told = SimpleNamespace(
        object=Lies(), exc_type=KeyError, exc_value=KeyError(SECRET), exc_traceback=None
    )
    sys.unraisablehook(told)  # type: ignore[arg-type]
    text = "\n".join(lines())
    assert text.count("thread_failed thread=fails") == 1
    assert text.count("concurrent.futures exception calling callback") == 1
    assert text.count("\nValueError") == 2
    assert "Lies" in text
    assert "thread=exit" not in text
    assert "exception_ignored in=" in text
    assert "Fails.__del__" in text
    assert "\nLookupError" in text
    assert SECRET not in text


def test_a_log_line_from_a_finalizer_during_another_line_does_not_deadlock(
    written: Callable[..., Callable[[], list[str]]],
) -> None:
    """Memory may be collected at any step, and what is collected may log."""

    class Key:
        def __hash__(self) -> int:
            log.warning("exception_ignored in=%s", "Key.__del__")
            return 1

    lines = written()
    repeats = logs._own_lines.repeats
    thread = threading.Thread(target=repeats.before, args=(Key(),), daemon=True)
    thread.start()
    thread.join(5.0)
    assert not thread.is_alive()
    assert len(lines()) == 1


def test_lines_are_written_at_the_end_though_logging_was_configured_anew() -> None:
    program = """
import logging.config
from toolpool.contract import logs
logs.configure(level="info", format="text", with_texts=False)
logging.config.dictConfig({"version": 1})
logs.restore()
for number in range(300):
    logs.logger("test").info("line number=%d", number)
"""
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=30, check=True
    )
    assert done.stderr.count("line number=") == 300


def test_quiet_is_about_our_own_lines_alone(
    written: Callable[..., Callable[[], list[str]]],
) -> None:
    lines = written(quiet=True)
    log.info("worker_ready")
    logging.getLogger("shop").info("sold")
    logging.getLogger("kombu.transport").info("connected")
    log.warning("server_lost")
    assert [line.split(" ", 3)[3] for line in lines()] == ["sold", "server_lost"]


def test_an_object_that_has_no_text_is_named(
    written: Callable[..., Callable[[], list[str]]],
) -> None:
    class Mute:
        def __str__(self) -> str:
            raise ValueError(SECRET)

    lines = written()
    log.info("event what=%s", Mute())
    assert lines()[0].endswith("event what=Mute")


class _Broken(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        raise RuntimeError(SECRET)


def test_what_a_host_s_handler_raises_is_not_raised_to_who_logs(root: logging.Logger) -> None:
    root.handlers[:] = [_Broken()]
    log.warning("server_lost")
    assert logs.logger("test_logs") is log
    log.error("worker_ended")


def test_a_closed_stderr_does_not_break_logging(
    written: Callable[..., Callable[[], list[str]]],
) -> None:
    written()
    sys.stderr.close()
    log.warning("server_lost")
    logging.getLogger("asyncio").error("a library's line")


def test_what_a_tools_module_configures_does_not_silence_our_lines(
    written: Callable[..., Callable[[], list[str]]],
) -> None:
    lines = written()
    before = {name: logging.getLogger(name).disabled for name in logging.root.manager.loggerDict}
    theirs = io.StringIO()
    try:
        logging.config.dictConfig({"version": 1})
        logging.basicConfig(stream=theirs, force=True)
        logs.restore()
        log.warning("server_lost")
        logging.getLogger("asyncio").error("Exception in %s", f"<Handle f({SECRET!r})>")
    finally:
        for name, was_disabled in before.items():
            logging.getLogger(name).disabled = was_disabled
    assert lines()[0].endswith("server_lost")
    assert lines()[1].endswith("Exception in")
    assert "server_lost" in theirs.getvalue()
    assert SECRET not in theirs.getvalue()


def test_a_full_pipe_blocks_no_writer(
    root: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What cannot be written is dropped and counted, and the rest comes when somebody reads."""
    monkeypatch.setattr(log_writer, "_LINES_AT_MOST", 2_000)
    reads, writes = os.pipe()
    with open(reads, "rb", buffering=0) as reader, open(writes, "w") as writer:
        monkeypatch.setattr("sys.stderr", writer)
        logs.configure(level="info", format="json", with_texts=False)
        for number in range(5_000):
            log.info("line number=%s", f"{number:0100}")
        read = bytearray()
        os.set_blocking(reads, False)

        def is_all_read() -> bool:
            read.extend(reader.read(1 << 16) or b"")
            return b"log_lines_dropped" in read and read.endswith(b"\n")

        wait_until(is_all_read, "the rest is written once somebody reads")
        root.handlers.clear()
    lines = [json.loads(line) for line in read.decode().splitlines()]
    (said,) = [line for line in lines if line["event"] == "log_lines_dropped"]
    written = [line["number"] for line in lines if line["event"] == "line"]
    assert (said["count"], said["level"]) == (5_000 - len(written), "warning")
    assert len(written) >= 2_000
    assert written == sorted(written)


def test_a_fork_writes_its_own_lines(written: Callable[..., Callable[[], list[str]]]) -> None:
    """And none that its parent had waiting."""
    lines = written()
    log.info("before")
    logs.flush()
    reads, writes = os.pipe()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of forks beside threads, which is what this is about
        pid = os.fork()
    if pid == 0:
        sys.stderr.truncate(0)
        log.info("in the fork")
        logs.flush()
        os.write(writes, repr(lines()).encode())
        os._exit(0)
    os.waitpid(pid, 0)
    assert b"in the fork" in os.read(reads, 10_000)
    for end in (reads, writes):
        os.close(end)
    assert len(lines()) == 1


class Written(io.RawIOBase):
    """Keeps each write by itself."""

    def __init__(self) -> None:
        self.writes: list[bytes] = []

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        self.writes.append(bytes(data))
        return len(data)


@pytest.mark.usefixtures("root")
def test_what_a_tool_prints_is_written_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also with PYTHONUNBUFFERED: no line of the log comes between it and its end."""
    raw = Written()
    unbuffered = io.TextIOWrapper(raw, write_through=True)  # type: ignore[type-var]
    monkeypatch.setattr("sys.stdout", unbuffered)
    logs.configure(level="info", format="text", with_texts=False)
    print("printed by a tool")
    assert raw.writes == [b"printed by a tool\n"]
