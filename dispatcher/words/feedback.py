"""The only place that makes sentences for the model.

The words are in `locales`, one file a language; the four styles of a rejection differ in them by
key. No sentence holds a rejected value: it may be a secret.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from toolpool.contract.call import Flaw
from toolpool.contract.ledger.loops import Seen
from toolpool.contract.outcome import Code, Executed, Outcome
from toolpool.contract.schema.problem import Problem
from toolpool.contract.schema.shapes import closest, shortened
from toolpool.contract.settings import Settings
from toolpool.dispatcher.words.locales import Locale, locale

_LONGEST_NAME = 64
_LONGEST_STEP = 40
_MULTILINE = frozenset({"numbered", "pointer"})


@dataclass(frozen=True, slots=True)
class Caps:
    """How much one rejection may say."""

    errors: int = 5
    characters: int = 100
    names: int = 30


@dataclass(frozen=True, slots=True)
class Wording:
    """How much to say, in which language, and how a rejection is laid out."""

    caps: Caps = Caps()
    locale: str = "en"
    style: str = "default"

    @property
    def words(self) -> Locale:
        """The language's file."""
        return locale(self.locale)


PLAIN = Wording()


def wording_of(settings: Settings) -> Wording:
    """As the operator wants it said. Raises `Misconfigured` for a language that is not there."""
    caps = Caps(settings.feedback_errors, settings.feedback_characters, settings.feedback_names)
    wording = Wording(caps, settings.locale, settings.feedback_style)
    _ = wording.words
    return wording


def invalid_arguments(problems: Sequence[Problem], wording: Wording = PLAIN) -> str:
    """What is wrong with the arguments, one line a problem."""
    words, style, caps = wording.words, wording.style, wording.caps
    lines = [_line(problem, wording) for problem in problems[: caps.errors]]
    more = len(problems) - len(lines)
    if style == "numbered":
        lines = [f"{number}. {line}" for number, line in enumerate(lines, 1)]
    elif style == "pointer":
        lines = [f"- {line}" for line in lines]
    if more:
        lines.append(words.more.format(count=more))
    body = ("\n" if style in _MULTILINE else "; ").join(lines)
    return words.head[style] + body + words.tail[style]


def refused_by_check(message: str, wording: Wording = PLAIN) -> str:
    """What a tool's own check objected to."""
    return wording.words.refused_by_check.format(message=message)


def unknown_tool(name: str, offered: Sequence[str], wording: Wording = PLAIN) -> str:
    """`Tool 'x' not found`, what was probably meant, and what there is."""
    words = wording.words
    text = words.unknown_tool.format(name=cut_at(_one_line(name), _LONGEST_NAME))
    near = closest(name, offered)
    if near is not None:
        text += words.unknown_tool_meant.format(closest=near)
    return text + _tools(offered, wording)


def _tools(offered: Sequence[str], wording: Wording) -> str:
    words = wording.words
    if not offered:
        return words.no_tools
    text = words.tools.format(names=", ".join(offered[: wording.caps.names]))
    more = len(offered) - wording.caps.names
    if more > 0:
        text += words.tools_more.format(count=more)
    return text + words.full_stop


def unsupported(kind: str, name: str, offered: Sequence[str], wording: Wording = PLAIN) -> str:
    """A provider's built-in kind of call, `kind`, that no tool is there for; `name` would be."""
    return wording.words.unsupported.format(kind=kind, name=name) + _tools(offered, wording)


def nameless(offered: Sequence[str], wording: Wording = PLAIN) -> str:
    """A call that names no tool, and what there is."""
    return wording.words.nameless + _tools(offered, wording)


def flawed(flaw: Flaw, wording: Wording = PLAIN) -> str:
    """A call that could not be read."""
    words = wording.words
    reason, _, why = flaw.reason.partition(".")
    blanks = {**flaw.blanks, "why": words.json_breaks[why]} if why else flaw.blanks
    templates = {
        Code.TRUNCATED: words.truncated,
        Code.TOO_LARGE: words.too_large,
        Code.DENIED: words.refused,
    }
    blanks = {key: _one_line(str(value)) for key, value in blanks.items()}
    template = templates.get(flaw.code, words.unparseable)
    return template.format(error=words.flaws[reason].format(**blanks))


def made_up_id(id: str, wording: Wording = PLAIN) -> str:
    """A call that came without an id, or with one that cannot be sent back."""
    return wording.words.made_up_id.format(id=id)


def text_repaired(what: Sequence[str], wording: Wording = PLAIN) -> str:
    """What was put right in text that was no strict JSON."""
    words = wording.words
    told = words.listed.join(words.text_repairs[each] for each in what)
    return words.text_repaired.format(what=told)


def too_many_calls(cap: int, wording: Wording = PLAIN) -> str:
    """A call beyond the cap of one turn."""
    return wording.words.too_many_calls.format(cap=cap)


def no_response(reason: str, blanks: Mapping[str, str], wording: Wording = PLAIN) -> str:
    """A response that held nothing to answer."""
    words = wording.words
    return words.no_response.format(reason=words.unreadable[reason].format(**blanks))


