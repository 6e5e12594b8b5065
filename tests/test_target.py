"""Sizes as users write them."""

import pytest

from fewbit.errors import UsageError
from fewbit.quantization.target import parse_bits, parse_size


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("90MB", 90_000_000),
        ("90 MB", 90_000_000),
        ("86MiB", 86 * 2**20),
        ("1.5GB", 1_500_000_000),
        ("0.5GiB", 2**29),
        ("700kB", 700_000),
        ("123456", 123_456),
        ("12B", 12),
    ],
)
def test_sizes(text, size):
    assert parse_size(text).bytes == size


@pytest.mark.parametrize("text", ["", "MB", "-1MB", "90mb", "90Mb", "1e6", "0MB", "ninety", "9TB"])
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UsageError, match="no size"):
        parse_size(text)


@pytest.mark.parametrize("bits", [0, -1, 33, float("nan")])
def test_bits_that_cannot_be_are_refused(bits):
    with pytest.raises(UsageError, match="bits per weight"):
        parse_bits(bits)


def test_names():
    assert (parse_bits(4.0).text, parse_size("86 MiB").text) == ("4bpw", "86MiB")
