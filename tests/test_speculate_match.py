"""Sample and match: bit for bit what plain drawing gives, and how often two coupled draws agree."""

import numpy as np
import pytest
from rule_cases import TinyModel

from fewbit.errors import UsageError
from fewbit.speculate.match import sample_and_match
from fewbit.speculate.rows import pick


def plain(target, uniforms):
    tokens = []
    for uniform in uniforms:
        tokens.append(pick(target.row(tokens), uniform))
    return tokens


@pytest.mark.parametrize("seed", range(40))
def test_the_output_is_the_plain_one_whatever_is_proposed(seed):
    target, rng = TinyModel(3, 5, seed), np.random.default_rng(seed)
    uniforms = rng.random(6)
    whole = plain(target, uniforms)
    for length in range(5):
        block = [t if rng.random() < 0.7 else int(rng.integers(3)) for t in whole[:length]]
        kept, token = sample_and_match(block, target.rows(block), uniforms[: length + 1])
        assert [*block[:kept], token] == whole[: kept + 1]
        assert kept == length or block[kept] != whole[kept]


def test_a_point_mass_is_accepted_with_the_targets_probability():
    """Exactly: the numbers that accept a token fill an interval of its probability's length."""
    row = np.array([[0.25, 0.5, 0.25]])
    for token, probability in enumerate(row[0]):
        cells = [(i + 0.5) / 16 for i in range(16)]
        accepted = [sample_and_match([token], row, [u])[0] for u in cells]
        assert np.mean(accepted) == probability


def test_coupled_draws_of_equal_distributions_always_agree_and_independent_ones_do_not():
    row, rng = np.array([0.1, 0.2, 0.3, 0.4]), np.random.default_rng(0)
    for uniform in rng.random(200):
        assert sample_and_match([pick(row, uniform)], row[None], [uniform]) == (1, None)
    apart = [sample_and_match([pick(row, u)], row[None], [v])[0] for u, v in rng.random((4000, 2))]
    assert np.mean(apart) == pytest.approx(0.3, abs=0.03)  # 0.01 + 0.04 + 0.09 + 0.16


def test_numbers_and_rows_must_be_of_one_count():
    with pytest.raises(UsageError, match="2 numbers for 1 rows"):
        sample_and_match([0], [[1.0]], [0.5, 0.5])
