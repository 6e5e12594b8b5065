"""Equality, caches and sampling: they pass as things are, and fail with a bug in them."""

from dataclasses import replace

import msgspec
import numpy as np
import pytest
from certify_cases import drawing, matching, tiny
from fakes import draft_query
from tiny_models import CONFIGS, random_weights, write_huggingface
from tiny_text import write_text_files, write_text_model

from fewbit.certify import equality, forced, partition, rollback
from fewbit.certify.cases import CertifySettings
from fewbit.certify.certificate import Checks, standing_of
from fewbit.certify.enumeration import enumerate_case
from fewbit.certify.equality import check_equality
from fewbit.certify.forced import Disturbed
from fewbit.certify.partition import CRITICAL, Sought, check_sampling, tokens_needed
from fewbit.certify.planted import CONTROLS
from fewbit.certify.rollback import check_caches, check_draft_caches
from fewbit.engine.loaded import load_model
from fewbit.engine.loaded_draft import load_draft
from fewbit.errors import UsageError
from fewbit.model.runner import RunSettings
from fewbit.records.certificate import ControlCase, Standing
from fewbit.sampling import sample_blocks
from fewbit.speculate.drafts import NgramDraft
from fewbit.speculate.model_draft import _Sequence
from fewbit.speculate.suffix import SuffixDraft

SMALL = CertifySettings(tokens=6, lengths=(3,), together=(1, 16))


def quiet(*_):
    """Watch nothing."""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    folder = write_text_model(tmp_path_factory.mktemp("tiny"))
    return load_model(folder, RunSettings(threads=1, context=512, sequences=17))


@pytest.fixture(scope="module")
def checks(model):
    """What a certificate of the suffix draft consists of, but for the controls."""
    return Checks(
        equality=check_equality(model, SuffixDraft(shortest=1), SMALL, quiet),
        enumerations=(enumerate_case(matching()), enumerate_case(drawing())),
        controls=(),
        caches=check_caches(model, SuffixDraft(), 4),
        sampling=None,
    )


def test_what_is_exact_is_certified(checks):
    standing, reasons = standing_of(checks)
    assert standing is Standing.CERTIFIED, reasons
    assert len(reasons) == 4
    assert checks.equality.acceptance.accepted > 0
    assert all(case.written_over > 20 for case in checks.caches)


@pytest.mark.parametrize("control", CONTROLS, ids=lambda control: control.bug)
def test_every_planted_bug_fails_the_certificate(checks, control):
    length = 4 if "two blocks" in control.bug else 3
    case = drawing(params=control.params, length=length, branches=control.branches)
    planted = replace(checks, enumerations=(enumerate_case(case, control.planted),))
    standing, reasons = standing_of(planted)
    assert standing is Standing.NOT_CERTIFIED
    assert standing.exit_code == 3
    assert "differ by up to" in reasons[0]


def test_a_log_probability_that_is_not_its_own_is_a_difference(model, monkeypatch):
    """cases/speculate.md 5: tokens alone are not enough."""

    def blank(logits, blocks, **options):
        found = sample_blocks(logits, blocks, **options)
        return [
            drawn._replace(logprobs=[p._replace(logprob=0.0) for p in drawn.logprobs])
            if block.draft
            else drawn
            for block, drawn in zip(blocks, found, strict=True)
        ]

    monkeypatch.setattr(forced, "sample_blocks", blank)
    found = check_equality(model, SuffixDraft(shortest=1), replace(SMALL, together=(4,)), quiet)
    assert "the log-probability of token" in found.differences[0]


def test_tokens_that_depend_on_the_batch_are_a_difference(model, monkeypatch):
    """cases/speculate.md 20: a batch of rows that rounds otherwise."""

    def rounded(logits, blocks, **options):
        blurred = logits if len(logits) == 1 else logits.astype(np.float16).astype(np.float32)
        return sample_blocks(blurred, blocks, **options)

    monkeypatch.setattr(forced, "sample_blocks", rounded)
    found = check_equality(model, SuffixDraft(shortest=1), replace(SMALL, together=(16,)), quiet)
    assert found.differences


class KeepsFirst(rollback.WrittenStore):
    """A store whose rows stay as they were first written."""

    def step(self, step):
        super().step(step)
        (span,) = step.spans
        tokens = [self.first[span.position + i] for i in range(span.count)]
        return self._executor.step(step._replace(tokens=np.array(tokens, np.int32)))


def test_a_row_that_is_not_written_over_is_found_in_the_pages(model, monkeypatch):
    monkeypatch.setattr(rollback, "WrittenStore", KeepsFirst)
    caches = check_caches(model, SuffixDraft(), 4)
    assert all(case.differing for case in caches)


def test_nothing_follows_from_what_was_not_tested(checks):
    idle = tuple(
        msgspec.structs.replace(
            case,
            acceptance=type(case.acceptance)(
                **dict.fromkeys(("proposed", "tested", "accepted"), 0)
            ),
        )
        for case in checks.equality.cases
    )
    equal = msgspec.structs.replace(checks.equality, cases=idle)
    unwritten = tuple(msgspec.structs.replace(c, written_over=0) for c in checks.caches)
    standing, reasons = standing_of(replace(checks, equality=equal, caches=unwritten))
    assert standing is Standing.INCONCLUSIVE
    assert standing.exit_code == 4
    assert len(reasons) == 3


