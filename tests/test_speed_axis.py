"""The axis of speed: what is counted and compared; that a stall shows; never how fast it was."""

import time
from dataclasses import replace
from statistics import mean

import pytest
from brought import as_said
from msgspec.structs import replace as replace_record
from spoiled import arms_of, nothing, write_pair

from fewbit.errors import UsageError
from fewbit.evaluate.arms import Role, Room
from fewbit.evaluate.gating.file import find_gate
from fewbit.evaluate.gating.gate import judge
from fewbit.evaluate.machine.speed_axis import SpeedAxis, answer_slices, kept_note, turn_slices
from fewbit.evaluate.machine.stand import Stand
from fewbit.evaluate.machine.turns import served_of
from fewbit.records.answers import Answer
from fewbit.records.base import from_json, to_json
from fewbit.records.generation import FinishReason
from fewbit.records.measurement import AxisResult, Measure
from fewbit.records.speed_axis import Served, SpeedPeriod

AXIS = SpeedAxis(prompt=70, tokens=6, turns=2, concurrency=(1, 2), questions=3, answer_tokens=5)
STALL = 0.25


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("speed"))


@pytest.fixture(scope="module")
def found(pair):
    return as_said(AXIS, AXIS.run(arms_of(*pair), nothing))


def test_every_slice_has_an_item_a_turn_and_one_a_question(found):
    kinds = ("first-token", "cached", "decode", "stall")
    names = [f"speed/{kind}/{n}" for n in (1, 2) for kind in kinds]
    assert [s.name for s in found.slices] == [*names, "speed/task"]
    assert {s.measure for s in found.slices} == {Measure.RATIO}
    for one in found.slices[:-1]:
        assert [item.name for item in one.items] == ["turn 1", "turn 2"]
        assert all(item.source > 0 and item.candidate > 0 for item in one.items)
    assert len(found.slices[-1].items) == 3


def test_every_gap_of_every_request_is_kept(found):
    drawn = {(d.title, d.arm): d.values for d in found.details.distributions}
    # Two turns of n requests of six tokens each.
    for n in (1, 2):
        for arm in ("source", "candidate"):
            assert len(drawn[f"Gap between tokens, {n} at once", arm]) == 2 * n * 5
            assert len(drawn[f"Time to first token, {n} at once", arm]) == 2 * n
    assert len(found.details.rates) == 4


def test_cold_and_cached_prompts_are_told_apart(pair):
    """A prefix that is in the cache costs no prompt: 21k tokens in 60 ms are no measurement."""
    with arms_of(*pair).open(Role.SOURCE, Room(context=128, sequences=2)) as arm:
        stand = Stand(arm.loaded, prompt=70, tokens=4, sequences=2)
        first, second = stand.measure(2), stand.measure(2)
    for measured in (first, second):
        assert [r.cached_tokens for r in measured.cold.records] == [0, 0]
        assert all(r.cached_tokens >= 64 for r in measured.cached.records)


def test_answers_are_timed_to_their_ends_and_cut_ones_are_told(found):
    assert [task.name for task in found.details.tasks] == ["question 1", "question 2", "question 3"]
    for task in found.details.tasks:
        assert 1 <= task.source_tokens <= 5
        assert task.source_seconds > 0
    cut = sum(t.source_finish is FinishReason.LENGTH for t in found.details.tasks)
    assert bool(cut) == any("of the source's 3 answers were cut at 5" in n for n in found.notes)


def test_the_result_survives_json(found):
    assert from_json(AxisResult, to_json(found), name="again") == found


class Stalling:
    """Passes steps on, and sleeps in one of them."""

    def __init__(self, executor, at):
        self._executor = executor
        self._left = at

    @property
    def pages(self):
        return self._executor.pages

    def step(self, step):
        self._left -= 1
        if self._left == 0:
            time.sleep(STALL)
        return self._executor.step(step)


def test_a_planted_stall_shows_where_a_mean_hides_it(pair):
    """One gap of a quarter of a second among some hundred: each token's gap is kept for this."""
    turns = {}
    with arms_of(*pair).open(Role.CANDIDATE, Room(context=256, sequences=1)) as arm:
        for role, at in ((Role.SOURCE, -1), (Role.CANDIDATE, 40)):
            runner = arm.loaded.runner
            stalling = Stalling(runner.executor, at)
            loaded = replace(arm.loaded, runner=_with_executor(runner, stalling))
            measured = Stand(loaded, prompt=70, tokens=100, sequences=1).measure(1)
            turns[role] = [served_of(role, 1, measured)]
    slices = {s.name: s.items[0] for s in turn_slices(1, turns)}
    stall = slices["speed/stall/1"]
    assert stall.candidate >= STALL
    assert stall.source < STALL
    gaps = turns[Role.CANDIDATE][0].gaps
    assert mean(gaps) < STALL / 10
    # Decoding behind cached prompts, another run, is not blamed for it.
    assert slices["speed/decode/1"].candidate < STALL


def _with_executor(runner, executor):
    made = object.__new__(type(runner))
    made.__dict__.update(runner.__dict__, executor=executor)
    return made


def answer(name, seconds, gaps):
    return Answer(
        name=name,
        text="",
        tokens=len(gaps) + 1,
        finish=FinishReason.STOP,
        first_token=0.5,
        gaps=gaps,
        seconds=seconds,
    )


