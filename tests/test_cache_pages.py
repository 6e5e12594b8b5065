"""Page tables grow, roll back and share one allocator; a kept prefix hands its pages over."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.cache.pages import PageAllocator, PageTable, pages_for
from fewbit.cache.prefix import KeptPrefix
from fewbit.errors import RequestError
from fewbit.runtime.step import PAGE


def test_pages_round_up():
    assert [pages_for(n) for n in (0, 1, PAGE, PAGE + 1)] == [0, 1, 1, 2]


def test_running_out_is_refused_with_numbers_and_changes_nothing():
    allocator = PageAllocator(3)
    table = PageTable(allocator)
    table.grow(2 * PAGE)
    with pytest.raises(RequestError, match=r"2 pages of 64 positions are needed and 1 of 3"):
        table.grow(4 * PAGE)
    assert len(table.array) == 2
    assert allocator.free == 1
    assert not table.can_grow(4 * PAGE)
    assert table.can_grow(3 * PAGE)


@given(st.lists(st.tuples(st.integers(0, 3), st.booleans(), st.integers(0, 6 * PAGE)), max_size=60))
def test_no_page_is_held_twice_and_none_is_lost(moves):
    allocator = PageAllocator(12)
    tables = [PageTable(allocator) for _ in range(4)]
    for which, grows, positions in moves:
        if not grows:
            tables[which].roll_back(positions)
        elif tables[which].can_grow(positions):
            tables[which].grow(positions)
        held = np.concatenate([table.array for table in tables])
        assert len(set(held)) == len(held) == 12 - allocator.free


def test_rolling_back_keeps_the_first_pages():
    table = PageTable(PageAllocator(4))
    table.grow(3 * PAGE)
    before = table.array
    table.roll_back(PAGE + 1)
    np.testing.assert_array_equal(table.array, before[:2])


def test_a_kept_prefix_is_shared_up_to_the_first_difference():
    allocator = PageAllocator(4)
    table = PageTable(allocator)
    table.grow(3 * PAGE)
    kept = KeptPrefix()
    kept.keep(range(2 * PAGE), table)
    assert allocator.free == 2
    shared, taken = kept.take([*range(PAGE), 7, 7, 7])
    assert (shared, taken) == (PAGE, table)
    assert allocator.free == 3
    assert kept.take([0, 1]) is None


def test_the_last_token_of_a_prompt_is_always_computed():
    table = PageTable(PageAllocator(4))
    table.grow(4)
    kept = KeptPrefix()
    kept.keep([1, 2, 3, 4], table)
    assert kept.take([1, 2, 3])[0] == 2


def test_a_dropped_prefix_gives_its_pages_back():
    allocator = PageAllocator(2)
    table = PageTable(allocator)
    table.grow(PAGE)
    kept = KeptPrefix()
    kept.keep([1], table)
    assert kept.drop()
    assert not kept.drop()
    assert allocator.free == 2
