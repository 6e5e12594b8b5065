"""The axis of tasks: paired failures, flips, what is kept, and a truth run by run."""

from __future__ import annotations

import pytest
from brought import as_said
from scripted_arms import Scripted, echo, no_progress, scripted_arms
from tiny_subjects import sharp_weights, write_subject

from fewbit.errors import MissingError, NumericalError, UsageError
from fewbit.evaluate.answers import EngineAnswerer
from fewbit.evaluate.arms import Arms, Role, local_party
from fewbit.evaluate.subject import open_subject
from fewbit.evaluate.tasks.arms import room_of
from fewbit.evaluate.tasks.axis import TasksAxis
from fewbit.evaluate.tasks.ifeval import Instruction
from fewbit.evaluate.tasks.items import ChoiceItem, GenerationItem, InstructionItem, SafetyItem
from fewbit.evaluate.tasks.spec import PromptKind, Task, TaskSpec
from fewbit.model.runner import RunSettings
from fewbit.records.base import from_json, to_json
from fewbit.records.generation import FinishReason
from fewbit.records.measurement import AxisResult, Measure


def task(kind, rule, items, **changes):
    spec = TaskSpec(name=f"{kind}s", file="x", kind=kind, rule=rule, **changes)
    return Task(spec, tuple(items), "")


CHOICES = task(
    "choice",
    "likelihood",
    [ChoiceItem(f"c{i}", f"k{i // 2}", (f"context {i}",), (" yes", " no"), 0) for i in range(4)],
)
ANSWERS = task(
    "generation",
    "contains",
    [GenerationItem(f"g{i}", f"g{i}", f"say {i}", (str(i),)) for i in range(3)],
)
OBEDIENCE = task(
    "instructions",
    "strict",
    [InstructionItem("i", "i", "speak", (Instruction("punctuation:no_comma"),))],
)
ALL = (CHOICES, ANSWERS, OBEDIENCE)


def likes(*wrong):
    """Prefer the right option but in the contexts that are named."""
    return lambda context, text: -1.0 - ((" no" in text) != (context[-1] in wrong))


def run(axis, arms):
    result = as_said(axis, axis.run(arms, no_progress))
    assert from_json(AxisResult, to_json(result), name="result") == result
    return result


def test_items_are_paired_failures_and_flips_are_told_apart():
    source = Scripted(likes=likes("0"))
    candidate = Scripted(
        says=lambda ask: "never, or 1" if echo(ask) != "say 2" else "two", likes=likes("1", "2")
    )
    result = run(TasksAxis(ALL), scripted_arms(source, candidate, floor=source))
    choices, answers, obedience = result.slices
    assert choices.name == "tasks/choices" and choices.measure is Measure.PROPORTION
    assert [(i.source, i.candidate, i.floor) for i in choices.items] == [
        (1, 0, 1),
        (0, 1, 0),
        (0, 1, 0),
        (0, 0, 0),
    ]
    assert [item.cluster for item in choices.items] == ["k0", "k0", "k1", "k1"]
    assert [item.candidate for item in answers.items] == [1, 0, 1]
    assert [item.candidate for item in obedience.items] == [1]
    figures = result.details.tasks[0]
    assert (figures.harmful, figures.helpful, figures.clusters) == (2, 1, 2)
    assert (figures.floor_harmful, figures.floor_helpful) == (0, 0)
    assert (figures.source_right, figures.candidate_right, figures.chance) == (0.75, 0.5, 0.5)
    assert figures.lead_change == pytest.approx(0.5)  # leads 1 and -1: two fell by 2, one rose
    assert [e.name for e in result.details.helpful] == ["c0"]
    # One of every task first, then the second ones.
    assert [e.name for e in result.details.harmful] == ["c1", "g0", "i", "c2", "g2"]
    example = result.details.harmful[1]
    assert (example.asked, example.source, example.candidate) == ("say 0", "say 0", "never, or 1")
    assert (example.source_says, example.candidate_says, example.expected) == (
        "right",
        "wrong",
        "0",
    )
    assert result.details.harmful[2].candidate_says == "not: punctuation:no_comma"


def test_a_source_against_itself_has_no_flip():
    result = run(TasksAxis(ALL), scripted_arms(Scripted(), Scripted()))
    assert all(item.source == item.candidate for s in result.slices for item in s.items)
    assert all(item.floor is None for s in result.slices for item in s.items)
    assert result.details.harmful == result.details.helpful == ()


def test_texts_are_continued_and_conversations_are_answered():
    source = Scripted()
    chat = task("choice", "likelihood", CHOICES.items, prompt=PromptKind.CHAT)
    run(TasksAxis((CHOICES, ANSWERS)), scripted_arms(source, Scripted()))
    assert source.scored[0] == ("context 0", (" yes", " no"))
    assert source.asks[0].prompt == ({"role": "user", "content": "say 2"},)
    assert source.asks[0].max_tokens == 64
    asked = Scripted()
    run(TasksAxis((chat,)), scripted_arms(asked, Scripted()))
    assert asked.scored[0] == (({"role": "user", "content": "context 0"},), ("yes", "no"))


def test_the_source_decides_how_every_arm_is_asked():
    """A server that does not show its template has one; arms that are asked apart pair nothing."""
    hidden = Scripted(template="")
    result = run(TasksAxis(ALL), scripted_arms(Scripted(), hidden))
    assert {type(ask.prompt) for ask in hidden.asks} == {tuple} and result.notes == ()


