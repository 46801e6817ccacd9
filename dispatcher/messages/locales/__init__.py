"""The texts that the model reads, one file per language, found by its name.

To add a language, add a file.
"""

import importlib
import pkgutil
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from toolpool.contract.errors import Misconfigured


@dataclass(frozen=True, slots=True, kw_only=True)
class Locale:
    """Every sentence and phrase of one language. Words in braces are filled in.

    The tables with a style for a key have `default`, `numbered`, `pointer` and `brief`.
    """

    # A rejection of arguments: head, one line a problem, tail.
    head: Mapping[str, str]
    tail: Mapping[str, str]
    line: Mapping[str, str]
    """A line with `{path}` and `{message}`."""
    root_line: Mapping[str, str]
    """A line about the arguments as a whole."""
    more: str
    shape: Mapping[str, str]
    shape_alone: Mapping[str, str]
    """`shape` follows the errors, `shape_alone` replaces them. `{shapes}` are the expected shapes,
    each after its path.
    """
    arguments: str
    """Replaces the path if the shape is that of all arguments."""

    # A problem. `expected` and `must be` are the two ways to say what is wanted.
    required: Mapping[str, str]
    required_shape: str
    required_sent: str
    """For a missing field, if a field with a similar name was sent."""
    wanted: Mapping[str, str]
    got: Mapping[str, str]
    either: str
    """The separator of alternatives."""
    or_left_out: str
    """For null that was sent for an optional field."""
    no_null: str
    """For null that was sent for several optional fields."""
    object_of: str
    one_of: str
    typed_one_of: str
    one_of_those_below: str
    another: str
    holding: Mapping[str, str]
    """The received value, if it is a string that contains the expected array, object or list."""
    did_you_mean: str
    unknown_field: Mapping[str, str]
    unknown_field_leave_out: str
    unknown_field_meant: str
    ambiguous: str
    too_deep: str
    limits: Mapping[str, str]
    """The expected value by JSON Schema keyword, with `{expected}`."""
    other_limit: str

    # Rejections of other kinds.
    unknown_tool: str
    unknown_tool_meant: str
    unsupported: str
    nameless: str
    no_tools: str
    tools: str
    names_more: str
    full_stop: str
    flaws: Mapping[str, str]
    """Why a call could not be read. The sentences below begin with this text."""
    json_breaks: Mapping[str, str]
    """What is wrong with text that is not JSON."""
    unparseable: str
    truncated: str
    refused: str
    too_large: str
    too_many_calls: str
    no_response: str
    unreadable: Mapping[str, str]
    """Why a response holds no calls."""
    loop: str
    loop_in_turns: str
    again: str
    """Added to a rejection that keeps recurring."""
    again_in_turns: str
    not_checked: str
    refused_by_check: str

    # The end of a call that was accepted.
    raised: str
    bad_result: str
    """A result that does not match its tool's declaration, with the mismatch."""
    raised_as: str
    """The class and the text of the exception that a tool raised, if the model may read them."""
    masked: str
    unnamed_error: str
    crashed: str
    timed_out: str
    fell_silent: str
    blocked_loop: str
    and_was_stopped: str
    without_word: str
    but_goes_on: str
    but: str
    cancelled: str
    denied: str
    arguments_differ: str
    """Replaces a reason: the tool's types change the arguments `{fields}`."""
    not_comparable: str
    """Replaces a reason: the types of the arguments `{fields}` cannot be compared with JSON."""
    not_judged: str
    no_approver: str
    """The reason if several rules require approval and name no common approver."""
    policy_failed: str
    """The reason if a rule or a hook failed."""
    withheld: str
    """A result that the host withholds."""
    not_allowed: str
    no_credential: str
    """A secret that is not configured; `{not_run}` is empty or begins with a space."""
    needs_sign_in: str
    needs_sign_in_at: str
    no_result: str
    reasons: Mapping[str, str]
    limited: Mapping[str, str]
    """What a rate limit counts, by its kind, with `{most}` and `{window}`."""
    windows: Mapping[str, str]
    internal: str
    not_run: str
    may_have_run: str

    # Notes on results, and the texts of the background tools.
    cut: str
    cut_less: str
    cut_pages: str
    still_running: str
    ask_for_result: str
    awaits_approval: str
    ask_for_result_later: str
    denied_by: str
    """Says who denied a call, with a reason or without."""
    denied_by_because: str
    rewritten: str
    """The arguments `{names}` were changed."""
    unseen_end: str
    shared: str
    """A result that is shared with an equal call that ran at the same time."""
    cached: str
    """A result that is `{seconds}` old."""
    no_such_handle: str
    list_tasks: str
    no_such_page: str
    more_tasks: str
    tasks_of_no_session: str
    made_up_id: str
    text_repaired: str
    text_repairs: Mapping[str, str]
    listed: str
    """The separator of list members."""
    repaired: str
    repairs: Mapping[str, str]

    advice: Mapping[str, str]


@cache
def names() -> tuple[str, ...]:
    """The available languages."""
    return tuple(sorted(module.name for module in pkgutil.iter_modules(__path__)))


@cache
def locale(name: str) -> Locale:
    """The language of this name. Raises `Misconfigured` if there is none."""
    if name not in names():
        raise Misconfigured(f"there is no locale {name!r}: use one of {', '.join(names())}")
    found: Locale = importlib.import_module(f"{__name__}.{name}").LOCALE
    return found
