"""Prompts that a candidate was calibrated on are refused, as text is (AutoGPTQ #650)."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import replace
from types import SimpleNamespace

import pytest
from scripted_arms import Scripted, no_progress, scripted_arms

from fewbit.checkpoint.checkpoint import GgufFacts
from fewbit.errors import UsageError
from fewbit.evaluate.arms import Arms, LocalParty, Role
from fewbit.evaluate.safety.axis import SafetyAxis
from fewbit.evaluate.seen import refuse_seen_prompts
from fewbit.evaluate.tasks.axis import TasksAxis
from fewbit.evaluate.tasks.items import GenerationItem, SafetyItem
from fewbit.evaluate.tasks.spec import Task, TaskSpec
from fewbit.evaluate.tools.axis import ToolsAxis
from fewbit.model.runner import RunSettings

QUESTION = (
    "A baker has four trays with a dozen rolls on each of them, and she sells a third of all "
    "these rolls before noon. How many rolls has she left when the bell strikes twelve?"
)
OTHER = "A farmer has nine fields, of which he ploughs two on every day but the seventh. How long?"


@pytest.fixture
def seen(tmp_path, monkeypatch):
    """Return what opens a candidate that was calibrated on `QUESTION`, by a GGUF's metadata."""
    text = tmp_path / "calibration.txt"
    text.write_text(QUESTION + " Answer: thirty-two.")
    facts = GgufFacts({"quantize.imatrix.dataset": str(text)})
    checkpoint = SimpleNamespace(facts=facts)
    model = SimpleNamespace(checkpoint=_Closing(checkpoint))
    subject = SimpleNamespace(model=model, tokenizer=SimpleNamespace(decode=None), manifest=None)
    monkeypatch.setattr("fewbit.evaluate.seen.open_subject", lambda path: subject)
    return text


class _Closing(nullcontext):
    @property
    def facts(self):
        return self.enter_result.facts


def local(tmp_path):
    party = LocalParty(tmp_path, RunSettings(), "x")
    return Arms({Role.SOURCE: party, Role.CANDIDATE: party})


def test_a_prompt_in_the_calibration_text_is_refused_by_name(seen, tmp_path):
    arms = local(tmp_path)
    assert refuse_seen_prompts("the items", {"farm": OTHER}, arms) == ()
    with pytest.raises(UsageError, match=r"1 of 2 evaluation documents.*'baker' to 100%"):
        refuse_seen_prompts("the items", {"farm": OTHER, "baker": QUESTION}, arms)
    seen.unlink()
    (note,) = refuse_seen_prompts("the items", {"baker": QUESTION}, arms)
    assert "is not here" in note


def test_a_candidate_elsewhere_does_not_say_what_it_saw(seen):
    arms = scripted_arms(Scripted(), Scripted())
    assert refuse_seen_prompts("the items", {"baker": QUESTION}, arms) == ()


def task(kind, rule, item):
    return Task(TaskSpec(name="mine", file="x", kind=kind, rule=rule), (item,), "")


AXES = (
    TasksAxis((task("generation", "number", GenerationItem("a", "a", QUESTION, ("32",))),)),
    SafetyAxis((task("safety", "refusal-phrases", SafetyItem("a", "a", QUESTION, unsafe=False)),)),
)


@pytest.mark.parametrize("axis", AXES)
def test_axes_that_ask_refuse_before_anything_is_asked(seen, tmp_path, axis):
    with pytest.raises(UsageError, match="'mine/a' to 100%"):
        axis.run(local(tmp_path), no_progress)


def test_questions_about_functions_are_compared_too(seen, tmp_path):
    item = replace(ToolsAxis().items[0], messages=({"role": "user", "content": QUESTION},))
    with pytest.raises(UsageError, match=f"'{item.name}' to 100%"):
        ToolsAxis(items=(item,), schemas=()).run(local(tmp_path), no_progress)