def loop(name: str, seen: Seen, wording: Wording = PLAIN) -> str:
    """A call that keeps failing in the same way."""
    template = wording.words.loop_in_turns if seen.alternates else wording.words.loop
    return template.format(name=name, count=seen.failures)


def again(seen: Seen, wording: Wording = PLAIN) -> str:
    """What is added to a rejection that keeps coming."""
    template = wording.words.again_in_turns if seen.alternates else wording.words.again
    return template.format(count=seen.failures)


def repaired(repairs: Sequence[Problem], wording: Wording = PLAIN) -> str:
    """What was put right in the arguments before the call."""
    words = wording.words
    told = [
        words.repairs[repair.kind].format(path=_path(repair), type=repair.expected)
        for repair in repairs[: wording.caps.errors]
    ]
    if len(repairs) > len(told):
        told.append(words.more.format(count=len(repairs) - len(told)))
    return words.repaired.format(what="; ".join(told))


def cut(size: int, handle: str | None, wording: Wording = PLAIN) -> str:
    """An output that was cut in the middle."""
    words = wording.words
    how = words.cut_less if handle is None else words.cut_pages.format(handle=handle)
    return f"{words.cut.format(size=f'{size:,}')} {how}"


def still_running(handle: str, wording: Wording = PLAIN) -> str:
    """A call that goes on in the background."""
    return wording.words.still_running.format(handle=handle)


def unseen_end(name: str, wording: Wording = PLAIN) -> str:
    """A call that went on although the write before it may still run."""
    return wording.words.unseen_end.format(name=name)


def no_such_handle(wording: Wording = PLAIN) -> str:
    """An unknown, expired or foreign handle: one and the same answer."""
    return wording.words.no_such_handle


def no_such_page(page: int, pages: int, wording: Wording = PLAIN) -> str:
    """A page beyond the end of a long output."""
    return wording.words.no_such_page.format(page=page, pages=pages)


def more_tasks(count: int, wording: Wording = PLAIN) -> str:
    """How many background calls a list leaves out."""
    return wording.words.more_tasks.format(count=count)


def tasks_of_no_session(wording: Wording = PLAIN) -> str:
    """Why a call without a session lists nothing."""
    return wording.words.tasks_of_no_session


OTHERS_WAIT = "others"
"""The reason of a call that goes on for another asker, of an outcome that only one is told."""


def failed(name: str, outcome: Outcome, *, timeout: float, wording: Wording = PLAIN) -> str:
    """What a call that was accepted came to."""
    code, error, words = outcome.code, outcome.error, wording.words
    whether = words.not_run if outcome.executed is Executed.NO else words.may_have_run
    if code is Code.INVALID_ARGUMENTS:
        if outcome.problems:
            return invalid_arguments(outcome.problems, wording)
        return refused_by_check(error, wording)
    if code is Code.REPORTED:
        return error
    if code is Code.BAD_RESULT and outcome.problems:
        return words.bad_result.format(name=name, problems=_listed_problems(outcome, wording))
    if code is Code.TIMEOUT and outcome.silence:
        return words.fell_silent.format(name=name, silence=f"{outcome.silence:g}", whether=whether)
    if code is Code.TIMEOUT:
        end = words.but.format(error=error) if error else words.and_was_stopped
        end = words.but_goes_on if error == OTHERS_WAIT else end
        return words.timed_out.format(name=name, timeout=f"{timeout:g}", end=end, whether=whether)
    templates = {
        Code.RAISED: words.raised,
        Code.BAD_RESULT: words.raised,
        Code.CRASHED: words.crashed,
        Code.CANCELLED: words.cancelled,
        Code.DENIED: words.denied,
    }
    if code is Code.DENIED:
        error = error or words.not_allowed
    elif code not in templates:
        plain = words.reasons.get((code or Code.INTERNAL).value, error or words.internal)
        error = words.reasons.get(error, plain)
    template = templates.get(code or Code.INTERNAL, words.no_result)
    return template.format(name=name, error=error, whether=whether)


def _listed_problems(outcome: Outcome, wording: Wording) -> str:
    """What is wrong with a result, in one line."""
    words, most = wording.words, wording.caps.errors
    lines = [_line(problem, wording) for problem in outcome.problems[:most]]
    more = len(outcome.problems) - len(lines)
    return "; ".join([*lines, words.more.format(count=more)] if more else lines)


def _line(problem: Problem, wording: Wording) -> str:
    """One problem, at most as long as the cap.

    What is expected is shortened before the line is: the words after it say what came.
    """
    words, style, characters = wording.words, wording.style, wording.caps.characters
    path = _middle_out(_path(problem, pointer=style == "pointer"), characters // 2)
    template = words.line[style] if path else words.root_line[style]
    room = characters - len(template.format(path=path, message=""))
    text = template.format(path=path, message=_message(problem, words, style, room))
    return cut_at(text, characters)


def _path(problem: Problem, *, pointer: bool = False) -> str:
    steps = [cut_at(_one_line(str(step)), _LONGEST_STEP) for step in problem.path]
    if not pointer:
        return ".".join(steps)
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)


