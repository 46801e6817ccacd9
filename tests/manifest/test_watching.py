"""The dashboard and the alerts: every metric and label that they name is one that there is."""

import json
import re
from collections.abc import Iterator
from io import StringIO
from typing import Any

import pytest
from ruamel.yaml import YAML

from tests.conftest import REPOSITORY
from toolpool.contract.outcome import Code, ErrorType
from toolpool.contract.telemetry.families import OK, UNKNOWN_TOOL, Family, Kind
from toolpool.dispatcher.observers import dispatcher_metrics as of_dispatchers
from toolpool.workers.observers import worker_metrics as of_workers

FAMILIES = {f.name: f for f in (*of_dispatchers.FAMILIES, *of_workers.FAMILIES)}
OF_THE_TARGET = {"job", "instance"}
UP = Family("up", Kind.MOST, "Of Prometheus itself: whether it could scrape.")
"""Labels that Prometheus itself gives what it scrapes."""
VALUES = {
    "error_type": {OK, *ErrorType},
    "code": {OK, *Code},
    "verdict": {"valid", "rejected"},
    "keyword": of_dispatchers.KEYWORDS,
    "tool": {UNKNOWN_TOOL},
}

WORDS = {
    "sum", "max", "min", "avg", "count", "rate", "increase", "histogram_quantile", "label_values",
    "max_over_time", "and", "or", "unless", "by", "without", "on", "ignoring", "group_left",
    "group_right",
}  # fmt: skip
TOKEN = re.compile(
    r"""(?P<string>"(?:[^"\\]|\\.)*")|(?P<range>\[[^\]]+\])|(?P<number>\d+(?:\.\d+)?(?:[a-z]+)?)"""
    r"""|(?P<name>[a-zA-Z_:][\w:]*)|(?P<sign>=~|!~|!=|==|>=|<=|[-+*/%^=<>(){},])|(?P<space>\s+)"""
)
RANGE = re.compile(r"\[(\$__rate_interval|\d+[smhd])\]")


def tokens(expression: str) -> list[tuple[str, str]]:
    """The words of an expression of PromQL; fails where it has another."""
    found, at = [], 0
    while at < len(expression):
        match = TOKEN.match(expression, at)
        assert match, f"not PromQL from here: {expression[at:]!r}"
        at, kind = match.end(), str(match.lastgroup)
        if kind != "space":
            found.append((kind, match[0]))
    return found


def families_of(name: str) -> Family | None:
    """The family that a sample belongs to."""
    if name == UP.name:
        return UP
    if name in FAMILIES and FAMILIES[name].kind is not Kind.HISTOGRAM:
        return FAMILIES[name]
    of_histogram = re.fullmatch(r"(\w+)_(bucket|sum|count)", name)
    family = FAMILIES.get(of_histogram[1]) if of_histogram else None
    return family if family is not None and family.kind is Kind.HISTOGRAM else None


def labels_of(name: str) -> set[str]:
    """The labels that a sample has."""
    family = families_of(name)
    assert family is not None, f"there is no {name}"
    return {*family.labels, *OF_THE_TARGET, *(["le"] if name.endswith("_bucket") else [])}


def faults(expression: str, legend: str = "") -> Iterator[str]:
    """What is wrong with an expression: a metric, a label or a value that there is not."""
    words = tokens(expression)
    assert expression.count("(") == expression.count(")")
    known: set[str] = set()
    grouped: list[set[str]] = []
    at = 0
    while at < len(words):
        kind, word = words[at]
        at += 1
        if kind == "range" and not RANGE.fullmatch(word):
            yield f"{word} is no range"
        if kind != "name":
            continue
        if word in ("by", "without", "on", "ignoring", "group_left", "group_right"):
            end = words.index(("sign", ")"), at)
            grouped.append({text for sort, text in words[at:end] if sort == "name"})
            at = end
        elif word == "label_values":
            known |= OF_THE_TARGET | {word for _, word in words[-2:-1]}
        elif word not in WORDS:
            if families_of(word) is None:
                if at - 1 == len(words) - 2 and words[0][1] == "label_values":
                    continue  # the label that is asked for: looked at below
                yield f"there is no metric {word}"
                continue
            known |= labels_of(word)
            if at < len(words) and words[at] == ("sign", "{"):
                end = words.index(("sign", "}"), at)
                yield from selector_faults(word, words[at + 1 : end])
                at = end
    yield from (f"by {label}: no such label" for group in grouped for label in group - known)
    shown = set(re.findall(r"\{\{\s*(\w+)\s*\}\}", legend))
    kept = set().union(*grouped) if grouped else known
    yield from (f"{label} is shown, and not grouped by" for label in shown - kept)


def selector_faults(name: str, words: list[tuple[str, str]]) -> Iterator[str]:
    for (kind, label), (_, operator), (_, quoted) in zip(words, words[1:], words[2:], strict=False):
        if kind != "name":
            continue
        if label not in labels_of(name):
            yield f"{name} has no label {label}"
        value = quoted.strip('"')
        if label in VALUES and not value.startswith("$"):
            asked = set(value.split("|")) if operator in ("=~", "!~") else {value}
            yield from (f"{label} is never {v}" for v in asked - set(map(str, VALUES[label])))


def text(name: str) -> str:
    return (REPOSITORY / "deploy" / name).read_text(encoding="utf-8")


BOARD: dict[str, Any] = json.loads(text("dashboard.json"))
PANELS = [panel for panel in BOARD["panels"] if panel["type"] != "row"]
RULES = YAML(typ="safe").load(StringIO(text("alerts.yaml")))["groups"][0]["rules"]


