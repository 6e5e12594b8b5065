"""Early looks: their levels, and that all of them together keep the error."""

import math

import numpy as np
import pytest

from fewbit.errors import UsageError
from fewbit.evaluate.gating.bootstrap import student_quantile
from fewbit.evaluate.gating.sequential import EARLY_ERROR, at_look, has_room, look_levels
from fewbit.records.gate import Gate, SliceRule


def test_one_look_has_the_whole_level():
    assert look_levels(1, 0.95) == pytest.approx((0.95,))


def test_errors_add_up_to_the_gates():
    levels = look_levels(4, 0.95)
    assert sum(1 - level for level in levels) == pytest.approx(0.05)
    assert levels[:-1] == (1 - EARLY_ERROR,) * 3


@pytest.mark.parametrize(("looks", "level"), [(0, 0.95), (51, 0.95), (2, 0.999)])
def test_looks_that_do_not_fit_are_refused(looks, level):
    with pytest.raises(UsageError, match="look less often"):
        look_levels(looks, level)


def test_a_level_has_room_for_a_look_where_it_fits():
    assert has_room(0.95)
    assert not has_room(0.999)


def test_a_look_changes_only_the_level():
    gate = Gate(slices=(SliceRule(match="language/kl", margin=0.05),))
    early, last = (at_look(gate, look, 2) for look in range(2))
    assert early.slices == gate.slices
    assert (early.level, last.level) == pytest.approx((0.999, 0.951))


def wrong(levels, looks, trials=4000):
    """How often a mean that truly lies on the margin is decided, both sides, at any look."""
    rng = np.random.default_rng(5)
    x = rng.standard_normal((trials, looks[-1]))
    decided = np.zeros(trials, bool)
    for count, level in zip(looks, levels, strict=True):
        seen = x[:, :count]
        spread = seen.std(axis=1, ddof=1) / math.sqrt(count)
        t = student_quantile((1 + level) / 2, count - 1)
        decided |= np.abs(seen.mean(axis=1)) > t * spread
    return decided.mean()


def test_all_looks_together_keep_the_error_and_plain_repeats_do_not():
    """4,000 trials have a standard error of .35%; peeking five times at 95% errs 14%."""
    looks = (12, 20, 28, 34, 40)
    assert wrong(look_levels(5, 0.95), looks) < 0.05 + 3 * 0.0035
    assert wrong((0.95,) * 5, looks) > 0.10
