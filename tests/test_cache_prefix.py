"""Pages are found by a digest and taken only for the very same tokens after the same parent."""

import pytest

from fewbit.cache.pages import PagePool, PageTable
from fewbit.cache.prefix import NO_PAGE, PrefixIndex, chained_digest
from fewbit.runtime.step import PAGE


def keys(tokens, digest=chained_digest):
    found = []
    PrefixIndex(digest).extend(found, tokens, len(tokens) // PAGE)
    return found


def colliding(_parent, _tokens):
    return b"the same for all"


def test_a_key_stands_for_all_tokens_before_it():
    one, two = keys([1] * 2 * PAGE), keys([2] * PAGE + [1] * PAGE)
    assert one[1].tokens == two[1].tokens
    assert one[1].digest != two[1].digest
    assert keys([1] * PAGE) == one[:1]


def test_pages_are_found_from_the_start_without_gaps():
    index, (first, second) = PrefixIndex(), keys([1] * PAGE + [2] * PAGE)
    assert index.find([first]) == []
    assert index.add(5, first, NO_PAGE) == 5
    assert index.add(3, second, 5) == 3
    assert index.find([first, second]) == [5, 3]
    assert 5 in index
    index.forget(3)
    assert index.find([first, second]) == [5]
    assert index.add(7, first, NO_PAGE) == 5


def test_a_page_whose_parent_is_unknown_stays_unknown():
    index = PrefixIndex()
    _, second = keys([1] * PAGE + [2] * PAGE)
    assert index.add(3, second, 5) == NO_PAGE
    assert 3 not in index


def test_a_planted_collision_is_caught():
    index = PrefixIndex(colliding)
    (one,), (two,) = keys([1] * PAGE, colliding), keys([2] * PAGE, colliding)
    index.add(0, one, NO_PAGE)
    assert index.find([one]) == [0]
    assert index.find([two]) == []
    assert index.add(1, two, NO_PAGE) == NO_PAGE


def test_equal_tokens_after_another_parent_are_a_collision_too():
    """Same tokens, same (planted) digest, but the pages before differ."""
    index = PrefixIndex(lambda _, tokens: tokens[:1])
    parents = (
        keys([1] * PAGE + [7] * PAGE, index._digest),
        keys([2] * PAGE + [7] * PAGE, index._digest),
    )
    for page, each in enumerate(parents):
        index.add(page, each[0], NO_PAGE)
    index.add(2, parents[0][1], 0)
    assert index.find(parents[0]) == [0, 2]
    assert index.find(parents[1]) == [1]
    assert index.add(3, parents[1][1], 1) == NO_PAGE


@pytest.mark.parametrize("digest", [chained_digest, colliding])
def test_a_collision_costs_sharing_but_no_page(digest):
    pool = PagePool(6, PrefixIndex(digest))
    tables = [PageTable(pool) for _ in range(3)]
    for i, table in enumerate(tables):
        table.grow(2 * PAGE)
        table.share([i] * 2 * PAGE, 2 * PAGE)
    assert pool.idle == 0
    for table in tables:
        table.roll_back(0)
    assert pool.free == 6
    assert pool.idle == (6 if digest is chained_digest else 1)
