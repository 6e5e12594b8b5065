from dataclasses import replace

import numpy as np
import pytest

from fewbit.errors import BadFileError, UnsupportedError, UsageError
from fewbit.formats.registry import BLOCK_FORMATS, check_layout, encode, parse_format
from fewbit.formats.spec import Granularity, QuantSpec, ScaleType


@pytest.mark.parametrize("name", BLOCK_FORMATS)
def test_every_block_format_parses_from_its_name(name):
    assert parse_format(name) is BLOCK_FORMATS[name].spec


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("where", Granularity)
@pytest.mark.parametrize("symmetric", [True, False])
@pytest.mark.parametrize("scale_type", ScaleType)
def test_every_affine_name_parses_back(bits, where, symmetric, scale_type):
    spec = QuantSpec(bits, where, 64 if where is Granularity.GROUP else None, symmetric, scale_type)
    assert parse_format(spec.name) == spec


@pytest.mark.parametrize(
    "name", ["int4", "int4-g", "INT4-G32", "int4-g32-sym", "q4_9", "", "int4-g32 "]
)
def test_unknown_names_list_what_there_is(name):
    with pytest.raises(UnsupportedError, match=r"int<2\.\.8>-.*q4_0"):
        parse_format(name)


def test_a_near_match_is_offered():
    with pytest.raises(UnsupportedError, match="did you mean 'q4_0'"):
        parse_format("q4-0")


@pytest.mark.parametrize("name", ["int9-g32", "int1-row", "int4-g0"])
def test_names_outside_the_formats_are_refused(name):
    with pytest.raises(UsageError):
        parse_format(name)


def test_a_layout_that_does_not_fit_its_format_is_refused():
    x = np.ones((4, 64), np.float32)
    tensor = encode(x, parse_format("int3-g32-asym"))
    check_layout(tensor, "w")
    wrong = {
        r"w\.codes is uint8 \(4, 23\).*\(4, 24\)": replace(tensor, codes=tensor.codes[:, :-1]),
        r"w\.scales is float32": replace(tensor, scales=tensor.scales.astype(np.float32)),
        r"w\.zeros is missing": replace(tensor, zeros=None),
    }
    for message, bad in wrong.items():
        with pytest.raises(BadFileError, match=message):
            check_layout(bad, "w")
    symmetric = encode(x, parse_format("int3-g32"))
    with pytest.raises(BadFileError, match="does not belong"):
        check_layout(replace(symmetric, zeros=tensor.zeros), "w")
    blocks = encode(x, parse_format("q8_0"))
    check_layout(blocks, "w")
    with pytest.raises(BadFileError, match="w is uint8"):
        check_layout(replace(blocks, codes=blocks.codes[:3]), "w")
