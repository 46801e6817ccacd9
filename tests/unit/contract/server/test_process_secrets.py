"""What a process takes out of its environment, and how it hands that to those it starts."""

import os

import pytest
from pydantic import SecretStr

from toolpool.contract.errors import Misconfigured
from toolpool.contract.server.process_secrets import (
    handed_over,
    received,
    secrets_of,
    variables_of,
    without_secrets,
)
from toolpool.contract.settings import Settings


def test_every_setting_that_is_secret_is_found() -> None:
    secret = {
        name: SecretStr(f"hunter2-{name}")
        for name, field in Settings.model_fields.items()
        if SecretStr in getattr(field.annotation, "__args__", ())
    }
    assert {"signing_key", "approval_webhook_secret"} <= set(secret)
    found = secrets_of(Settings(**secret, redis_url="redis://:pw@h/0", broker_url="amqp://h"))  # type: ignore[arg-type]
    wanted = {name: f"hunter2-{name}" for name in secret}
    assert found == wanted | {"redis_url": "redis://:pw@h/0"}


def test_no_variable_with_a_secret_is_passed_on_however_it_is_spelt() -> None:
    environment = {
        "Toolpool_Signing_Key": "k",
        "TOOLPOOL_SECRET_STRIPE": "sk",
        "toolpool_secret_github": "ghp",
        "TOOLPOOL_SECRETS": "env",
        "TOOLPOOL_TENANT": "acme",
        "PATH": "/bin",
    }
    assert without_secrets(environment, ["signing_key"]) == {
        "TOOLPOOL_SECRETS": "env",
        "TOOLPOOL_TENANT": "acme",
        "PATH": "/bin",
    }
    assert variables_of(environment) == {
        "TOOLPOOL_SECRET_STRIPE": "sk",
        "TOOLPOOL_SECRET_GITHUB": "ghp",
    }


@pytest.mark.parametrize("value", ["plain", 'é "x"\n\\', "no Unicode: \udcff"])
def test_what_is_handed_over_arrives_unchanged(value: str) -> None:
    descriptor = handed_over({"name": value})
    assert received(descriptor) == {"name": value}
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(descriptor)


def test_more_than_a_pipe_takes_is_refused_and_nothing_stays_open() -> None:
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Misconfigured, match="put them into files"):
        handed_over({"TOOLPOOL_SECRET_X": "x" * 70_000})
    assert len(os.listdir("/proc/self/fd")) == before
