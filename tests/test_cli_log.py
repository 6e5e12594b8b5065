"""`--log FILE`: whole lines of JSON, for every request and for the engine."""

import io
import json

import msgspec
import pytest
from test_cli_generate import endless_engine
from tiny_text import write_text_model

from fewbit.cli.app import run
from fewbit.cli.log import logged
from fewbit.cli.streaming import stream
from fewbit.engine.request import Request
from fewbit.errors import NumericalError
from fewbit.records.generation import FinishReason
from fewbit.records.log import LogLine
from fewbit.sampling import SamplingParams


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return str(write_text_model(tmp_path_factory.mktemp("tiny")))


def lines(path):
    return [msgspec.json.decode(line, type=LogLine) for line in path.read_bytes().splitlines()]


def test_a_request_and_the_engine_are_logged_and_runs_add_to_the_file(model, tmp_path):
    log = tmp_path / "log.jsonl"
    flags = ["--raw", "-p", "abcabcabcabc", "--max-tokens", "40", "--draft", "ngram"]
    for _ in range(2):
        assert run(["generate", model, *flags, "--log", str(log)]) == 0
    request, engine, _, _ = lines(log)
    assert request.model == engine.model == model
    assert request.generation.generated_tokens <= 40
    assert request.engine is None
    assert engine.generation is None
    assert engine.engine.requests == 1
    total, own = engine.engine.speculation, request.generation.draft
    assert (total.blocks, total.wasted, total.positions) == (own.blocks, own.wasted, own.positions)
    assert total.allowed_seconds > 0
    assert total.costs.measured


def test_every_answer_of_a_conversation_is_a_line(model, tmp_path, monkeypatch):
    log = tmp_path / "log.jsonl"
    monkeypatch.setattr("sys.stdin", io.StringIO("hello\nagain\n"))
    assert run(["chat", model, "--max-tokens", "6", "--log", str(log)]) == 0
    first, second, last = lines(log)
    assert first.generation.prompt_tokens < second.generation.prompt_tokens
    assert last.engine.requests == 2
    assert last.engine.speculation is None


def test_a_request_that_failed_is_a_line_too(tmp_path):
    log = tmp_path / "log.jsonl"
    engine = endless_engine()
    engine._served.executor.poisoned = 8
    with pytest.raises(NumericalError), logged(log, tmp_path, engine) as note:
        stream(engine, Request((1, 2), SamplingParams(seed=1)), lambda _: None, note)
    request, last = lines(log)
    assert request.generation.finish is FinishReason.ERROR
    assert request.generation.generated_tokens > 0
    assert last.engine.requests == 1


def test_lines_are_plain_json(model, tmp_path):
    log = tmp_path / "log.jsonl"
    assert run(["generate", model, "-p", "x", "--max-tokens", "2", "--log", str(log)]) == 0
    for line in log.read_text().splitlines():
        assert json.loads(line)["time"].endswith("+00:00")


def test_a_log_that_cannot_be_written_is_refused_before_the_work(model, tmp_path, capsys):
    assert run(["generate", model, "-p", "x", "--log", str(tmp_path / "absent" / "log")]) == 2
    assert "is no folder" in capsys.readouterr().err
