"""The suffix draft against a search of the whole text, and what it costs."""

import numpy as np
import pytest
from fakes import draft_query
from hypothesis import given
from hypothesis import strategies as st

from fewbit.errors import UsageError
from fewbit.sampling import Branch
from fewbit.speculate import suffix
from fewbit.speculate.suffix import (
    LARGEST_TEXT,
    LONGEST_MATCH,
    NO_MATCH,
    SuffixAutomaton,
    SuffixDraft,
)


def followed(text, context):
    """Return (count, last place) of each token that follows `context` in `text`."""
    found = {}
    for end in range(len(context), len(text)):
        if text[end - len(context) : end] == context:
            count, _ = found.get(text[end], (0, 0))
            found[text[end]] = (count + 1, end)
    return found


def ending_in(text, tokens):
    """Return the longest ending of `tokens` that something follows in `text`, by search."""
    for size in range(min(LONGEST_MATCH, len(tokens)), 0, -1):
        if followed(text, tokens[-size:]):
            return tokens[-size:]
    return []


def searched(text, tokens, length):
    """The slow truth: count what follows the longest known ending, again for each token."""
    found = []
    context = ending_in(text, tokens)
    while context and len(found) < length:
        choices = followed(text, context)
        found.append(max(choices, key=choices.get))
        context = ending_in(text, [*context, found[-1]])
    return found


TEXTS = st.lists(st.integers(0, 2), min_size=1, max_size=70)


@given(TEXTS, st.integers(1, 6))
def test_the_automaton_equals_a_search(text, length):
    automaton = SuffixAutomaton()
    for end, token in enumerate(text, start=1):
        automaton.extend([token])
        if end % 7 == 0 or end == len(text):
            found = automaton.continuation(automaton.known(automaton.ending), length)
            assert found == searched(text[:end], text[:end], length)


@given(TEXTS, TEXTS, st.integers(1, 6))
def test_another_text_is_matched_token_by_token(text, tokens, length):
    automaton, match = SuffixAutomaton(text), NO_MATCH
    for token in tokens:
        match = automaton.step(match, token)
    assert automaton.continuation(automaton.known(match), length) == searched(text, tokens, length)


@pytest.mark.parametrize("bound", [1, 2, 5])
@given(text=TEXTS, length=st.integers(1, 6))
def test_the_bound_of_a_match_is_kept(bound, text, length):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(suffix, "LONGEST_MATCH", bound)
        patch.setitem(globals(), "LONGEST_MATCH", bound)
        automaton = SuffixAutomaton(text)
        found = automaton.continuation(automaton.known(automaton.ending), length)
        assert found == searched(text, text, length)


def test_a_count_that_forgets_splits_is_noticed():
    """The negative control: a class that is split must keep the count of the whole."""
    wrong = 0
    for seed in range(40):
        text = np.random.default_rng(seed).integers(0, 3, 60).tolist()
        automaton = SuffixAutomaton()
        plain = automaton._state
        automaton._state = lambda *fields, plain=plain: plain(*fields[:2], 0, *fields[3:])
        automaton.extend(text)
        found = automaton.continuation(automaton.known(automaton.ending), 4)
        wrong += found != searched(text, text, 4)
    assert wrong > 0


def proposed(draft, tokens, length=3, sequence=0):
    return list(draft.propose([draft_query(sequence, tokens, length)])[0].tokens)


def test_the_more_frequent_continuation_is_proposed_not_the_latest():
    assert proposed(SuffixDraft(), [1, 2, 3, 9, 1, 2, 3, 8, 1, 2, 4, 7, 1, 2], 2) == [3, 8]


def test_nothing_follows_in_no_text():
    assert SuffixAutomaton().continuation(NO_MATCH, 4) == []
    assert proposed(SuffixDraft(shortest=1), [7]) == []


def test_a_text_that_repeats_goes_on_repeating():
    assert proposed(SuffixDraft(), [7, 8, 9] * 3, 7) == [7, 8, 9, 7, 8, 9, 7]


def test_the_longer_of_two_matches_is_taken_and_of_equal_ones_the_own():
    draft = SuffixDraft([1, 2, 3, 50, 51])
    assert proposed(draft, [9, 1, 2, 3], 2) == [50, 51]
    assert proposed(draft, [1, 2, 3, 40, 9, 1, 2, 3], 1, sequence=1) == [40]


def test_a_sequence_never_sees_another_ones_tokens():
    draft = SuffixDraft()
    assert proposed(draft, [1, 2, 3, 4, 1, 2]) == [3, 4, 1]
    assert proposed(draft, [5, 6, 1, 2], sequence=1) == []
    draft.release(0)
    assert proposed(draft, [8, 1, 2], sequence=0) == []


def test_short_matches_propose_nothing():
    assert proposed(SuffixDraft(shortest=3), [1, 2, 3, 1, 2]) == []
    assert proposed(SuffixDraft(shortest=2), [1, 2, 3, 1, 2], 1) == [3]


@pytest.mark.parametrize("period", [1, 3])
def test_a_tokens_cost_does_not_grow_with_the_text(period):
    """Counted in states looked at: each is looked at through its link."""

    class Links(list):
        read = 0

        def __getitem__(self, state):
            self.read += 1
            return super().__getitem__(state)

    automaton = SuffixAutomaton(i % period for i in range(5000))
    automaton._link = links = Links(automaton._link)
    automaton.extend([5000 % period])
    automaton.continuation(automaton.known(automaton.ending), 4)
    assert links.read < 4 * LONGEST_MATCH


def test_states_are_bounded_by_twice_the_text():
    text = [(i * i) % 7 % 3 for i in range(2000)]
    assert len(SuffixAutomaton(text)._next) <= 2 * len(text)


@pytest.mark.parametrize("shortest", [0, LONGEST_MATCH + 1])
def test_a_match_that_cannot_be_is_refused(shortest):
    with pytest.raises(UsageError, match=f"{shortest}"):
        SuffixDraft(shortest=shortest)


def test_a_text_that_is_too_long_is_refused():
    with pytest.raises(UsageError, match=f"{LARGEST_TEXT}"):
        SuffixDraft(range(LARGEST_TEXT + 1))


def test_other_continuations_are_the_frequent_ones_of_the_longest_endings():
    tokens = [1, 2, 3, 1, 2, 4, 1, 2, 4, 8, 2, 5, 8, 1, 2, 4, 1, 2]
    draft = SuffixDraft(shortest=1)
    (found,) = draft.propose([draft_query(0, tokens, 3, siblings=(3,), reach=2)])
    assert found.tokens[0] == 4
    assert [branch.tokens[0] for branch in found.branches] == [3, 5]
    assert found.branches[0] == Branch(0, (3, 1))
    assert {branch.depth for branch in found.branches} == {0}
