import numpy as np
import pytest

from fewbit.errors import UnsupportedError
from fewbit.formats import affine
from fewbit.formats.registry import decode, parse_format
from fewbit.formats.spec import Granularity, QuantSpec
from fewbit.methods.clip import search_range
from fewbit.methods.rtn import round_to_nearest


def weights(rows: int = 16, columns: int = 64) -> np.ndarray:
    return np.random.default_rng(0).standard_t(4, (rows, columns)).astype(np.float32)


def group_errors(weight: np.ndarray, decoded: np.ndarray, size: int) -> np.ndarray:
    return np.square((decoded - weight).astype(np.float64)).reshape(-1, size).sum(axis=1)


def least_error(group: np.ndarray, spec: QuantSpec) -> float:
    """The slow truth: every fp16 scale from the whole range down to 0.4 of it, of both signs."""
    whole, _ = affine.fit(group, spec)
    first, last = (int((whole * f).astype(np.float16).view(np.uint16)[0, 0]) for f in (0.4, 1.0))
    scales = np.arange(first, last + 1, dtype=np.uint16).view(np.float16)
    errors = []
    for scale in np.concatenate([scales, -scales]):
        error = affine.round_trip(group, spec, np.array([[scale]]), None) - group
        errors.append(float(np.square(error.astype(np.float64)).sum()))
    return min(errors)


@pytest.mark.parametrize("bits", [2, 3, 4])
def test_the_search_comes_close_to_the_best_scale_of_all(bits):
    spec = QuantSpec(bits, Granularity.GROUP, 32)
    weight = weights(rows=4)
    found = group_errors(weight, decode(search_range(weight, spec)), 32)
    plain = group_errors(weight, decode(round_to_nearest(weight, spec)), 32)
    best = np.array([least_error(g[None], spec) for g in weight.reshape(-1, 32)])
    # The oracle sees every scale of both signs, the search 25: it must find most of the gain.
    assert (found >= best * (1 - 1e-9)).all()
    assert found.sum() - best.sum() < 0.12 * (plain.sum() - best.sum())


@pytest.mark.parametrize(
    ("name", "ratio"),
    [("int2-g32", 0.6), ("int3-g32-asym", 0.95), ("int4-g64", 0.85), ("int4-row-asym", 0.95)],
)
def test_it_is_clearly_better_than_the_whole_range_and_never_worse_in_a_group(name, ratio):
    form = parse_format(name)
    size = form.group_size or 64
    weight = weights()
    found = group_errors(weight, decode(search_range(weight, form)), size)
    plain = group_errors(weight, decode(round_to_nearest(weight, form)), size)
    assert (found <= plain).all()
    assert found.sum() < ratio * plain.sum()


@pytest.mark.parametrize("name", ["int4-tensor", "int4-channel-asym"])
def test_scales_shared_by_rows_are_searched_over_all_of_them(name):
    form = parse_format(name)
    weight = weights()
    found = np.square(decode(search_range(weight, form)) - weight).sum()
    assert found < np.square(decode(round_to_nearest(weight, form)) - weight).sum()


def test_without_candidates_it_is_round_to_nearest():
    form = parse_format("int4-g32-asym")
    plain = round_to_nearest(weights(), form)
    same = search_range(weights(), form, clips=())
    assert np.array_equal(same.codes, plain.codes)
    assert np.array_equal(same.scales, plain.scales)


def test_block_formats_have_no_range_to_search():
    with pytest.raises(UnsupportedError, match="q4_0"):
        search_range(weights(), parse_format("q4_0"))


def test_the_largest_value_of_a_symmetric_group_gets_the_longer_side():
    weight = np.float32([[8, -3, 2, 1], [-8, 3, 2, 1]])
    tensor = search_range(weight, QuantSpec(4, Granularity.ROW))
    assert np.array_equal(decode(tensor), weight)
    assert tensor.scales[0, 0] < 0 < tensor.scales[1, 0]
