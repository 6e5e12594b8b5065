"""Two drafts as one: who is asked, and what is handed on."""

from fakes import FixedDraft, draft_query

from fewbit.speculate.combined import CombinedDraft
from fewbit.speculate.drafts import NgramDraft

REPEATS, NEW = [1, 2, 3, 1, 2], [1, 2, 3, 4, 5]


def combined(context=None):
    second = FixedDraft(lambda tokens, length: [77] * length, context=context)
    return CombinedDraft(NgramDraft(), second), second


def test_the_second_is_asked_only_where_the_first_has_nothing():
    draft, second = combined()
    found = draft.propose([draft_query(0, REPEATS, 2), draft_query(1, NEW, 2)])
    assert [p.tokens for p in found] == [(3, 1), (77, 77)]
    assert list(second.asked) == [1]


def test_a_sequence_beyond_the_seconds_context_is_left_to_the_first():
    draft, second = combined(context=6)
    assert draft.propose([draft_query(0, NEW, 2)])[0].tokens == ()
    assert draft.propose([draft_query(0, REPEATS, 2)])[0].tokens == (3, 1)
    assert not second.asked


def test_what_is_to_be_read_first_is_that_of_the_draft_that_would_propose():
    draft, second = combined(context=50)
    second.pending = lambda query: len(query.tokens)
    assert draft.pending(draft_query(0, REPEATS, 2)) == 0
    assert draft.pending(draft_query(1, NEW, 2)) == 5
    assert draft.pending(draft_query(1, NEW, 60)) == 0


def test_both_forget_a_sequence_and_the_name_says_both():
    draft, second = combined()
    draft.propose([draft_query(3, NEW, 1)])
    draft.release(3)
    assert second.released == [3]
    assert draft.name == "ngram+fixed"
    assert draft.context is None
    assert not draft.shares_store