def _middle_out(path: str, characters: int) -> str:
    """A path at most this long: where it begins and where it ends say most."""
    if len(path) <= characters:
        return path
    head = characters // 3
    return f"{path[:head]}…{path[head + 1 - characters :]}"


def _message(problem: Problem, words: Locale, style: str, room: int) -> str:
    kind = problem.kind
    if kind == "required":
        required, sketch = words.required[style], problem.shape
        if problem.closest is not None:
            sent = cut_at(_one_line(problem.closest), _LONGEST_STEP)
            return words.required_sent.format(required=required, sent=sent)
        if sketch is None:
            return required
        return _fitted(
            lambda shown: words.required_shape.format(required=required, shape=shown), sketch, room
        )
    if kind == "additionalProperties":
        return _unknown_field(problem, words, style, room)
    if kind in ("enum", "const"):
        return _enumerated(problem, words, style, room)
    if kind == "value":
        return problem.expected
    if kind == "tooDeep":
        return words.too_deep
    if kind in ("type", "anyOf", "oneOf"):
        return _mistyped(problem, words, style, room) if problem.expected else words.ambiguous
    limit = words.limits.get(kind, words.other_limit)
    return _fitted(
        lambda shown: _wanted(limit.format(expected=shown, kind=kind), "", words, style),
        problem.expected,
        room,
    )


def _wanted(what: str, received: str, words: Locale, style: str) -> str:
    got = words.got[style].format(received=received) if received else ""
    return words.wanted[style].format(what=what, got=got)


def _or_nothing(what: str, problem: Problem, words: Locale) -> str:
    return words.or_left_out.format(what=what) if problem.is_optional else what


def _fitted(say: Callable[[str], str], what: str, room: int) -> str:
    """`say(what)`, where `what` is shortened as far as it must be for the whole to have room."""
    over = len(say(what)) - room
    return say(shortened(what, max(1, len(what) - over)) if over > 0 else what)


def _listed(say: Callable[[str], str], members: Sequence[str], room: int, *, more: bool) -> str:
    """`say` the members that there is room for; of the first one a part where there is none."""
    for count in range(len(members), 0, -1):
        rest = ", …" if more or count < len(members) else ""
        text = say(", ".join(members[:count]) + rest)
        if len(text) <= room:
            return text
    rest = ", …" if more or len(members) > 1 else ""
    return _fitted(lambda shown: say(shown + rest), members[0], room)


def _mistyped(problem: Problem, words: Locale, style: str, room: int) -> str:
    """The wanted type, shape or alternatives, and the type that came."""

    def said(what: str) -> str:
        return _wanted(_or_nothing(what, problem, words), problem.received, words, style)

    sketch = problem.shape if problem.kind == "type" else None
    if sketch is not None and sketch.startswith("array"):
        return _fitted(said, sketch, room)
    if sketch is not None:
        return _fitted(lambda shown: said(words.object_of.format(shape=shown)), sketch, room)
    options = problem.alternatives
    for count in range(len(options), 0, -1):
        text = said(words.either.join([*options[:count], "…"][: len(options)]))
        if len(text) <= room:
            return text
    rest = f"{words.either}…" if len(options) > 1 else ""
    return _fitted(lambda shown: said(shown + rest), options[0], room)


def _unknown_field(problem: Problem, words: Locale, style: str, room: int) -> str:
    unknown = words.unknown_field[style]
    if problem.closest:
        return words.unknown_field_meant.format(unknown=unknown, closest=problem.closest)
    if not problem.allowed:
        return words.unknown_field_leave_out.format(unknown=unknown)
    return _listed(
        lambda names: words.unknown_field_allowed.format(unknown=unknown, allowed=names),
        problem.allowed,
        room,
        more=problem.more > 0,
    )


def _enumerated(problem: Problem, words: Locale, style: str, room: int) -> str:
    """The members that there is room for, and what came; the one that was meant is named first."""
    types = problem.alternatives if problem.expected else ()
    same = problem.received in types
    received = words.another.format(received=problem.received) if same else problem.received

    def expected(listed: str) -> str:
        what = listed
        if len(problem.allowed) > 1:
            what = words.one_of.format(members=listed)
        if types and not same:
            what = words.typed_one_of.format(types=words.either.join(types), members=listed)
        return _wanted(_or_nothing(what, problem, words), received, words, style)

    def meant(listed: str, closest: str) -> str:
        return words.did_you_mean.format(closest=f'"{closest}"', message=expected(listed))

    more = problem.more > 0
    closest = problem.closest
    if closest is None:
        return _listed(expected, problem.allowed, room, more=more)
    if len(meant("…", closest)) > room:
        return _fitted(lambda shown: meant("…", shown), closest, room)
    return _listed(lambda listed: meant(listed, closest), problem.allowed, room, more=more)


def _one_line(text: str) -> str:
    """A text of the model's with its line breaks and other unseen characters as escapes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def cut_at(text: str, characters: int) -> str:
    """`text`, at most this long."""
    return text if len(text) <= characters else text[: characters - 1] + "…"
