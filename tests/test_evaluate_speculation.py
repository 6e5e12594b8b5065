"""`fewbit bench --draft` on a tiny model: what is counted and refused; never how fast it was."""

import io
import json
import math
from dataclasses import replace

import pytest
from rich.console import Console
from tiny_text import write_text_model

from fewbit.cli.app import run
from fewbit.engine.loaded import load_model
from fewbit.engine.loaded_draft import load_draft
from fewbit.engine.request import Request, Speculation
from fewbit.engine.stop import StopCondition
from fewbit.errors import BadFileError, UsageError
from fewbit.evaluate.prompts import builtin_prompts, read_prompts
from fewbit.evaluate.speculation import (
    SpeculationSettings,
    measure_speculation,
    measure_turn,
    served_of,
)
from fewbit.model.runner import RunSettings
from fewbit.records.base import from_json, to_json
from fewbit.records.speculation import SpeculationReport
from fewbit.report.speculation import print_speculation
from fewbit.sampling import SamplingParams
from fewbit.speculate.controller import FixedLengths
from fewbit.speculate.drafts import NgramDraft

PROMPTS = {"loops": ("abcabcabcabc", "xyxyxyxyxyxy"), "words": ("hello there",)}
SETTINGS = SpeculationSettings(prompts=PROMPTS, tokens=24, concurrency=(1, 3), turns=2)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_text_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def loaded(model):
    return load_model(model, RunSettings(threads=1, sequences=3))


@pytest.fixture(scope="module")
def runs(loaded):
    speculation = Speculation(NgramDraft(longest=2, shortest=1), 4, control=FixedLengths)
    return list(measure_speculation(loaded, speculation, SETTINGS))


def test_every_kind_runs_at_every_concurrency(runs):
    assert [(run.kind, run.sequences) for run in runs] == [
        ("loops", 1),
        ("words", 1),
        ("loops", 3),
        ("words", 3),
    ]


def test_both_sides_of_a_turn_say_the_same(runs):
    for found in runs:
        assert len(found.turns) == len(found.speculation) == 2
        for turn in found.turns:
            assert turn.same_output
            assert turn.plain.request_seconds > 0
            assert turn.sooner > 0
            assert turn.gain > 0
            if found.sequences == 1:
                assert turn.plain.tokens == turn.drafted.tokens <= 23
        assert found.gains[0] <= found.gain <= found.gains[1]


def test_the_draft_was_used_and_is_counted(runs):
    for found in runs:
        assert sum(record.blocks for record in found.speculation) > 0
        assert found.acceptance is None or 0 <= found.acceptance <= 1


def test_speed_is_that_of_the_time_in_which_every_place_is_taken():
    # Two places; the third request takes the first one's, which stays empty from 6 on.
    times = {0: [2.0, 3.0], 1: [2.0, 4.0, 8.0, 9.0], 2: [5.0, 6.0]}
    found = served_of(times, begun=1.0, full=6.0)
    assert (found.tokens, found.seconds) == (3, 4.0)
    assert found.request_seconds == pytest.approx((2 + 8 + 5) / 3)
    whole = served_of(times, begun=1.0, full=math.inf)
    assert (whole.tokens, whole.seconds) == (5, 7.0)


def test_an_answer_without_a_token_counts_for_nothing():
    found = served_of({0: [], 1: [2.0, 3.0]}, begun=1.0, full=math.inf)
    assert (found.tokens, found.request_seconds) == (1, 2.0)
    assert served_of({0: []}, begun=1.0, full=2.0).tokens == 0


def test_requests_take_the_places_of_others(loaded):
    requests = [asked(loaded, tokens) for tokens in (2, 8, 8, 8)]
    speculation = Speculation(NgramDraft(longest=2, shortest=1), 4, control=FixedLengths)
    turn, _ = measure_turn(loaded, speculation, requests, at_once=2)
    # All but the first tokens: of the last request some come when a place is empty already.
    assert 1 + 7 <= turn.plain.tokens < 1 + 3 * 7
    assert turn.same_output


def asked(loaded, tokens):
    stop = StopCondition(tokens, frozenset(), ())
    return Request(loaded.text_prompt("abcabcabc"), SamplingParams(temperature=0), stop)


def test_no_turn_finds_what_the_draft_has_read_for_another(loaded, model, monkeypatch):
    """It would draft at once, where a draft of its own would have the prompt to read first."""
    drafting = load_draft(model, loaded, RunSettings(threads=1, context=512))
    rows, step = [], drafting.runner.executor.step

    def counted(given):
        rows.append(len(given.tokens))
        return step(given)

    monkeypatch.setattr(drafting.runner.executor, "step", counted)
    settings = replace(SETTINGS, prompts={"long": ("abcd" * 40,)}, concurrency=(1,), turns=3)
    speculation = Speculation(drafting.draft, 4, control=FixedLengths)
    list(measure_speculation(loaded, speculation, settings))
    # The warm-up and each turn read the whole prompt, which takes two portions of at most 128 rows.
    assert [count for count in rows if count > 8] == [128, 52] * 4


