"""The axis of memory: what processes say of themselves, and how many sequences fit."""

import numpy as np
import pytest
from brought import as_said
from spoiled import arms_of, nothing, write_pair

from fewbit.errors import UnsupportedError, UsageError
from fewbit.evaluate.arms import Role
from fewbit.evaluate.gating.file import find_gate
from fewbit.evaluate.gating.gate import judge
from fewbit.evaluate.machine import resident
from fewbit.evaluate.machine.memory_axis import Growth, MemoryAxis, fits_as_foretold, memory_slices
from fewbit.evaluate.machine.memory_probe import Task, measure_apart, probe
from fewbit.evaluate.machine.stand import Stand
from fewbit.model.runner import RunSettings
from fewbit.program import CacheType
from fewbit.records.base import from_json, to_json
from fewbit.records.measurement import AxisResult
from fewbit.records.memory_axis import Fit, MemoryRun, Peak

MB = 1 << 20


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("memory"))


def task(path, **fields):
    asked = {"length": 96, "sequences": (1, 2), "settings": RunSettings(threads=1)} | fields
    return Task(path=str(path), **asked)


def run_of(peaks, *, page=64 * 1000, resident=30 * MB):
    return MemoryRun(
        before=10 * MB,
        loaded=10 * MB + resident,
        peaks=tuple(Peak(sequences=n, bytes=b) for n, b in peaks.items()),
        weights=resident,
        page_bytes=page,
        page_tokens=64,
    )


@pytest.fixture(scope="module")
def alone(pair):
    return measure_apart(task(pair[1]))


def test_a_process_of_its_own_tells_what_it_took(alone):
    assert alone.before < alone.loaded <= alone.peaks[0].bytes <= alone.peaks[1].bytes
    assert alone.peak(2) == alone.peaks[1].bytes
    # 2 layers, keys and values of 2 heads of 16 in f16, 64 positions.
    assert alone.page_bytes == 2 * 2 * 2 * 16 * 2 * 64


def test_all_sequences_are_in_memory_at_once(pair, monkeypatch):
    """In some step each of 16 gets a token: none ended before the last prompt was computed."""
    held = []
    serve = Stand.serve

    def watched(stand, count):
        served = serve(stand, count)
        held.append(sum(step.whole for step in served.steps))
        return served

    monkeypatch.setattr(Stand, "serve", watched)
    probe(task(pair[1], length=128, sequences=(16,)))
    assert held[0] > 0


def test_the_peak_is_the_childs_own_whatever_its_parent_took(pair, alone):
    """ru_maxrss of a child begins with its parent's memory; VmHWM does not."""
    large = np.ones(1 << 28, np.uint8)  # 256 MiB, touched
    found = measure_apart(task(pair[1]))
    assert abs(found.peak(2) - alone.peak(2)) < len(large) / 8


def test_keys_and_values_in_eight_bits_are_counted_smaller(pair):
    one, other = (
        probe(task(pair[1], settings=RunSettings(threads=1, cache_type=kind)))
        for kind in (CacheType.F16, CacheType.F32)
    )
    assert other.page_bytes == 2 * one.page_bytes


def test_a_process_that_ends_badly_is_a_sentence(pair):
    with pytest.raises(UsageError, match=r"ended with exit code 2 \(.*context is 4088"):
        measure_apart(task(pair[1], length=4024))


def test_where_the_system_says_nothing_it_is_told(pair, monkeypatch, tmp_path):
    monkeypatch.setattr(resident, "PROCESSES", tmp_path / "none")
    with pytest.raises(UnsupportedError, match="cannot be read"):
        probe(task(pair[1]))
    (tmp_path / "none" / "self").mkdir(parents=True)
    (tmp_path / "none" / "self" / "status").write_text("Name: x\n")
    with pytest.raises(UnsupportedError, match="has no VmRSS"):
        probe(task(pair[1]))


