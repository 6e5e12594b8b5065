"""The choice of lengths beside an enumeration of all of them; costs, survival and the ledger."""

import itertools

import numpy as np
import pytest
from simulated import LARGE, LOOKUP, STEP, survival

from fewbit.errors import UsageError
from fewbit.records.costs import CostTable
from fewbit.speculate.costs import (
    ASSUMED_ROW,
    MEASURED_PLAIN_STEPS,
    CostModel,
    Shape,
    drafting_seconds,
    step_seconds,
)
from fewbit.speculate.ledger import SHARE, TRIAL_SHARE, Ledger
from fewbit.speculate.length import (
    LEAST_GAIN,
    DraftPrices,
    Prices,
    best_choice,
    describe_choice,
    describe_hopeless,
    least_loss,
    promise,
)
from fewbit.speculate.survival import IMAGINED, IMAGINED_ACCEPTED, Acceptance, SequenceSurvival


def prices_of(step, row, start, call, token):
    """Return the prices of one draft for all sequences."""
    return Prices(step, row, start, [0] * len(row), [DraftPrices(call, token)])


def random_prices(rng, sequences, longest):
    added = np.cumsum(rng.exponential(0.15, sequences * longest + 1))
    token = rng.exponential(0.1)
    return prices_of(
        step=(1 + added - added[0]).tolist(),
        row=[0.0] * sequences,
        start=[0.0] * sequences,
        call=float(rng.exponential(0.02)),
        token=[0.0, *(token * (1 + 0.1 * n) for n in range(sequences))],
    )


def every_choice(curves, prices, decoding):
    lengths = itertools.product(*(range(len(curve) + 1) for curve in curves))
    return [promise(chosen, curves, prices, decoding) for chosen in lengths]


# --- the choice ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sequences", [1, 2, 3])
def test_the_choice_is_the_best_of_all(sequences):
    """One sequence: exactly. Several: within 2% of the best of all lengths, over random costs."""
    rng = np.random.default_rng(sequences)
    for _ in range(60):
        longest = 5 if sequences < 3 else 3
        curves = [survival(float(rng.uniform(0.1, 1)), longest) for _ in range(sequences)]
        prices = random_prices(rng, sequences, longest)
        best = max(c.gain for c in every_choice(curves, prices, sequences))
        found = best_choice(curves, prices, decoding=sequences)
        if sequences == 1 and best >= LEAST_GAIN:
            assert found.gain == pytest.approx(best)
        if best < LEAST_GAIN:
            assert not any(found.lengths)
        else:
            assert found.gain >= 0.98 * best or best < 1.02 * LEAST_GAIN


def test_the_formula_of_the_papers_comes_out():
    """(1 - a^(K+1)) / ((1 - a) (c K + 1)), Leviathan et al. 2023, theorem 3.8."""
    a, c = 0.8, 0.1
    prices = prices_of(step=[1.0] * 9, row=[0.0], start=[0.0], call=0.0, token=[0.0, c])
    for k in range(1, 9):
        found = promise([k], [survival(a, 8)], prices, 1)
        assert found.gain == pytest.approx((1 - a ** (k + 1)) / ((1 - a) * (c * k + 1)))
    best = best_choice([survival(a, 8)], prices, decoding=1)
    assert best.lengths == (6,)


def test_rows_go_to_the_sequences_whose_tokens_stand_likeliest():
    prices = prices_of(
        [1 + 0.2 * n for n in range(17)], [0.0] * 2, [0.0] * 2, 0.0, [0.0, 0.01, 0.01]
    )
    found = best_choice([survival(0.95, 8), survival(0.1, 8)], prices, decoding=2)
    assert found.lengths[0] > 2
    assert found.lengths[1] == 0


