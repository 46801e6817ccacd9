"""What the doctor sees, check by check."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from tests.unit.cli.conftest import Ran
from toolpool import checks
from toolpool.checks import Finding, Level
from toolpool.cli.status import unserved_for
from toolpool.contract.envelope import CatalogEntry, WorkerLease
from toolpool.contract.operator_messages import DispatcherReport
from toolpool.contract.settings import Settings
from toolpool.contract.spec import RunIn, ToolSpec, sealed
from toolpool.contract.version import VERSION
from toolpool.fleet_reader import Fleet, ForeignWorker

Run = Callable[..., Ran]


def lease(version: str = "1.0", queue: str = "toolpool.default.loop") -> WorkerLease:
    return WorkerLease(
        id="w1", host="h", pid=1, version=version, started_at=time.time(), slots={queue: 4}
    )


def entry(name: str, run_in: RunIn = RunIn.LOOP) -> CatalogEntry:
    spec = sealed(ToolSpec(name=name, run_in=run_in))
    return CatalogEntry(spec=spec, published_at=1.0, version="1.0")


def found(fleet: Fleet, version: str = "1.0") -> dict[str, Level]:
    findings = list(checks.check_fleet(fleet, version))
    assert all(bool(each.remedy) == (each.level is not Level.OK) for each in findings)
    return {each.name: each.level for each in findings}


def test_a_healthy_fleet_is_ok() -> None:
    fleet = Fleet(workers=[lease()], entries={"t": entry("t")})
    assert set(found(fleet).values()) == {Level.OK}


def test_an_empty_catalog_fails_and_no_worker_is_a_warning() -> None:
    assert found(Fleet()) == {"workers": Level.WARN, "catalog": Level.FAIL}


def test_another_lease_ttl_than_here_is_a_warning() -> None:
    settings, same = Settings(lease_ttl=8.0), msgspec.structs.replace(lease(), ttl=8.0)
    assert list(checks.check_leases(settings, Fleet(workers=[lease(), same]))) == []
    [finding] = checks.check_leases(
        settings, Fleet(workers=[same, msgspec.structs.replace(lease(), ttl=40.0)])
    )
    assert finding.level is Level.WARN and "another at worker w1 (40)" in finding.message


def test_a_switch_with_another_key_fails() -> None:
    fleet = Fleet(workers=[lease()], entries={"t": entry("t")}, foreign_switches=["f"])
    assert found(fleet)["switches"] == Level.FAIL


def test_a_worker_with_another_key_fails() -> None:
    fleet = Fleet(
        entries={"t": entry("t")}, foreign_workers=[ForeignWorker("w9", "h")], foreign_tools=["u"]
    )
    assert found(fleet) == {"workers": Level.FAIL, "catalog": Level.OK}


def test_another_version_is_a_warning() -> None:
    fleet = Fleet(workers=[lease("0.9")], entries={"t": entry("t")})
    assert found(fleet)["versions"] is Level.WARN
    assert found(fleet, "0.9")["versions"] is Level.OK


def test_a_tool_on_a_queue_that_nobody_takes_from_is_a_warning() -> None:
    fleet = Fleet(workers=[lease()], entries={"t": entry("t", RunIn.PROCESS)})
    [finding] = [each for each in checks.check_fleet(fleet, "1.0") if each.name == "queues"]
    assert "toolpool.default.process" in finding.message
    assert "--queues default --run-in process" in finding.remedy


def test_the_remedy_of_a_wrong_setting_is_to_correct_or_unset_it(
    toolpool: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLPOOL_QUEUE_TIMEOUT", "soon")
    assert "correct the value, or unset the variable" in " ".join(toolpool("doctor").out.split())


def test_of_unserved_tools_those_are_withheld_whose_queue_has_workers() -> None:
    old = msgspec.structs.replace(lease(), started_at=time.time() - 900.0)
    entries = {"gone": entry("gone"), "new": entry("new"), "idle": entry("idle", RunIn.PROCESS)}
    served = {"gone": 600.0, "new": 5.0, "idle": 600.0}
    fleet = Fleet(workers=[old], entries=entries, offers={"w1": {}}, served=served)
    assert fleet.unserved() == served
    assert fleet.withheld() == {"gone"}
    told = {each.name: each.message for each in checks.check_fleet(fleet, "1.0")}
    assert "dispatchers withhold gone" in told["tools"]
    assert "(idle): it is still offered" in told["queues"]
    just_up = Fleet(workers=[lease()], entries=entries, offers={"w1": {}}, served=served)
    assert just_up.withheld() == set()
    scaled_to_zero = Fleet(entries=entries, served=served)
    assert scaled_to_zero.unserved() == served
    assert scaled_to_zero.withheld() == set()
    told = {each.name: each.message for each in checks.check_fleet(scaled_to_zero, "1.0")}
    assert "tools are still offered" in told["workers"]


def test_tools_that_workers_have_loaded_and_none_takes_are_named() -> None:
    one = msgspec.structs.replace(lease(), left_out=("resize", "zip"))
    other = msgspec.structs.replace(lease(queue="toolpool.default.process"), id="w2")
    fleet = Fleet(workers=[one, other], entries={"t": entry("t")}, offers={"w1": {}, "w2": {}})
    [finding] = [each for each in checks.check_fleet(fleet, "1.0") if "loaded" in each.message]
    assert finding.level is Level.WARN
    assert "w1 on h has loaded resize, zip, and no worker takes them" in finding.message
    assert "--run-in process" in finding.remedy
    fleet.offers["w2"] = {"resize": "d", "zip": "d"}
    assert not [each for each in checks.check_fleet(fleet, "1.0") if "loaded" in each.message]


def test_an_unserved_tool_is_said_to_be_withheld_or_still_offered() -> None:
    assert unserved_for(5.0, is_withheld=True) == (
        "no running worker has had it for 0:00:05; it is withheld from models"
    )
    assert unserved_for(None, is_withheld=False) == "no running worker has it; it is still offered"


def test_a_tool_that_dispatchers_do_not_offer_fails() -> None:
    spec = sealed(ToolSpec(name="bad", input_schema={"type": "no such type"}))
    bad = CatalogEntry(spec=spec, published_at=1.0, version="1.0")
    fleet = Fleet(workers=[lease()], entries={"t": entry("t"), "bad": bad})
    [finding] = [each for each in checks.check_fleet(fleet, "1.0") if each.name == "refused tools"]
    assert finding.level is Level.FAIL
    assert "do not offer bad: its input_schema does not compile" in finding.message
    assert "toolpool tools remove" in finding.remedy


def test_an_old_python_fails() -> None:
    assert checks.check_python((3, 10, 4)).level is Level.FAIL
    assert checks.check_python().level is Level.OK


def test_no_key_on_a_network_server_fails() -> None:
    finding = checks.check_key(Settings(redis_url="redis://redis.example:6379"))
    assert finding.level is Level.FAIL
    assert "toolpool keygen" in finding.remedy
    assert checks.check_key(Settings(redis_url="unix:///s")).level is Level.OK


def test_a_short_key_fails() -> None:
    settings = Settings.model_validate({"redis_url": "redis://r:1", "signing_key": "short"})
    assert checks.check_key(settings).level is Level.FAIL


def test_no_server_program_fails_only_where_one_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolpool.embedded._candidates", lambda: iter(()))
    assert checks.check_embedded(Settings()).level is Level.FAIL
    assert checks.check_embedded(Settings(redis_url="unix:///s")).level is Level.WARN


def test_the_command_exits_0_where_nothing_fails(toolpool: Run) -> None:
    ran = toolpool("doctor", "--json")
    report = json.loads(ran.out)
    assert (ran.code, report["ok"]) == (0, True)
    assert {each["level"] for each in report["findings"]} == {"ok"}
    assert toolpool("doctor").code == 0


def test_the_command_exits_1_where_no_server_answers(
    toolpool: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLPOOL_REDIS_URL", f"unix://{tmp_path}/none.sock")
    ran = toolpool("doctor")
    assert ran.code == 1
    assert "cannot reach Redis" in " ".join(ran.out.split())
    assert "→ start the server" in ran.out


def test_a_wrong_setting_is_a_finding(toolpool: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLPOOL_QUEUE_TIMEOUT", "soon")
    ran = toolpool("doctor", "--json")
    assert ran.code == 1
    assert "TOOLPOOL_QUEUE_TIMEOUT" in json.loads(ran.out)["findings"][0]["message"]


def test_faults_of_a_server_carry_their_remedy() -> None:
    findings = checks.server_findings(
        {"redis_version": "6.0.1", "redis_mode": "cluster"}, "allkeys-lru"
    )
    assert [each.level for each in findings] == [Level.FAIL] * 3
    assert all(each.remedy for each in findings)
    assert "6.2" in findings[0].remedy


def test_a_server_is_called_by_its_own_name() -> None:
    both = {"redis_version": "7.2.4", "valkey_version": "9.1.2"}
    assert checks.server_version(both) == ("Valkey", "9.1.2")
    assert checks.server_version({"redis_version": "6.2.0"}) == ("Redis", "6.2.0")


def test_findings_say_what_to_do() -> None:
    assert Finding("n", Level.OK, "m").remedy == ""
    assert VERSION


@pytest.mark.parametrize(("bash", "rights", "warns"), [
    (True, True, True), (True, False, False), (False, True, False),
])  # fmt: skip
def test_bash_beside_readable_keys_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, bash: bool, rights: bool, warns: bool
) -> None:
    monkeypatch.setattr("toolpool.contract.server.process_secrets.sees_everything", lambda: rights)
    findings = checks.check_bash(Settings(bash=bash))
    assert [finding.level for finding in findings] == [checks.Level.WARN] * warns


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("tools", "no_such_tools", "there is no tools module 'no_such_tools'"),
        ("worker_observers", "os:getcwd", "not an observer"),
        ("locale", "xx", "there is no locale 'xx'"),
        ("metrics_port", "tcp://10.0.0.1:9", "it is not a port"),
        ("record", "/not/there", "there is no folder /not/there"),
        ("record", "/not/there/rows.jsonl", "cannot be written"),
        ("workspace", "/not/there", "there is no folder /not/there"),
    ],
)
def test_what_a_setting_names_is_looked_at(name: str, value: str, said: str) -> None:
    assert checks.check_settings(Settings()) == []
    [finding] = checks.check_settings(Settings(**{name: value}))  # type: ignore[arg-type]
    assert (finding.level, bool(finding.remedy)) == (Level.FAIL, True)
    assert finding.message.startswith(f"TOOLPOOL_{name.upper()}: ")
    assert said in finding.message


def test_a_mistyped_variable_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOOLPOOL_POLCY", "rules.toml")
    [finding] = checks.check_settings(Settings())
    assert (finding.level, finding.message, finding.remedy) == (
        Level.WARN, "TOOLPOOL_POLCY is no setting", "did you mean TOOLPOOL_POLICY?",
    )  # fmt: skip


def test_rules_and_hooks_are_looked_at(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text('[[rule]]\naction = "deny"')
    settings = Settings(policy=str(path), before_call="os:getcwd", after_result="os.path:join")
    found = {each.name: each.level for each in checks.check_policy(settings)}
    assert found == {"policy": Level.OK, "before_call": Level.OK, "after_result": Level.OK}

    path.write_text('[[rule]]\naction = "no"')
    settings = Settings(
        policy=str(path), before_call="no_such_module:f", approval_webhook="https://chat.example"
    )
    wrong = list(checks.check_policy(settings))
    assert [each.level for each in wrong] == [Level.FAIL] * 3
    assert "rule 1" in wrong[0].message and "no_such_module" in wrong[1].message
    assert "SECRET" in wrong[2].message


@pytest.mark.parametrize(
    ("source", "level", "said"),
    [
        ("", Level.OK, "TOOLPOOL_SECRETS is not set: tools that declare secrets have none"),
        ("env", Level.OK, "from the environment: TOOLPOOL_SECRET_GITHUB"),
        ("file:/", Level.OK, "from file:/: the folder is there"),
        ("tests.fleets.vault:resolve", Level.OK, "from tests.fleets.vault:resolve: it can be"),
        ("tests.fleets.vault:gone", Level.FAIL, "tests.fleets.vault:gone cannot be loaded"),
        ("file:/not/there", Level.FAIL, "the folder /not/there, which does not exist"),
    ],
)
def test_check_names_secret_sources_and_never_values(
    source: str, level: Level, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TOOLPOOL_SECRET_GITHUB", "hunter2")
    finding = checks.check_secrets(Settings(secrets=source))
    assert (finding.level, said in finding.message) == (level, True), finding
    assert "hunter2" not in f"{finding}"
    assert bool(finding.remedy) == (level is not Level.OK)


def test_a_rule_for_no_tool_there_is_is_named(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(
        '[[rule]]\nname = "typo"\ntool = "refnud"\naction = "deny"\n'
        '[[rule]]\ntool = "ref*"\naction = "ask"\n'
    )
    fleet = Fleet(entries={"refund": entry("refund")})
    [finding] = checks.check_rules(Settings(policy=str(path)), fleet)
    assert finding.level is Level.WARN and "typo" in finding.message
    assert "rule 2" not in finding.message
    assert checks.check_rules(Settings(), fleet) == []


def test_a_rule_for_many_tools_whose_argument_none_of_them_has_is_named(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(
        '[[rule]]\nname = "typo"\ntool = "*"\nargument = "amuont"\nabove = 5\naction = "deny"\n'
        '[[rule]]\nname = "right"\ntool = "*"\nargument = "amount"\nabove = 5\naction = "deny"\n'
    )
    schema = {"type": "object", "properties": {"amount": {"type": "integer"}}}
    spec = sealed(ToolSpec(name="refund", input_schema=schema))
    fleet = Fleet(entries={"refund": CatalogEntry(spec=spec, published_at=1.0, version="1.0")})
    [finding] = checks.check_rules(Settings(policy=str(path)), fleet)
    assert finding.level is Level.WARN
    assert "typo" in finding.message and "right" not in finding.message


def test_a_rule_that_cannot_be_applied_to_a_tool_is_named(tmp_path: Path) -> None:
    path = tmp_path / "policy.toml"
    path.write_text(
        '[[rule]]\nname = "odd"\ntool = "refund"\naction = "deny"\n'
        'argument = "amount"\nmatches = "x"'
    )
    schema = {"type": "object", "properties": {"amount": {"type": "integer"}}}
    spec = sealed(ToolSpec(name="refund", input_schema=schema))
    fleet = Fleet(entries={"refund": CatalogEntry(spec=spec, published_at=1.0, version="1.0")})
    [finding] = checks.check_rules(Settings(policy=str(path)), fleet)
    assert finding.level is Level.FAIL
    assert "refund" in finding.message and "odd" in finding.message


def dispatcher(id: str, policy: str, tenant: str = "shop") -> DispatcherReport:
    return DispatcherReport(
        id=id, host="h", pid=1, version=VERSION, tenant=tenant, started_at=0.0, policy=policy
    )


@pytest.mark.parametrize(
    ("policies", "level", "told"),
    [
        (["", ""], None, ""),
        (["ab" * 16, "ab" * 16], Level.OK, "abababab at 2 dispatchers"),
        (["ab" * 16, "cd" * 16], Level.WARN, "abababab at d-0 on h, cdcdcdcd at d-1 on h"),
        (["ab" * 16, ""], Level.WARN, "none at d-1 on h"),
    ],
)
def test_which_dispatchers_have_which_policy(
    policies: list[str], level: Level | None, told: str
) -> None:
    reports = [dispatcher(f"d-{number}", policy) for number, policy in enumerate(policies)]
    found = list(checks.check_policies(Settings(), Fleet(dispatchers=reports)))
    assert [each.level for each in found] == ([level] if level else [])
    assert all(told in each.message for each in found)


def test_tenants_may_have_policies_of_their_own() -> None:
    reports = [dispatcher("d-0", "ab" * 16), dispatcher("d-1", "cd" * 16, tenant="bank")]
    found = list(checks.check_policies(Settings(), Fleet(dispatchers=reports)))
    assert [each.level for each in found] == [Level.OK, Level.OK]


def test_a_dispatcher_without_a_policy_fails_where_one_is_required() -> None:
    settings = Settings(policy_required=True)
    [finding] = checks.check_policies(settings, Fleet(dispatchers=[dispatcher("d-0", "")]))
    assert finding.level is Level.FAIL and "d-0" in finding.message
