"""The axis of long context on tiny models, and its judges on a fake that knows what it reads."""

import math
import re
from dataclasses import dataclass

import pytest
from brought import as_said
from tiny_arms import arms_of
from tiny_subjects import CONFIG, letters, sharp_weights, write_subject

from fewbit.errors import UnsupportedError, UsageError
from fewbit.evaluate.arms import LocalParty
from fewbit.evaluate.long_context.axis import PIECES, LongContextAxis, _limits
from fewbit.evaluate.long_context.haystack import Kind, Ruler, hidden_facts, key_values
from fewbit.evaluate.long_context.recall import Judge, questions_of, recall
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.recipes import find
from fewbit.records.answers import Answer, Likelihood
from fewbit.records.generation import FinishReason
from fewbit.records.kept import Kept
from fewbit.records.long_context import Recalled
from fewbit.records.measurement import Measure

WORDS = Ruler(lambda text: len(text.split()))
ASKED = questions_of([hidden_facts(0, 400, WORDS), key_values(0, 400, WORDS)])


@dataclass
class Reader:
    """Likes an answer the better, the more of its numbers it read in the text's last `memory`."""

    memory: int
    calls: int = 0

    def likelihoods(self, context, continuations):
        self.calls += 1
        seen = context[-self.memory :] if self.memory else ""
        return [self._liked(seen, text) for text in continuations]

    def _liked(self, seen, text):
        line = re.search("the number of (.+) is", text)
        names = [line.group(1)] if line else re.findall(r"the (\w+ \w+)(?:,| and| are| is)", text)
        found = [re.search(rf"{name}(?: is|:) (\d+)", seen) for name in names]
        right = [match and match.group(1) for match in found] == re.findall(r"\d{5}", text)
        return Likelihood(logprob=-1.0 if right else -3.0, tokens=1, greedy=right)

    def answer(self, asks, keep):
        for ask in asks:
            text = ask.prompt[0]["content"]
            keep(answer(ask.name, "I saw " + ", ".join(re.findall(r"\d{5}", text[-self.memory :]))))


def answer(name, text):
    return Answer(
        name=name,
        text=text,
        tokens=1,
        finish=FinishReason.STOP,
        first_token=0.1,
        gaps=(),
        seconds=0.1,
    )


def judged(reader, judge=Judge.CHOICE, kept=None):
    kept, told = kept or Kept(None), []
    recall(reader, judge, ASKED, kept, told.append)
    return kept.read(Recalled), told


def test_who_has_read_all_fails_nothing():
    found, told = judged(Reader(10**6))
    assert not any(one.failed for one in found.values())
    assert [one.loss for one in found.values()] == pytest.approx([math.log1p(3 * math.exp(-2))] * 9)
    assert all(found[a.name].said == a.question.answer.strip() for a in ASKED)
    assert sum(told) == len(ASKED) == 9


def test_who_has_read_nothing_fails_everything():
    """The negative control: an answer no likelier than the others is a failure."""
    found, _ = judged(Reader(0))
    assert all(one.failed for one in found.values())
    assert [one.loss for one in found.values()] == pytest.approx([math.log(4)] * 9)


