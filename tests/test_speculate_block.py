"""Block verification by enumeration: its law, the paper's own figures, and wrong forms of it."""

import itertools

import numpy as np
import pytest
from rule_cases import TinyModel, continued, distance, emitted_by_block
from test_speculate_exact import CELLS, Uniforms, largest_error, outcomes

from fewbit.errors import UsageError
from fewbit.speculate.block import BlockOdds, block_accept_reject, block_odds

ROUNDING = 1e-12
"""Sums of fewer than 4^4 products of numbers below 1: 256 * 2^-53, rounded up generously."""

PAIRS = [(4, 3, 0.0), (3, 4, 0.0), (4, 3, 0.4), (2, 5, 0.3)]
"""Vocabulary, block length, share of impossible tokens."""


@pytest.mark.parametrize(("vocabulary", "length", "zeros"), PAIRS)
@pytest.mark.parametrize("seed", range(4))
def test_what_a_block_emits_follows_the_target(vocabulary, length, zeros, seed):
    draft = TinyModel(vocabulary, length, seed, zeros=zeros)
    target = TinyModel(vocabulary, length, seed + 100, zeros=zeros)
    law = continued(emitted_by_block(draft, target, length), target, length + 1)
    assert distance(law, target.text(length + 1)) < ROUNDING


def test_a_draft_that_is_the_target_is_accepted_whole():
    model = TinyModel(3, 3, 0, zeros=0.3)
    for block in model.text(3):
        odds = block_odds(list(block), model.rows(block)[:-1], model.rows(block))
        assert odds.keep.tolist() == [1.0, 1.0, 1.0]


# --- the paper's figures and claim --------------------------------------------------------------

TARGET = np.tile([1 / 3, 2 / 3], (3, 1))
DRAFT = np.tile([2 / 3, 1 / 3], (2, 1))
"""The example of the paper's section 2: two tokens A and B, whatever came before."""


def kept_law(keep):
    """The chance that 0, 1, ... tokens are kept."""
    tail = [np.prod(1 - keep[i:]) for i in range(len(keep) + 1)]
    return np.array([tail[0], *(keep * tail[1:])])


def kept_by_token(block, draft, target):
    passed = np.cumprod([min(1.0, target[i, x] / draft[i, x]) for i, x in enumerate(block)])
    return float(passed.sum())


def kept_by_block(block, draft, target):
    law = kept_law(block_odds(list(block), draft, target).keep)
    return float(law @ np.arange(len(law)))


def expected(kept, draft, target, blocks):
    weights = [np.prod([draft[i, x] for i, x in enumerate(b)]) for b in blocks]
    return sum(w * kept(b, draft, target) for w, b in zip(weights, blocks, strict=True))


def test_the_papers_example_comes_out():
    blocks = list(itertools.product(range(2), repeat=2))
    assert expected(kept_by_token, DRAFT, TARGET, blocks) == pytest.approx(10 / 9, abs=1e-15)
    assert expected(kept_by_block, DRAFT, TARGET, blocks) == pytest.approx(11 / 9, abs=1e-15)


@pytest.mark.parametrize("bonus", [False, True])
def test_the_whole_rule_draws_its_numbers_rightly(bonus):
    """All thresholds of the paper's example lie on twelfths, so the enumeration is exact."""
    rows = TARGET if bonus else TARGET[:2]
    assert largest_error(block_accept_reject, DRAFT, DRAFT, rows) < 1e-12
    kept = 0.0
    for block in itertools.product(range(2), repeat=2):
        weight = DRAFT[0, block[0]] * DRAFT[1, block[1]]
        for (accepted, _), p in outcomes(block_accept_reject, block, DRAFT, rows).items():
            kept += weight * p * accepted
    assert CELLS == 12
    assert kept == pytest.approx(11 / 9, abs=1e-12)


@pytest.mark.parametrize("seed", range(10))
def test_no_prefix_is_kept_less_often_than_token_by_token(seed):
    """Given a prefix, over what may follow it; and so in expectation on any pair of models.

    Of whole blocks this cannot be said: by the paper's example AA keeps 2 tokens with 1/4, where
    token verification keeps 1 or 2 with 1/4 each, and AB makes up for it.
    """
    draft, target = TinyModel(3, 3, seed), TinyModel(3, 3, seed + 1000)
    by_block, by_token = {}, {}
    for block, weight in draft.text(3).items():
        q, p = draft.rows(block)[:-1], target.rows(block)
        at_least = np.cumsum(kept_law(block_odds(list(block), q, p).keep)[::-1])[::-1]
        passed = np.cumprod([min(1.0, p[i, x] / q[i, x]) for i, x in enumerate(block)])
        for i in range(1, 4):
            prefix = block[:i]
            by_block[prefix] = by_block.get(prefix, 0.0) + weight * at_least[i]
            by_token[prefix] = by_token.get(prefix, 0.0) + weight * passed[i - 1]
    assert all(by_block[prefix] >= by_token[prefix] - ROUNDING for prefix in by_token)
    assert sum(by_block.values()) > sum(by_token.values()) + 1e-3


