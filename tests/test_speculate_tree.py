"""The rules for trees in NumPy; `test_certify_enumeration` has their laws, through the engine."""

import numpy as np
import pytest

from fewbit.errors import UsageError
from fewbit.sampling import Branch
from fewbit.speculate.match import sample_and_match
from fewbit.speculate.tree import tree_accept_reject, tree_match

V = 5


def rows(seed, count):
    return np.random.default_rng(seed).dirichlet(np.ones(V), count)


class Numbers:
    def __init__(self, *numbers):
        self.left = list(numbers)

    def random(self):
        return self.left.pop(0)


def test_behind_an_accepted_sibling_its_own_row_is_drawn_from():
    q = np.full((2, V), 1 / V)
    p = np.zeros((5, V))
    p[0, [1, 2]] = 0.5, 0.5
    p[1] = p[2] = p[3] = np.eye(V)[0]
    p[4] = np.eye(V)[4]
    branches = [Branch(0, (3,)), Branch(0, (2,))]
    found = tree_accept_reject([0, 1], branches, q, p, Numbers(0.5, 0.5, 0.1, 0.7))
    assert found == ([2, 4], 1)


def test_where_all_are_rejected_what_is_left_is_drawn_from():
    q = np.full((1, V), 1 / V)
    p = np.zeros((3, V))
    p[:, 1] = 1.0
    found = tree_accept_reject([0], [Branch(0, (2,))], q, p, Numbers(0.5, 0.5, 0.999))
    assert found == ([1], None)


@pytest.mark.parametrize("seed", range(10))
def test_matching_without_branches_is_sample_and_match(seed):
    rng = np.random.default_rng(seed)
    p, numbers = rows(seed, 4), rng.random(4)
    chain = [int(np.searchsorted(np.cumsum(row), u)) for row, u in zip(p, numbers, strict=False)]
    chain = [*chain[: seed % 4], 0, 0, 0][:3]
    kept, token = sample_and_match(chain, p, numbers)
    assert tree_match(chain, [], p, numbers) == ([*chain[:kept], token], None)


def test_matching_follows_a_branch_and_then_says_one_more():
    p = np.eye(V)[[2, 0, 0, 0, 3, 4, 0]]
    branches = [Branch(0, (1,)), Branch(0, (2, 3, 1))]
    assert tree_match([0, 1], branches, p, [0.5] * 9) == ([2, 3, 4], 1)


def test_a_candidate_that_comes_twice_is_refused():
    with pytest.raises(UsageError, match="each comes once"):
        tree_accept_reject([1], [Branch(0, (1,))], rows(1, 1), rows(2, 3), Numbers(0.99, 0.5))