def test_what_is_kept_is_not_asked_again(tmp_path):
    source = Scripted()
    first = scripted_arms(source, Scripted(), work=tmp_path)
    run(TasksAxis((CHOICES, ANSWERS)), first)
    asked, scored = len(source.asks), len(source.scored)
    again = scripted_arms(source, Scripted(), work=tmp_path)
    run(TasksAxis((CHOICES, ANSWERS)), again)
    assert again.parties[Role.SOURCE].opened == 0
    more = task(
        "choice", "likelihood", (*CHOICES.items, ChoiceItem("z", "z", ("z",), ("a", "b"), 1))
    )
    run(TasksAxis((more, ANSWERS)), scripted_arms(source, Scripted(), work=tmp_path))
    assert (len(source.asks), len(source.scored)) == (asked, scored + 1)


def test_a_stopped_run_goes_on(tmp_path):
    class Stops(Scripted):
        def likelihoods(self, context, continuations):
            if context == "context 2":
                raise KeyboardInterrupt
            return super().likelihoods(context, continuations)

    stopped = Stops()
    with pytest.raises(KeyboardInterrupt):
        TasksAxis((CHOICES,)).run(scripted_arms(stopped, Scripted(), work=tmp_path), no_progress)
    whole = Scripted()
    run(TasksAxis((CHOICES,)), scripted_arms(whole, Scripted(), work=tmp_path))
    assert [context for context, _ in whole.scored] == ["context 2", "context 3"]


def test_items_that_ask_the_same_are_asked_once():
    same = [GenerationItem(name, name, "say 1", (name,)) for name in ("1", "2")]
    source = Scripted()
    result = run(
        TasksAxis((task("generation", "contains", same),)), scripted_arms(source, Scripted())
    )
    assert len(source.asks) == 1
    assert [item.source for item in result.slices[0].items] == [0, 1]


def test_the_floor_may_be_left_out():
    floor = Scripted()
    arms = scripted_arms(Scripted(), Scripted(), floor=floor)
    result = run(TasksAxis((CHOICES,), floor=False), arms)
    assert arms.parties[Role.FLOOR].opened == 0 and result.details.tasks[0].floor_right is None


def test_cut_answers_are_counted():
    cut = Scripted(finish=FinishReason.LENGTH)
    result = run(TasksAxis((ANSWERS,)), scripted_arms(Scripted(), cut))
    assert result.details.tasks[0].capped == 3


def test_values_that_are_not_finite_are_located():
    class Broken(Scripted):
        def likelihoods(self, context, continuations):
            raise NumericalError("The logit of token 3 is nan.")

    with pytest.raises(
        NumericalError, match=r"the arm 'candidate'.*'c0' of the task 'choices'.*nan"
    ):
        TasksAxis((CHOICES,)).run(scripted_arms(Scripted(), Broken()), no_progress)


def test_room_is_that_of_the_longest_item():
    assert room_of((CHOICES, ANSWERS)).context == len("context 0 yes") + 64 + 512
    long = task("choice", "likelihood", [ChoiceItem("x", "x", ("é" * 500,), (" a", " bb"), 0)])
    assert room_of((long, ANSWERS)).context == 1000 + 3 + 64 + 512


def test_prompts_of_the_other_axis_are_refused():
    prompts = task("safety", "refusal-phrases", [SafetyItem("1", "1", "x", unsafe=True)])
    with pytest.raises(UsageError, match="the kind 'safety'"):
        TasksAxis((prompts,))


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_subject(tmp_path_factory.mktemp("model"), weights=sharp_weights())


def parties(model):
    subject = open_subject(model)
    try:
        party = local_party(subject, RunSettings(threads=1))
    finally:
        subject.model.checkpoint.close()
    return Arms({Role.SOURCE: party, Role.CANDIDATE: party})


def test_a_model_against_itself_is_asked_for_real(model):
    """The truth beside it: each option's log-likelihood as the answerer gives it one by one."""
    words = [("the", "cat"), ("bad", "cab"), ("a", "thebe")]
    items = [
        ChoiceItem(str(i), str(i), (f"{one} {two}",), (f" {two}", f" {one} x", " q"), i % 3)
        for i, (one, two) in enumerate(words)
    ]
    choices = task("choice", "likelihood-per-byte", items)
    spoken = task("generation", "exact", ANSWERS.items, max_tokens=4)
    arms = parties(model)
    result = run(TasksAxis((choices, spoken)), arms)
    assert all(item.source == item.candidate for s in result.slices for item in s.items)
    assert result.details.asked[0].begins == "<s> (1)"
    with arms.open(Role.SOURCE) as arm:
        answerer = EngineAnswerer(arm.loaded)
        for item, found in zip(items, result.slices[0].items, strict=True):
            values = [
                answerer.likelihoods(item.contexts[0], [text])[0].logprob / len(text.strip())
                for text in item.continuations
            ]
            assert found.source == float(values.index(max(values)) != item.answer)


def test_a_conversation_that_is_asked_for_needs_a_template(tmp_path):
    model = write_subject(tmp_path / "model", template=None)
    chat = task("generation", "exact", ANSWERS.items, prompt=PromptKind.CHAT, max_tokens=2)
    with pytest.raises(MissingError, match="no chat template"):
        TasksAxis((chat,)).run(parties(model), no_progress)
    spoken = task("generation", "exact", ANSWERS.items, max_tokens=2)
    result = run(TasksAxis((spoken,)), parties(model))
    assert "were continued as texts" in result.notes[0]