def test_sequences_share_the_steps_of_a_draft():
    """Alone, a draft's token at 0.7 of a step does not pay; for four at once it does."""
    prices = prices_of(
        [1 + 0.01 * n for n in range(33)], [0.0] * 4, [0.0] * 4, 0.0, [0.0] + [0.7] * 4
    )
    one = prices_of(prices.step, [0.0], [0.0], 0.0, [0.0, 0.7])
    assert not any(best_choice([survival(0.7, 8)], one, decoding=1).lengths)
    assert all(best_choice([survival(0.9, 8)] * 4, prices, decoding=4).lengths)


@pytest.mark.parametrize("seed", range(3))
def test_with_two_drafts_the_choice_is_the_best_of_all(seed):
    """Within 2% of the best of all lengths, over random costs; the second draft is dear."""
    rng = np.random.default_rng(seed)
    for _ in range(40):
        one, other = random_prices(rng, 3, 3), random_prices(rng, 3, 3)
        dear = [4 * token for token in other.drafts[0].token]
        drafts = [one.drafts[0], DraftPrices(other.drafts[0].call, dear)]
        prices = Prices(one.step, one.row, one.start, [0, 1, int(rng.integers(2))], drafts)
        curves = [survival(float(rng.uniform(0.1, 1)), 3) for _ in range(3)]
        best = max(c.gain for c in every_choice(curves, prices, 3))
        found = best_choice(curves, prices, decoding=3)
        assert found.gain >= 0.98 * best or best < 1.02 * LEAST_GAIN


def test_a_draft_is_called_once_for_all_who_ask_it():
    drafts = [DraftPrices(0.5, [0.0, 0.1, 0.1]), DraftPrices(2.0, [0.0, 0.3, 0.3])]
    prices = Prices([1.0] * 9, [0.0] * 3, [0.0] * 3, [0, 0, 1], drafts)
    assert prices.of([1, 2, 0]) == pytest.approx(1 + 0.5 + 0.2)
    assert prices.of([1, 0, 2]) == pytest.approx(1 + 0.5 + 0.1 + 2 + 0.6)
    assert prices.of([0, 0, 0]) == 1.0


def test_lengths_stay_while_others_promise_hardly_more():
    prices = prices_of([1 + 0.1 * n for n in range(9)], [0.0], [0.0], 0.0, [0.0, 0.0])
    curve = survival(0.8, 8)
    gains = {c.lengths[0]: c.gain for c in every_choice([curve], prices, 1)}
    best = max(gains, key=gains.get)
    beside = best + 1
    assert gains[beside] > gains[best] / 1.01
    assert best_choice([curve], prices, decoding=1, before=[beside]).lengths == (beside,)
    assert best_choice([curve], prices, decoding=1, before=[1]).lengths == (best,)


def test_a_text_to_read_first_is_a_price():
    prices = prices_of([1 + 0.1 * n for n in range(9)], [0.0], [0.9], 0.0, [0.0, 0.05])
    assert best_choice([survival(0.9, 8)], prices, decoding=1).gain < 3
    dear = prices_of(prices.step, [0.0], [9.0], 0.0, [0.0, 0.05])
    assert not any(best_choice([survival(0.9, 8)], dear, decoding=1).lengths)


def test_the_least_loss_is_one_sequences_draft():
    prices = prices_of([1 + 0.5 * n for n in range(17)], [0.0] * 2, [0.0] * 2, 0.0, [0.0, 0.1, 0.1])
    found = least_loss([survival(0.1, 8), survival(0.2, 8)], prices, decoding=2, turn=0)
    assert found.lengths == (0, 1)
    assert found.gain < 1
    assert least_loss([[], []], prices, decoding=2, turn=0) is None


def test_equal_sequences_take_turns_at_being_tried():
    prices = prices_of([1 + 0.5 * n for n in range(17)], [0.0] * 3, [0.0] * 3, 0.0, [0.0] * 4)
    curves = [survival(0.2, 4), [], survival(0.2, 4)]
    found = [least_loss(curves, prices, decoding=3, turn=i).lengths for i in range(4)]
    assert found == [(1, 0, 0), (0, 0, 1)] * 2


