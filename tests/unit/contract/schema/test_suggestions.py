"""Which name was meant: certain, or none (R53)."""

import pytest

from toolpool.contract.schema.suggestions import by_fit, closest, pairs


@pytest.mark.parametrize(
    ("unknown", "missing", "expected"),
    [
        (["customerId"], ["customer_id"], {"customerId": "customer_id"}),
        (["id_customer"], ["customer_id"], {"id_customer": "customer_id"}),
        (["custmer_id"], ["customer_id"], {"custmer_id": "customer_id"}),
        (["regsitration_id"], ["registration_id"], {"regsitration_id": "registration_id"}),
        (["registrtion_id"], ["registration_id"], {"registrtion_id": "registration_id"}),
        (["messsage_id"], ["message_id"], {"messsage_id": "message_id"}),
        (["filepath"], ["file_path"], {"filepath": "file_path"}),
        (["tags"], ["tag"], {"tags": "tag"}),
        # one to one
        (["xAxisTitle", "yAxisTitle"], ["axisYTitle"], {"yAxisTitle": "axisYTitle"}),
        (["colour"], ["color", "colours"], {"colour": "colours"}),
        (["limit"], ["limmit", "limiit"], {}),
        (["lmit", "limt"], ["limit"], {}),
        (["registrtion", "registraion"], ["registration"], {}),
        # other things, for all that their letters are alike
        (["status"], ["state"], {}),
        (["user_ip"], ["user_id"], {}),
        (["width_max"], ["width_min"], {}),
        (["x_position"], ["y_position"], {}),
        (["line_1"], ["line_2"], {}),
        (["date"], ["rate"], {}),
        (["customer"], ["customer_id"], {}),
        ([""], ["a"], {}),
        (["x" * 5_000], ["x" * 5_001], {}),
    ],
)
def test_names(unknown: list[str], missing: list[str], expected: dict[str, str]) -> None:
    assert pairs(unknown, missing) == expected


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("ascending", "descending"),
        ("internal_id", "external_id"),
        ("minimize", "maximize"),
        ("decrease", "increase"),
        ("exported", "imported"),
        ("detached", "attached"),
        ("decryption", "encryption"),
        ("assigned", "unassigned"),
        ("published", "unpublished"),
        ("archived", "unarchived"),
        ("deactivate", "reactivate"),
        ("inclusive", "exclusive"),
        ("receiver", "received"),
        ("assigner", "assignee"),
        ("Slovenia", "Slovakia"),
        ("county", "country"),
        ("county_code", "country_code"),
        ("contact_id", "contract_id"),
        ("sender", "gender"),
        ("stat", "start"),
        ("united", "untied"),
        ("filed_at", "filled_at"),
        ("continuous", "contiguous"),
        ("compliment", "complement"),
        ("costumer", "customer"),
        ("message", "message_id"),
        ("customer", "customer_id"),
    ],
)
def test_words_that_mean_something_else(one: str, other: str) -> None:
    assert closest(one, [other]) is None
    assert closest(other, [one]) is None


@pytest.mark.parametrize(
    ("value", "members", "expected"),
    [
        ("Open", ["open", "closed"], "open"),
        ("in progress", ["IN_PROGRESS", "DONE"], "IN_PROGRESS"),
        ("books", ["book", "film"], "book"),
        ("carefull", ["fast", "careful"], "careful"),
        ("open", ["Patent", "Design"], None),
        ("45 minutes", ["5 minutes", "15 minutes"], None),
        ("kg", ["g", "mg"], None),
        ("", ["a"], None),
    ],
)
def test_members_of_an_enum(value: str, members: list[str], expected: str | None) -> None:
    assert closest(value, members) == expected


def test_what_fits_best_comes_first() -> None:
    tools = ["bash", "fs_glob", "fs_read", "fs_write", "http_get"]
    assert by_fit("read_file", tools)[0] == "fs_read"
    assert by_fit("http_fetch", tools)[0] == "http_get"
    assert sorted(by_fit("zzz", tools)) == tools
    assert len(by_fit("a_1", [f"a_{n}" for n in range(500)])) == 500
