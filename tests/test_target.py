"""Sizes as users write them."""

import pytest
from tiny_models import CONFIGS, random_weights, write_gguf, write_huggingface

from fewbit.errors import UsageError
from fewbit.model.weights import open_model
from fewbit.quantization.target import parse_bits, parse_size, require_less


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


@pytest.mark.parametrize(
    "text", ["", "MB", "-1MB", "90mb", "90Mb", "1e6", "0MB", "ninety", "9TB", "0.3B"]
)
def test_what_is_no_size_is_refused(text):
    with pytest.raises(UsageError, match="no size"):
        parse_size(text)


@pytest.mark.parametrize("digits", [40, 400])
def test_a_number_beyond_any_disk_is_no_size(digits):
    with pytest.raises(UsageError, match="no size"):
        parse_size("9" * digits + "GB")


@pytest.mark.parametrize("bits", [0, -1, 33, float("nan")])
def test_bits_that_cannot_be_are_refused(bits):
    with pytest.raises(UsageError, match="bits per weight"):
        parse_bits(bits)


def test_names():
    assert (parse_bits(4.0).text, parse_size("86 MiB").text) == ("4bpw", "86MiB")


@pytest.mark.parametrize("write", [write_gguf, write_huggingface])
def test_a_target_that_the_source_meets_is_refused(tmp_path, write):
    config = CONFIGS["llama"]
    with open_model(write(tmp_path / "m.gguf", config, random_weights(config))) as source:
        held = sum(info.nbytes for info in source.checkpoint.tensors.values())
        whole = source.path.stat().st_size if source.path.is_file() else held
        for target in (parse_size(str(whole)), parse_size("1GB"), parse_bits(32)):
            with pytest.raises(UsageError, match="as it is; ask for less"):
                require_less(target, source)
        for target in (parse_size(str(whole - 1)), parse_bits(31.9)):
            require_less(target, source)