def test_without_a_seed_drawn_outputs_may_differ(loaded):
    settings = replace(SETTINGS, temperature=1.0, seed=None, concurrency=(1,))
    speculation = Speculation(NgramDraft(), 4, control=FixedLengths)
    found = list(measure_speculation(loaded, speculation, settings))
    assert not all(turn.same_output for run in found for turn in run.turns)
    seeded = list(measure_speculation(loaded, speculation, replace(settings, seed=3)))
    assert all(turn.same_output for run in seeded for turn in run.turns)


def test_the_command_prints_a_table_and_writes_the_record(model, tmp_path, capsys):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "record.json"
    prompts.write_text('{"prompt": "abcabcabc", "kind": "loops"}\n\n{"prompt": "hello"}\n')
    flags = ["--draft", "ngram", "--tokens", "12", "--turns", "1", "--threads", "1"]
    more = ["--concurrency", "1,2", "--prompts", str(prompts), "--json", str(out)]
    assert run(["bench", str(model), *flags, *more]) == 0
    shown, noted = capsys.readouterr()
    assert "draft costs in plain steps of" in noted
    report = from_json(SpeculationReport, out.read_bytes(), name="x")
    assert [(r.kind, r.sequences) for r in report.runs] == [
        ("loops", 1),
        ("prompts", 1),
        ("loops", 2),
        ("prompts", 2),
    ]
    assert report.costs.measured
    assert report.plain_memory_bytes <= report.peak_memory_bytes
    for part in ("with the draft, tokens/s", "ratio, median of turns", "rolling back", "2 at once"):
        assert part in shown
    text = io.StringIO()
    print_speculation(from_json(SpeculationReport, to_json(report), name="x"), Console(file=text))
    assert "before the draft was opened" in " ".join(text.getvalue().split())


def test_outputs_without_a_seed_are_not_compared(model, tmp_path, capsys):
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "record.json"
    prompts.write_text('{"prompt": "abcabcabc"}')
    flags = ["--draft", "exit:1", "--draft-costs", "learned", "--tokens", "4", "--turns", "1"]
    drawn = ["--concurrency", "1", "--prompts", str(prompts), "--temperature", "0.8"]
    for seed, shown in (([], "no seed"), (["--seed", "7"], "temperature 0.8, seed 7")):
        assert run(["bench", str(model), *flags, *drawn, *seed, "--json", str(out)]) == 0
        assert shown in " ".join(capsys.readouterr().out.split())
    report = from_json(SpeculationReport, out.read_bytes(), name="x")
    assert report.runs[0].seed == 7
    assert report.draft_kernels


def test_how_a_draft_is_measured_is_refused_without_one(model, capsys):
    assert run(["bench", str(model), "--turns", "2"]) == 2
    assert "name one by --draft" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("content", "match"),
    [
        ("", "has no prompts"),
        ("{}", "neither `prompt` nor `turns`"),
        ('{"turns": []}', "neither"),
        ("{", "line 1"),
        ('{"prompt": "a"}\n[1]', "line 2"),
        ('{"prompt": 3}', "no prompt"),
    ],
)
def test_prompts_that_are_none_are_named(tmp_path, content, match):
    path = tmp_path / "prompts.jsonl"
    path.write_text(content)
    with pytest.raises(BadFileError, match=match):
        read_prompts(path)


def test_prompts_of_spec_bench_are_read(tmp_path):
    path = tmp_path / "question.jsonl"
    line = {"question_id": 1, "category": "coding", "turns": ["Write it.", "Again."]}
    path.write_text(json.dumps(line) + "\n" + json.dumps({"prompt": "x", "kind": "chat"}))
    assert read_prompts(path) == {"coding": ("Write it.",), "chat": ("x",)}
    with pytest.raises(BadFileError, match="cannot be read"):
        read_prompts(tmp_path / "absent.jsonl")


def test_our_own_prompts_are_of_three_kinds():
    assert {kind: len(prompts) for kind, prompts in builtin_prompts().items()} == {
        "code": 8,
        "rewrite": 4,
        "chat": 8,
    }


@pytest.mark.parametrize("fields", [{"tokens": 1}, {"turns": 0}, {"concurrency": (0,)}])
def test_counts_that_cannot_be_are_refused(fields):
    with pytest.raises(UsageError):
        SpeculationSettings(prompts=PROMPTS, **fields)
