"""Rules in a file decide about calls: the first that fits."""

import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.waiting import eventually
from toolpool import (
    Allow,
    AskApproval,
    Code,
    Deny,
    Dispatcher,
    Hooks,
    Misconfigured,
    Settings,
    tool,
)
from toolpool.contract.spec import Effects
from toolpool.dispatcher.policy.equality import RuleFailed
from toolpool.dispatcher.policy.rule_file import RuleFile
from toolpool.dispatcher.policy.rules import parse
from toolpool.dispatcher.policy.verdict_types import ProposedCall, Verdict


def proposed(tool: str = "refund", /, **arguments: Any) -> ProposedCall:
    return ProposedCall(
        tool=tool,
        arguments=arguments,
        call_id="c-1",
        session="s-1",
        turn=None,
        tenant="shop",
        context={"user": {"role": "clerk"}},
        effects=Effects.WRITE,
    )


def verdict(condition: str, call: ProposedCall, action: str = "deny") -> Verdict:
    return parse(f'[[rule]]\naction = "{action}"\n{condition}', "p").decide(call).verdict


@pytest.mark.parametrize("path", ["labels.*", "*", "a.*.b", "$.a", "/a/b", " a", "a. b"])
def test_a_path_of_another_language_is_refused(path: str) -> None:
    with pytest.raises(Misconfigured, match="is not a valid path"):
        parse(f'[[rule]]\naction = "deny"\nargument = "{path}"\nequals = 1', "p")


FITS = [
    ('argument = "amount"\nabove = 500', {"amount": 501}),
    ('argument = "amount"\nabove = 500', {"amount": 500.5}),
    ('argument = "amount"\nat_least = 500', {"amount": 500}),
    ('argument = "amount"\nbelow = 0', {"amount": -1}),
    ('argument = "amount"\nat_most = 0', {"amount": 0}),
    ('argument = "amount"\nabove = 10\nbelow = 20', {"amount": 15}),
    ('argument = "path"\nequals = "/etc"', {"path": "/etc"}),
    ('argument = "n"\nequals = 1', {"n": 1.0}),
    ('argument = "on"\nequals = true', {"on": True}),
    ('argument = "to"\nequals = {a = [1]}', {"to": {"a": [1]}}),
    ('argument = "to"\nequals = {a = [1]}', {"to": {"a": [1.0]}}),
    ('argument = "n"\none_of = [[0]]', {"n": [-0.0]}),
    ('argument = "id"\nat_most = 9007199254740993', {"id": 9007199254740993}),
    ('argument = "n"\nbelow = 1' + "0" * 400, {"n": 1}),
    ('argument = "lines[*].qty"\nmissing = true', {"lines": [{"qty": 1}, {}]}),
    ('argument = "lines[*].qty"\nmissing = true', {"lines": [{"qty": 1}, None]}),
    ('argument = "lines[*].qty"\nmissing = true', {"lines": []}),
    ('argument = "lines[*].qty"\nmissing = false', {"lines": [{"qty": 1}, {}]}),
    ('argument = "path"\ndiffers_from = "/tmp"', {"path": "/etc"}),
    ('argument = "currency"\none_of = ["EUR", "USD"]', {"currency": "USD"}),
    ('argument = "currency"\nnone_of = ["EUR", "USD"]', {"currency": "XXX"}),
    ('argument = "path"\nmatches = "^/etc/"', {"path": "/etc/passwd"}),
    ('argument = "to"\ndoes_not_match = "@shop[.]example$"', {"to": "a@b.example"}),
    ('argument = "text"\nlonger_than = 3', {"text": "four"}),
    ('argument = "lines"\nlonger_than = 1', {"lines": [1, 2]}),
    ('argument = "reason"\nmissing = true', {}),
    ('argument = "reason"\nmissing = false\nlonger_than = 0', {"reason": "x"}),
    ('argument = "reason"\nmissing = true', {"reason": None}),
    ('argument = "reason"\ndiffers_from = "x"', {"reason": None}),
    ('argument = "reason"\nnone_of = ["x"]', {"reason": None}),
    ('argument = "lines[*].qty"\nabove = 9', {"lines": [{"qty": 1}, {"qty": 10}]}),
    ('argument = "lines[1].qty"\nabove = 9', {"lines": [{"qty": 1}, {"qty": 10}]}),
    ('argument = "by[*]"\nabove = 9', {"by": {"x": 1, "y": 10}}),
    ('argument = "a.b.c"\nequals = 1', {"a": {"b": {"c": 1}}}),
    ('context = "user.role"\nequals = "clerk"', {}),
    ('tool = "ref*"', {}),
    ('tool = ["other", "refund"]', {}),
    ('effects = "write"', {}),
    ('session = "s-*"\ntenant = "shop"', {}),
    (
        'when = [{argument = "a", equals = 1}, {context = "user.role", one_of = ["clerk"]}]',
        {"a": 1},
    ),
]

