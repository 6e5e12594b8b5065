"""The tokens that a draft's head keeps, against sorting them by hand."""

import numpy as np
import pytest

from fewbit.calibrate.frequent_tokens import coverage, frequent_tokens, token_counts
from fewbit.errors import UsageError


def test_counts_are_those_of_all_texts_without_padding():
    counts = token_counts([[1, 1, 3], np.array([3, 9, 200]), []], 10)
    assert counts.tolist() == [0, 2, 0, 2, 0, 0, 0, 0, 0, 1]


@pytest.mark.parametrize("seed", range(5))
def test_the_most_frequent_are_kept_and_of_equal_ones_the_lower(seed):
    random = np.random.default_rng(seed)
    counts = random.integers(0, 4, 50)
    special = random.choice(50, 3, replace=False).tolist()
    others = sorted((-count, token) for token, count in enumerate(counts) if token not in special)
    for size in (3, 4, 20, 50):
        kept = frequent_tokens(counts, size, special)
        assert kept.dtype == np.int32
        assert kept.tolist() == sorted([*special, *(token for _, token in others[: size - 3])])


@pytest.mark.parametrize(("size", "special"), [(0, []), (-1, []), (11, []), (2, [1, 2, 3])])
def test_sizes_that_cannot_be_are_refused(size, special):
    with pytest.raises(UsageError, match="A head of"):
        frequent_tokens(np.zeros(10, np.int64), size, special)


def test_coverage_is_a_share_of_tokens_not_of_ids():
    counts = np.array([90, 0, 9, 1])
    assert coverage(counts, np.array([0, 1], np.int32)) == 0.9
    assert coverage(np.zeros(4, np.int64), np.array([0], np.int32)) == 1.0
