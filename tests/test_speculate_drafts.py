"""The n-gram draft against a search of the whole context, and what it costs."""

import numpy as np
import pytest
from fakes import draft_query
from hypothesis import given
from hypothesis import strategies as st

from fewbit.errors import UsageError
from fewbit.sampling import Branch, SamplingParams
from fewbit.speculate.drafts import NgramDraft
from fewbit.speculate.verifier import Verifier, verifier_for


def searched(tokens, length, longest, shortest):
    """The slow truth: scan for the last earlier occurrence of the longest ending."""
    for size in range(longest, shortest - 1, -1):
        for end in range(len(tokens) - 1, size - 1, -1):
            if size < len(tokens) and tokens[end - size : end] == tokens[-size:]:
                grown = list(tokens)
                for i in range(length):
                    grown.append(grown[end + i])
                return tuple(grown[len(tokens) :])
    return ()


@given(
    st.lists(st.integers(0, 3), min_size=1, max_size=60),
    st.lists(st.integers(1, 59), max_size=5),
    st.integers(0, 9),
    st.integers(1, 4),
    st.integers(1, 3),
)
def test_the_incremental_index_equals_a_search(tokens, cuts, length, longest, shortest):
    shortest = min(shortest, longest)
    draft = NgramDraft(longest=longest, shortest=shortest)
    for cut in [*sorted(c for c in cuts if c < len(tokens)), len(tokens)]:
        found = draft.propose([draft_query(0, tokens[:cut], length)])[0]
        assert found.tokens == searched(tokens[:cut], length, longest, shortest)


def test_a_batch_keeps_its_sequences_apart():
    draft = NgramDraft(longest=1, shortest=1)
    queries = [draft_query(0, [1, 2, 1], 1), draft_query(1, [1, 3, 1], 1), draft_query(2, [9], 1)]
    assert [p.tokens for p in draft.propose(queries)] == [(2,), (3,), ()]


def test_a_released_sequence_is_forgotten():
    draft = NgramDraft(longest=1, shortest=1)
    draft.propose([draft_query(0, [1, 2, 1], 1)])
    draft.release(0)
    assert draft.propose([draft_query(0, [5, 2], 1)])[0].tokens == ()


class Counted(list):
    """Counts how many elements are read by slices."""

    read = 0

    def __getitem__(self, key):
        found = super().__getitem__(key)
        self.read += len(found) if isinstance(key, slice) else 1
        return found


def test_a_tokens_cost_does_not_grow_with_the_context():
    tokens = Counted(i % 97 for i in range(5000))
    draft = NgramDraft(longest=4, shortest=2)
    draft.propose([draft_query(0, tokens, 4)])
    tokens.read = 0
    tokens.append(1)
    draft.propose([draft_query(0, tokens, 4)])
    assert tokens.read < 40


@pytest.mark.parametrize(("longest", "shortest"), [(2, 3), (3, 0)])
def test_sizes_that_cannot_be_are_refused(longest, shortest):
    with pytest.raises(UsageError, match="shortest"):
        NgramDraft(longest=longest, shortest=shortest)


def test_a_fork_remembers_apart():
    query = draft_query(0, [1, 2], 1, params=SamplingParams(frequency_penalty=1.0, seed=3))
    logits = np.zeros(4, np.float32)
    before = query.sampler.probabilities(logits)
    fork = query.sampler.fork()
    fork.remember([3])
    assert fork.probabilities(logits)[3] < before[3]
    assert np.array_equal(query.sampler.probabilities(logits), before)


@pytest.mark.parametrize(
    ("params", "verifier"),
    [
        (SamplingParams(), Verifier.BLOCK),
        (SamplingParams(seed=0), Verifier.MATCH),
        (SamplingParams(temperature=0), Verifier.MATCH),
    ],
)
def test_a_seed_or_a_greedy_request_asks_for_the_plain_output(params, verifier):
    assert verifier_for(params) is verifier


def test_other_continuations_are_those_that_begin_otherwise():
    """The last one first, then the last that went on otherwise, then those of shorter endings."""
    tokens = [1, 2, 3, 9, 1, 2, 4, 9, 5, 2, 6, 9, 1, 2]
    draft = NgramDraft(longest=2, shortest=1)
    (found,) = draft.propose([draft_query(0, tokens, 3, siblings=(3,), reach=2)])
    assert found.tokens == (4, 9, 5)
    assert found.branches == (Branch(0, (3, 9)), Branch(0, (6, 9)))
    assert not NgramDraft(longest=2).propose([draft_query(0, tokens, 3)])[0].branches