DOES_NOT_FIT = [
    ('session = "s-[1]"', {}),
    ('tool = "r[e]fund"', {}),
    ('argument = "reason"\nmissing = false', {"reason": None}),
    ('argument = "reason"\nequals = "x"', {"reason": None}),
    ('argument = "reason"\nabove = 1', {"reason": None}),
    ('argument = "reason"\nmatches = "x"', {"reason": None}),
    ('argument = "reason"\ndoes_not_match = "x"', {"reason": None}),
    ('argument = "reason"\nlonger_than = 1', {"reason": None}),
    ('argument = "amount"\nabove = 500', {"amount": 500}),
    ('argument = "amount"\nabove = 500', {}),
    ('argument = "amount"\nabove = 10\nbelow = 20', {"amount": 25}),
    ('argument = "n"\nequals = 1', {"n": True}),
    ('argument = "n"\nequals = true', {"n": 1}),
    ('argument = "n"\nequals = [true]', {"n": [1]}),
    ('argument = "n"\nequals = {a = 1}', {"n": {"a": 1, "b": 2}}),
    ('argument = "id"\nabove = 9007199254740993', {"id": 9007199254740993}),
    ('argument = "lines[*].qty"\nmissing = true', {"lines": [{"qty": 1}]}),
    ('argument = "path"\nmatches = "^/etc/"', {"path": "/home/etc/"}),
    ('argument = "lines[7].qty"\nabove = 9', {"lines": [{"qty": 10}]}),
    ('argument = "lines[*].qty"\nabove = 9', {"lines": []}),
    ('context = "user.role"\nequals = "admin"', {}),
    ('context = "nobody.role"\nequals = "admin"', {}),
    ('tool = "Refund"', {}),
    ('effects = "read"', {}),
    ('session = "other"', {}),
    ('tenant = "other"', {}),
    ('when = [{argument = "a", equals = 1}, {argument = "b", equals = 1}]', {"a": 1, "b": 2}),
]


@pytest.mark.parametrize(("condition", "arguments"), FITS)
def test_a_matching_rule_decides(condition: str, arguments: dict[str, Any]) -> None:
    assert verdict(condition, proposed(**arguments)) == Deny("")


@pytest.mark.parametrize(("condition", "arguments"), DOES_NOT_FIT)
def test_a_rule_that_does_not_match_is_skipped(condition: str, arguments: dict[str, Any]) -> None:
    assert verdict(condition, proposed(**arguments)) == Allow()


def test_what_allows_must_hold_of_every_value_what_denies_of_one() -> None:
    text = """
        default = "deny"
        [[rule]]
        action = "allow"
        argument = "to[*]"
        matches = "@shop[.]example$"
    """
    rules = parse(text, "p")
    ours, theirs = "a@shop.example", "b@evil.example"
    assert rules.decide(proposed(to=[ours])).verdict == Allow()
    for to in ([ours, theirs], [theirs], []):
        assert isinstance(rules.decide(proposed(to=to)).verdict, Deny)


@pytest.mark.parametrize("condition", ["at_most = 100", "missing = false", "none_of = [0]"])
def test_what_allows_must_hold_of_values_that_are_missing_too(condition: str) -> None:
    text = f"""
        default = "deny"
        [[rule]]
        action = "allow"
        argument = "lines[*].price"
        {condition}
    """
    rules = parse(text, "p")
    assert rules.decide(proposed(lines=[{"price": 1}, {"price": 2}])).verdict == Allow()
    for lines in ([{"price": 1}, {}], [{"price": 1}, "free"], [{"price": 1}, None]):
        assert isinstance(rules.decide(proposed(lines=lines)).verdict, Deny)