def test_longer_answers_cancel_a_faster_token():
    answers = {
        Role.SOURCE: {"a": answer("a", 1.0, (0.1,) * 5)},
        Role.CANDIDATE: {"a": answer("a", 1.2, (0.05,) * 14)},
    }
    task, *timed = answer_slices(answers, timed=True)
    assert (task.items[0].source, task.items[0].candidate) == (1.0, 1.2)
    assert [s.name for s in timed] == ["speed/first-token/4", "speed/decode/4"]
    decode = timed[1].items[0]
    assert decode.candidate == pytest.approx(decode.source / 2)


def served_turns(role, seconds):
    """Return turns of one request each whose steps take so many seconds."""
    return [
        Served(
            arm=role.value,
            sequences=1,
            first_tokens=(10 * second,),
            cached_first_tokens=(10 * second,),
            gaps=(second,) * 5,
            steps=(second,) * 5,
        )
        for second in seconds
    ]


@pytest.mark.parametrize(("slower", "outcome"), [(1.5, "REJECT"), (0.5, "INCONCLUSIVE")])
def test_a_candidate_slower_than_its_source_is_rejected(slower, outcome):
    """4-bit weights that decode slower than fp16 were shipped; here it is part of the verdict."""
    pace = [0.010 + 0.0002 * (turn % 3) for turn in range(12)]
    turns = {
        Role.SOURCE: served_turns(Role.SOURCE, pace),
        Role.CANDIDATE: served_turns(Role.CANDIDATE, [slower * seconds for seconds in pace]),
    }
    result = AxisResult(axis="speed", slices=tuple(turn_slices(1, turns)), seconds=0.0)
    judgements, verdict = judge((result,), find_gate(None))
    assert verdict.outcome.value == outcome  # language was not measured: no ACCEPT
    decode = next(j for j in judgements if j.slice == "speed/decode/1")
    assert decode.figure.value == pytest.approx(slower)
    assert decode.outcome.value == ("REJECT" if slower > 1 else "ACCEPT")


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"tokens": 1}, "a gap needs at least 2"),
        ({"turns": 0}, "at least 1"),
        ({"concurrency": ()}, "at least 1"),
        ({"concurrency": (0,)}, "at least 1"),
    ],
)
def test_what_cannot_be_measured_is_refused(options, cause):
    with pytest.raises(UsageError, match=cause):
        SpeedAxis(**options)


class Stopped(Exception):
    """What a test stops a run by."""


def test_a_stopped_run_goes_on_with_the_next_turn_and_says_so(pair, tmp_path):
    """Turns and answers that were measured are kept with their moments; nothing is timed twice."""
    told = []

    def stop(what, done, _all):
        told.append((what, done))
        if (what, done) == ("answers", 0) and told.count(("turns", 1)) == 1:
            raise Stopped

    with pytest.raises(Stopped):
        AXIS.run(arms_of(*pair, work=tmp_path), stop)
    assert told == [("turns", 0), ("turns", 1), ("answers", 0)]
    told.clear()
    found = AXIS.run(arms_of(*pair, work=tmp_path), lambda what, done, _: told.append((what, done)))
    assert told == [("answers", 0)]
    assert sum(period.turns for period in found.details.periods) == 2
    assert sum(period.answers for period in found.details.periods) == 3
    again = AXIS.run(arms_of(*pair, work=tmp_path), nothing)
    assert again.slices == found.slices
    assert again.details == found.details


def test_what_this_run_measured_itself_is_not_said_to_be_kept(pair, tmp_path, monkeypatch):
    """The first run stops after its turns; the second asks the questions and names the turns."""
    times = iter(["2026-11-30T14:00:00+00:00", "2026-11-30T15:00:00+00:00"])
    monkeypatch.setattr("fewbit.evaluate.machine.speed_axis.now", lambda: next(times))

    def stop(what, _done, _all):
        if what == "answers":
            raise Stopped

    with pytest.raises(Stopped):
        AXIS.run(arms_of(*pair, work=tmp_path), stop)
    found = AXIS.run(arms_of(*pair, work=tmp_path), nothing)
    (note,) = (note for note in found.notes if note.startswith("Kept"))
    assert "2 turns and 0 answers" in note
    assert "3 answers" not in note


def test_kept_timings_are_named_with_when_and_beside_what():
    first = SpeedPeriod(
        began="2026-11-30T14:00:00+00:00",
        ended="2026-11-30T14:02:00+00:00",
        turns=7,
        answers=0,
        load_least=1.0,
        load_most=9.5,
    )
    second = replace_record(first, began="2026-11-30T15:00:00+00:00", turns=5, answers=12)
    note = kept_note((first, second))
    assert "7 turns and 0 answers by 2026-11-30T14:02:00+00:00 (load 1.0 to 9.5)" in note
    assert "not measured again" in note


def test_another_machines_timings_are_not_taken(pair, tmp_path, monkeypatch):
    AXIS.run(arms_of(*pair, work=tmp_path), nothing)
    monkeypatch.setattr("fewbit.evaluate.machine.speed_axis.host", lambda: "another")
    told = []
    AXIS.run(arms_of(*pair, work=tmp_path), lambda what, done, _: told.append((what, done)))
    assert ("turns", 0) in told
