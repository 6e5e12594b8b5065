"""Slices and details against plain loops over positions."""

import math

import numpy as np
import pytest

from fewbit.calibrate.text import document
from fewbit.evaluate.language.divergence import compare
from fewbit.evaluate.language.passages import Passage
from fewbit.evaluate.language.positions import table
from fewbit.evaluate.language.protocol import Mark
from fewbit.evaluate.language.summary import TIE_LEAD, Measured, details, histogram, slices
from fewbit.records.language import TextFacts
from fewbit.records.measurement import Measure

VOCABULARY = 13
FACTS = TextFacts(
    name="t", sha256="0", documents=8, windows=8, window_tokens=40, tokens=0, positions=0, bos=""
)


def passage(domain, name, size, first, *, half=0, mark=()):
    counted = np.arange(first, size - 1) >= half
    marks = {Mark.JSON: np.isin(np.arange(first, size - 1), mark)}
    tokens = np.random.default_rng(size).integers(VOCABULARY, size=size).astype(np.int32)
    return Passage(domain, document(name, name), tokens, first, counted, marks)


PASSAGES = (
    *(passage("prose", f"pydoc:{i}", 40, 0, half=20) for i in range(4)),
    *(passage("code", f"lib:{i}", 36 + i, 18 + i // 2, half=18) for i in range(4)),
    passage("prose", "pydoc:0", 30, 15, half=15),
    *(passage("chat", f"chat:{i}", 24, 3, mark=(5, 9)) for i in range(5)),
)
SIZE = sum(len(p.positions) for p in PASSAGES)


def logits(noise, seed):
    source = np.random.default_rng(0).normal(size=(SIZE, VOCABULARY)).astype(np.float32) * 2
    shift = np.random.default_rng(seed).normal(size=source.shape).astype(np.float32)
    return source, source + np.float32(noise) * shift


def comparison(noise, seed):
    targets = np.concatenate([p.tokens[p.positions + 1] for p in PASSAGES])
    return compare(*logits(noise, seed), targets)


@pytest.fixture(scope="module")
def measured():
    return Measured(table(PASSAGES, comparison(0.3, 1), comparison(0.05, 2)), 0.95)


def rows(domains, *, marked=False):
    """Every position in order: its document, index, and whether it counts; a plain loop."""
    row = 0
    for p in PASSAGES:
        for i in range(len(p.positions)):
            wanted = p.marks[Mark.JSON][i] if marked else p.counted[i]
            if p.domain in domains and wanted:
                yield p.document.name, row
            row += 1


def means(values, domains, **chosen):
    by_document = {}
    for name, row in rows(domains, **chosen):
        by_document.setdefault(name, []).append(float(values[row]))
    return {name: (sum(found) / len(found), len(found)) for name, found in by_document.items()}


@pytest.mark.parametrize(
    ("name", "domains", "value", "chosen"),
    [
        ("language/kl", ["prose", "code"], "divergence", {}),
        ("language/kl-reverse", ["prose", "code"], "reverse_divergence", {}),
        ("language/kl/prose", ["prose"], "divergence", {}),
        ("language/kl/code", ["code"], "divergence", {}),
        ("language/kl/chat", ["chat"], "divergence", {}),
        ("language/kl/json", ["chat"], "divergence", {"marked": True}),
        ("language/perplexity", ["prose", "code"], "candidate_loss", {}),
        ("language/perplexity/chat", ["chat"], "candidate_loss", {}),
    ],
)
def test_items_are_means_over_a_documents_counted_positions(measured, name, domains, value, chosen):
    (found,) = (s for s in slices(measured) if s.name == name)
    p = measured.positions
    candidate = means(getattr(p.candidate, value), domains, **chosen)
    floor = means(getattr(p.floor, value), domains, **chosen)
    assert [i.name for i in found.items] == list(candidate)
    assert [i.weight for i in found.items] == [count for _, count in candidate.values()]
    assert [i.candidate for i in found.items] == pytest.approx([m for m, _ in candidate.values()])
    assert [i.floor for i in found.items] == pytest.approx([m for m, _ in floor.values()])
    assert all(i.cluster == i.name for i in found.items)
    loses = found.measure is Measure.PERPLEXITY
    source = means(p.candidate.source_loss, domains, **chosen) if loses else {}
    assert all(i.source == pytest.approx(source.get(i.name, (0.0,))[0]) for i in found.items)


def test_details_are_over_the_counted_positions_of_the_main_text(measured):
    told = details(measured, FACTS)
    p = measured.positions
    text = [row for _, row in rows(["prose", "code"])]
    assert told.divergence.mean.value == pytest.approx(p.candidate.divergence[text].mean())
    assert told.divergence.maximum == p.candidate.divergence[text].max()
    assert told.divergence.mean.low < told.divergence.mean.value < told.divergence.mean.high
    assert told.agreement.value == pytest.approx(p.candidate.agreement[text].mean())
    perplexity = told.perplexity
    assert perplexity.ratio.value == pytest.approx(
        perplexity.candidate.value / perplexity.source.value
    )
    assert sum(d.positions for d in told.documents) == len(text)
    assert sum(b.count for b in told.histogram) == len(text)
    assert [part.name for part in told.parts] == ["prose", "code", "chat", "json"]
    assert [part.positions for part in told.parts][2:] == [5 * 20, 5 * 2]
    for part in told.parts:
        assert part.excess.value == pytest.approx(part.divergence.value - part.floor)


def test_curves_hold_every_position_once(measured):
    position, confidence = details(measured, FACTS).curves
    assert sum(b.count for b in position.bands) == 4 * 39  # of windows compared from their start
    assert [(b.low, b.high) for b in position.bands] == [(0, 32), (32, 64)]
    p = measured.positions
    early = [row for row in range(4 * 39) if row % 39 < 32]
    assert position.bands[0].figure.value == pytest.approx(p.candidate.divergence[early].mean())
    assert position.bands[0].floor == pytest.approx(p.floor.divergence[early].mean())
    text = [row for _, row in rows(["prose", "code"])]
    assert sum(b.count for b in confidence.bands) == len(text)
    for band in confidence.bands:
        inside = [r for r in text if band.low <= p.candidate.source_chance[r] < band.high]
        assert len(inside) == band.count
        assert band.figure.value == pytest.approx(p.candidate.divergence[inside].mean())


def test_near_ties_are_what_the_floor_itself_swaps(measured):
    p, told = measured.positions, details(measured, FACTS)
    candidate, floor = told.first_choices
    text = [row for _, row in rows(["prose", "code"])]
    shifts = sorted(abs(p.floor.candidate_lead[r] - p.floor.lead[r]) for r in text)
    assert told.tie_lead == pytest.approx(np.quantile(shifts, 0.95))
    decided = [r for r in text if p.candidate.lead[r] > told.tie_lead]
    assert told.near_ties == pytest.approx(1 - len(decided) / len(text))
    agree = [bool(p.candidate.agreement[r]) for r in decided]
    assert candidate.decided.value == pytest.approx(sum(agree) / len(agree))
    assert floor.decided.value == 1.0 >= floor.all.value
    (found,) = (s for s in slices(measured) if s.name == "language/first-choice")
    total = sum(i.candidate * i.weight for i in found.items)
    assert total == pytest.approx(len(agree) - sum(agree))


def test_without_a_floor_the_lead_of_a_near_tie_is_stated():
    bare = Measured(table(PASSAGES, comparison(0.3, 1), None), 0.95)
    told = details(bare, FACTS)
    assert told.tie_lead == TIE_LEAD
    assert told.tie_rule.startswith("stated")
    assert [row.arm for row in told.first_choices] == ["candidate"]
    assert all(part.floor is None is part.excess for part in told.parts)
    assert all(item.floor is None for found in slices(bare) for item in found.items)


def test_a_swapped_tie_is_no_changed_choice():
    """The negative control: a tie that is swapped everywhere moves agreement, not decided."""
    source, _ = logits(0, 0)
    source[:, 0], source[:, 1] = 9.0, 9.0 - 1e-3
    swapped = source.copy()
    swapped[:, [0, 1]] = source[:, [1, 0]]
    p = table(PASSAGES, compare(source, swapped, np.zeros(SIZE, np.int32)), None)
    told = details(Measured(p, 0.95), FACTS)
    assert told.agreement.value == 0.0
    assert (told.near_ties, told.first_choices[0].decided) == (1.0, None)
    (found,) = (s for s in slices(Measured(p, 0.95)) if s.name == "language/first-choice")
    assert all(item.candidate == 0.0 for item in found.items)


def test_the_same_model_is_exactly_itself():
    same = comparison(0.0, 1)
    exact = Measured(table(PASSAGES, same, same), 0.95)
    told = details(exact, FACTS)
    assert (told.divergence.mean.low, told.divergence.mean.high) == (0.0, 0.0)
    assert told.divergence.maximum == 0.0
    assert told.perplexity.ratio.value == told.perplexity.ratio.high == 1.0
    assert told.agreement.value == 1.0
    assert 0.95 < told.agreement.low < 1.0
    for found in slices(exact):
        assert all(item.candidate == item.floor == item.source for item in found.items)


def test_histogram_bins_hold_every_value():
    bins = histogram(np.array([0.0, 5e-7, 1e-6, 0.02, 9.9, 11.0, 500.0]))
    assert sum(b.count for b in bins) == 7
    assert (bins[0].low, bins[0].count) == (0.0, 2)
    assert (bins[-1].high, bins[-1].count) == (None, 2)
    for entry in bins[1:-1]:
        assert entry.high == pytest.approx(entry.low * math.sqrt(10))
