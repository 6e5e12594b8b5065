"""Ten thousand arrivals, cancellations and preemptions leave no page and change no output."""

import pytest
from engine_storm import Storm, alone, fake_engine, requests
from engine_storm import sees as storm_sees
from fakes import FixedDraft

from fewbit.cache.pages import PagePool
from fewbit.cache.prefix import PrefixIndex, chained_digest
from fewbit.engine.request import Generation
from fewbit.speculate.combined import CombinedDraft
from fewbit.speculate.drafts import NgramDraft
from fewbit.speculate.suffix import SuffixDraft

ASKED = requests(150)


@pytest.fixture(scope="module")
def truth():
    return alone(lambda: fake_engine(pages=7), ASKED)


def test_ten_thousand_arrivals(truth):
    storm = Storm(fake_engine(), ASKED, truth).run(10_000)
    assert not storm.wrong
    storm.require_nothing_left()
    record = storm.running.record
    assert record.requests == 10_000
    assert storm.cancelled > 500
    assert record.preemptions > 300
    assert record.cached_tokens > 20_000
    assert record.evictions > 500
    assert record.pages_peak == record.pages


@pytest.mark.parametrize("seed", range(3))
def test_without_collisions(truth, seed):
    storm = Storm(fake_engine(digest=chained_digest), ASKED, truth, seed).run(300)
    assert not storm.wrong
    storm.require_nothing_left()


def unsure():
    """A draft for what others leave: it guesses, and its own context is short."""
    return FixedDraft(lambda tokens, length: [sum(tokens[-3:]) % 30] * length, context=120)


DRAFTS = {
    "suffix": lambda: SuffixDraft(shortest=1),
    "suffix with a text": lambda: SuffixDraft(ASKED[0].prompt + ASKED[1].prompt),
    "suffix and another": lambda: CombinedDraft(SuffixDraft(shortest=1), unsure()),
    "n-gram and another": lambda: CombinedDraft(NgramDraft(), unsure()),
}


@pytest.mark.parametrize("kind", DRAFTS)
def test_every_draft_that_reads_texts(truth, kind):
    draft = DRAFTS[kind]()
    storm = Storm(fake_engine(draft=draft), ASKED, truth).run(400)
    assert not storm.wrong
    storm.require_nothing_left()
    positions = storm.running.record.speculation.positions
    assert sum(p.accepted for p in positions) > 0
    assert sum(p.tested - p.accepted for p in positions) > 10


# --- planted bugs: the storm must see each of them ------------------------------------------------


def sees(truth, **fields):
    return storm_sees(fake_engine(**fields), truth, ASKED, 1000)


def test_no_bug_is_no_bug(truth):
    assert not sees(truth)


def test_a_page_freed_while_others_hold_it(truth, monkeypatch):
    def let_go(self, pages):
        for page in reversed(pages):
            self._holders[page] = 0
            if page in self.index:
                self._idle[page] = None
            elif page not in self._free:
                self._free.append(page)

    def hold(self, pages):
        for page in pages:
            self._idle.pop(page, None)
            self._holders[page] += 1

    monkeypatch.setattr(PagePool, "let_go", let_go)
    monkeypatch.setattr(PagePool, "hold", hold)
    assert sees(truth)


def test_tokens_that_are_not_compared(truth, monkeypatch):
    monkeypatch.setattr(PrefixIndex, "_holds", staticmethod(lambda entry, key, parent: True))
    assert sees(truth)


def test_a_parent_that_is_not_compared(truth, monkeypatch):
    def holds(entry, key, parent):
        return entry.tokens == key.tokens

    monkeypatch.setattr(PrefixIndex, "_holds", staticmethod(holds))
    assert sees(truth, digest=lambda parent, tokens: tokens)


def test_a_page_written_anew_that_is_still_known(truth, monkeypatch):
    monkeypatch.setattr(PrefixIndex, "forget", lambda self, page: None)
    assert sees(truth)


def test_a_roll_back_that_is_forgotten(truth, monkeypatch):
    """Rows of rejected tokens count as computed, so the tokens in their place never are."""

    def settle(self, rows):
        self.computed += rows
        self.table.share(self.tokens, min(self.computed, len(self.tokens)))

    monkeypatch.setattr(Generation, "settle", settle)
    assert sees(truth)


def test_a_page_known_before_its_tokens_are_computed(truth, monkeypatch):
    def settle(self, rows):
        self.computed = min(self.computed + rows, len(self.tokens) - 1)
        self.table.roll_back(self.computed)
        self.table.share(self.tokens, min(len(self.tokens), 64 * len(self.table)))

    monkeypatch.setattr(Generation, "settle", settle)
    assert sees(truth)


def test_a_sequence_set_back_that_keeps_its_place(truth, monkeypatch):
    """It is not computed again, although others wrote over its pages."""
    real = Generation.reuse

    def reuse(self):
        if self.meter.preemptions and not self.computed:
            self.table.grow(len(self.tokens))
            self.computed = len(self.tokens) - 1
        real(self)

    monkeypatch.setattr(Generation, "reuse", reuse)
    assert sees(truth)