def test_a_point_mass_is_judged_as_token_by_token():
    target = TinyModel(4, 3, 5)
    for block in itertools.product(range(4), repeat=3):
        rows = target.rows(block)
        law = kept_law(block_odds(list(block), None, rows).keep)
        passed = np.cumprod([rows[i, x] for i, x in enumerate(block)])
        assert np.cumsum(law[::-1])[::-1][1:] == pytest.approx(passed, abs=1e-15)


# --- planted bugs: each must be seen by the enumeration above -----------------------------------


def wrong(**changed):
    """The rule with one part taken from elsewhere."""

    def odds(block, draft, target):
        keep, remainders = block_odds(block, draft, target)
        weights = np.minimum.accumulate(np.ones(len(block) + 1))
        for i, x in enumerate(block):
            weights[i + 1] = min(weights[i] * target[i, x] / draft[i, x], 1.0)
        return BlockOdds(
            *(
                changed.get(n, lambda *_, v=v: v)(keep, remainders, weights, draft, target)
                for n, v in (("keep", keep), ("remainders", remainders))
            )
        )

    return odds


def plain_weights(_keep, _remainders, weights, _draft, _target):
    """Each ending is kept with w, as if the later ones did not keep it too."""
    return weights[1:]


def token_chances(keep, _remainders, _weights, _draft, _target):
    """The last ending alone is tested by w: what a prefix lost is not made up for."""
    return np.append(np.zeros(len(keep) - 1), keep[-1])


def token_remainders(_keep, _remainders, _weights, draft, target):
    """The remainder of token verification, whose weight is always 1."""
    return [np.maximum(p - q, 0) + 1e-300 for p, q in zip(target, draft, strict=False)]


def target_rows(_keep, _remainders, _weights, _draft, target):
    return list(target[:-1])


@pytest.mark.parametrize(
    "changed",
    [
        {"keep": plain_weights},
        {"keep": token_chances},
        {"remainders": token_remainders},
        {"remainders": target_rows},
    ],
)
def test_the_enumeration_sees_a_wrong_form(changed):
    draft, target = TinyModel(4, 3, 0), TinyModel(4, 3, 100)
    assert (
        distance(
            continued(emitted_by_block(draft, target, 3, odds=wrong()), target, 4), target.text(4)
        )
        < ROUNDING
    )
    law = continued(emitted_by_block(draft, target, 3, odds=wrong(**changed)), target, 4)
    assert distance(law, target.text(4)) > 1e-3


def second_is_a(rule, again_tested_by):
    """Draft two tokens; where both fall, draft the second place again, with the paper's pair.

    Returns the probability that the token at the second place is A, exactly: all thresholds lie on
    twelfths, and what is drawn after a rejection is B for sure. `again_tested_by` says which
    numbers test the second draft, given the one that tested its place before.
    """
    middles = [(i + 0.5) / CELLS for i in range(CELLS)]
    total = 0.0
    for block in itertools.product(range(2), repeat=2):
        weight = DRAFT[0, block[0]] * DRAFT[1, block[1]] / CELLS**2
        for first, second in itertools.product(middles, repeat=2):
            kept, token = rule(block, DRAFT, TARGET[:2], Uniforms([first, second, 0.5]))
            if kept:
                total += weight * (([*block[:kept], token])[1] == 0)
                continue
            for again, tested in itertools.product(range(2), again_tested_by(second)):
                kept, _ = rule([again], DRAFT[:1], TARGET[:1], Uniforms([tested, 0.5]))
                share = DRAFT[0, again] / len(again_tested_by(second))
                total += weight * share * (again == 0 and kept == 1)
    return total


def fresh(_number):
    return [(i + 0.5) / CELLS for i in range(CELLS)]


def same(number):
    return [number]


def test_numbers_of_a_rejected_ending_must_not_be_used_again():
    """They decided that it was rejected.

    A third of the blocks keep nothing: AA, and a number above 1/4 for its second token. A second A
    is accepted below 1/2, which such a number is with 1/3 and not 1/2, so the second place gets A
    with 1/3 - 1/3 (1/3 - 2/9).
    """
    assert second_is_a(block_accept_reject, fresh) == pytest.approx(1 / 3, abs=1e-12)
    assert second_is_a(block_accept_reject, same) == pytest.approx(8 / 27, abs=1e-12)


def test_input_is_checked_as_for_the_other_rule():
    with pytest.raises(UsageError, match="3 rows for 1"):
        block_accept_reject([0], None, [[0.5, 0.5]] * 3, np.random.default_rng(0))
    assert block_accept_reject([], None, [[0.0, 1.0]], np.random.default_rng(0)) == (0, 1)
