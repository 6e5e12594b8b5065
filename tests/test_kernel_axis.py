"""The axis of kernels: what ran is told, and a layer that quietly ran as floats rejects."""

import msgspec
import pytest
from brought import as_said
from spoiled import arms_of, failed, nothing, unread, write_pair
from tiny_subjects import letters, text_alone

from fewbit.evaluate.arms import Role, Room
from fewbit.evaluate.evaluation import EvaluationSettings, evaluate
from fewbit.evaluate.gating.file import find_gate
from fewbit.evaluate.gating.gate import judge
from fewbit.evaluate.machine.kernel_axis import KernelAxis, kernel_findings
from fewbit.records.base import from_json, to_json
from fewbit.records.measurement import AxisResult
from fewbit.records.outcome import Outcome


@pytest.fixture(scope="module")
def pair(tmp_path_factory):
    return write_pair(tmp_path_factory.mktemp("kernels"), "rtn-int4-g32")


@pytest.fixture(scope="module")
def found(pair):
    return as_said(KernelAxis(), KernelAxis().run(arms_of(*pair), nothing))


@pytest.fixture(scope="module")
def kernels(pair):
    with arms_of(*pair).open(Role.CANDIDATE, Room(context=64)) as arm:
        return arm.loaded.runner.kernels


def judged(kernels, **changes):
    """Return the findings of these kernels, each packed and sized as its record says."""
    sizes = {k.slot: k.bytes for k in kernels}
    return {
        finding.name: finding
        for finding in kernel_findings(kernels, sizes | changes.get("formats", {}), sizes)
    }


def test_a_sound_candidate_passes_and_every_matrix_is_told(found, kernels):
    assert failed(found) == {}
    assert [f.name for f in found.findings] == [
        "kernels/float",
        "kernels/fallback",
        "kernels/bytes",
        "kernels/packed",
    ]
    assert [m.slot for m in found.details.matrices] == [k.slot for k in kernels]
    source, candidate = found.details.reads
    assert (source.arm, candidate.arm) == ("source", "candidate")
    # Four bits and a scale of 16 for 32 inputs, beside floats of 32 bits.
    assert candidate.format_bytes / source.format_bytes == pytest.approx(4.5 / 32, rel=0.5)
    assert candidate.format_bytes <= candidate.bytes <= 1.1 * candidate.format_bytes
    assert sum(kind.matrices for kind in found.details.kinds) == 2 * len(kernels)
    assert from_json(AxisResult, to_json(found), name="again") == found


def test_a_float_fallback_is_caught_whether_its_record_says_so_or_not(kernels):
    for note in ("", "no kernel reads it, so it is dequantized to f32 at load"):
        planted = msgspec.structs.replace(
            kernels[3], kernel="f32/f32/portable", activations="f32", note=note
        )
        finding = judged((*kernels[:3], planted, *kernels[4:]))["kernels/float"]
        assert not finding.passed
        assert f"{kernels[3].slot} is stored in int4-g32 and ran on the float" in finding.found
        assert note in finding.found


def test_floats_on_float_kernels_are_what_they_are(kernels):
    floats = msgspec.structs.replace(kernels[0], format="bf16", kernel="bf16/f32/avx2")
    assert all(finding.passed for finding in judged((floats,)).values())


def test_a_matrix_that_is_not_run_as_stored_is_caught(kernels):
    planted = msgspec.structs.replace(kernels[1], note="its scales are rounded to fp16")
    found = judged((kernels[0], planted))
    assert [name for name, finding in found.items() if not finding.passed] == ["kernels/fallback"]
    assert "its scales are rounded to fp16" in found["kernels/fallback"].found


def test_a_kernel_that_reads_more_than_the_format_has_is_caught(kernels):
    half = {kernels[2].slot: kernels[2].bytes // 2}
    finding = judged(kernels, formats=half)["kernels/bytes"]
    assert not finding.passed
    assert f"{kernels[2].slot} is read as {kernels[2].bytes:,} bytes" in finding.found


def test_a_record_that_does_not_say_what_lies_in_memory_is_caught(kernels):
    sizes = {k.slot: k.bytes for k in kernels}
    for packed in ({**sizes, kernels[0].slot: 4 * kernels[0].bytes}, {}):
        finding = kernel_findings(kernels, sizes, packed)[3]
        assert not finding.passed
        assert kernels[0].slot in finding.found
    assert "Not checked" in kernel_findings(kernels, sizes, None)[3].found


def test_a_model_with_a_format_that_no_kernel_reads_is_caught_whole(pair, tmp_path):
    """It runs, dequantized to fp16, and says so; that is not a q2_0 model."""
    result = KernelAxis().run(arms_of(pair[0], unread(pair[1], tmp_path / "fallback")), nothing)
    assert set(failed(result)) == {"kernels/float"}
    assert "layers.1.q.weight is stored in q2_0" in failed(result)["kernels/float"]
    assert "dequantized to f16" in failed(result)["kernels/float"]
    assert judge((result,), find_gate(None))[1].outcome is Outcome.REJECT


def test_without_the_axis_what_is_not_run_as_stored_is_said_all_the_same(pair, tmp_path):
    axis = text_alone(letters(documents=2, characters=40), windows=2, window_tokens=32)
    settings = EvaluationSettings(threads=1, floor=False)
    found = evaluate(pair[0], unread(pair[1], tmp_path / "fallback"), [axis], settings)
    (note,) = [note for note in found.notes if note.startswith("Not run as stored")]
    assert "in the candidate: q2_0" in note and "dequantized to f16" in note
