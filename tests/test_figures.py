"""Figures in words."""

from fewbit.records.figures import describe, number, size
from fewbit.records.interval import Interval


def test_digits_grow_until_the_side_of_the_margin_shows():
    assert number(0.031234) == "0.03123"
    assert number(0.04999999, 0.05) == "0.04999999"
    assert number(0.05, 0.05) == "0.05"


def test_intervals():
    assert describe(Interval(value=1.0)) == "1"
    assert describe(Interval(value=0.5, low=0.25, high=1.0)) == "0.5 [0.25, 1]"


def test_sizes():
    assert size(999) == "999 bytes"
    assert size(98_362_432) == "98.4 MB"
    assert size(1_117_320_768_000) == "1117.3 GB"
