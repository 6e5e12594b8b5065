"""Lockstep scoring with models that are tables."""

from dataclasses import dataclass

import numpy as np
import pytest

from fewbit.calibrate.text import collect, document
from fewbit.calibrate.windows import Window
from fewbit.errors import NumericalError
from fewbit.evaluate.divergence import compare
from fewbit.evaluate.language_summary import histogram, summarize
from fewbit.evaluate.score import Pair, score

VOCABULARY = 11
TEXT = collect("t", [document(f"d{i}", "x") for i in range(6)])


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


def windows(*sizes):
    rng = np.random.default_rng(9)
    return tuple(
        Window(i % 6, rng.integers(VOCABULARY, size=n).astype(np.int32))
        for i, n in enumerate(sizes)
    )


def test_scored_positions_are_the_second_halves_with_their_next_tokens():
    one, other, cut = table(1), table(2), windows(4, 9, 600)
    found = score(Pair(one, other), TEXT, cut)
    rows = [(w.tokens[len(w.tokens) // 2 : -1], w.tokens[len(w.tokens) // 2 + 1 :]) for w in cut]
    inputs, targets = (np.concatenate(part) for part in zip(*rows, strict=True))
    expected = compare(one.logits[inputs], other.logits[inputs], targets)
    assert (found.comparison.divergence == expected.divergence).all()
    assert (found.comparison.candidate_loss == expected.candidate_loss).all()
    assert found.owners.tolist() == [0] + [1] * 4 + [2] * 299
    assert one.most_rows <= 128


def test_threads_change_nothing():
    one, other, cut = table(1), table(2), windows(100, 50)
    alone = score(Pair(one, other), TEXT, cut, threads=1)
    three = score(Pair(one, other), TEXT, cut, threads=3)
    assert (alone.comparison.divergence == three.comparison.divergence).all()


def test_progress_is_told_after_each_window():
    seen = []
    score(Pair(table(1), table(1)), TEXT, windows(9, 9, 9), progress=lambda: seen.append(1))
    assert len(seen) == 3


@pytest.mark.parametrize("role", ["source", "candidate"])
@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_what_is_not_finite_is_located(role, value):
    good, bad = table(1), table(2)
    bad.logits[7, 3] = value
    pair = Pair(bad, good) if role == "source" else Pair(good, bad)
    tokens = np.array([0, 0, 7, 0, 0, 7, 0, 0], np.int32)
    with pytest.raises(NumericalError) as caught:
        score(pair, TEXT, (Window(4, tokens),))
    assert f"In document 'd4' the {role}" in str(caught.value)
    assert "token 3 at position 5" in str(caught.value)
    assert caught.value.exit_code == 3


def test_the_same_model_is_exactly_itself():
    axes = summarize(score(Pair(table(3), table(3)), TEXT, windows(*[64] * 12)), TEXT, 0.95)
    assert (axes.divergence.mean.low, axes.divergence.mean.high) == (0.0, 0.0)
    assert axes.divergence.maximum == 0.0
    assert axes.perplexity.ratio.value == axes.perplexity.ratio.high == 1.0
    assert axes.agreement.value == 1.0
    assert 0.98 < axes.agreement.low < 1.0


def test_axes_are_means_over_positions():
    found = score(Pair(table(1), table(2)), TEXT, windows(20, 40, 60, 80, 30, 50))
    axes, c = summarize(found, TEXT, 0.95), found.comparison
    assert axes.divergence.mean.value == pytest.approx(c.divergence.mean())
    assert axes.reverse_divergence.mean.value == pytest.approx(c.reverse_divergence.mean())
    assert axes.perplexity.candidate.value == pytest.approx(np.exp(c.candidate_loss.mean()))
    ratio = axes.perplexity.candidate.value / axes.perplexity.source.value
    assert axes.perplexity.ratio.value == pytest.approx(ratio)
    assert axes.divergence.mean.low < axes.divergence.mean.value < axes.divergence.mean.high
    assert sum(d.positions for d in axes.documents) == len(c.divergence)
    assert [d.name for d in axes.documents] == [f"d{i}" for i in range(6)]
    assert sum(b.count for b in axes.histogram) == len(c.divergence)


def test_histogram_bins_hold_every_value():
    bins = histogram(np.array([0.0, 5e-7, 1e-6, 0.02, 9.9, 11.0, 500.0]))
    assert sum(b.count for b in bins) == 7
    assert (bins[0].low, bins[0].count) == (0.0, 2)
    assert (bins[-1].high, bins[-1].count) == (None, 2)
    for entry in bins[1:-1]:
        assert entry.high == pytest.approx(entry.low * 10**0.5)
