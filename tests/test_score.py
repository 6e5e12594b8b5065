"""Lockstep scoring with models that are tables."""

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import pytest

from fewbit.errors import NumericalError
from fewbit.evaluate.language.divergence import compare
from fewbit.evaluate.language.score import Models, Run, Workers, score

VOCABULARY = 11


@dataclass
class Table:
    """A bigram model; each row is a function of its token alone."""

    logits: np.ndarray
    most_rows: int = 0

    def score(self, tokens, first, block):
        for start in range(first, len(tokens), block):
            rows = self.logits[tokens[start : min(start + block, len(tokens))]].copy()
            self.most_rows = max(self.most_rows, len(rows))
            yield rows
            rows[:] = np.nan  # as an executor that reuses its memory


def table(seed):
    return Table(np.random.default_rng(seed).normal(size=(VOCABULARY, VOCABULARY)).astype("f4"))


def run(size, first=None, seed=9):
    tokens = np.random.default_rng(seed).integers(VOCABULARY, size=size).astype(np.int32)
    return Run("d4", tokens, size // 2 if first is None else first)


def scored(models, asked, threads=1):
    with ThreadPoolExecutor(threads) as pool:
        return score(models, asked, Workers(pool, threads))


@pytest.mark.parametrize("asked", [run(4), run(9), run(600), run(300, first=0)])
def test_positions_from_the_first_on_are_compared_with_their_next_tokens(asked):
    source, floor, candidate = table(1), table(2), table(3)
    found = scored(Models(source, {"floor": floor, "candidate": candidate}), asked)
    inputs, targets = asked.tokens[asked.first : -1], asked.tokens[asked.first + 1 :]
    for name, model in (("floor", floor), ("candidate", candidate)):
        expected = compare(source.logits[inputs], model.logits[inputs], targets)
        assert (found[name].divergence == expected.divergence).all()
        assert (found[name].candidate_loss == expected.candidate_loss).all()
        assert (found[name].source_first == expected.source_first).all()
    assert source.most_rows <= 128


def test_threads_change_nothing():
    models = Models(table(1), {"candidate": table(2)})
    alone, three = scored(models, run(100)), scored(models, run(100), threads=3)
    assert (alone["candidate"].divergence == three["candidate"].divergence).all()


@pytest.mark.parametrize("role", ["source", "floor", "candidate"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_located(role, value):
    tables = {name: table(i) for i, name in enumerate(("source", "floor", "candidate"))}
    tables[role].logits[7, 3] = value
    source = tables.pop("source")
    tokens = np.array([0, 0, 7, 0, 0, 7, 0, 0], np.int32)
    with pytest.raises(NumericalError) as caught:
        scored(Models(source, tables), Run("d4", tokens, 4))
    assert f"In document 'd4' the {role}" in str(caught.value)
    assert "token 3 at position 5" in str(caught.value)
    assert caught.value.exit_code == 3
