"""What a tool raised, as data: where, and of which class, and never what it says."""

import json
import math
import os
import sys
import time
from collections.abc import Callable
from importlib import import_module
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path
from runpy import run_path
from types import ModuleType

import pytest

from toolpool.contract import exception_report
from toolpool.contract.exception_report import (
    ExceptionReport,
    failure_of,
    faults_in,
    faults_of,
    own_frame,
    reported_apart,
    traceback_of,
)
from toolpool.contract.outcome import Code, Executed, Outcome, failure

SECRET = "hunter2"


def raised_by(function: Callable[[], object]) -> tuple[ExceptionReport, ...]:
    with pytest.raises(BaseException) as caught:
        function()
    return faults_in({"faults": faults_of(caught.value)})


def from_a_cause() -> None:
    try:
        json.loads(f"{{{SECRET}")
    except ValueError as error:
        raise KeyError(SECRET) from error


def while_handled() -> None:
    try:
        json.loads(f"{{{SECRET}")
    except ValueError:
        raise KeyError(SECRET)  # noqa: B904 - that is the case


def in_a_group() -> None:
    with pytest.raises(KeyError) as caught:
        from_a_cause()
    inner = ExceptionGroup(SECRET, [caught.value])
    raise ExceptionGroup(SECRET, [ValueError(SECRET), inner])


@pytest.mark.parametrize(
    ("function", "kinds", "is_cause"),
    [
        (from_a_cause, ["JSONDecodeError", "KeyError"], True),
        (while_handled, ["JSONDecodeError", "KeyError"], False),
    ],
)
def test_what_led_to_it_comes_first(
    function: Callable[[], None], kinds: list[str], is_cause: bool
) -> None:
    faults = raised_by(function)
    assert [fault.kind for fault in faults] == kinds
    assert faults[0].is_cause is is_cause
    assert faults[-1].frames[-1].function == function.__name__
    assert faults[-1].frames[-1].code.startswith("raise ")


def test_every_member_of_a_group_is_told_with_what_led_to_it() -> None:
    (group,) = raised_by(in_a_group)
    assert group.kind == "ExceptionGroup"
    kinds = [[fault.kind for fault in member] for member in group.members]
    assert kinds == [["ValueError"], ["JSONDecodeError", "KeyError"]]
    assert reported_apart([group]) == group.members
    assert "| KeyError" in traceback_of([group])


def test_members_that_lead_in_a_circle_or_without_end_are_cut_off() -> None:
    many = ExceptionGroup("", [ValueError(n) for n in range(1_000)])
    deep: Exception = ValueError()
    for _ in range(2_000):
        deep = ExceptionGroup("", [deep])
    for error in (many, deep):
        error.__context__ = error.exceptions[0]  # type: ignore[attr-defined]
        error.exceptions[0].__context__ = error  # type: ignore[attr-defined]
        faults = faults_in({"faults": faults_of(error)})
        assert 1 <= len(faults[-1].members) <= 5


def test_code_that_a_tool_wrote_is_in_no_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A code runner's: run from a file or a text, imported, or put in the place of a module."""
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(exception_report, "_imported_at", exception_report._imported_at)
    real = tmp_path / "real_tools.py"
    real.write_text("def fails():\n    raise KeyError(salary_of_jane)\n")
    import_module("real_tools")
    while exception_report.tools_imported() <= real.stat().st_ctime:  # a coarse clock
        pass
    (before,) = raised_by(import_module("real_tools").fails)
    assert before.frames[-1].module == "real_tools"
    assert before.frames[-1].code == "raise KeyError(salary_of_jane)"

    script = tmp_path / "jane_doe.py"
    source = "class JaneDoe(ValueError): pass\ndef jane_doe(): raise JaneDoe\njane_doe()\n"
    script.write_text(source)
    os.utime(script, (0, 0))

    def replaced() -> None:
        real.write_text("def jane_doe():\n    raise JaneDoe\njane_doe()")
        import_module("real_tools").fails()

    for run in (
        lambda: run_path(str(script)),
        lambda: run_path(str(script), run_name="__main__"),
        lambda: exec(source, {}),
        lambda: exec(compile(source, "<frozen jane_doe>", "exec"), {"__name__": "jane_doe"}),
        lambda: import_module("jane_doe"),
        replaced,
    ):
        found = raised_by(run)
        told = repr(found) + traceback_of(found)
        assert "(code made at run time)" in told
        assert "jane" not in told.lower()
        frame = own_frame(found)
        assert frame is not None
        assert frame.file == __file__, "the tool that ran it is to be looked at"


