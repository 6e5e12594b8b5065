import pytest

from fewbit.errors import UnsupportedError, UsageError
from fewbit.formats.registry import BLOCK_FORMATS, parse_format
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


def test_a_near_fp8_name_is_offered():
    with pytest.raises(UnsupportedError, match="did you mean 'fp8_e4m3-row'"):
        parse_format("fp8-e4m3-row")


@pytest.mark.parametrize("name", ["int9-g32", "int1-row", "int4-g0"])
def test_names_outside_the_formats_are_refused(name):
    with pytest.raises(UsageError):
        parse_format(name)