def test_the_axis_measures_both_arms_and_keeps_what_it_measured(pair, tmp_path, monkeypatch):
    axis = MemoryAxis(length=96, concurrency=(1, 2), processes=2)
    arms = arms_of(*pair, work=tmp_path / "work")
    monkeypatch.setattr("fewbit.evaluate.machine.memory_axis.measure_apart", probe)
    found = as_said(axis, axis.run(arms, nothing))
    names = ["memory/weights", "memory/kv", "memory/peak/1", "memory/peak/2"]
    assert [s.name for s in found.slices] == names
    assert all(len(s.items) == 2 for s in found.slices)
    assert {item.candidate / item.source for item in found.slices[1].items} == {1.0}
    assert [arm.arm for arm in found.details.arms] == ["source", "candidate"]
    assert found.details.arms[0].weights_counted > found.details.arms[1].weights_counted
    assert from_json(AxisResult, to_json(found), name="again") == found
    monkeypatch.setattr("fewbit.evaluate.machine.memory_axis.measure_apart", None)
    again = axis.run(arms_of(*pair, work=tmp_path / "work"), nothing)
    assert again.details == found.details
    monkeypatch.setattr("fewbit.evaluate.machine.memory_axis.measure_apart", probe)
    monkeypatch.setattr("fewbit.evaluate.machine.memory_axis.host", lambda: "another machine")
    axis.run(arms_of(*pair, work=tmp_path / "work"), nothing)
    files = [f for f in (tmp_path / "work").rglob("*.jsonl") if '"process 1"' in f.read_text()]
    assert len(files) == 4  # of two arms on two machines


def test_a_line_through_two_peaks_says_how_many_fit():
    runs = [run_of({1: 50 * MB, 4: 62 * MB, 16: 110 * MB})]
    growth = Growth.of(runs, (4, 16), length=64)
    assert growth.each == 4 * MB
    assert growth.fitting(110 * MB) == 16
    assert growth.fitting(125 * MB) == 19
    assert growth.fitting(10 * MB) == 0
    assert growth.peak(19) == 122 * MB


def test_a_sequence_takes_its_pages_where_the_peak_of_loading_hides_them():
    runs = [run_of({1: 90 * MB, 4: 90 * MB, 16: 90 * MB}, page=MB)]
    assert Growth.of(runs, (4, 16), length=65).each == 2 * MB


def test_a_run_that_takes_more_than_foretold_is_caught():
    """Quantized keys that were unpacked to floats as they were read would look like this."""
    sound = Fit(
        arm="source", budget=100 * MB, sequences=16, run=16, expected=100 * MB, measured=101 * MB
    )
    assert fits_as_foretold([sound], 256).passed
    grown = Fit(
        arm="candidate", budget=100 * MB, sequences=30, run=30, expected=99 * MB, measured=140 * MB
    )
    found = fits_as_foretold([sound, grown], 256)
    assert not found.passed
    assert "The candidate took 146.8 MB with 30 sequences of 256 tokens" in found.found


def test_a_candidate_that_peaks_higher_shows_in_its_slice():
    runs = {
        Role.SOURCE: [run_of({1: 50 * MB, 2: 60 * MB})] * 5,
        Role.CANDIDATE: [run_of({1: 70 * MB, 2: 90 * MB})] * 5,
    }
    found = {s.name: s for s in memory_slices(runs, (1, 2), 24)}
    assert found["memory/peak/2"].items[0].candidate == 90 * MB
    assert found["memory/peak/2"].items[0].source == 60 * MB
    result = AxisResult(axis="memory", slices=tuple(found.values()), seconds=0.0)
    judgements, verdict = judge((result,), find_gate(None))
    assert verdict.outcome.value == "REJECT"
    assert next(j for j in judgements if j.slice == "memory/peak/2").outcome.value == "REJECT"


@pytest.mark.parametrize(
    ("options", "cause"),
    [
        ({"processes": 0}, "at least 1"),
        ({"length": 64}, "length over 64"),
        ({"concurrency": (4, 1)}, "ascending"),
        ({"concurrency": (4,)}, "two or more"),
    ],
)
def test_what_cannot_be_measured_is_refused(options, cause):
    with pytest.raises(UsageError, match=cause):
        MemoryAxis(**options)