def test_code_of_a_compiled_module_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no file of its own: Cython names the one that it was made from."""
    module = ModuleType("compiled_shop")
    module.__file__ = f"/lib/compiled_shop{EXTENSION_SUFFIXES[0]}"
    monkeypatch.setitem(sys.modules, "compiled_shop", module)
    monkeypatch.setattr(exception_report, "_imported_at", time.time())
    exec(compile("def find(): raise KeyError", "shop/compiled.pyx", "exec"), vars(module))
    (fault,) = raised_by(vars(module)["find"])
    assert (fault.frames[-1].file, fault.frames[-1].function) == ("shop/compiled.pyx", "find")


@pytest.mark.parametrize("function", [from_a_cause, while_handled, in_a_group])
def test_no_text_of_an_exception_is_in_it(function: Callable[[], None]) -> None:
    faults = raised_by(function)
    assert SECRET not in repr(faults) + traceback_of(faults)


def test_the_frame_that_counts_is_the_authors() -> None:
    """A library that a tool called is where it was raised, and not what is to be mended."""
    (fault,) = raised_by(lambda: json.loads("{"))
    assert fault.frames[-1].function == "raw_decode"
    frame = own_frame([fault])
    assert frame is not None
    assert Path(frame.file) == Path(__file__)
    assert not fault.frames[-1].is_own


def test_the_pool_s_own_frames_are_left_out() -> None:
    from toolpool.workers.running.invoke import Invocation, invoke
    from toolpool.workers.tool import tool

    @tool
    def fails() -> None:
        """Fail."""
        raise ValueError(SECRET)

    outcome = invoke(Invocation(fails, {}, None, 1_000)).outcome
    (fault,) = faults_in(outcome.details)
    assert [frame.function for frame in fault.frames] == ["fails"]


def test_a_deep_recursion_is_short() -> None:
    def deeper(levels: int) -> None:
        if not levels:
            raise ValueError
        deeper(levels - 1)

    (fault,) = raised_by(lambda: deeper(200))
    assert len(fault.frames) == 40
    assert fault.left_out == 200 + 3 - 40
    assert f"({fault.left_out} more frames in between)" in traceback_of([fault])


def test_an_object_that_lies_about_itself_does_no_harm() -> None:
    class Lying(ValueError):
        @property
        def __cause__(self) -> BaseException:  # type: ignore[override]
            raise SystemExit

    assert faults_of(Lying()) == []


@pytest.mark.parametrize("details", [None, {}, {"faults": 3}, {"faults": [{"kind": 1}]}])
def test_details_of_another_form_hold_none(details: dict[str, object] | None) -> None:
    assert faults_in(details) == ()


def test_arguments_are_told_by_their_digest_and_size() -> None:
    outcome = failure(Code.RAISED, SECRET, Executed.YES)
    told = failure_of(outcome, {"password": SECRET}, with_text=False)
    assert told is not None
    assert told.arguments_bytes == len('{"password":"hunter2"}')
    assert SECRET not in repr(told)
    other = failure_of(outcome, {"password": "other"}, with_text=True)
    assert other is not None
    assert other.digest != told.digest
    assert other.text == SECRET
    assert failure_of(Outcome(ok=True), {}, with_text=True) is None


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ('raise ValueError("hunter2")', 'raise ValueError("…")'),
        ("x = f'{a}hunter2' + \"it's\"", "x = f'…' + \"…\""),
        (r'x = "a\"hunter2" + b', 'x = "…" + b'),
        ('x = call(1, """hunter2', 'x = call(1, "…"…'),
        ("x = call(1, 'hunter2", "x = call(1, …"),
        ("return values[key]", "return values[key]"),
        ('x = f"{login("hunter2")}" + b', "x = f…"),
        ('x = f"{login(" hunter2 ")}" + b', "x = f…"),
    ],
)
def test_a_line_of_code_is_shown_without_its_texts(line: str, shown: str) -> None:
    assert exception_report._without_texts(line) == shown


def test_a_text_of_several_lines_is_no_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is between its lines is left out, and what stands around it is shown."""
    path = tmp_path / "long_texts.py"
    path.write_text(
        "def fails(): raise KeyError\n"
        "def one():\n"
        "    return '''hunter2 it's\n"
        "      hunter2 = 'a' # hunter2 %s\n"
        "      hunter2''' % fails()  # isn't it\n"
        "def two():\n"
        '    return f"""hunter2 "quoted" {\n'
        "       fails()}\n"
        '      hunter2""".format(fails())\n'
        "def three(): return ('''hunter2''' \"hunter2 \\\" hunter2\", fails())\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(exception_report, "_imported_at", math.inf)
    space = vars(import_module("long_texts"))
    shown = [raised_by(space[name])[0].frames[1].code for name in ("one", "two", "three")]
    assert shown == ["% fails()  # isn…", "", """def three(): return ('…' "…", fails())"""]
    exception_report._without_texts_of_lines.cache_clear()
    monkeypatch.setattr(exception_report, "_FILE_CHARACTERS", 100)
    assert raised_by(space["three"])[0].frames[1].code == ""
    exception_report._without_texts_of_lines.cache_clear()


def test_a_name_made_of_what_came_from_outside_stays_in_its_line() -> None:
    forged = "Gone\n2026-11-22T10:04:05.123Z error toolpool.worker \x1b[31mforged\u2028"

    def from_a_made_class() -> None:
        module = {"__module__": forged}
        code = compile(f"raise type({forged!r}, (Exception,), {module!r})", forged, "exec")
        exec(code, {})

    found = raised_by(from_a_made_class)
    assert len(traceback_of(found).splitlines()) == 2 * len(found[0].frames) + 1
    assert "\x1b" not in traceback_of(found)


def test_an_unimportable_exception_class_is_named_by_its_base_class() -> None:
    """A model may have written it, and given it the name of any module."""

    class Mine(ValueError):
        pass

    for module in (__name__, "os", "json.decoder", "no.such.module"):
        kind = type("Patient_John_Doe", (Mine,), {"__module__": module})

        def fail(kind: type[Exception] = kind) -> None:
            raise kind("x")

        assert raised_by(fail)[0].name == "ValueError"

    def library() -> None:
        json.loads("{")

    assert raised_by(library)[0].name == "json.decoder.JSONDecodeError"