def test_the_first_rule_that_fits_decides_and_is_named() -> None:
    text = """
        [[rule]]
        name = "small ones"
        tool = "refund"
        argument = "amount"
        at_most = 100
        action = "allow"

        [[rule]]
        tool = "refund"
        action = "ask"
        reason = "Refunds above 100 need a person."
        approvers = ["anna"]
        expires = 60

        [[rule]]
        action = "deny"
    """
    rules = parse(text, "p")
    assert rules.decide(proposed(amount=50)) == (Allow(), "small ones")
    asks = AskApproval("Refunds above 100 need a person.", ("anna",), 60)
    assert rules.decide(proposed(amount=500)) == (asks, "rule 2")
    assert rules.decide(proposed("other")) == (Deny(""), "rule 3")


@pytest.mark.parametrize(
    ("condition", "arguments"),
    [
        ('argument = "amount"\nabove = 5', {"amount": "6"}),
        ('argument = "amount"\nabove = 5', {"amount": True}),
        ('argument = "path"\nmatches = "x"', {"path": 5}),
        ('argument = "path"\nlonger_than = 5', {"path": 5}),
    ],
)
def test_a_rule_that_cannot_be_held_to_a_value_fails(
    condition: str, arguments: dict[str, Any]
) -> None:
    with pytest.raises(RuleFailed, match="rule 1"):
        verdict(condition, proposed(**arguments), "allow")


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("a =", "not TOML"),
        ("[[rules]]", "$.rules"),
        ('default = "maybe"', "maybe"),
        ("[[rule]]", "rule 1: Object missing required field `action`"),
        ('[[rule]]\naction = "permit"', "permit"),
        ('[[rule]]\naction = "deny"\nargumnt = "a"', "argumnt"),
        ('[[rule]]\naction = "deny"\nargument = "a"', "has no comparison"),
        ('[[rule]]\naction = "deny"\nabove = 5', "needs either `argument` or `context`"),
        ('[[rule]]\naction = "deny"\nargument = "a"\ncontext = "b"\nabove = 5', "either"),
        ('[[rule]]\naction = "deny"\nargument = "a..b"\nequals = 1', "not a valid path"),
        ('[[rule]]\naction = "deny"\nargument = "a[x]"\nequals = 1', "not a valid path"),
        ('[[rule]]\naction = "deny"\nargument = ""\nequals = 1', "must not be empty"),
        ('[[rule]]\naction = "deny"\nargument = "a"\nmatches = "(?=x)"', "regular_expr"),
        ('[[rule]]\naction = "deny"\nargument = "a"\nmatches = "("', "cannot be used"),
        ('[[rule]]\naction = "deny"\nargument = "a"\nmatches = "[[:digit:]]{16}"', "[0-9]"),
        ('[[rule]]\naction = "deny"\nargument = "a"\nmatches = \'[\\]x[]\'', "[0-9]"),
        ('[[rule]]\naction = "deny"\nargument = "a"\nabove = "5"', "above"),
        ('[[rule]]\naction = "deny"\nargument = "a"\nmissing = true\nabove = 5', "missing"),
        ('[[rule]]\naction = "deny"\napprovers = ["a"]', "approvers"),
        ('[[rule]]\naction = "ask"\nexpires = 0', "expires"),
        ('[[rule]]\naction = "deny"\ntool = []', "names no tool"),
        ('[[rule]]\naction = "deny"\ntool = ""', "names no tool"),
        ('[[rule]]\naction = "deny"\ntenant = ""', "must not be empty"),
        ('[[rule]]\naction = "deny"\nsession = ""', "must not be empty"),
        ('[[rule]]\naction = "deny"\nargument = "a"\nmatches = "(?s)rm.*-rf"', "a flag"),
        ('[[rule]]\naction = "deny"\nargument = "a"\nmatches = "(?m:^Bcc:)"', "a flag"),
        ('[[rule]]\naction = "deny"\nargument = "a"\nmatches = \'^evil\\z\'', "write ^ or $"),
        ('[[rule]]\naction = "deny"\nargument = "a"\nmatches = "a(?is:b.c)"', "a flag"),
        ('[[rule]]\naction = "deny"\nargument = "a"\nmatches = "^[].]+$"', "an empty class"),
        ('[[rule]]\naction = "deny"\nargument = "a"\nmatches = "[^].]"', "an empty class"),
        ('[[rule]]\naction = "deny"\nargument = "a"\none_of = []', "must not be empty"),
        ('[[rule]]\naction = "allow"\nargument = "a"\nnone_of = []', "must not be empty"),
        ('[[rule]]\naction="deny"\n[[rule]]\nname = "second"\naction = "no"', "rule 2 (second)"),
        ("rule = [1]", "rule"),
        ('[[rule]]\naction = "deny"\nargument = "a"\nabove = nan', "not nan or inf"),
        ('[[rule]]\naction = "deny"\nargument = "a"\nat_most = inf', "not nan or inf"),
        ('[[rule]]\naction = "deny"\nargument = "a"\nequals = nan', "valid JSON"),
        ('[[rule]]\naction = "deny"\nargument = "a"\nnone_of = [1979-05-27]', "valid JSON"),
        ('[[rule]]\naction = "deny"\nargument = "a"\nequals = ' + "9" * 5000, "not TOML"),
        ('[[rule]]\naction = "deny"\nequals = ' + "[" * 3000, "too deeply"),
        ('[[rule]]\naction = "ask"\nexpires = inf', "expires"),
        ('[[rule]]\naction = "ask"\nexpires = nan', "expires"),
        ('[[rule]]\naction = "ask"\napprovers = [""]', "approvers"),
        ('[[rule]]\naction = "ask"\napprovers = []', "approvers` names nobody"),
    ],
    ids=lambda text: text[:80],
)
def test_a_file_that_cannot_be_used_says_why_and_where(text: str, told: str) -> None:
    with pytest.raises(Misconfigured) as error:
        parse(text, "policy.toml")
    assert "policy.toml" in str(error.value) and told in str(error.value)


