"""`fewbit bench` on a tiny model: what is counted, told and refused; never how fast it was."""

import io
import json

import pytest
from rich.console import Console
from tiny_text import write_text_model

from fewbit.cli.app import run
from fewbit.errors import UsageError
from fewbit.evaluate.machine.speed import SpeedSettings, measure_speed
from fewbit.program import CacheType
from fewbit.records.base import from_json, to_json
from fewbit.records.speed import SpeedReport
from fewbit.report.speed import print_speed
from fewbit.runtime import machine

SETTINGS = SpeedSettings(prompt=70, tokens=9, concurrency=(1, 3), threads=1, buffer_bytes=1 << 21)


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return write_text_model(tmp_path_factory.mktemp("tiny"))


@pytest.fixture(scope="module")
def report(model):
    return measure_speed(model, SETTINGS)


def test_every_token_of_one_request_but_the_first_is_a_decoding_step(report):
    alone, together = report.runs
    assert (alone.sequences, together.sequences) == (1, 3)
    assert alone.decode_steps == 8
    assert 1 <= together.decode_steps <= 8


def test_the_same_prompts_again_are_found_in_the_cache_and_new_ones_are_not(report):
    # All of a prompt but its last token, or its whole pages, can be kept.
    assert 64 <= report.runs[0].cached_tokens <= 69
    assert report.runs[0].prompt_tokens_per_second == 70 / report.runs[0].first_token_last


def test_fractions_are_of_what_was_measured_in_the_run(report):
    found, limits = report.runs[1], report.machine
    read = (found.work.weight_bytes + found.work.cache_bytes) / found.gap_median
    assert report.memory_fraction(found) == pytest.approx(read / limits.memory)
    done = found.prompt_operations * found.prompt_tokens_per_second / (3 * 70)
    peak = limits.units[0].operations_per_second
    assert report.prompt_fraction(found) == pytest.approx(done / peak)


def test_the_work_of_a_step_follows_the_sequences(report):
    alone, together = (found.work for found in report.runs)
    assert together.weight_bytes == alone.weight_bytes
    assert together.cache_bytes == 3 * alone.cache_bytes
    # 3 layers, keys and values, 2 heads of 16 in float16, at position 70 + 9 // 2.
    assert alone.cache_bytes == 3 * 2 * 2 * 16 * 2 * 74


def test_a_step_has_a_part_in_the_model_and_one_outside(report):
    for found in report.runs:
        assert 0 < found.outside_median < found.gap_median <= found.gap_p99
        assert found.first_token_median <= found.first_token_last


def test_the_record_survives_json_and_is_drawn(report):
    assert from_json(SpeedReport, to_json(report), name="x") == report
    text = io.StringIO()
    print_speed(report, Console(file=text, width=300))
    for part in ("of the memory's bandwidth", "GB/s read from a buffer", "1 threads", "f16"):
        assert part in text.getvalue()


def test_the_command_prints_a_table_and_writes_the_record(model, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(machine, "LEAST_BYTES", 1 << 21)
    file = tmp_path / "speed.json"
    options = ["--prompt", "5", "--tokens", "3", "--concurrency", "2", "--threads", "1"]
    assert run(["bench", str(model), *options, "--json", str(file)]) == 0
    assert "requests at once" in capsys.readouterr().out
    record = json.loads(file.read_text())
    assert record["runs"][0]["sequences"] == 2
    assert record["conditions"]["threads"] == 1


def test_the_conditions_name_the_cache_that_ran(model):
    report = measure_speed(
        model,
        SpeedSettings(
            prompt=5,
            tokens=3,
            concurrency=(1,),
            threads=1,
            buffer_bytes=1 << 21,
            cache_type=CacheType.BF16,
            rotate_keys=True,
        ),
    )
    assert (report.conditions.kv, report.conditions.rotated_keys) == ("bf16", True)


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        (["--concurrency", "1,x"], "--concurrency is '1,x'"),
        (["--concurrency", "0"], "at least 1"),
        (["--tokens", "1"], "tokens is 1"),
        (["--prompt", "600"], "take 729 positions, and {model} was made for 512; lower --prompt"),
        (["--threads", "0"], "threads is 0"),
    ],
)
def test_what_cannot_be_measured_is_a_sentence(model, capsys, options, cause):
    assert run(["bench", str(model), *options]) == 2
    assert cause.format(model=model) in capsys.readouterr().err


def test_two_tokens_are_the_least():
    with pytest.raises(UsageError, match="a gap needs at least 2"):
        SpeedSettings(tokens=1)


def test_more_requests_than_the_engine_serves_are_refused_before_loading():
    with pytest.raises(UsageError, match="at most 512 requests at once"):
        SpeedSettings(concurrency=(1, 513))
