"""How the program starts and ends, seen from a shell."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.unit.cli.conftest import Ran
from toolpool.cli import main
from toolpool.cli.exit_codes import ExitCode

Run = Callable[..., Ran]
REPOSITORY = Path(__file__).resolve().parents[3]


def program(
    *argv: str, cwd: Path | None = None, **environment: str
) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        [sys.executable, "-m", "toolpool", *argv],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY), **environment},
        capture_output=True,
        text=True,
        timeout=30,
    )


def test_keygen_prints_a_new_key_each_time(toolpool: Run) -> None:
    one, two = toolpool("keygen").out, toolpool("keygen").out
    assert len(one.strip()) == 43
    assert one != two
    assert len(json.loads(toolpool("keygen", "--json").out)["key"]) == 43


def test_a_light_command_loads_nothing_heavy() -> None:
    script = (
        "import sys; from toolpool.cli import main; main(['keygen']); "
        "print(*(sys.modules.keys() & {'celery', 'redis', 'jsonschema_rs', 'msgspec', 'asyncio'}))"
    )
    ran = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert ran.stdout.splitlines()[1:] == [""], ran.stderr


def test_version(toolpool: Run) -> None:
    assert toolpool("--version").out.startswith("toolpool ")


def test_help_is_shown_for_no_command() -> None:
    ran = program()
    assert ran.returncode == 2
    assert ran.stdout.count("Usage:") == 1
    assert ran.stderr == ""


@pytest.mark.parametrize(
    ("argv", "complaint"),
    [
        (["nothing"], "toolpool: no such command 'nothing'; see `toolpool --help`\n"),
        (["call"], "toolpool: missing argument 'name'; see `toolpool call --help`\n"),
        (["run", "--nothing"], "toolpool: no such option: --nothing; see `toolpool run --help`\n"),
        (
            ["worker", "--run-in", "loop,fiber"],
            "toolpool: invalid value for --run-in: fiber is not among loop, thread, process; "
            "see `toolpool worker --help`\n",
        ),
        (
            ["worker", "--queues", ","],
            "toolpool: invalid value for --queues: name at least one queue; "
            "see `toolpool worker --help`\n",
        ),
        (
            ["worker", "--queues", "gpu,gpu.large"],
            "toolpool: invalid value for --queues: 'gpu.large' has other signs than letters, "
            "digits, _ and -; see `toolpool worker --help`\n",
        ),
    ],
)
def test_a_wrong_command_line_is_one_line(toolpool: Run, argv: list[str], complaint: str) -> None:
    ran = toolpool(*argv)
    assert (ran.code, ran.err, ran.out) == (2, complaint, "")


def test_a_fault_of_ours_is_one_line_too(toolpool: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> str:
        raise ZeroDivisionError("oh")

    monkeypatch.setattr("toolpool.contract.signing.generate_key", fail)
    ran = toolpool("keygen")
    assert ran.code == 1
    assert ran.err.count("\n") == 1
    assert "ZeroDivisionError: oh" in ran.err
    monkeypatch.setenv("TOOLPOOL_TRACEBACK", "1")
    assert "Traceback" in toolpool("keygen").err


@pytest.mark.parametrize("argv", [["status"], ["worker"], ["tools", "remove", "x"]])
def test_commands_that_need_a_server_say_how_to_name_one(toolpool: Run, argv: list[str]) -> None:
    ran = toolpool(*argv)
    assert ran.code == 2
    assert ran.err.startswith("toolpool: no Redis URL: set TOOLPOOL_REDIS_URL=")
    assert ran.err.count("\n") == 1


@pytest.mark.parametrize(
    "argv", [["status"], ["tools", "list"], ["call", "x"], ["tools", "export"]]
)
def test_an_unreachable_server_exits_5(
    toolpool: Run, argv: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLPOOL_REDIS_URL", f"unix://{tmp_path}/none.sock")
    ran = toolpool(*argv)
    assert ran.code == 5
    assert "cannot reach Redis" in ran.err
    assert ran.err.count("\n") == 1


def test_a_network_server_needs_a_key(toolpool: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLPOOL_REDIS_URL", "redis://127.0.0.1:1/0")
    ran = toolpool("tools", "list")
    assert ran.code == 2
    assert "make one with `toolpool keygen`" in ran.err


def test_output_to_a_closed_pipe_ends_quietly() -> None:
    script = f"{sys.executable} -m toolpool tools list --json | true; echo ${{PIPESTATUS[0]}}"
    ran = subprocess.run(
        ["bash", "-c", script],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        capture_output=True,
        text=True,
        timeout=30,
    )
    assert (ran.stdout.strip(), ran.stderr) in [("141", ""), ("0", "")]


def test_output_that_cannot_be_written_is_one_line() -> None:
    if not Path("/dev/full").exists():
        pytest.skip("this platform has no /dev/full")
    with open("/dev/full", "w") as full:
        ran = subprocess.run(
            [sys.executable, "-m", "toolpool", "keygen"],
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "PYTHONUNBUFFERED": ""},
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=30,
        )
    assert ran.returncode == 1
    assert ran.stderr.count("\n") == 1
    assert "No space left" in ran.stderr


def test_ctrl_c_exits_130_without_a_traceback() -> None:
    script = (
        "import time; from toolpool.cli import app, main; "
        "app.screen.write = lambda text: (print('now', flush=True), time.sleep(30)); "
        "raise SystemExit(main(['keygen']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline() == "now\n"
        process.send_signal(signal.SIGINT)
        assert process.wait(10) == 130
        assert process.stderr.read() == ""


def test_ctrl_c_while_it_is_still_being_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(argv: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("toolpool.cli.app.run_command", interrupted)
    assert main(["keygen"]) == 130


def test_a_program_whose_stderr_is_closed_ends_as_any_other() -> None:
    away = {"PYTHONPATH": str(REPOSITORY), "TOOLPOOL_REDIS_URL": "redis://127.0.0.1:1"}
    ended = subprocess.run(
        ["sh", "-c", '"$0" -m toolpool status 2>&-', sys.executable],
        env={**os.environ, **away},
        timeout=30,
    )
    assert ended.returncode == ExitCode.UNREACHABLE


def test_the_current_folder_is_not_where_the_program_finds_its_modules(tmp_path: Path) -> None:
    """It may be a workspace, in which a model writes files."""
    (tmp_path / "typer.py").write_text("raise SystemExit('ran')")
    assert program("--help", cwd=tmp_path).returncode == 0
