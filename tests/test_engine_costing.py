"""Measuring costs: what is run, what comes of it, and keeping it for the next run."""

import numpy as np
import pytest
from fakes import FakeDecoder
from simulated import LARGE, LOOKUP, VOCABULARY, ChanceDraft, Clock, CountingExecutor

from fewbit.atomic import write_bytes
from fewbit.engine import costing
from fewbit.engine.costing import measure_costs
from fewbit.engine.kept_costs import find_costs, keep_costs, kept_path
from fewbit.engine.served import Served
from fewbit.errors import BadFileError
from fewbit.records.base import to_json
from fewbit.records.costs import CostKey, CostTable, KeptCosts
from fewbit.runtime.step import PAGE
from fewbit.speculate.costs import Shape, drafting_seconds, step_seconds
from fewbit.speculate.drafts import NgramDraft

ATTENTION = CostTable(
    rows=LARGE.rows, seconds=LARGE.seconds, context_seconds=2e-6, key_seconds=1e-6
)
KEY = CostKey(
    fewbit="1",
    cpu="a",
    threads=2,
    kernels=("k",),
    cache_type="f16",
    files=(),
    draft="ngram",
    context=64,
    sequences=1,
)


class CheckingExecutor(CountingExecutor):
    """Also keeps what was run, and checks that every row has a page of its sequence's own."""

    def __init__(self, clock, table, pages=4096, noise=0.0):
        super().__init__(clock, table, noise)
        self.pages = pages
        self.rows = []

    def step(self, step):
        self.rows.append(len(step.tokens))
        owned = [set(span.pages.tolist()) for span in step.spans]
        assert sum(map(len, owned)) == len(set().union(*owned))
        for span in step.spans:
            assert (span.position + span.count - 1) // PAGE < len(span.pages)
            assert max(span.pages.tolist()) < self.pages
        assert step.tokens.max() < VOCABULARY
        return super().step(step)


def measured(table, draft=True, *, context=4096, sequences=16, pages=4096, noise=0.0):
    clock = Clock()
    executor = CheckingExecutor(clock, table, pages, noise)
    served = Served(executor, VOCABULARY, context, FakeDecoder)
    chosen = ChanceDraft(clock, table, lambda *_: 0.0) if draft else None
    found = measure_costs(served, chosen, sequences=sequences, clock=clock)
    return found, clock.now, executor


@pytest.mark.parametrize("table", [LARGE, LOOKUP], ids=["model", "lookup"])
def test_a_table_that_was_measured_says_what_the_machine_does(table):
    found, _, _ = measured(table)
    for rows in (1, 2, 4, 8, 16, 32, 64, 128):
        expected = step_seconds(table, Shape(rows))
        assert step_seconds(found, Shape(rows)) == pytest.approx(expected, rel=1e-6)
    for counts in ([1], [1, 1, 1], [4, 4], [16]):
        expected = drafting_seconds(table.drafts[0], counts, 0)
        assert drafting_seconds(found.drafts[0], counts, 0) == pytest.approx(
            expected, rel=1e-3, abs=1e-5
        )
    assert found.draft_read == pytest.approx(table.draft_read, rel=1e-3, abs=1e-9)
    assert found.measured


def test_what_attention_adds_is_told_apart_by_sequence_and_by_row():
    found, _, _ = measured(ATTENTION, draft=False)
    assert found.context_seconds == pytest.approx(2e-6, rel=0.01)
    assert found.key_seconds == pytest.approx(1e-6, rel=0.01)
    assert found.sequences == ()


def test_measuring_is_bounded():
    """A small model takes a second at most; a large one a round of every point."""
    small = CostTable(rows=(1, 2), seconds=(0.0005, 0.00055))
    _, seconds, executor = measured(small, draft=False)
    assert seconds < costing.SECONDS + 0.2
    _, seconds, large = measured(LARGE, draft=False)
    assert len(executor.rows) > 2 * len(large.rows)
    assert seconds < 3.0


@pytest.mark.parametrize(("context", "sequences", "pages"), [(40, 1, 1), (70, 3, 3), (300, 4, 8)])
def test_only_what_the_store_has_room_for_is_measured(context, sequences, pages):
    found, _, executor = measured(LARGE, context=context, sequences=sequences, pages=pages)
    assert found.rows[0] == 1
    assert max(executor.rows) <= sequences * 16


def test_a_context_too_short_for_a_draft_leaves_the_draft_to_be_learned():
    found, _, _ = measured(LARGE, context=12, sequences=1, pages=1)
    assert found.sequences == ()
    assert found.rows == (1, 2, 3, 4, 6, 8)


def test_noise_makes_no_row_cheaper_than_fewer():
    found, _, _ = measured(LARGE, noise=0.5)
    assert list(found.seconds) == sorted(found.seconds)
    assert list(found.draft_seconds) == sorted(found.draft_seconds)
    assert min(found.context_seconds, found.key_seconds, found.draft_read) >= 0


def test_a_draft_forgets_what_it_was_measured_with():
    clock = Clock()
    served = Served(CheckingExecutor(clock, LARGE), VOCABULARY, 4096, FakeDecoder)
    draft = NgramDraft()
    found = measure_costs(served, draft, sequences=4)
    assert not draft._indexes
    assert found.sequences == (1, 4)
    assert np.all(np.array(found.draft_seconds) < 1e-3)


# --- keeping ------------------------------------------------------------------------------------


def test_costs_are_found_again_under_their_key_only(tmp_path):
    folder = tmp_path / "costs"
    assert find_costs(folder, KEY) is None
    assert keep_costs(folder, KEY, LARGE) == ""
    assert find_costs(folder, KEY) == LARGE
    other = CostKey(**{**{f: getattr(KEY, f) for f in KEY.__struct_fields__}, "threads": 3})
    assert find_costs(folder, other) is None


@pytest.mark.parametrize("content", [b"", b"{", b"[]", to_json(LARGE)])
def test_a_damaged_file_is_named(tmp_path, content):
    write_bytes(kept_path(tmp_path, KEY), content)
    with pytest.raises(BadFileError, match="json"):
        find_costs(tmp_path, KEY)


def test_costs_of_another_key_are_not_taken(tmp_path):
    other = CostKey(**{**{f: getattr(KEY, f) for f in KEY.__struct_fields__}, "cpu": "b"})
    write_bytes(kept_path(tmp_path, KEY), to_json(KeptCosts(key=other, costs=LARGE)))
    with pytest.raises(BadFileError, match="another run"):
        find_costs(tmp_path, KEY)


def test_a_folder_that_cannot_be_written_is_said(tmp_path):
    (tmp_path / "file").write_text("")
    assert "not kept" in keep_costs(tmp_path / "file", KEY, LARGE)
