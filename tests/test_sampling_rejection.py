"""Native drafting and rejection against the rules in NumPy, through the whole pipeline."""

import numpy as np
import pytest

from fewbit.keyed_random import Purpose, uniform
from fewbit.sampling import (
    Block,
    DraftRow,
    SamplingParams,
    SamplingThreads,
    ScriptedNumbers,
    TokenSampler,
    Verifier,
    draw_proposals,
    sample_blocks,
)
from fewbit.speculate.block import block_accept_reject
from fewbit.speculate.exact import exact_accept_reject
from fewbit.speculate.rows import pick

PARAMS = [
    SamplingParams(),
    SamplingParams(temperature=0.6),
    SamplingParams(temperature=1.3, top_k=7),
    SamplingParams(top_p=0.7),
    SamplingParams(min_p=0.1),
    SamplingParams(repetition_penalty=1.3, frequency_penalty=0.7, presence_penalty=0.4),
    SamplingParams(logit_bias={3: -100, 7: 1.5}, top_p=0.9, frequency_penalty=0.5),
]
PROMPT = (1, 2, 3, 2)
LENGTH = 4
RULES = {Verifier.TOKEN: exact_accept_reject, Verifier.BLOCK: block_accept_reject}


class Case:
    """A target's rows and a draft's, alike enough that some of its tokens are accepted."""

    def __init__(self, seed, params, *, size=300, columns=None, vocabulary=None):
        rng = np.random.default_rng(seed)
        self.params, self.seed = params, seed
        self.vocabulary = vocabulary or size
        self.position = 10 + seed
        self.logits = rng.normal(0, 2, (LENGTH + 1, size)).astype(np.float32)
        near = self.logits[:LENGTH] + rng.normal(0, 0.7, (LENGTH, size)).astype(np.float32)
        self.support = None
        if columns:
            likely = np.argsort(-near.max(axis=0))[: columns // 2]  # else nothing is accepted
            others = np.setdiff1d(rng.permutation(size), likely)[: columns - len(likely)]
            chosen = np.sort(np.concatenate([likely, others]))
            self.support = chosen.astype(np.int32)
            near = near[:, chosen]
        self.draft_logits = np.ascontiguousarray(near)
        self.sampler = self.fresh()

    def fresh(self, tokens=()):
        sampler = TokenSampler(self.params, seed=self.seed, sample=3, prompt=PROMPT)
        sampler.remember(tokens)
        return sampler

    def draft(self):
        """Return the drafted tokens and what they were drawn from, row by row as a draft does."""
        fork = self.sampler.fork()
        rows = np.empty(self.draft_logits.shape, np.float32)
        tokens = []
        for j in range(LENGTH):
            drawing = DraftRow(fork, j, self.position + j, self.position, rows[j])
            tokens.append(self.drawn(drawing))
        return tokens, rows

    def drawn(self, drawing):
        found = draw_proposals(
            self.draft_logits, [drawing], support=self.support, vocabulary=self.vocabulary
        )
        assert found[0].fault is None
        return found[0].token

    def dense(self, rows):
        """What was drafted from over all of the target's ids, float64."""
        if self.support is None:
            return rows.astype(np.float64)
        whole = np.zeros((LENGTH, self.logits.shape[1]))
        whole[:, self.support] = rows
        return whole

    def target(self, tokens):
        """The target's rows after each drafted token, shaped one by one."""
        return np.stack(
            [
                self.fresh(tokens[:j]).probabilities(row, vocabulary=self.vocabulary)
                for j, row in enumerate(self.logits)
            ]
        )

    def judge(self, verifier, tokens, rows, **fields):
        block = Block(
            self.sampler,
            0,
            self.position,
            tokens,
            verifier=verifier,
            probabilities=rows,
            support=self.support,
            **fields,
        )
        return sample_blocks(self.logits, [block], vocabulary=self.vocabulary)[0]


class Keyed:
    """A generator for a rule in NumPy, that hands out the numbers which the native one uses.

    Both rules ask for those that accept first; block verification for all of them.
    """

    def __init__(self, case, accepts):
        self._case, self._accepts, self._asked = case, accepts, 0
        self.rejected = None

    def random(self):
        j = self._asked
        self._asked += 1
        return self.number(j, Purpose.ACCEPT if j < self._accepts else Purpose.CORRECT)

    def number(self, j, purpose):
        case = self._case
        return uniform(case.seed, 3, case.position + j, purpose, case.position)


def by_numpy(verifier, case, tokens, rows):
    """Run the rule in NumPy. Which number corrects depends on where, so that is found first."""
    q, p = case.dense(rows), case.target(tokens)
    counted = Keyed(case, 99)
    if verifier is Verifier.TOKEN:
        ratios = [p[j, t] / q[j, t] * q[j].sum() for j, t in enumerate(tokens)]
        tests = [(j, counted.number(j, Purpose.ACCEPT)) for j in range(LENGTH) if ratios[j] < 1]
        accepts = next((j for j, number in tests if number >= ratios[j]), LENGTH)
        numbers = [number for j, number in tests if j <= accepts]
        numbers.append(counted.number(accepts, Purpose.CORRECT))
    else:
        accepts = block_accept_reject(tokens, q, p, counted)[0]
        numbers = [counted.number(j, Purpose.ACCEPT) for j in range(LENGTH)]
        numbers.append(counted.number(accepts, Purpose.CORRECT))
    return RULES[verifier](tokens, q, p, Scripted(numbers))


class Scripted:
    def __init__(self, numbers):
        self._numbers = iter(numbers)

    def random(self):
        return next(self._numbers)


SHAPES = [{}, {"columns": 120}, {"size": 128}, {"size": 300, "vocabulary": 200, "columns": 250}]


@pytest.mark.parametrize("verifier", list(RULES))
@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_the_native_rules_do_what_those_in_numpy_do(verifier, params, shape):
    kept = 0
    for seed in range(6):
        case = Case(seed, params, **shape)
        tokens, rows = case.draft()
        expected = by_numpy(verifier, case, tokens, rows)
        drawn = case.judge(verifier, tokens, rows)
        assert (len(drawn.tokens) - 1, drawn.tokens[-1]) == expected
        assert drawn.tokens[:-1] == tokens[: expected[0]]
        kept += expected[0]
    assert kept > 0


@pytest.mark.parametrize("verifier", list(RULES))
def test_what_was_rejected_is_forgotten(verifier):
    """The penalties after a block are those of the tokens that stand."""
    for seed in range(12):
        case = Case(seed, PARAMS[5])
        drawn = case.judge(verifier, *case.draft())
        expected = case.fresh(drawn.tokens).probabilities(case.logits[0])
        assert np.array_equal(case.sampler.probabilities(case.logits[0]), expected)


@pytest.mark.parametrize("params", PARAMS)
@pytest.mark.parametrize("shape", SHAPES)
def test_a_draft_draws_from_the_row_that_it_returns(params, shape):
    case = Case(3, params, **shape)
    tokens, rows = case.draft()
    fork = case.fresh()
    for j, (token, row) in enumerate(zip(tokens, rows, strict=True)):
        number = uniform(case.seed, 3, case.position + j, Purpose.DRAFT, case.position)
        column = pick(row.astype(np.float64), number)
        assert token == (column if case.support is None else case.support[column])
        whole = np.full(case.logits.shape[1], -1e4, np.float32)
        whole[slice(None) if case.support is None else case.support] = case.draft_logits[j]
        expected = fork.probabilities(whole, vocabulary=case.vocabulary)
        assert case.dense(rows)[j] == pytest.approx(expected, rel=1e-6, abs=1e-12)
        fork.remember([token])


def test_a_coupled_draft_draws_by_the_targets_own_number():
    case = Case(1, PARAMS[6])
    fork = case.sampler.fork()
    tokens = []
    for j in range(LENGTH):
        found = draw_proposals(case.logits, [DraftRow(fork, j, case.position + j, case.position)])
        tokens.append(found[0].token)
    plain = sample_blocks(case.logits, [Block(case.sampler, 0, case.position, tokens)])[0]
    assert plain.tokens[:LENGTH] == tokens


@pytest.mark.parametrize("verifier", list(RULES))
def test_log_probabilities_are_the_targets_own(verifier):
    """llama.cpp #27972, vLLM #17876: zeros, or those of the draft."""
    case = Case(2, SamplingParams(temperature=0.7, top_k=20))
    drawn = case.judge(verifier, *case.draft(), top_logprobs=3)
    assert len(drawn.logprobs) == len(drawn.tokens)
    for row, token, found in zip(case.logits, drawn.tokens, drawn.logprobs, strict=False):
        exact = row.astype(np.float64) - np.log(np.exp(row.astype(np.float64)).sum())
        assert found.logprob == pytest.approx(exact[token], abs=1e-6)
        order = np.argsort(-row, kind="stable")[:3]
        assert [token for token, _ in found.top] == order.tolist()


@pytest.mark.parametrize("verifier", list(RULES))
def test_a_row_that_is_not_finite_ends_a_block_only_where_it_is_reached(verifier):
    faults = kept = 0
    for seed in range(40):
        case = Case(seed, SamplingParams())
        tokens, rows = case.draft()
        case.logits[2, 5] = np.nan
        drawn = case.judge(verifier, tokens, rows)
        if drawn.fault is None:
            assert len(drawn.tokens) <= 2
            kept += 1
        else:
            assert drawn.tokens == tokens[:2]
            faults += 1
    assert faults > 3
    assert kept > 3


def test_threads_and_neighbours_change_nothing():
    cases = [Case(seed, PARAMS[seed % len(PARAMS)]) for seed in range(8)]
    drafts = [case.draft() for case in cases]
    alone = [c.judge(Verifier.BLOCK, *d) for c, d in zip(cases, drafts, strict=True)]
    logits = np.concatenate([case.logits for case in cases])
    blocks = [
        Block(c.fresh(), i * (LENGTH + 1), c.position, tokens, None, Verifier.BLOCK, rows)
        for i, (c, (tokens, rows)) in enumerate(zip(cases, drafts, strict=True))
    ]
    assert sample_blocks(logits, blocks, threads=SamplingThreads()) == alone


def test_every_number_is_asked_for_by_position_purpose_and_block():
    case = Case(0, SamplingParams())
    tokens, rows = case.draft()
    numbers = ScriptedNumbers({})
    case.sampler = TokenSampler(case.params, seed=0, numbers=numbers)
    fork = case.sampler.fork()
    draw_proposals(case.draft_logits, [DraftRow(fork, 0, 20, 20, np.empty(300, np.float32))])
    assert fork.uniform(5, Purpose.TOKEN) == 0.0
    case.judge(Verifier.BLOCK, tokens, rows)
    start = case.position
    assert numbers.asked[:2] == [(20, Purpose.DRAFT, 20), (5, Purpose.TOKEN, 0)]
    asked = set(numbers.asked[2:])
    assert {(start + j, Purpose.ACCEPT, start) for j in range(LENGTH)} <= asked
    assert asked <= {
        (start + j, purpose, start)
        for j in range(LENGTH + 1)
        for purpose in (Purpose.ACCEPT, Purpose.CORRECT)
    }


def test_scripted_numbers_are_used():
    script = ScriptedNumbers({(0, Purpose.TOKEN, 0): 0.999})
    logits = np.zeros((1, 4), np.float32)
    drawn = [
        sample_blocks(logits, [Block(TokenSampler(SamplingParams(), seed=0, numbers=n), 0, 0)])
        for n in (script, ScriptedNumbers({}))
    ]
    assert [d[0].tokens for d in drawn] == [[3], [0]]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"probabilities": None}, "no probabilities"),
        ({"probabilities": np.ones((1, 300), np.float32)}, "fewer rows"),
        ({"support": np.arange(3, dtype=np.int32)}, "an id for each"),
        ({"draft": [1, 2, 3, 300]}, "outside the vocabulary"),
        ({"draft": [-1, 2, 3, 4]}, "outside the vocabulary"),
        ({"probabilities": np.eye(4, 300, k=9, dtype=np.float32)}, "no probability"),
        ({"row": 1}, "beyond the rows"),
    ],
)
def test_a_proposal_that_cannot_be_is_refused(fields, words):
    case = Case(0, SamplingParams())
    tokens, rows = case.draft()
    block = Block(case.sampler, 0, 0, tokens, None, Verifier.BLOCK, rows)
    with pytest.raises(ValueError, match=words):
        sample_blocks(case.logits, [block._replace(**fields)])
