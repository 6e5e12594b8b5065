"""The configurations of `quantize_`: TorchAO's fields and defaults, and what they come to."""

from __future__ import annotations

import enum

import pytest

import fewbit
from fewbit.api.configs import scheme_of
from fewbit.errors import FewbitError, UnsupportedError, UsageError
from fewbit.records.kernels import Activations


class Packing(enum.Enum):
    """As TorchAO's: its options are members of enums or their values."""

    TILE_PACKED_TO_4D = "tile_packed_to_4d"


@pytest.mark.parametrize(
    ("config", "form", "activations"),
    [
        (fewbit.Int4WeightOnlyConfig(), "int4-g128-asym", Activations.BF16),
        (fewbit.Int4WeightOnlyConfig(group_size=32), "int4-g32-asym", Activations.BF16),
        (fewbit.Int4WeightOnlyConfig(256), "int4-g256-asym", Activations.BF16),
        (fewbit.Int8WeightOnlyConfig(), "int8-row", Activations.BF16),
        (
            fewbit.Int8WeightOnlyConfig(granularity=fewbit.PerGroup(64)),
            "int8-g64",
            Activations.BF16,
        ),
        (
            fewbit.Int8WeightOnlyConfig(granularity=fewbit.PerTensor()),
            "int8-tensor",
            Activations.BF16,
        ),
        (fewbit.Int8DynamicActivationInt8WeightConfig(), "int8-row", Activations.TOKEN),
        (
            fewbit.Int8DynamicActivationInt8WeightConfig(
                granularity=[fewbit.PerRow(), fewbit.PerTensor()]
            ),
            "int8-tensor",
            Activations.TOKEN,
        ),
        (fewbit.Float8WeightOnlyConfig(), "fp8_e4m3-row", Activations.BF16),
        (
            fewbit.Float8WeightOnlyConfig(granularity=fewbit.PerTensor()),
            "fp8_e4m3-tensor",
            Activations.BF16,
        ),
    ],
)
def test_what_a_configuration_comes_to(config, form, activations):
    scheme = scheme_of(config)
    assert scheme.format.name == form
    assert scheme.activations is activations
    assert scheme.method == "rtn"
    assert form in scheme.text


def test_hqq_is_a_method_and_packing_is_none():
    plain = fewbit.Int4WeightOnlyConfig(group_size=32)
    searched = fewbit.Int4WeightOnlyConfig(
        group_size=32,
        int4_packing_format="tile_packed_to_4d",
        int4_choose_qparams_algorithm="hqq",
    )
    assert searched.scheme.method == "hqq"
    assert searched.scheme.format == plain.scheme.format
    packed = fewbit.Int4WeightOnlyConfig(
        group_size=32, int4_packing_format=Packing.TILE_PACKED_TO_4D
    )
    assert packed.scheme == plain.scheme


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: fewbit.Int4WeightOnlyConfig(group_size=0), "group_size is 0"),
        (lambda: fewbit.Int4WeightOnlyConfig(group_size=48), "multiple of 32"),
        (lambda: fewbit.Int4WeightOnlyConfig(group_size="32"), "group_size is '32'"),
        (lambda: fewbit.Int4WeightOnlyConfig(group_size=None), "group_size is None"),
        (lambda: fewbit.Int4WeightOnlyConfig(version=1), "version is 1"),
        (lambda: fewbit.Int4WeightOnlyConfig(int4_packing_format="plian"), "plain_int32"),
        (lambda: fewbit.Int4WeightOnlyConfig(int4_choose_qparams_algorithm="x"), "tinygemm, hqq"),
        (lambda: fewbit.Int8WeightOnlyConfig(group_size=32), r"PerGroup\(32\)"),
        (lambda: fewbit.Int8WeightOnlyConfig(granularity="row"), "fewbit.PerRow"),
        (lambda: fewbit.PerRow(dim=0), "dim 0"),
        (lambda: fewbit.PerGroup(8), "multiple of 32"),
        (
            lambda: fewbit.Int8DynamicActivationInt8WeightConfig(act_mapping_type="asymmetric"),
            "must be symmetric",
        ),
        (
            lambda: fewbit.Int8DynamicActivationInt8WeightConfig(granularity=fewbit.PerTensor()),
            "PerTensor",
        ),
        (
            lambda: fewbit.Int8DynamicActivationInt8WeightConfig(granularity=[fewbit.PerRow()]),
            "1 parts",
        ),
        (
            lambda: fewbit.Int8DynamicActivationInt8WeightConfig(weight_only_decode=True),
            "weight_only_decode",
        ),
        (lambda: fewbit.Int8DynamicActivationInt8WeightConfig(reduce_range=True), "reduce_range"),
        (lambda: fewbit.Float8WeightOnlyConfig(weight_dtype="float8_e5m2"), "float8_e4m3fn"),
        (lambda: fewbit.Float8WeightOnlyConfig(granularity=fewbit.PerGroup(32)), "PerGroup"),
    ],
)
def test_what_cannot_be_is_refused_where_it_is_written(make, words):
    with pytest.raises(FewbitError, match=words) as caught:
        make()
    assert isinstance(caught.value, UsageError | UnsupportedError)


@pytest.mark.parametrize(
    ("config", "words"),
    [
        (fewbit.Int4WeightOnlyConfig, "is Int4WeightOnlyConfig; give one"),
        ("int4", "is str"),
        (None, "is NoneType"),
    ],
)
def test_what_is_no_configuration(config, words):
    with pytest.raises(UsageError, match=words):
        scheme_of(config)
