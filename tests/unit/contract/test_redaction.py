"""What a call was given in confidence is not in what is said of it (R59)."""

import ast
import base64
import json
import logging
import re
import sys
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import example, given, strategies as st

from toolpool.contract import encoding
from toolpool.contract.log_writer import LogWriter
from toolpool.contract.logs import JsonFormatter, TextFormatter
from toolpool.contract.redaction import (
    _ESCAPES,
    NOTHING,
    Redaction,
    _Decoded,
    _unescaped,
    without_secrets_in_use,
)

ODD = 'p@ss/wörd "x"\\+&\n'
PEM = "-----BEGIN KEY-----\nMIIEvQIBADANBgkqhkiG9w0B\nAQEFAASCBKcwggSjAgEAAoIB\n-----END KEY-----\n"
MARK = "[secret key]"


def hiding(value: str) -> Redaction:
    return Redaction({"key": value})


@pytest.mark.parametrize(
    "spelt",
    [
        ODD,
        ODD.strip(),
        repr(ODD)[1:-1],
        ascii(ODD)[1:-1],
        json.dumps(ODD)[1:-1],
        json.dumps(ODD, ensure_ascii=False)[1:-1],
        quote(ODD),
        quote(ODD, safe=""),
        quote_plus(ODD),
        re.sub("%..", lambda found: found[0].lower(), quote(ODD, safe="")),
        repr(ODD.encode())[2:-1],
        base64.b64encode(ODD.encode()).decode().rstrip("="),
        base64.urlsafe_b64encode(ODD.encode()).decode().rstrip("="),
    ],
)
def test_a_value_is_hidden_however_it_is_spelt(spelt: str) -> None:
    hidden = hiding(ODD).text(f"before {spelt} behind")
    assert hidden.startswith(f"before {MARK}")
    assert ODD.strip()[:8] not in hidden
    assert len(hidden) <= len(f"before {MARK} behind") + 3, "base64 may leave the end of its last 3"


@pytest.mark.parametrize("user", ["", "a", "ab", "abc"])
@pytest.mark.parametrize("password", ["", ":", ":x"])
def test_secrets_in_basic_authentication_are_hidden_too(user: str, password: str) -> None:
    token = "sk-live-0123456789"
    header = base64.b64encode(f"{user}{token}{password}".encode()).decode()
    hidden = hiding(token).text(f"Authorization: Basic {header}")
    assert MARK in hidden
    assert header[4:-4] not in hidden


@pytest.mark.parametrize("end", ["\n", "\r\n", "\\n"])
def test_base64_that_is_broken_into_lines_is_hidden_too(end: str) -> None:
    token = "sk-live-" + "0123456789" * 10
    lines = base64.encodebytes(f"user:{token}".encode()).decode().replace("\n", end)
    hidden = hiding(token).text(f"before\n{lines}behind")
    assert hidden.startswith("before\n") and hidden.endswith(f"{end}behind")
    assert MARK in hidden and len(hidden) < 50


def test_half_of_a_key_that_has_lines_is_hidden_but_not_what_all_keys_have() -> None:
    hidden = hiding(PEM).text("cannot read 'AQEFAASCBKcwggSjAgEAAoIB' after -----BEGIN KEY-----")
    assert hidden == f"cannot read '{MARK}' after -----BEGIN KEY-----"


def test_what_is_short_is_not_hidden() -> None:
    assert hiding("12345").text("12345 boxes") == "12345 boxes"
    assert hiding("123456").text("123456 boxes") == f"{MARK} boxes"


def test_of_two_values_the_longer_is_found_first() -> None:
    redaction = Redaction({"a": "abcdef", "b": "abcdefghij"})
    assert redaction.text("abcdefghij abcdefg") == "[secret b] [secret a]g"


def test_data_stay_json_and_hold_no_value() -> None:
    redaction = Redaction({"key": ODD, "pin": "424242"})
    data = {"a": [f"x{ODD}y", 1, None, True], ODD: {"deep": ODD}, "pin": 424242, "f": 1424242.5}
    assert encoding.decode(redaction.json(encoding.encode(data))) == {
        "a": [f"x{MARK}y", 1, None, True],
        MARK: {"deep": MARK},
        "pin": "[secret pin]",
        "f": "1[secret pin].5",
    }


def test_data_without_a_value_are_left_as_they_are() -> None:
    raw = b'{"a": 1.0, "b" : "x"}'
    assert hiding(ODD).json(raw) is raw


def test_a_value_that_looks_like_structure_breaks_nothing() -> None:
    data = {"a": "b", "c": '","c":"'}
    hidden = encoding.decode(hiding('","c":"').json(encoding.encode(data)))
    assert hidden == {"a": "b", "c": MARK}


text = st.text(st.characters(exclude_categories=("Cs",)), min_size=6, max_size=40)


@given(text, text, text)
@example("0000\x1f%", "a", "000000")
def test_no_secret_value_survives_redaction(value: str, before: str, behind: str) -> None:
    if value in MARK:
        return
    redaction = hiding(value)
    assert value not in redaction.text(before + value + behind).replace(MARK, "")
    data = encoding.encode({before: [value + behind]})
    assert encoding.encode(value)[1:-1] not in redaction.json(data).replace(MARK.encode(), b"")


