"""What `fewbit quantize` shows of a manifest."""

from __future__ import annotations

from types import SimpleNamespace

from fewbit.report.quantization import _remarks


def entry(*remarks: str) -> SimpleNamespace:
    return SimpleNamespace(remarks=remarks)


def test_remarks_that_differ_in_numbers_are_one_line_with_their_range():
    entries = [
        entry("12 of 900 tokens reached it; 18.5% are of all."),
        entry("7 of 900 tokens reached it; 20.0% are of all.", "Damping was raised to 1e-05."),
        entry("101 of 900 tokens reached it; 2.0% are of all."),
        entry("None of 900 tokens reached it."),
        entry(),
    ]
    assert _remarks(entries) == {
        "7 to 101 of 900 tokens reached it; 2.0 to 20.0% are of all.": 3,
        "Damping was raised to 1e-05.": 1,
        "None of 900 tokens reached it.": 1,
    }


def test_names_of_formats_are_no_numbers():
    assert _remarks([entry("int4-g32 fits."), entry("int8-g32 fits.")]) == {
        "int4-g32 fits.": 1,
        "int8-g32 fits.": 1,
    }
