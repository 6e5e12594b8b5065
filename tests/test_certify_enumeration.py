"""Enumeration through the engine: it certifies what is exact, and nothing else."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
from certify_cases import beside, drawing, heading, matching, tiny

from fewbit.certify import enumeration, judges
from fewbit.certify.enumeration import TOLERANCE, Enumerated, Planted, enumerate_case
from fewbit.certify.planted import CONTROLS, PENALIZED, run_controls
from fewbit.sampling import SamplingParams, Verifier, sample_blocks
from fewbit.speculate.combined import CombinedDraft
from fewbit.speculate.drafts import NgramDraft, Proposal
from fewbit.speculate.model_draft import ModelDraft
from fewbit.speculate.suffix import SuffixDraft

RULES = {"draws": (drawing, "block"), "matches": (matching, "match")}
PARAMS = {
    "penalties": PENALIZED,
    "truncated": SamplingParams(temperature=0.8, top_k=2, min_p=0.1, repetition_penalty=1.5),
    "banned": SamplingParams(logit_bias={1: -100}),
}


@pytest.mark.parametrize("rule", RULES)
@pytest.mark.parametrize("params", PARAMS)
def test_the_engine_emits_the_targets_distribution(rule, params):
    case, name = RULES[rule]
    found = enumerate_case(case(params=PARAMS[params]))
    assert found.equal, found
    assert found.rule == name
    assert found.total == pytest.approx(1, abs=1e-10)
    assert found.distance < 1e-12
    assert found.rejecting > 0.05


def test_an_end_inside_a_block_cuts_the_outputs():
    found = enumerate_case(drawing(end=1))
    assert found.equal
    assert found.outputs < 27


def test_the_suffix_draft_is_exact():
    target, _ = tiny()
    draft = SuffixDraft([0, 1, 2, 0, 1, 0], shortest=1)
    found = enumerate_case(Enumerated("suffix", target, draft, SamplingParams(), "", length=4))
    assert found.equal
    assert found.rejecting > 0.05


@pytest.mark.parametrize("params", [PENALIZED, PARAMS["truncated"]], ids=["penalties", "truncated"])
def test_two_drafts_each_asked_by_itself_are_exact(params):
    """n-grams where they have something and a model elsewhere, each judged by its own rule."""
    target, model = tiny()
    draft = CombinedDraft(NgramDraft(longest=2, shortest=2), model)
    found = enumerate_case(Enumerated(draft.name, target, draft, params, "", length=4))
    assert found.equal, found
    assert found.rule == "block and match"
    assert found.rejecting > 0.05


@pytest.mark.parametrize("kind", ["nested", "exit:1", "low-bit:q4_0"])
def test_the_target_itself_as_a_cheaper_draft_is_exact(kind):
    """They write into the target's own pages, which verification writes over."""
    found = enumerate_case(beside(kind, params=PENALIZED, length=4))
    assert found.equal, found
    assert found.rule == "block"
    assert found.rejecting > 0.01


@pytest.mark.parametrize("params", [PENALIZED, PARAMS["truncated"]], ids=["penalties", "truncated"])
def test_a_head_that_continues_from_hidden_states_is_exact(params):
    """It has two of three tokens, one of them by a row out of order."""
    found = enumerate_case(heading(params=params, length=4))
    assert found.equal, found
    assert found.rule == "block"
    assert found.rejecting > 0.05


TREES = {
    "a model": lambda: drawing(params=PENALIZED, branches=2),
    "n-grams": lambda: matching(params=PENALIZED, length=4, branches=2),
    "the target's first layer": lambda: beside("exit:1", branches=1),
    "a head": lambda: heading(branches=1, length=4),
}


@pytest.mark.parametrize("kind", TREES)
def test_trees_are_exact(kind):
    """Siblings drawn without replacement, or other continuations; each in pages of its own."""
    found = enumerate_case(TREES[kind]())
    assert found.equal, found
    assert found.rule == ("match" if kind == "n-grams" else "token")
    assert found.distance < 1e-12
    assert found.rejecting > 0.05


