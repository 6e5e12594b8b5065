"""How many rows of prompts a step may have, and whose they are."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.engine.pace import LEAST_PROMPT_ROWS, LEAST_SHARE, PromptPace, shares


def settled(decode, row, prompt_rows):
    pace = PromptPace()
    for _ in range(20):
        pace.observe(4, 0, decode)
        pace.observe(4, prompt_rows, decode + row * prompt_rows)
    return pace


def test_rows_fill_the_stall_beside_what_decoding_takes():
    """Up to the mixing of 20 steps, which leaves 2^-20 of the first reading."""
    assert settled(0.02, 0.001, 100).rows(0.1) == pytest.approx(80, abs=1)


def test_nothing_is_promised_before_anything_was_measured():
    pace = PromptPace()
    assert pace.rows(0.1) is None
    pace.observe(1, 0, 0.01)
    assert pace.rows(0.1) is None


def test_prompts_get_on_where_decoding_alone_takes_the_stall():
    assert settled(0.2, 0.001, 8).rows(0.1) == LEAST_PROMPT_ROWS


def test_a_lucky_step_does_not_make_rows_free():
    pace = settled(0.02, 0.001, 100)
    pace.observe(4, 100, 0.02)
    assert pace.rows(0.1) < 160


def test_dearer_rows_are_followed_within_steps():
    pace = settled(0.02, 0.001, 80)
    for _ in range(4):
        pace.observe(4, 80, 0.02 + 80 * 0.004)
    assert pace.rows(0.1) < 22


@pytest.mark.parametrize(
    ("pending", "rows", "expected"),
    [
        ([], 100, []),
        ([300], 512, [300]),
        ([3000], 512, [512]),
        ([3000, 3000], 512, [256, 256]),
        ([3000, 10, 10], 512, [492, 10, 10]),
        ([10, 3000, 20, 3000], 512, [10, 354, 20, 128]),
        ([1000] * 16, 512, [64] * 8 + [0] * 8),
        ([1000, 1000], 8, [8, 0]),
        ([1000, 1000], 0, [0, 0]),
    ],
)
def test_rows_are_shared_by_order_of_arrival(pending, rows, expected):
    assert shares(pending, rows) == expected


@given(st.lists(st.integers(1, 2000), max_size=20), st.integers(0, 1024))
def test_no_row_is_given_twice_or_wasted(pending, rows):
    found = shares(pending, rows)
    assert sum(found) == min(rows, sum(pending))
    assert all(0 <= share <= count for share, count in zip(found, pending, strict=True))
    if rows and pending:
        assert found[0] >= min(pending[0], rows, LEAST_SHARE)
