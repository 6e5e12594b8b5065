"""The draft's length follows measured acceptance and cost, and says why."""

import pytest

from fewbit.errors import UsageError
from fewbit.speculate.length import ASSUMED_ROW_COST, DraftLength, StepCosts


def taught(chance, row_cost, longest=8, rounds=60):
    length = DraftLength(longest)
    for token in range(rounds):
        tested = length.next_length(token)
        if tested:
            length.observe(token, tested=10, accepted=round(10 * chance), row_cost=row_cost)
    return length


def test_good_drafts_stay_long_and_bad_ones_stop():
    assert taught(1.0, 0.1).next_length(60) == 8
    assert taught(0.0, 0.1).next_length(60) == 0


def test_an_accepted_draft_still_stops_where_rows_cost_too_much():
    """llama.cpp #10594: 80% accepted, but each row costs nearly a step."""
    length = taught(0.8, 0.9)
    assert length.next_length(60) == 0
    assert "so no draft pays" in length.changes[-1].reason
    assert "90% of a step" in length.changes[-1].reason


def test_in_between_it_is_shortened_and_said():
    length = taught(0.5, 0.12)
    assert 0 < length.next_length(60) < 8
    assert "pay best" in length.changes[0].reason


def test_drafting_is_tried_again_after_a_pause_that_doubles():
    length = DraftLength(4)
    tries = []
    for token in range(200):
        if length.next_length(token):
            tries.append(token)
            length.observe(token, tested=4, accepted=0, row_cost=0.5)
    assert tries == [0, 16, 48, 112]


def test_it_recovers_when_drafts_get_good():
    length = taught(0.0, 0.1)
    token = 60
    for _ in range(60):
        while not length.next_length(token):
            token += 1
        length.observe(token, tested=4, accepted=4, row_cost=0.1)
    assert length.next_length(token) == 4 * 2


def test_the_cost_of_a_row_is_the_slope():
    costs = StepCosts()
    assert costs.row_cost(1) == ASSUMED_ROW_COST
    for _ in range(5):
        costs.observe(1, 0.010)
    assert costs.row_cost(1) == ASSUMED_ROW_COST
    for rows in (1, 5, 1, 9, 1):
        costs.observe(rows, 0.008 + 0.002 * rows)
    assert costs.row_cost(1) == pytest.approx(0.2)


def test_drafting_a_token_costs_too():
    costs = StepCosts()
    for rows in (1, 5, 1, 9, 1):
        costs.observe(rows, 0.008 + 0.002 * rows)
    for tokens in (4, 2, 8):
        costs.observe_draft(tokens, 0.003 * tokens)
    assert costs.row_cost(1) == pytest.approx(0.5)


def test_noise_never_makes_rows_pay():
    costs = StepCosts()
    costs.observe(1, 0.02)
    costs.observe(9, 0.01)
    assert costs.row_cost(1) == 0.0


def test_a_longest_draft_of_nothing_is_refused():
    with pytest.raises(UsageError, match="at least 1"):
        DraftLength(0)