def test_what_is_logged_during_a_call_does_not_show_it(
    capsys: pytest.CaptureFixture[str],
) -> None:
    writer = LogWriter(sys.stderr)

    def log(text: str) -> None:
        try:
            raise ValueError(text)
        except ValueError as error:
            info = (ValueError, error, error.__traceback__)
        writer.emit(logging.LogRecord("lib", logging.INFO, "f", 1, "GET %s", (text,), info))
        writer.flush()

    with hiding("hunter2-hunter2"), Redaction({"other": "another-value"}):
        log("https://x?key=hunter2-hunter2&b=another-value")
        said = capsys.readouterr().err
        assert said.count(MARK) == 2
        assert said.count("[secret other]") == 2
        assert "hunter2" not in said
    assert without_secrets_in_use("hunter2-hunter2") == "hunter2-hunter2", "nothing is kept"


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()], ids=["json", "text"])
@pytest.mark.parametrize("arguments", [(), ({"key": ODD},), ({"deep": [ODD]}, 1)], ids=len)
def test_a_line_is_searched_before_it_is_split(
    formatter: logging.Formatter,
    arguments: tuple[object, ...],
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A value with several lines would else be in two fields."""
    value = "hunter2" + ODD + "hunter3"
    writer = LogWriter(sys.stderr)
    writer.setFormatter(formatter)
    text = {0: f"key={value}", 1: "key=%(key)s", 2: "keys=%r of=%d"}[len(arguments)]
    given = ast.literal_eval(repr(arguments).replace(repr(ODD), repr(value)))
    with hiding(value):
        writer.emit(logging.LogRecord("lib", logging.INFO, "f", 1, text, given, None))
        writer.flush()
    said = capsys.readouterr().err
    assert MARK in said
    assert "hunter" not in said


def test_nothing_costs_nothing() -> None:
    with NOTHING:
        assert NOTHING.text("x") == "x"
        assert NOTHING.json(b"[1]") == b"[1]"


def _go_json(text: str) -> str:
    """As Go's encoding/json writes a string."""
    return re.sub("[<>&]", lambda found: f"\\u{ord(found[0]):04x}", json.dumps(text)[1:-1])


WRITERS = {
    "httpx": lambda text: quote(text, safe="!$&'()*+,;=:/?@[]~"),
    "requests": lambda text: quote(text, safe="!#$%&'()*+,/:;=?@[]~"),
    "yarl": lambda text: quote(text, safe="!$'()*,:@/?~").replace("%20", "+"),
    "PHP json_encode": lambda text: json.dumps(text)[1:-1].replace("/", "\\/"),
    "PHP urlencode": lambda text: quote_plus(text, safe="").replace("~", "%7E"),
    "PHP rawurlencode": lambda text: quote(text, safe="~"),
    "Go encoding/json": _go_json,
    "Go url.QueryEscape": lambda text: quote_plus(text, safe="~"),
    "Go url.PathEscape": lambda text: quote(text, safe="$&+=:@~"),
    "JavaScript encodeURI": lambda text: quote(text, safe="!#$&'()*+,/:;=?@-._~"),
    "capitals": lambda text: json.dumps(text)[1:-1].replace("\\u00f6", "\\u00F6"),
    "all of it": lambda text: "".join(f"%{byte:02x}" for byte in text.encode()),
    "all of it in JSON": lambda text: "".join(
        f"\\u{unit:04x}" for unit in memoryview(text.encode("utf-16-le")).cast("H")
    ),
    "JSON in JSON": lambda text: json.dumps(json.dumps(text))[3:-3],
    "JSON in a URL": lambda text: quote(json.dumps(text)[1:-1]),
    "a URL in JSON": lambda text: json.dumps(quote(text))[1:-1],
    "a URL in a URL in JSON": lambda text: json.dumps(quote(quote(text)))[1:-1],
}


@pytest.mark.parametrize("writer", WRITERS)
@pytest.mark.parametrize("value", ["sk/live+key=&<é> ö", "pä/ss wörd~'\"\\", "token-\U0001f511-☃"])
def test_a_value_is_hidden_however_libraries_write_it(writer: str, value: str) -> None:
    spelt = WRITERS[writer](value)
    redaction = hiding(value)
    assert redaction.text(f"%41 ä {spelt}\\n100% é") == f"%41 ä {MARK}\\n100% é"
    data = encoding.encode({"text": f"a {spelt} b"})
    assert encoding.decode(redaction.json(data)) == {"text": f"a {MARK} b"}


@given(text, text, text, st.sampled_from(list(WRITERS)))
def test_no_secret_value_survives_serialization(
    value: str, before: str, behind: str, writer: str
) -> None:
    if not value.strip() or value in MARK:
        return
    assert MARK in hiding(value).text(WRITERS[writer](f"{before}|{value}|{behind}"))


@given(st.text(st.sampled_from('\\%u0d8dcex4/"né+ 1\n'), max_size=30))
def test_a_text_is_searched_as_it_is_hidden(escaped: str) -> None:
    for escape in _ESCAPES:
        assert _unescaped(escaped, escape) == _Decoded(escaped, escape).text
