"""Records of runs in the terms of the speed model."""

import msgspec
import pytest
from tiny_text import write_text_model

from fewbit.cli import app
from fewbit.engine.engine import Engine
from fewbit.engine.loaded import load_model
from fewbit.engine.request import Request, Speculation
from fewbit.engine.stop import StopCondition
from fewbit.errors import UsageError
from fewbit.evaluate.speculation import SpeculationSettings, measure_speculation
from fewbit.model.runner import RunSettings
from fewbit.records.base import from_json, to_json
from fewbit.records.generation import GenerationReport
from fewbit.records.speculation import SpeculationReport
from fewbit.records.speed_model import SpeedModelReport
from fewbit.sampling import SamplingParams
from fewbit.speculate.controller import FixedLengths
from fewbit.speculate.drafts import NgramDraft
from fewbit.speculate.measured import measured_bench, measured_generation

PROMPTS = {"loops": ("abcabcabcabc", "xyxyxyxyxyxy"), "words": ("hello there",)}


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_text_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def generated(model, tmp_path_factory):
    """A generation whose greedy text repeats itself, so that n-grams draft it."""
    file = tmp_path_factory.mktemp("run") / "run.json"
    options = ["--raw", "-p", "abc abc abc abc", "--max-tokens", "120", "--draft", "ngram"]
    learned = ["--draft-costs", "learned", "--threads", "1", "--json", str(file)]
    assert app.run(["generate", str(model), *options, *learned]) == 0
    record = from_json(GenerationReport, file.read_bytes(), name="run")
    loaded = load_model(model, RunSettings(threads=1))
    speculation = Speculation(NgramDraft(longest=2, shortest=1), 4, control=FixedLengths)
    # Whether the command found that drafts pay depends on the clock; this generation does not.
    request = Request(
        loaded.text_prompt("abc abc abc abc"),
        SamplingParams(temperature=0),
        StopCondition(max_tokens=120),
    )
    last = list(Engine(loaded.served, speculation).generate([request]))[-1]
    return msgspec.structs.replace(record, generation=last.record), loaded, speculation


@pytest.fixture(scope="module")
def bench(model, generated, tmp_path_factory):
    """A record of the command, with runs whose drafts were always asked for."""
    folder = tmp_path_factory.mktemp("bench")
    file, prompts = folder / "bench.json", folder / "prompts.jsonl"
    prompts.write_text('{"prompt": "abcabcabc"}')
    flags = ["--draft", "ngram", "--tokens", "8", "--turns", "1", "--threads", "1"]
    more = ["--concurrency", "1", "--prompts", str(prompts), "--json", str(file)]
    assert app.run(["bench", str(model), *flags, *more]) == 0
    report = from_json(SpeculationReport, file.read_bytes(), name="bench")
    _, loaded, speculation = generated
    settings = SpeculationSettings(prompts=PROMPTS, tokens=24, turns=2)
    runs = tuple(measure_speculation(loaded, speculation, settings))
    return msgspec.structs.replace(report, runs=runs)


def test_a_generation_gives_acceptance_and_costs(generated):
    record = generated[0]
    measured = measured_generation(record)
    (run,), (by_position,) = measured.runs, measured.acceptance
    draft, times = record.generation.draft, record.generation.times
    counts = [(p.accepted, p.tested) for p in draft.positions if p.tested]
    assert by_position == tuple(accepted / tested for accepted, tested in counts)
    assert run.acceptance == sum(a for a, _ in counts) / sum(t for _, t in counts)
    step = times.plain / record.generation.plain_steps
    tokens = sum(a for a, _ in counts) + draft.blocks
    assert run.measured == pytest.approx(tokens * step / (times.draft + times.verify))
    rows = 1 + run.drafted * (run.row_cost + run.draft_cost)
    assert draft.blocks * rows * step == pytest.approx(times.draft + times.verify)
    assert (measured.draft_cost, measured.step_costs[0]) == (run.draft_cost, (1, 1.0))


def test_a_generation_without_a_draft_is_refused(generated):
    record = generated[0]
    plain = msgspec.structs.replace(record.generation, draft=None)
    with pytest.raises(UsageError, match="the run verified no draft"):
        measured_generation(msgspec.structs.replace(record, generation=plain))
    hurried = msgspec.structs.replace(record.generation, plain_steps=0)
    with pytest.raises(UsageError, match="no step without a draft"):
        measured_generation(msgspec.structs.replace(record, generation=hurried))


def test_a_benchmark_gives_a_run_for_each_kind_and_the_costs_measured_before(bench):
    found = measured_bench(bench)
    assert [run.name for run in found.runs] == ["loops", "words"]
    for run, source in zip(found.runs, bench.runs, strict=True):
        assert run.acceptance == pytest.approx(source.acceptance)
        assert run.blocks == sum(record.blocks for record in source.speculation)
        assert run.end_to_end == source.gain
    assert found.draft_cost == bench.costs.draft_seconds[0] / bench.costs.seconds[0]
    assert [rows for rows, _ in found.step_costs] == list(bench.costs.rows)


def test_costs_that_were_not_measured_come_from_the_runs(bench):
    table = msgspec.structs.replace(bench.costs, measured=False)
    found = measured_bench(msgspec.structs.replace(bench, costs=table))
    assert found.draft_cost == found.runs[0].draft_cost
    assert len(found.step_costs) == 2


def test_a_benchmark_of_several_at_once_only_is_refused(bench):
    runs = tuple(msgspec.structs.replace(run, sequences=4) for run in bench.runs)
    with pytest.raises(UsageError, match="no run of one sequence at once"):
        measured_bench(msgspec.structs.replace(bench, runs=runs))


def test_the_command_takes_both_records(generated, bench, tmp_path, capsys):
    names = {"generate": ["ngram"], "bench": ["loops", "words"]}
    for kind, record in (("generate", generated[0]), ("bench", bench)):
        file = tmp_path / f"{kind}.json"
        file.write_bytes(to_json(record))
        capsys.readouterr()
        assert app.run(["speed-model", "--from-run", str(file), "--json", "-"]) == 0
        report = from_json(SpeedModelReport, capsys.readouterr().out.encode(), name="stdout")
        assert [c.name for c in report.curves] == [f"{n}, by position" for n in names[kind]]
        options = ["--draft-cost", "0.5", "--acceptance", "0.7"]
        assert app.run(["speed-model", "--from-run", str(file), *options]) == 0
        out = " ".join(capsys.readouterr().out.split())
        assert ("loops, ngram drafting for" in out) == (kind == "bench")
        assert "ngram drafting for" in out
        assert "A drafted token costs 0.5 of a plain step" in out
        assert "accepted: 0.7" in out
