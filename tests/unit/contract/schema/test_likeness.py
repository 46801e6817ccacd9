"""Which name was meant: certain, or none (R53)."""

import pytest

from toolpool.contract.schema.likeness import by_fit, closest, pairs


@pytest.mark.parametrize(
    ("unknown", "missing", "expected"),
    [
        (["customerId"], ["customer_id"], {"customerId": "customer_id"}),
        (["id_customer"], ["customer_id"], {"id_customer": "customer_id"}),
        (["custmer_id"], ["customer_id"], {"custmer_id": "customer_id"}),
        (["filepath"], ["file_path"], {"filepath": "file_path"}),
        (["tags"], ["tag"], {"tags": "tag"}),
        # one to one
        (["xAxisTitle", "yAxisTitle"], ["axisYTitle"], {"yAxisTitle": "axisYTitle"}),
        (["colour"], ["color", "colours"], {"colour": "colours"}),
        (["limit"], ["limmit", "limiit"], {}),
        (["lmit", "limt"], ["limit"], {}),
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


def test_a_part_of_a_name_is_enough_only_where_the_name_is_needed() -> None:
    names = ["customer_id", "customer_note"]
    assert pairs(["customer"], names, needed=["customer_id"]) == {"customer": "customer_id"}
    assert pairs(["customer"], names, needed=names) == {}
    assert pairs(["shoot_day"], ["shoot"], needed=["shoot"]) == {}
    assert pairs(["id"], ["order_id"], needed=["order_id"]) == {}


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