@pytest.mark.parametrize(
    ("pattern", "text", "fits"),
    [
        ("^a.b$", "a-b", True),
        ("^a.b$", "a\nb", False),
        ("^a.b$", "a\rb", False),
        ("^a.b$", "a\u2028b", False),
        ("^a[.]b$", "a-b", False),
        (r"^a\.b$", "a-b", False),
        (r"^a\\.b$", "a\\-b", True),
        (r"\bfoo\b", "éfoo", True),
        (r"\bfoo\b", "xfoo", False),
        (r"\Bfoo", "xfoo", True),
        (r"\Bfoo", "éfoo", False),
        ("^[.]$", ".", True),
        ("(?i)^admin$", "ADMIN", True),
        (r"\</script\>", "</script>", True),
        (r"a\>", "a", False),
    ],
)
def test_a_pattern_means_what_ecma_262_says(pattern: str, text: str, fits: bool) -> None:
    found = verdict(f"argument = 't'\nmatches = '{pattern}'", proposed(t=text))
    assert found == (Deny("") if fits else Allow())


def test_a_pattern_takes_no_longer_for_a_text_made_to_be_slow() -> None:
    """As long as the text: a backtracking engine would not come back before the test ends."""
    text = "a" * 200_000 + "!"
    assert verdict('argument = "t"\nmatches = "^(a+)+$"', proposed(t=text)) == Allow()


@tool(effects="write")
async def refund(amount: int) -> int:
    """Pay money back."""
    return amount


def _write(path: Path, text: str) -> None:
    other = path.with_suffix(".new")
    other.write_text(text)
    os.replace(other, path)


async def test_a_file_is_followed_and_one_that_is_broken_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "policy.toml"
    _write(path, '[[rule]]\naction = "deny"\nreason = "closed"')

    async with Dispatcher.in_memory([refund], settings=Settings(policy=str(path))) as dispatcher:

        async def code() -> Code | None:
            return (await dispatcher.dispatch({"name": "refund", "input": {"amount": 1}}))[0].code

        async def is_open() -> bool:
            return await code() is None

        assert await code() is Code.DENIED
        _write(path, '[[rule]]\naction = "allow"')
        await eventually(is_open, "the new rules hold")
        _write(path, '[[rule]]\naction = "nonsense"')
        await eventually(lambda: "policy_not_reloaded" in caplog.text, "it is told")
        assert await is_open() and "nonsense" in caplog.text
        _write(path, "a = " + "[" * 3000)
        await eventually(lambda: "too deeply" in caplog.text, "it is told")
        path.unlink()
        await eventually(lambda: "cannot be read" in caplog.text, "it is told")
        assert await is_open()
        _write(path, '[[rule]]\naction = "deny"')

        async def is_closed() -> bool:
            return await code() is Code.DENIED

        await eventually(is_closed, "the new rules hold")


