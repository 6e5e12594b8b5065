"""Trees drawn and judged in native code, against the rules in NumPy."""

import numpy as np
import pytest
from test_sampling_rejection import LENGTH, PARAMS, PROMPT, Case

from fewbit.keyed_random import Purpose, block_key, uniform
from fewbit.sampling import Block, Branch, DraftRow, TokenSampler, Verifier, sample_blocks
from fewbit.sampling.draws import draw_proposals
from fewbit.speculate.rows import remainder
from fewbit.speculate.tree import tree_accept_reject, tree_match

SIBLINGS = (2, 0, 1, 3)
SEEDS = range(30)


class TreeCase(Case):
    """A case whose draft has siblings, and rows of logits behind each of them."""

    def __init__(self, seed, params, **fields):
        super().__init__(seed, params, **fields)
        rng = np.random.default_rng(seed + 1000)
        more = rng.normal(0, 2, (sum(SIBLINGS), self.logits.shape[1])).astype(np.float32)
        self.logits = np.concatenate([self.logits, more])

    def tree(self, *, coupled=False):
        fork = self.sampler.fork()
        rows = np.empty(self.draft_logits.shape, np.float32)
        chain, branches = [], []
        for j in range(LENGTH):
            into = None if coupled else rows[j]
            row = DraftRow(fork, j, self.position + j, self.position, into, SIBLINGS[j])
            (found,) = draw_proposals(
                self.draft_logits, [row], support=self.support, vocabulary=self.vocabulary
            )
            chain.append(found.token)
            branches += [Branch(j, (token,)) for token in found.siblings]
        return chain, branches, rows

    def rows_of(self, chain, branches):
        """The target's distribution at every row of the block, shaped one by one."""
        ways = [chain[:j] for j in range(LENGTH + 1)]
        ways += [[*chain[: b.depth], *b.tokens] for b in branches]
        return np.stack(
            [
                self.fresh(way).probabilities(self.logits[i], vocabulary=self.vocabulary)
                for i, way in enumerate(ways)
            ]
        )

    def number(self, j, purpose, rank=0):
        return uniform(self.seed, 3, self.position + j, purpose, block_key(self.position, rank))


class Walked:
    """Hands a tree's rule in NumPy the numbers by which the native one decides.

    Which those are depends on where it stands, so the walk is followed beside.
    """

    def __init__(self, case, chain, branches, q, p):
        numbers, j = [], 0
        for j, first in enumerate(chain):
            own = [b.tokens[0] for b in branches if b.depth == j]
            left, drawn, accepted = p[j], q[j] / q[j].sum(), None
            for rank, token in enumerate((first, *own)):
                number = case.number(j, Purpose.ACCEPT, rank)
                numbers.append(number)
                if number * drawn[token] < left[token]:
                    accepted = rank
                    break
                left = remainder(left, drawn, token)
                left, drawn = left / left.sum(), drawn.copy()
                drawn[token] = 0
                if not drawn.any():
                    break
                drawn /= drawn.sum()
            if accepted == 0:
                continue
            at = j if accepted is None else j + 1
            numbers.append(case.number(at, Purpose.CORRECT))
            break
        else:
            numbers.append(case.number(LENGTH, Purpose.CORRECT))
        self._numbers = iter(numbers)

    def random(self):
        return next(self._numbers)


@pytest.mark.parametrize("columns", [None, 12], ids=["whole", "cut"])
@pytest.mark.parametrize("params", PARAMS, ids=range(len(PARAMS)))
def test_rejection_is_the_rule_in_numpy(params, columns):
    ends = []
    for seed in SEEDS:
        case = TreeCase(seed, params, size=24, columns=columns)
        chain, branches, rows = case.tree()
        q, p = case.dense(rows), case.rows_of(chain, branches)
        drawn = case.judge(Verifier.TOKEN, chain, rows, branches=branches, top_logprobs=1)
        q /= q.sum(axis=1, keepdims=True)
        wanted = tree_accept_reject(chain, branches, q, p, Walked(case, chain, branches, q, p))
        assert (drawn.tokens, drawn.branch) == wanted
        require_logprobs(case, chain, branches, drawn)
        ends.append(drawn.branch)
    # A cut draft gives its own tokens too much, so that of them little is left after a rejection.
    assert columns or any(end is not None for end in ends)
    assert None in ends


@pytest.mark.parametrize("params", PARAMS, ids=range(len(PARAMS)))
def test_matching_is_the_rule_in_numpy_and_says_what_is_said_without(params):
    ends = []
    for seed in SEEDS:
        case = TreeCase(seed, params, size=24)
        chain, branches, _ = case.tree(coupled=True)
        p = case.rows_of(chain, branches)
        drawn = case.judge(Verifier.MATCH, chain, None, branches=branches, top_logprobs=1)
        numbers = [uniform(seed, 3, case.position + j, Purpose.TOKEN) for j in range(LENGTH + 1)]
        assert (drawn.tokens, drawn.branch) == tree_match(chain, branches, p, numbers)
        require_logprobs(case, chain, branches, drawn)
        ends.append(drawn.branch)
    assert any(end is not None for end in ends)


