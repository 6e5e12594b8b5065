"""Which branches are chosen: the best of all shapes by brute force; and the controller."""

import itertools

import pytest
from simulated import DEAR_ROWS, LARGE

from fewbit.records.costs import CostTable
from fewbit.speculate.controller import FixedLengths, LengthController
from fewbit.speculate.costs import Shape
from fewbit.speculate.length import DraftPrices, Prices
from fewbit.speculate.planned import Ask
from fewbit.speculate.tree_shape import (
    CHAIN,
    SiblingAcceptance,
    TreeShape,
    best_tree,
    spread,
)


def prices(row, draft, rows=40):
    step = [1.0 + row * i for i in range(rows)]
    return Prices(step, [0.0], [0.0], [0], [DraftPrices(0.0, [0.0, draft])])


def expected(curve, rates, siblings):
    """Tokens of a chain with one-token branches, summed over what may happen."""
    tokens, before = 1.0, 1.0
    for depth, here in enumerate(curve):
        count = siblings[depth] if depth < len(siblings) else 0
        missed = 1.0
        for rate in rates[:count]:
            missed *= 1 - rate
        tokens += here + (before - here) * (1 - missed)
        before = here
    return tokens


CURVES = {
    "good": [0.9, 0.8, 0.7, 0.62],
    "middling": [0.55, 0.33, 0.2, 0.11],
    "poor": [0.2, 0.05, 0.01, 0.0],
}


@pytest.mark.parametrize("row", [0.01, 0.05, 0.2])
@pytest.mark.parametrize("draft", [0.0, 0.2])
@pytest.mark.parametrize("curve", CURVES.values(), ids=CURVES)
def test_the_best_of_all_shapes_is_chosen(curve, draft, row):
    """Of all chains with up to two branches at each depth, three in all."""
    rates, most = [0.4, 0.25, 0.2], 3
    found = best_tree(curve, rates, prices(row, draft), most, 1)
    speeds = []
    for length in range(1, 5):
        for siblings in itertools.product(range(4), repeat=length):
            if sum(siblings) <= most:
                tokens = expected(curve[:length], rates, siblings)
                speeds.append(tokens / (1 + row * (length + sum(siblings)) + draft * length))
    assert found.tokens / found.seconds == pytest.approx(max(speeds))
    own = expected(curve[: found.length], rates, found.shape.siblings)
    assert found.tokens == pytest.approx(own)
    assert found.shape.promise == pytest.approx(own - 1 - sum(curve[: found.length]))


def test_where_rows_are_free_a_poor_chain_has_branches_and_where_dear_none():
    assert best_tree(CURVES["poor"], [0.4, 0.3], prices(0.01, 0.2), 4, 1).shape.rows > 0
    assert best_tree(CURVES["good"], [0.4, 0.3], prices(0.3, 0.0), 4, 1).shape.rows == 0


def test_longer_branches_leave_at_the_beginning_and_bring_what_follows():
    found = best_tree([0.5, 0.45, 0.4], [0.5], prices(0.01, 0.0), 2, 8)
    assert found.shape.siblings == (1,)
    assert found.shape.reach == 3
    assert found.shape.promise == pytest.approx(0.5 * 0.5 * (1 + 0.5 + 0.45))


def test_spread():
    assert spread(3, 2, 1) == TreeShape((2, 1))
    assert spread(3, 8, 1) == TreeShape((1, 1, 1))
    assert spread(2, 5, 8) == TreeShape((2,), 5)
    assert spread(0, 5, 1) == spread(3, 0, 1) == spread(3, 5, 0) == CHAIN


def test_rates_follow_what_is_seen():
    seen = SiblingAcceptance()
    prior = seen.rates(2)
    assert prior == [0.3, 0.3]
    for _ in range(100):
        seen.add(2, accepted=True)
    first, second = seen.rates(2)
    assert first < 0.05
    assert second > 0.9


def ask(controller, branches, reach=1):
    return Ask(controller.sequence(), 4, 100, 10, 300, 0, branches=branches, reach=reach)


@pytest.mark.parametrize("branches", [0, 3])
def test_the_controller_has_branches_where_they_pay(branches):
    """The prior of acceptance is 3/4; after some blocks at a third a sibling is worth a row."""
    controller = LengthController(4, LARGE)
    asked = ask(controller, branches)
    for _ in range(60):
        asked.state.add(0, 1, 0)
        asked.state.add(0, 2, 1)
        controller.siblings(0).add(1, accepted=True)
    for _ in range(200):
        controller.settle_plain(0.03, wasted=0.0)
    plan = controller.plan([asked], Shape(1, 100, 100), 1)
    assert bool(plan.shapes and plan.shapes[0].rows) == bool(branches)
    if branches:
        assert controller.plan([asked], Shape(1, 100, 100), 1).shapes == plan.shapes


def test_rows_that_cost_too_much_have_no_branches():
    controller = LengthController(4, DEAR_ROWS)
    for _ in range(200):
        controller.settle_plain(0.03, wasted=0.0)
    assert not controller.plan([ask(controller, 3)], Shape(1, 100, 100), 1).shapes


def test_several_sequences_have_chains():
    controller = LengthController(4, LARGE)
    for _ in range(200):
        controller.settle_plain(0.03, wasted=0.0)
    asks = [ask(controller, 3), ask(controller, 3)]
    assert not controller.plan(asks, Shape(2, 200, 200), 2).shapes


SECOND_ROW_DEAR = CostTable(
    rows=(1, 2, 3, 4, 5), seconds=(1.0, 1.5, 1.7, 1.75, 1.8), sequences=(1, 2), draft_seconds=(0, 0)
)


def test_branches_that_do_not_pay_are_not_left_for_a_choice_that_stands():
    """The chain alone gains nothing here, a branch beside it some percent: less than asked for.

    The choice for both sequences before still stands, and has a shape for each or none.
    """
    controller = LengthController(1, SECOND_ROW_DEAR)
    asks = [Ask(controller.sequence(), 1, 100, 10, 300, 0, branches=1, reach=1) for _ in "ab"]
    for _ in range(60):
        for i, asked in enumerate(asks * 2):
            asked.state.add(0, 1, i // 2)
        for accepted in (True, False):
            controller.siblings(0).add(1, accepted=accepted)
    for _ in range(200):
        controller.settle_plain(1.0, wasted=0.0)
    both = controller.plan(asks, Shape(2), 2)
    assert both.lengths == (1, 1)
    alone = controller.plan(asks[:1], Shape(1), 1)
    assert alone.trial or not any(alone.lengths)
    assert len(controller.plan(asks, Shape(2), 2).shapes) in (0, 2)


def test_fixed_lengths_have_all_branches():
    controller = FixedLengths(4)
    plan = controller.plan([ask(controller, 3), ask(controller, 3, 8)], Shape(2), 2)
    assert plan.shapes == (TreeShape((1, 1, 1)), TreeShape((3,), 4))