def test_reasons_name_what_was_measured():
    prices = prices_of([1 + 0.9 * n for n in range(9)], [0.0], [0.0], 0.0, [0.0, 0.1])
    none = promise([0], [survival(0.5, 8)], prices, 1)
    assert "50% 50%, so no draft pays" in describe_choice([0.5] * 8, 0, none, prices)
    assert describe_hopeless(prices).startswith("a drafted row adds 0.90 of a step and drafting")
    two = promise([2], [survival(0.9, 8)], prices, 1)
    assert "the step costs 2.80 and drafting 0.20" in describe_choice([0.9] * 8, 2, two, prices)


# --- costs --------------------------------------------------------------------------------------


def test_a_table_is_linear_between_its_points_and_beyond():
    assert step_seconds(LARGE, Shape(3)) == pytest.approx(STEP * 1.065)
    assert step_seconds(LARGE, Shape(128)) == pytest.approx(STEP * 12.0)
    assert drafting_seconds(LARGE.drafts[0], [1, 1, 1], 10) == pytest.approx(STEP * 1.6)
    assert drafting_seconds(LOOKUP.drafts[0], [], 0) == 0


def test_attention_costs_by_sequence_and_by_row():
    table = CostTable(rows=(1, 2), seconds=(1.0, 1.1), context_seconds=0.001, key_seconds=0.0001)
    assert step_seconds(table, Shape(2, 100, 200)) == pytest.approx(1.1 + 0.1 + 0.02)
    assert CostModel(table).looking_back(500) == pytest.approx(0.05)


def test_load_and_drafted_rows_are_learned_apart():
    """The machine is twice as slow, and drafted rows cost three times what the table says."""
    model, plain, drafted = CostModel(LARGE), Shape(1), Shape(5)
    added = step_seconds(LARGE, drafted) - STEP
    for _ in range(200):
        model.observe_plain(plain, 2 * STEP)
        model.observe_drafted(plain, drafted, 2 * (STEP + 3 * added))
    assert model.plain(plain) == pytest.approx(2 * STEP, rel=0.01)
    assert model.step(plain, drafted) == pytest.approx(2 * (STEP + 3 * added), rel=0.02)
    assert model.steps(plain, 4)[-1] == pytest.approx(model.step(plain, drafted))


def test_a_clock_that_stands_still_teaches_nothing():
    model = CostModel()
    for _ in range(5):
        model.observe_plain(Shape(1), 0.0)
        model.observe_drafted(Shape(1), Shape(5), 0.0)
    assert not model.known
    assert model.step(Shape(1), Shape(2)) > 0


def test_a_table_of_a_quieter_hour_is_right_after_a_few_steps():
    for drafted_first in (False, True):
        model = CostModel(LARGE)
        for _ in range(6):
            if drafted_first:
                model.observe_drafted(Shape(1), Shape(5), 3 * step_seconds(LARGE, Shape(5)))
            else:
                model.observe_plain(Shape(1), 3 * STEP)
        least = 2.9 if drafted_first else 2.3
        assert least * STEP < model.plain(Shape(1)) <= 3 * STEP


def test_one_interrupted_step_changes_little():
    model = CostModel(LARGE)
    for _ in range(3):
        model.observe_plain(Shape(1), STEP)
    model.observe_plain(Shape(1), 100 * STEP)
    assert model.plain(Shape(1)) < 1.4 * STEP


def test_without_a_table_nothing_is_known_until_plain_steps_were_seen():
    model = CostModel()
    assert not model.known
    for _ in range(MEASURED_PLAIN_STEPS):
        model.observe_plain(Shape(1), 0.05)
    assert model.known
    assert model.plain(Shape(1)) == pytest.approx(0.05)
    assert model.step(Shape(1), Shape(2)) == pytest.approx(0.05 * (1 + ASSUMED_ROW))
    assert not model.knows(0)
    assert model.drafting([1, 1], 0) == pytest.approx(0.1)  # a step each, until it is measured
    model.observe_drafting([1, 1], 0, 0.004)
    assert model.drafting([1, 1], 0) == pytest.approx(0.004)


