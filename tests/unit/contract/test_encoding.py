"""JSON as it is read and hashed here."""

import msgspec
import pytest

from toolpool.contract import encoding, envelope
from toolpool.workers.running import frames
from toolpool.workers.supervision import supervisor_link


@pytest.mark.parametrize("module", [encoding, envelope, frames, supervisor_link])
def test_numbers_are_not_read_by_msgspec_which_takes_seconds_for_large_ones(module: object) -> None:
    """A megabyte of 1e308 held the GIL for three seconds."""
    decoders = [each for each in vars(module).values() if isinstance(each, msgspec.json.Decoder)]
    assert decoders
    assert all(
        each.float_hook is not None for each in decoders if each.type is not envelope._Versioned
    )


@pytest.mark.parametrize("text", ["1e999", "[-1e400]", '{"a": 1.5e309}'])
def test_a_number_out_of_range_is_no_json(text: str) -> None:
    with pytest.raises(msgspec.DecodeError, match="out of range"):
        encoding.decode(text)


@pytest.mark.parametrize("number", [1e308, -1e308, 5e-324, 0.1, 1e16, 2.5, -0.0])
def test_a_number_is_read_as_it_was_written(number: float) -> None:
    assert repr(encoding.decode(encoding.encode([number]))) == repr([number])


def test_a_stored_whole_number_has_the_digest_of_the_one_that_was_sent() -> None:
    digest = encoding.stored_digest
    assert digest({"a": [25.0, {"b": -0.0}]}) == digest({"a": [25, {"b": 0}]})
    assert digest("25.0") != digest("25")
    assert digest(25.5) != digest(25)
    assert digest(2.0**53) != digest(2**53 + 1)


def test_texts_and_numbers_of_subclasses_are_written_as_what_they_hold() -> None:
    """Such as `markupsafe.Markup` and `numpy.float64`, which hosts pass on."""

    class Text(str):
        def __str__(self) -> str:
            return "something else"

    class Whole(int):
        pass

    class Real(float):
        pass

    found = encoding.encode({"text": Text("a"), "whole": Whole(3), "real": Real(2.5), "yes": True})
    assert encoding.decode(found) == {"text": "a", "whole": 3, "real": 2.5, "yes": True}
    with pytest.raises(TypeError, match="object objects cannot be written as JSON"):
        encoding.encode(object())
