"""Page tables grow, roll back and share one pool; pages are counted and the leaves go first."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fewbit.cache.pages import PagePool, PageTable, pages_for
from fewbit.errors import RequestError
from fewbit.runtime.step import PAGE

TEXT = [i % 7 for i in range(6 * PAGE)]


def filled(pool, tokens):
    """Return the table of a sequence that computed these tokens."""
    table = PageTable(pool)
    table.grow(len(tokens))
    table.share(tokens, len(tokens))
    return table


def test_pages_round_up():
    assert [pages_for(n) for n in (0, 1, PAGE, PAGE + 1)] == [0, 1, 1, 2]


def test_running_out_is_refused_with_numbers_and_changes_nothing():
    pool = PagePool(3)
    table = PageTable(pool)
    table.grow(2 * PAGE)
    with pytest.raises(RequestError, match=r"2 pages of 64 positions are needed and 1 of 3"):
        table.grow(4 * PAGE)
    assert len(table.array) == 2
    assert pool.free == 1
    assert not table.can_grow(4 * PAGE)
    assert table.can_grow(3 * PAGE)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 6 * PAGE)), max_size=60))
def test_no_page_is_held_twice_and_none_is_lost(moves):
    pool = PagePool(12)
    tables = [PageTable(pool) for _ in range(4)]
    for which, grows, positions in moves:
        if not grows:
            tables[which].roll_back(positions)
        elif tables[which].can_grow(positions):
            tables[which].grow(positions)
        held = np.concatenate([table.array for table in tables])
        assert len(set(held)) == len(held) == 12 - pool.free


def test_rolling_back_keeps_the_first_pages():
    table = PageTable(PagePool(4))
    table.grow(3 * PAGE)
    before = table.array
    table.roll_back(PAGE + 1)
    np.testing.assert_array_equal(table.array, before[:2])


# --- sharing ------------------------------------------------------------------------------------


def test_running_sequences_share_whole_pages_up_to_the_first_difference():
    pool = PagePool(8)
    first = filled(pool, TEXT[: 3 * PAGE])
    second = PageTable(pool)
    other = [*TEXT[: 2 * PAGE], *([6] * PAGE)]
    assert second.reuse(other, 0) == 2 * PAGE
    np.testing.assert_array_equal(second.array, first.array[:2])
    assert pool.held == 3
    second.grow(3 * PAGE)
    assert second.array[2] not in first.array
    first.roll_back(0)
    assert pool.held == 3
    second.roll_back(0)
    assert pool.held == 0
    assert pool.idle == 3


def test_the_last_token_is_always_computed():
    pool = PagePool(4)
    filled(pool, TEXT[: 2 * PAGE])
    assert PageTable(pool).reuse(TEXT[: 2 * PAGE], 0) == PAGE
    assert PageTable(pool).reuse(TEXT[: 2 * PAGE + 1], 0) == 2 * PAGE


def test_nothing_is_given_up_for_fewer_pages_than_were_computed():
    pool = PagePool(6)
    filled(pool, TEXT[:PAGE])
    table = PageTable(pool)
    table.grow(PAGE + 3)
    before = table.array
    assert table.reuse(TEXT[: 3 * PAGE], PAGE + 3) == PAGE + 3
    np.testing.assert_array_equal(table.array, before)


def test_a_page_full_of_unverified_tokens_is_not_shared():
    pool = PagePool(4)
    table = PageTable(pool)
    table.grow(2 * PAGE)
    table.share(TEXT[: 2 * PAGE], 2 * PAGE - 1)
    assert PageTable(pool).reuse(TEXT[: 3 * PAGE], 0) == PAGE


def test_an_equal_page_computed_twice_is_kept_once():
    pool = PagePool(4)
    first, second = PageTable(pool), PageTable(pool)
    for table in (first, second):
        table.grow(2 * PAGE)
    assert pool.held == 4
    for table in (first, second):
        table.share(TEXT[: 2 * PAGE], 2 * PAGE)
    assert pool.held == 2
    np.testing.assert_array_equal(first.array, second.array)


def test_idle_pages_go_when_pages_run_out_the_oldest_leaf_first():
    pool = PagePool(5)
    old = filled(pool, TEXT[: 3 * PAGE])
    other = filled(pool, [1] * 2 * PAGE)
    old.roll_back(0)
    other.roll_back(0)
    assert (pool.free, pool.idle) == (5, 5)
    found = []
    for _ in range(4):
        pool.take(1)
        one, two = PageTable(pool), PageTable(pool)
        found.append(
            (one.pages_to_take(TEXT, 6 * PAGE), two.pages_to_take([1] * 3 * PAGE, 3 * PAGE))
        )
        assert pool.held == len(found)
    # Pages that must still be computed, plus idle ones that sharing takes: always all of them.
    assert found == [(6, 3)] * 4
    assert pool.evictions == 4
    assert PageTable(pool).reuse([1] * 3 * PAGE, 0) == PAGE
    assert PageTable(pool).reuse(TEXT, 0) == 0


def test_using_a_page_makes_it_the_last_to_go():
    pool = PagePool(2)
    one, two = filled(pool, [1] * PAGE), filled(pool, [2] * PAGE)
    one.roll_back(0)
    two.roll_back(0)
    again = PageTable(pool)
    again.reuse([1] * 2 * PAGE, 0)
    again.roll_back(0)
    pool.take(1)
    assert PageTable(pool).reuse([2] * 2 * PAGE, 0) == 0
    assert PageTable(pool).reuse([1] * 2 * PAGE, 0) == PAGE


@settings(max_examples=50, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(0, 3), st.sampled_from(["grow", "share", "drop"]), st.integers(0, 5)),
        max_size=80,
    )
)
def test_holders_are_counted_and_no_idle_page_outlives_its_parent(moves):
    pool = PagePool(9)
    texts = [TEXT, [*TEXT[: 2 * PAGE], *([5] * 4 * PAGE)], [*TEXT[:PAGE], *([4] * 5 * PAGE)], TEXT]
    tables = [PageTable(pool) for _ in texts]
    for which, move, pages in moves:
        table, tokens = tables[which], texts[which]
        if move == "drop":
            table.roll_back(0)
        elif move == "grow" and table.can_grow(pages * PAGE):
            table.reuse(tokens, len(table) * PAGE)
            if table.can_grow(pages * PAGE):
                table.grow(pages * PAGE)
        else:
            table.share(tokens, len(table) * PAGE)
        held = {int(page) for each in tables for page in each.array}
        assert pool.held == len(held)
        assert not held & set(pool._idle)
        order = list(pool._idle)
        for entry in pool.index._entries.values():
            if entry.parent in order:
                assert order.index(entry.page) < order.index(entry.parent)