@pytest.mark.parametrize("panel", PANELS, ids=lambda panel: panel["title"])
def test_a_panel_shows_what_there_is(panel: dict[str, Any]) -> None:
    assert panel["targets"]
    for target in panel["targets"]:
        assert not list(faults(target["expr"], target["legendFormat"])), target["expr"]
        assert 'job=~"$job"' in target["expr"]
        assert target["datasource"]["uid"] == panel["datasource"]["uid"] == "${datasource}"


def test_the_dashboard_asks_for_its_data_source() -> None:
    first, *others = BOARD["templating"]["list"]
    assert (first["name"], first["type"], first["query"]) == (
        "datasource",
        "datasource",
        "prometheus",
    )
    for variable in others:
        query = variable["query"]["query"]
        metric, label = re.fullmatch(r"label_values\((\w+)(?:\{.*\})?, (\w+)\)", query).groups()  # type: ignore[union-attr]
        assert label in labels_of(metric)
    ids = [panel["id"] for panel in BOARD["panels"]]
    assert len(ids) == len(set(ids))
    places = [tuple(sorted(panel["gridPos"].items())) for panel in BOARD["panels"]]
    assert len(places) == len(set(places))


def test_every_metric_is_on_the_dashboard() -> None:
    shown = " ".join(target["expr"] for panel in PANELS for target in panel["targets"])
    missing = [
        name for name in FAMILIES if not re.search(rf"\b{name}(_bucket|_sum|_count)?\b", shown)
    ]
    assert not missing


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule["alert"])
def test_an_alert_asks_for_what_there_is_and_says_what_to_do(rule: dict[str, Any]) -> None:
    assert not list(faults(rule["expr"])), rule["expr"]
    assert rule["labels"]["severity"] in ("page", "warning")
    assert RANGE.fullmatch(f"[{rule['for']}]")
    said = rule["annotations"]["summary"] + rule["annotations"]["description"]
    grouped = set(re.findall(r"\w+", " ".join(re.findall(r"by \(([^)]*)\)", rule["expr"]))))
    assert set(re.findall(r"\$labels\.(\w+)", said)) <= grouped
    assert len(rule["annotations"]["description"]) > 80
    for name in re.findall(r"\btoolpool_\w+", said):
        assert families_of(name) or FAMILIES[name].kind is Kind.HISTOGRAM, name


@pytest.mark.parametrize(
    ("alert", "asks_for"),
    [
        ("ToolpoolCallsDenied", 'toolpool_calls_total{code="aborted.denied"}'),
        ("ToolpoolHookFails", "toolpool_hook_failures_total"),
        ("ToolpoolApprovalsWait", "toolpool_oldest_waiting_approval_age_seconds"),
        ("ToolpoolStuckSlots", "toolpool_stuck_slots"),
        ("ToolpoolDown", "(up) == 0"),
        ("ToolpoolCallsWait", 'toolpool_calls_total{code="exception.expired"}'),
    ],
)
def test_faults_that_fail_no_call_alert_operators_too(alert: str, asks_for: str) -> None:
    """And calls that expire sooner than the age of the first can reach what it alerts at."""
    [rule] = [rule for rule in RULES if rule["alert"] == alert]
    assert asks_for in rule["expr"]


def test_only_what_a_model_mistypes_can_wait() -> None:
    assert [r["alert"] for r in RULES if r["labels"]["severity"] == "warning"] == [
        "ToolpoolFirstTriesRejected"
    ]


@pytest.mark.parametrize(
    ("expression", "fault"),
    [
        ("toolpool_call_total", "there is no metric toolpool_call_total"),
        ("rate(toolpool_calls[5m])", "there is no metric toolpool_calls"),
        ("toolpool_call_duration_seconds", "there is no metric toolpool_call_duration_seconds"),
        ('toolpool_calls_total{tols="x"}', "toolpool_calls_total has no label tols"),
        ('toolpool_calls_total{error_type=~"runtime|exeption"}', "error_type is never exeption"),
        ("sum by (queue) (toolpool_calls_total)", "by queue: no such label"),
        ("sum by (le) (toolpool_call_duration_seconds_sum)", "by le: no such label"),
        ("rate(toolpool_calls_total[5x])", "[5x] is no range"),
    ],
)
def test_what_there_is_not_is_found(expression: str, fault: str) -> None:
    assert list(faults(expression)) == [fault]


@pytest.mark.parametrize(
    ("module", "heading"), [(of_dispatchers, "dispatcher"), (of_workers, "worker")]
)
def test_every_metric_is_in_the_document(module: Any, heading: str) -> None:
    document = (REPOSITORY / "docs" / "operating.md").read_text(encoding="utf-8")
    part = document.partition(f"### Of a {heading}")[2].partition("\n#")[0]
    rows = dict(re.findall(r"^\| `(toolpool_\w+)` \| ([^|]*) \|", part, re.MULTILINE))
    listed = {name: tuple(re.findall(r"`(\w+)`", labels)) for name, labels in rows.items()}
    assert listed == {family.name: family.labels for family in module.FAMILIES}


@pytest.mark.parametrize("family", FAMILIES.values(), ids=lambda family: family.name)
def test_names_are_as_prometheus_asks(family: Family) -> None:
    assert re.fullmatch(r"toolpool_[a-z_]+", family.name)
    assert family.name.endswith("_total") is (family.kind is Kind.COUNTER)
    assert not re.search(r"_(ms|millis|minutes|percent|count|sum|bucket)$", family.name)
    assert family.text.endswith(".")
    if "Seconds" in family.text and family.kind is not Kind.COUNTER:
        assert family.name.endswith("_seconds")
