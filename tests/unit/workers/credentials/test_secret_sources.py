"""Where secrets come from: a source that cannot be used is refused, and none leads elsewhere."""

import os
import sys
from pathlib import Path

import pytest

from toolpool.contract.errors import Misconfigured
from toolpool.workers.credentials.secret_sources import Resolve, source_of, variable_of

WHO = {"tenant": "t", "user": "u"}


def resolve_of(setting: str, variables: dict[str, str] | None = None) -> Resolve:
    source = source_of(setting, variables)
    assert source is not None
    assert source.name == setting
    return source.resolve


def test_without_the_setting_there_is_none() -> None:
    assert source_of("") is None


@pytest.mark.parametrize("name", ["stripe-key", "stripe.key", "STRIPE_KEY", "stripe_key"])
def test_a_variable_is_found_by_its_name_in_capitals(name: str) -> None:
    resolve = resolve_of("env", {"TOOLPOOL_SECRET_STRIPE_KEY": "sk"})
    assert variable_of(name) == "TOOLPOOL_SECRET_STRIPE_KEY"
    assert resolve(name=name, **WHO) == "sk"
    assert resolve(name="other", **WHO) is None


def test_the_environment_of_this_process_is_asked_where_none_is_given(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("toolpool_secret_github", "ghp")
    assert resolve_of("env")(name="github", **WHO) == "ghp"


def test_a_file_is_read_each_time_without_its_last_line_end(tmp_path: Path) -> None:
    resolve = resolve_of(f"file:{tmp_path}")
    assert resolve(name="github", **WHO) is None
    (tmp_path / "github").write_text("ghp\n")
    assert resolve(name="github", **WHO) == "ghp"
    (tmp_path / "github").write_bytes(b"line\r\nline\r\n")
    assert resolve(name="github", **WHO) == "line\r\nline"


def test_a_folder_as_kubernetes_mounts_it_is_followed(tmp_path: Path) -> None:
    (tmp_path / "..2026").mkdir()
    (tmp_path / "..2026" / "github").write_text("ghp")
    (tmp_path / "..data").symlink_to("..2026")
    (tmp_path / "github").symlink_to("..data/github")
    assert resolve_of(f"file:{tmp_path}")(name="github", **WHO) == "ghp"


@pytest.mark.parametrize(
    "name", ["../up", "..", ".", "", "a/../../up", "/etc/passwd", "a\0b", ".a"]
)
def test_no_name_leads_out_of_the_folder(tmp_path: Path, name: str) -> None:
    (tmp_path / "up").write_text("not for tools")
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / ".a").write_text("hidden")
    assert resolve_of(f"file:{tmp_path / 'in'}")(name=name, **WHO) is None


def test_what_is_no_file_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    (tmp_path / "folder").mkdir()
    (tmp_path / "large").write_bytes(b"x" * 70_000)
    (tmp_path / "image").write_bytes(b"\xff\xfe\x00")
    resolve = resolve_of(f"file:{tmp_path}")
    for name in ("pipe", "folder", "large", "image"):
        with pytest.raises((OSError, ValueError)):
            resolve(name=name, **WHO)


def test_a_relative_folder_stays_the_same_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "secrets").mkdir()
    (tmp_path / "secrets" / "github").write_text("ghp")
    monkeypatch.chdir(tmp_path)
    resolve = resolve_of("file:secrets")
    monkeypatch.chdir("/")
    assert resolve(name="github", **WHO) == "ghp"


VAULT = """
class Vault:
    async def secret_of(self, *, tenant, user, name):
        return f"{tenant}/{user}/{name}"

vault = Vault()
number = 5

def narrow(user, name):
    return ""
"""


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    name = f"vault_{abs(hash(str(tmp_path)))}"
    (tmp_path / f"{name}.py").write_text(VAULT)
    (tmp_path / f"{name}_broken.py").write_text("import sys; sys.exit(3)")
    monkeypatch.chdir(tmp_path)
    yield_path = list(sys.path)
    monkeypatch.setattr(sys, "path", yield_path)
    return name


async def test_a_method_of_an_instance_is_found(module: str) -> None:
    given = resolve_of(f"{module}:vault.secret_of")(name="n", **WHO)
    assert not isinstance(given, str)
    assert given is not None
    assert await given == "t/u/n"


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        ("nonsense", "use `env`, `file:DIRECTORY` or `module:callable`"),
        (":x", "use `env`"),
        ("file:/not/there", "the folder /not/there, which does not exist"),
        ("no_such_module_at_all:x", "cannot be loaded: ModuleNotFoundError"),
        ("{module}:missing", "cannot be loaded: AttributeError"),
        ("{module}_broken:x", "cannot be loaded: SystemExit"),
        ("{module}:number", "is int, not a function"),
        ("{module}:Vault", "is type, not a function"),
        ("{module}:narrow", "cannot be called with (tenant=…, user=…, name=…)"),
    ],
)
def test_what_cannot_be_used_is_refused_with_what_to_do(
    module: str, setting: str, said: str
) -> None:
    with pytest.raises(Misconfigured) as refused:
        source_of(setting.replace("{module}", module))
    assert said in str(refused.value)