def test_controls_that_were_missed_make_the_enumeration_worthless(checks):
    missed = ControlCase(bug="a bug", planted="", distance=0.0, without=0.0, tolerance=1e-9)
    standing, (reason, *_) = standing_of(replace(checks, controls=(missed,)))
    assert standing is Standing.NOT_CERTIFIED
    assert "proves nothing" in reason


def test_a_disturbed_draft_proposes_always_and_is_wrong_now_and_then():
    target, _ = tiny()
    draft = Disturbed(NgramDraft(longest=1, shortest=1), target.vocabulary)
    queries = [draft_query(i, [0, 1, 2] * 3, 8) for i in range(30)]
    proposals = [p.tokens for p in draft.propose(queries)]
    right = [sum(t == (i % 3) for i, t in enumerate(tokens)) for tokens in proposals]
    assert all(len(tokens) == 8 for tokens in proposals)
    assert 4 < np.mean(right) < 7.9
    assert proposals == [p.tokens for p in draft.propose(queries)], "the same in every run"


# --- sampling -----------------------------------------------------------------------------------


BIAS = 0.12
"""Noticed on some hundred tokens, so that a test takes a second."""


@pytest.fixture(scope="module")
def model_pair(model, tmp_path_factory):
    """The model, and a draft with other weights, which is often wrong."""
    folder = write_text_model(tmp_path_factory.mktemp("other"))
    weights = random_weights(CONFIGS["llama"])
    weights["lm_head.weight"] = weights["lm_head.weight"] * np.float32(0.5)
    write_huggingface(folder, CONFIGS["llama"], weights)
    settings = RunSettings(threads=1, context=512, sequences=17)
    return model, load_draft(folder, model, settings).draft


def test_what_is_exact_passes_the_partition(model_pair):
    found = check_sampling(*model_pair, 3, quiet, Sought(BIAS))
    assert found.passed
    assert found.tokens >= tokens_needed(BIAS, 0.1)
    assert found.drafted > found.tokens / 5
    assert found.detectable <= BIAS


def test_a_biased_draw_fails_the_partition(model_pair):
    """Twice the bias that is looked for, so that chance is no excuse."""

    def biased(logits, blocks, **options):
        pushed = logits.copy()
        pushed[:, 1::2] += 1.0
        return sample_blocks(pushed, blocks, **options)

    found = check_sampling(*model_pair, 3, quiet, Sought(BIAS, biased))
    assert not found.passed
    assert abs(found.z) > CRITICAL


def test_sampling_that_can_show_nothing_comes_to_an_end(model_pair, monkeypatch):
    monkeypatch.setattr(partition, "ROOM", 0.6)
    monkeypatch.setattr(partition, "TOKENS", 4)
    with pytest.raises(UsageError, match=r"none of 64 sampled texts .* leave --long out"):
        check_sampling(*model_pair, 3, quiet)


def test_the_tokens_for_a_bias_of_a_hundredth_are_those_of_the_formula():
    """(z(0.9995) + z(0.8))^2 / (4 * 0.01^2), z from a table: 3.2905 and 0.8416."""
    assert tokens_needed(0.01, 0.25) == pytest.approx((3.2905 + 0.8416) ** 2 / 4e-4, rel=1e-4)


@pytest.mark.parametrize("field", ["tokens", "lengths", "together"])
def test_numbers_that_cannot_be_are_refused(field):
    value = 0 if field == "tokens" else (4, 0)
    with pytest.raises(UsageError, match=field):
        CertifySettings(**{field: value})
    assert equality.SAMPLED


def other_model_drafting(model, tmp_path, **fields):
    """Return a draft model that is wrong now and then."""
    config = {**CONFIGS["llama"], **fields}
    weights = random_weights(config)
    moved = {name: value * (1 + 0.02 * (i % 3)) for i, (name, value) in enumerate(weights.items())}
    folder = write_text_files(write_huggingface(tmp_path / "draft", config, moved))
    return load_draft(folder, model, RunSettings(threads=1, context=512, sequences=2)).draft


def test_a_draft_models_own_store_is_compared(model, tmp_path, monkeypatch):
    draft = other_model_drafting(model, tmp_path)
    (clean,) = check_draft_caches(model, draft, 4)
    assert clean.pages >= 2
    assert clean.written_over > 5
    assert not clean.differing
    assert draft.pages_held == 0
    assert check_draft_caches(model, SuffixDraft(), 4) == ()

    def settle(self, text):  # all but the last token count as computed, a drafted one never run too
        self.computed = len(text) - 1 if self.computed else 0
        self.drafted.clear()

    monkeypatch.setattr(_Sequence, "settle", settle)
    (case,) = check_draft_caches(model, draft, 4)
    # A row that never ran holds what lay there; where that is not finite the draft gives up.
    assert case.differing or case.written_over < clean.written_over


def test_a_draft_of_a_shorter_context_is_compared_as_far_as_it_goes(model, tmp_path):
    draft = other_model_drafting(model, tmp_path, max_position_embeddings=320)
    assert draft.context == 320
    (case,) = check_draft_caches(model, draft, 4)
    assert case.pages == 4
    assert not case.differing