def test_who_forgets_the_first_half_fails_what_stands_there():
    (facts, _), size = [a.haystack for a in (ASKED[0], ASKED[-1])], len(ASKED[0].haystack.text)
    found, _ = judged(Reader(size // 2))
    needles = [a for a in ASKED if a.question.kind is Kind.NEEDLE and a.haystack == facts]
    assert [found[a.name].failed for a in needles] == [True, True, False, False]
    (several,) = (a for a in ASKED if a.question.kind is Kind.MULTI_NEEDLE)
    assert found[several.name].failed


def test_a_text_is_run_once_for_its_questions_and_never_again():
    reader, kept = Reader(10**6), Kept(None)
    judged(reader, kept=kept)
    assert reader.calls == 2
    judged(reader, kept=kept)
    assert reader.calls == 2


def test_answers_in_words_must_have_every_number_in_order():
    found, _ = judged(Reader(10**6), Judge.ANSWER)
    failed = {a.question.kind for a in ASKED if found[a.name].failed}
    assert failed <= {Kind.MULTI_NEEDLE}  # it names all numbers in the text's order
    order = ASKED[4].question.needed
    places = [ASKED[0].haystack.text.index(code) for code in order]
    assert found[ASKED[4].name].failed == (places != sorted(places))
    assert all(one.failed for one in judged(Reader(1), Judge.ANSWER)[0].values())


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("long") / "source"
    config = {**CONFIG, "max_position_embeddings": 900}
    return write_subject(folder, config=config, weights=sharp_weights())


@pytest.fixture(scope="module")
def small(source):
    with open_model(source) as model:
        quantize(model, find("rtn-int8-g32"), source.parent / "small")
    return source.parent / "small"


def axis(**settings):
    text = letters(documents=20, characters=90)
    chosen = {"longest": 900, "divergence": 700, **settings}
    return LongContextAxis(documents=text, threads=1, **chosen)


def test_all_slices_on_all_arms_and_nothing_twice(tmp_path, source, small, monkeypatch):
    arms = arms_of(source, small, tmp_path / "work")
    told = []
    spec = axis(floor=True)
    found = as_said(spec, spec.run(arms, lambda *seen: told.append(seen)))
    slices = {s.name: s for s in found.slices}
    assert list(slices) == [
        "long-context/needle",
        "long-context/multi-needle",
        "long-context/key-value",
        "long-context/recall",
        "long-context/kl",
    ]
    for name in list(slices)[:3]:
        assert slices[name].measure is Measure.PROPORTION
        assert {v for i in slices[name].items for v in (i.source, i.floor, i.candidate)} <= {0, 1}
    assert {i.cluster for i in slices["long-context/needle"].items} == {
        "facts/900/0",
        "facts/900/1",
    }
    kl = slices["long-context/kl"]
    assert len(kl.items) >= 8
    assert all(i.candidate > 0.0 and i.floor > 0.0 for i in kl.items)
    assert sum(i.weight for i in kl.items) == 699 - 350
    (curve,) = found.details.curves
    assert [band.low for band in curve.bands] == [0, 64, 128, 256, 512]
    assert sum(band.count for band in curve.bands) == 699
    assert found.details.document == 700
    assert [(r.kind, r.tokens, r.asked) for r in found.details.recalls] == [
        ("needle", 900, 8),
        ("multi-needle", 900, 2),
        ("key-value", 450, 16),
        ("key-value", 900, 8),
    ]
    assert {what for what, _, _ in told} >= {"long-context: source", "long-context"}

    def closed(*_):
        raise AssertionError("an arm is opened again")

    monkeypatch.setattr(LocalParty, "open", closed)
    again = axis(floor=True).run(arms_of(source, small, tmp_path / "work"), lambda *_: None)
    assert again.slices == found.slices
    assert again.details == found.details


def test_a_model_against_itself_is_exactly_itself(source):
    found = axis(longest=256).run(arms_of(source, source), lambda *_: None)
    for one in found.slices:
        assert all((i.floor is None) != one.name.endswith("kl") for i in one.items)
        assert all(i.candidate == (0.0 if one.name.endswith("kl") else i.source) for i in one.items)
    assert found.details.examples == ()
    (kl,) = (one for one in found.slices if one.name == "long-context/kl")
    # Passages of as many texts; half of them, and a part of another, lie beyond the start.
    assert len(kl.items) == PIECES // 2 + 1


def test_lengths_stop_at_the_models_context(source):
    long = axis(longest=4096, divergence=8192)
    limits = _limits(arms_of(source, source), long)
    assert (limits.longest, limits.divergence) == (900, 900)
    config = {**CONFIG, "max_position_embeddings": 128}
    short = write_subject(source.parent / "short", config=config, weights=sharp_weights())
    with pytest.raises(UnsupportedError, match="made for 128 positions"):
        axis().run(arms_of(short, short), lambda *_: None)
    with pytest.raises(UsageError, match="longest is 100"):
        axis(longest=100)