def test_a_file_that_is_being_written_is_not_read(tmp_path: Path) -> None:
    """R58: an editor empties it first, and an empty file denies nothing."""
    path = tmp_path / "policy.toml"
    _write(path, '[[rule]]\naction = "deny"')
    file = RuleFile(path)
    assert file.changed() is None
    _write(path, "")
    assert file.changed() is None
    _write(path, '[[rule]]\naction = "allow"\ntool = "refund"')
    assert file.changed() is None
    _write(path, '[[rule]]\naction = "allow"\ntool = "refund"\n[[rule]]\naction = "deny"')
    assert file.changed() is None
    rules = file.changed()
    assert rules is not None and len(rules) == 2
    assert file.changed() is None


def test_a_file_with_its_earlier_date_and_size_is_read(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('[[rule]]\naction = "allow"')
    before = path.stat()
    file = RuleFile(path)
    path.write_text('[[rule]]\naction = "deny" ')
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    file.changed()
    assert file.changed() is not None


def test_a_file_is_followed_where_it_was_when_the_host_goes_to_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A workspace may hold a file of the same name."""
    (tmp_path / "workspace").mkdir()
    (tmp_path / "workspace/policy.toml").write_text('[[rule]]\naction = "allow"\n' * 2)
    (tmp_path / "policy.toml").write_text('[[rule]]\naction = "deny"')
    monkeypatch.chdir(tmp_path)
    file = RuleFile("policy.toml")
    monkeypatch.chdir(tmp_path / "workspace")
    file.changed()
    assert file.changed() is None


def changed(path: Path, text: str) -> int:
    """How many rules hold after a file was changed. Raises `Misconfigured`."""
    file = RuleFile(path)
    _write(path, text)
    file.changed()
    rules = file.changed()
    return len(rules if rules is not None else file.rules)


DENIES = '[[rule]]\naction = "deny"\n'
ASKS = '[[rule]]\naction = "ask"\n'


@pytest.mark.parametrize(
    ("before", "after", "told"),
    [
        (DENIES, "", "has no rules"),
        (DENIES, "# all is well\n", "has no rules"),
        (DENIES, 'default = "allow"\n', "has no rules"),
        (DENIES * 2, DENIES, "without its end"),
        (DENIES + "# end\n", DENIES, "without its end"),
        ("rules = 2\n" + DENIES * 2, "rules = 2\n" + DENIES, "says `rules = 2` and has 1"),
        ("rules = 1\n" + DENIES, DENIES + DENIES, "no longer says"),
        ("rules = 1\n" + ASKS + 'approvers = ["ann"]\n', "rules = 1\n" + ASKS, "without its end"),
    ],
)
def test_a_file_that_lost_rules_is_not_followed(
    tmp_path: Path, before: str, after: str, told: str
) -> None:
    path = tmp_path / "policy.toml"
    _write(path, before)
    with pytest.raises(Misconfigured, match=told):
        changed(path, after)


@pytest.mark.parametrize(
    ("before", "after", "count"),
    [
        (DENIES, "rules = 0\n", 0),
        (DENIES * 2, "rules = 1\n" + DENIES, 1),
        (DENIES * 2, '[[rule]]\naction = "allow"\n', 1),
        ("rules = 2\n" + DENIES * 2, "rules = 1\n" + DENIES, 1),
        (DENIES * 2, DENIES + "# one is enough\n", 1),
    ],
)
def test_rules_can_be_taken_away_on_purpose(
    tmp_path: Path, before: str, after: str, count: int
) -> None:
    path = tmp_path / "policy.toml"
    _write(path, before)
    assert changed(path, after) == count


def test_a_dispatcher_does_not_start_with_an_empty_file(tmp_path: Path) -> None:
    (tmp_path / "policy.toml").touch()
    with pytest.raises(Misconfigured, match="has no rules"):
        Dispatcher.in_memory([refund], hooks=Hooks(policy=tmp_path / "policy.toml"))


def test_a_policy_set_to_nothing_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLPOOL_POLICY", "")
    with pytest.raises(ValueError, match="it is empty"):
        Settings()


def test_a_pipe_in_its_place_is_not_waited_for(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    _write(path, DENIES)
    file = RuleFile(path)
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(Misconfigured, match="not a regular file"):
        file.changed()
    with pytest.raises(Misconfigured, match="not a regular file"):
        RuleFile(path)


def test_a_file_that_is_not_there_is_refused_at_once(tmp_path: Path) -> None:
    with pytest.raises(Misconfigured, match="cannot be read"):
        Dispatcher.in_memory([refund], hooks=Hooks(policy=tmp_path / "nothing.toml"))


async def test_rules_hold_for_what_a_hook_rewrote(tmp_path: Path) -> None:
    from toolpool import Rewrite

    path = tmp_path / "policy.toml"
    path.write_text('[[rule]]\nargument = "amount"\nabove = 10\naction = "deny"')
    hooks = Hooks(before_call=lambda _: Rewrite({"amount": 11}), policy=path)
    async with Dispatcher.in_memory([refund], hooks=hooks) as dispatcher:
        turn = await dispatcher.dispatch({"name": "refund", "input": {"amount": 1}})
    assert turn[0].code is Code.DENIED


async def test_a_rule_that_fails_denies(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('[[rule]]\nargument = "amount"\nmatches = "1"\naction = "deny"')
    async with Dispatcher.in_memory([refund], hooks=Hooks(policy=path)) as dispatcher:
        turn = await dispatcher.dispatch({"name": "refund", "input": {"amount": 5}})
    assert turn[0].code is Code.DENIED


def test_one_value_in_place_of_a_list_is_its_only_element() -> None:
    """A tool may take either: a rule about every element is not got round with a single one."""
    condition = 'argument = "to[*]"\ndoes_not_match = "@shop[.]example$"'
    theirs = "b@evil.example"
    for to in (theirs, [theirs], ["a@shop.example", theirs]):
        assert verdict(condition, proposed(to=to)) == Deny("")
    for to in ("a@shop.example", ["a@shop.example"]):
        assert verdict(condition, proposed(to=to)) == Allow()
    assert verdict('argument = "to[*]"\nmissing = true', proposed(to=None)) == Deny("")


def test_one_object_in_place_of_a_list_is_its_only_element() -> None:
    """A rule by a pattern also names tools that take one object where others take a list."""
    condition = 'argument = "line[*].sku"\nequals = "X-9"'
    inner = {"sku": "ok", "part": {"sku": "X-9"}}
    for line in (
        {"sku": "X-9"},
        {"sku": "X-9", "part": {"sku": "ok"}},
        {"a": {"sku": "X-9"}},
        inner,
    ):
        assert verdict(condition, proposed(line=line)) == Deny("")
    for line in ({"sku": "ok"}, {"a": {"sku": "ok"}}, {}, {"a": {"qty": 1}}):
        assert verdict(condition, proposed(line=line)) == Allow()
    with pytest.raises(RuleFailed, match="another form"):
        verdict(condition, proposed(line={"qty": 1}))  # a map of numbers, or one object
    missing = 'argument = "line[*].sku"\nmissing = true'
    assert verdict(missing, proposed(line={"sku": "x"})) == Allow()
    assert verdict(missing, proposed(line={"a": {"sku": "x"}})) == Allow()
    assert verdict(missing, proposed(line={"a": {"qty": 1}})) == Deny("")


def test_what_allows_holds_of_a_map_or_of_one_object() -> None:
    text = """
        default = "deny"
        [[rule]]
        action = "allow"
        argument = "line[*].sku"
        equals = "ok"
    """
    rules = parse(text, "p")
    for line in ({"sku": "ok"}, {"a": {"sku": "ok"}, "b": {"sku": "ok"}}, [{"sku": "ok"}]):
        assert rules.decide(proposed(line=line)).verdict == Allow()
    for line in ({"sku": "X-9"}, {"a": {"sku": "ok"}, "b": {"sku": "X-9"}}, {"a": {}}):
        assert isinstance(rules.decide(proposed(line=line)).verdict, Deny)


def test_a_pattern_with_many_stars_takes_no_longer_than_others() -> None:
    """Backtracking would take minutes; the test would not end within its time limit."""
    pattern = "*?a*?a*?a*?a*?a*?a*?ab"
    call = msgspec.structs.replace(proposed(), session="a" * 256)
    assert isinstance(verdict(f'session = "{pattern}"', call), Allow)
    call = msgspec.structs.replace(call, session="xa" * 127 + "ab")
    assert isinstance(verdict(f'session = "{pattern}"', call), Deny)