def test_siblings_judged_with_replacement_are_noticed():
    (control,) = [control for control in CONTROLS if control.branches]
    case = drawing(branches=1)
    assert enumerate_case(case).equal
    assert enumerate_case(case, control.planted).distance > 0.01


MODELS = {
    "a cut head": {"support": np.array([0, 2], np.int32), "columns": np.array([0, 2], np.int32)},
    "an end of its own": {"ends": frozenset([1])},
}


@pytest.mark.parametrize("kind", MODELS)
def test_a_model_that_proposes_less_than_all_is_exact(kind):
    """It never says some token, or ends its block after one: known before what follows is drawn."""
    case = drawing(length=4, longest=2)
    model = replace(case.draft._model, **MODELS[kind])
    found = enumerate_case(replace(case, draft=ModelDraft(model)))
    assert found.equal, found
    assert found.rejecting > 0.05


@pytest.mark.parametrize("judge", [judges.by_block, judges.by_token])
def test_the_rules_in_float64_are_exact_too(judge):
    assert enumerate_case(drawing(), Planted(judge=judge)).equal


def test_every_planted_bug_is_caught_and_none_without_it():
    found = run_controls(drawing(length=4), lambda *_: None)
    assert len(found) == len(CONTROLS) == 7
    for case in found:
        assert case.caught, case
        assert case.distance > 1e6 * TOLERANCE, "it is not rounding that was noticed"


def test_a_bug_that_does_nothing_is_not_called_caught(monkeypatch):
    honest = (CONTROLS[0]._replace(planted=Planted()),)
    monkeypatch.setattr("fewbit.certify.planted.CONTROLS", honest)
    (found,) = run_controls(drawing(), lambda *_: None)
    assert not found.caught


class Lying:
    """Says that it drew from something a little flatter than what it drew from."""

    def __init__(self, draft):
        self._draft = draft
        self.name, self.context, self.shares_store = draft.name, draft.context, False
        self.pending, self.release = draft.pending, draft.release

    def propose(self, queries):
        return [self._told(proposal) for proposal in self._draft.propose(queries)]

    def _told(self, proposal):
        if proposal.probabilities is None:
            return proposal
        flatter = proposal.probabilities[:, :3] + np.float32(1e-4)
        return Proposal(proposal.tokens, flatter, None)


def test_a_draft_that_says_it_drew_from_something_else_is_noticed():
    """cases/speculate.md 13: it is off by less than any test by sampling would see."""
    case = drawing()
    found = enumerate_case(replace(case, draft=Lying(case.draft)))
    assert not found.equal
    assert "the draft drew" in found.fault


class Choosy(Lying):
    """Draws, and keeps to itself what it does not like."""

    def _told(self, proposal):
        tokens = tuple(itertools.takewhile(lambda token: token != 2, proposal.tokens))
        return replace(proposal, tokens=tokens)


def test_a_draft_that_drops_what_it_drew_is_noticed():
    case = drawing()
    found = enumerate_case(replace(case, draft=Choosy(case.draft)))
    assert "dropped" in found.fault


def test_an_engine_whose_thresholds_are_a_little_off_is_noticed(monkeypatch):
    def off(logits, blocks, **options):
        raised = logits.copy()
        raised[:, 0] += 1e-5
        return sample_blocks(raised, blocks, **options)

    monkeypatch.setattr(enumeration, "sample_blocks", off)
    for case in (drawing(), matching()):
        found = enumerate_case(case)
        assert not found.equal
        assert "the engine drew" in found.fault


def test_verification_by_another_rule_than_was_drawn_for_is_noticed(monkeypatch):
    """Blocks that were drawn to be rejected, accepted where the target draws the same."""

    def matched(logits, blocks, **options):
        swapped = [block._replace(verifier=Verifier.MATCH) for block in blocks]
        return sample_blocks(logits, swapped, **options)

    monkeypatch.setattr(enumeration, "sample_blocks", matched)
    assert not enumerate_case(drawing()).equal