def test_a_step_that_was_faster_with_a_draft_makes_rows_free_and_no_cheaper():
    model = CostModel(LARGE)
    model.observe_plain(Shape(1), STEP)
    for _ in range(500):
        model.observe_drafted(Shape(1), Shape(5), 0.5 * STEP)
    assert model.step(Shape(1), Shape(5)) >= STEP


@pytest.mark.parametrize(
    "fields",
    [
        {"rows": (), "seconds": ()},
        {"rows": (1, 2), "seconds": (1.0,)},
        {"rows": (2, 1), "seconds": (1.0, 1.0)},
        {"rows": (1, 1), "seconds": (1.0, 1.0)},
        {"rows": (0, 1), "seconds": (1.0, 1.0)},
        {"rows": (1,), "seconds": (0.0,)},
        {"rows": (1,), "seconds": (1.0,), "sequences": (1,)},
    ],
)
def test_a_table_that_cannot_be_is_refused(fields):
    with pytest.raises(UsageError, match="cost table"):
        CostModel(CostTable(**fields))


# --- survival -----------------------------------------------------------------------------------


def sequence(pool, longest=4):
    return SequenceSurvival(pool, Acceptance(longest, 0.95))


def test_survival_starts_from_what_is_imagined_and_ends_at_what_is_seen():
    own = sequence(Acceptance(4, 0.98))
    assert own.rates() == [pytest.approx(IMAGINED_ACCEPTED / IMAGINED)] * 4
    for _ in range(200):
        own.add(2, 1)  # the first stands, the second never does
    first, second, *_ = own.rates()
    assert first > 0.98
    assert second < 0.02
    curve = own.curve(4)
    assert curve == sorted(curve, reverse=True)
    assert len(own.curve(2)) == 2


def test_positions_are_told_apart():
    """An n-gram's first token is a guess; what follows a right one is often right."""
    own = sequence(Acceptance(4, 0.98))
    for i in range(300):
        own.add(4 if i % 3 == 0 else 1, 4 if i % 3 == 0 else 0)
    first, *others = own.rates()
    assert first == pytest.approx(1 / 3, abs=0.15)
    assert min(others) > 0.9


def test_a_new_sequence_inherits_and_an_old_one_keeps_its_own():
    pool = Acceptance(4, 0.98)
    poor, good = sequence(pool), sequence(pool)
    for _ in range(100):
        poor.add(1, 0)
        good.add(4, 4)
    assert good.rates()[0] > 0.9
    assert poor.rates()[0] < 0.1
    assert 0.3 < sequence(pool).rates()[0] < 0.7


# --- the ledger ---------------------------------------------------------------------------------


def test_the_ledger_allows_a_share_and_a_budget():
    ledger = Ledger()
    assert not ledger.allows(0.1)
    ledger.grant(0.5)
    assert ledger.allows(0.5)
    assert not ledger.allows(0.51)
    ledger.add(100.0, 100.0, trial=False)
    assert ledger.allows(0.5 + 100 * SHARE)
    ledger.add(5.0, 2.0, trial=False)
    assert ledger.account.cost == pytest.approx(3.0)
    assert not ledger.allows(0.6)


def test_what_was_gained_may_be_spent():
    ledger = Ledger()
    ledger.add(1.0, 11.0, trial=False)
    assert ledger.account.cost == pytest.approx(-10)
    assert ledger.allows(10.0)


def test_trials_wait_the_longer_the_dearer_they_are():
    ledger = Ledger()
    ledger.grant(100.0)
    for cost in (0.1, 1.0):
        ledger.add(1.0, 1.0, trial=True)
        assert not ledger.allows_trial(cost)
        ledger.add(0.99 * cost / TRIAL_SHARE, 0.99 * cost / TRIAL_SHARE, trial=False)
        assert not ledger.allows_trial(cost)
        ledger.add(0.02 * cost / TRIAL_SHARE, 0.02 * cost / TRIAL_SHARE, trial=False)
        assert ledger.allows_trial(cost)