def require_logprobs(case, chain, branches, drawn):
    """Each token's log-probability is that of its own row."""
    row = 0
    for i, (token, found) in enumerate(zip(drawn.tokens, drawn.logprobs, strict=True)):
        logits = case.logits[row].astype(np.float64)
        shifted = logits - logits.max()
        assert found.logprob == pytest.approx(shifted[token] - np.log(np.exp(shifted).sum()))
        row += 1
        if drawn.branch is not None and i == branches[drawn.branch].depth:
            row = LENGTH + 1 + drawn.branch


def test_longer_branches_are_followed_to_their_ends():
    sampler = TokenSampler(PARAMS[0], seed=1, prompt=PROMPT)
    wanted = [7, 3, 9, 1]
    logits = np.zeros((9, 20), np.float32)
    chain, branches = [5, 6], [Branch(0, (8, 3)), Branch(0, (7, 3, 9)), Branch(2, (4,))]
    for row, token in zip((0, 5, 6, 7), wanted, strict=True):
        logits[row, token] = 60
    block = Block(sampler, 0, 10, chain, branches=branches)
    (drawn,) = sample_blocks(logits, [block])
    assert (drawn.tokens, drawn.branch) == (wanted, 1)


def test_a_branch_behind_the_whole_chain():
    sampler = TokenSampler(PARAMS[0], seed=1, prompt=PROMPT)
    logits = np.zeros((4, 20), np.float32)
    for row, token in ((0, 5), (1, 6), (2, 2)):
        logits[row, token] = 60
    (drawn,) = sample_blocks(logits, [Block(sampler, 0, 10, [5], branches=[Branch(1, (6,))])])
    assert (drawn.tokens, drawn.branch) == ([5, 6, 2], 0)


def test_siblings_are_different_and_the_likeliest_where_they_are_not_drawn():
    for seed in SEEDS:
        case = TreeCase(seed, PARAMS[0])
        chain, branches, _ = case.tree(coupled=True)
        for depth, count in enumerate(SIBLINGS):
            found = [b.tokens[0] for b in branches if b.depth == depth]
            order = np.argsort(-case.draft_logits[depth], kind="stable").tolist()
            assert found == [t for t in order if t != chain[depth]][:count]


def test_siblings_are_drawn_without_replacement():
    """2,000 draws of the second candidate: within four standard deviations of its chance."""
    logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05]], np.float32))
    counts = np.zeros(4)
    draws = 2000
    for seed in range(draws):
        sampler = TokenSampler(PARAMS[0], seed=seed, prompt=())
        into = np.empty(4, np.float32)
        (found,) = draw_proposals(logits, [DraftRow(sampler, 0, 5, 5, into, 3)])
        assert sorted((found.token, *found.siblings)) == [0, 1, 2, 3]
        counts[found.siblings[0]] += 1
    p = np.exp(logits[0].astype(np.float64))
    chance = np.array([sum(p[i] * p[j] / (1 - p[i]) for i in range(4) if i != j) for j in range(4)])
    assert (np.abs(counts - draws * chance) < 4 * np.sqrt(draws * chance * (1 - chance))).all()


def test_where_one_token_is_left_there_are_no_siblings():
    logits = np.array([[9, 0, 0]], np.float32)
    sampler = TokenSampler(PARAMS[3], seed=1, prompt=())
    (found,) = draw_proposals(logits, [DraftRow(sampler, 0, 5, 5, np.empty(3, np.float32), 2)])
    assert found.siblings == ()


REFUSED = {
    "leaves the draft where that has ended": {"branches": [Branch(LENGTH + 1, (1,))]},
    "has no tokens": {"branches": [Branch(0, ())]},
    "has one token": {"branches": [Branch(0, (1, 2))], "verifier": Verifier.TOKEN},
    "in the place of one": {"branches": [Branch(LENGTH, (1,))], "verifier": Verifier.TOKEN},
    "only token verification": {"branches": [Branch(0, (1,))], "verifier": Verifier.BLOCK},
    "outside the vocabulary": {"branches": [Branch(0, (999,))], "verifier": Verifier.TOKEN},
    "beyond the rows": {"branches": [Branch(0, (1,) * 99)]},
}


@pytest.mark.parametrize("words", REFUSED)
def test_branches_that_cannot_be_are_refused(words):
    case = TreeCase(1, PARAMS[0])
    chain, _, rows = case.tree()
    fields = {"verifier": Verifier.MATCH, **REFUSED[words]}
    with pytest.raises(ValueError, match=words):
        case.judge(fields.pop("verifier"), chain, rows, **fields)
