"""What a plan says it will take; lines of shared/cases/quantize.md are named by their number."""

import json
import shutil
import time
from collections import namedtuple
from dataclasses import replace

import numpy as np
import pytest
from msgspec import structs
from quantize_cases import folder
from tiny_models import CONFIGS, random_weights, write_gguf

from fewbit.calibrate.calibration import calibration_set
from fewbit.cli.app import run
from fewbit.errors import OutputError
from fewbit.formats.registry import parse_format
from fewbit.methods.solvers import METHODS
from fewbit.model.weights import open_model
from fewbit.quantization import Container, QuantizeSettings, execute, plan
from fewbit.quantization.estimate import (
    Workload,
    _passes,
    disk_needs,
    memory_needs,
    require_disk,
    time_needs,
)
from fewbit.quantization.job import work_folder
from fewbit.quantization.planned_source import planned_source
from fewbit.quantization.rates import Rates, _least_seconds, timed_rates
from fewbit.recipes import built_in
from fewbit.records.base import from_json
from fewbit.records.kv import KvForm
from fewbit.records.plan import PlanReport
from fewbit.report.plan import duration
from fewbit.runtime.native import NativeExecutor

TEXT = Workload(rows=2048, samples=1024)


@pytest.fixture
def llama(tmp_path):
    return open_model(folder(tmp_path))


@pytest.fixture
def file(tmp_path):
    config = CONFIGS["llama"]
    return write_gguf(tmp_path / "in.gguf", config, random_weights(config))


def printed(capsys, *arguments) -> str:
    assert run(["quantize", *map(str, arguments), "--plan"]) == 0
    return " ".join(capsys.readouterr().out.split())


def test_case_3_a_plan_promises_what_is_written_and_writes_nothing(file, tmp_path, capsys):
    json_path = tmp_path / "plan.json"
    said = printed(capsys, file, "--recipe", "rtn-q4_0", "--json", json_path)
    report = from_json(PlanReport, json_path.read_bytes(), name="plan")
    assert "Tensors:" in said and "Memory: about" in said and "Time: about" in said
    assert sorted(p.name for p in tmp_path.iterdir()) == ["in.gguf", "plan.json"]
    with open_model(file) as source:
        manifest = execute(plan(source, built_in("rtn-q4_0")), tmp_path / "out")
    assert report.promised_bytes == manifest.tensor_bytes
    assert [(t.source, t.format) for t in report.tensors] == [
        (e.source, e.format) for e in manifest.tensors
    ]


def test_case_14_what_does_not_divide_is_refused_in_the_plan(file, capsys, tmp_path):
    recipe = tmp_path / "r.toml"
    recipe.write_text(
        'name = "r"\nmethod = "rtn"\n[[rules]]\nrole = "linear"\nformat = "int4-g64"\n'
    )
    assert run(["quantize", str(file), "--recipe", str(recipe), "--plan"]) == 2
    assert "with 96 columns (int4-g64)" in capsys.readouterr().err


def test_case_24_hidden_states_and_statistics_are_in_the_plan(llama):
    by_name = {a.what: a.bytes for a in memory_needs(plan(llama, built_in("gptq-int4-g32")), TEXT)}
    # Kept before the MLP's down layer: the residual stream and its input; twice, old and new.
    assert by_name["hidden states of the calibration text"] >= 2 * 4 * 2048 * (64 + 64)
    assert by_name["statistics of a layer's input"] == 4 * 4 * 96**2
    alone = memory_needs(plan(llama, built_in("rtn-int4-g32")), Workload())
    assert {a.what for a in alone} == {"runtime", "a matrix being solved"}


def test_scales_of_keys_and_values_are_measured_on_the_whole_model(tmp_path, monkeypatch):
    config, ran = {**CONFIGS["llama"], "num_hidden_layers": 24}, []

    class Executor(NativeExecutor):
        def __init__(self, binding, **options):
            super().__init__(binding, **options)
            ran.append((sum(k.bytes for k in binding.kernels.values()), self.store_bytes))

    monkeypatch.setattr("fewbit.quantization.kv_scales.NativeExecutor", Executor)
    recipe = structs.replace(built_in("rtn-int8-g32"), kv=KvForm.INT8)
    windows = [np.arange(300, dtype=np.int32) % 256]
    text = QuantizeSettings(calibration=calibration_set(windows, (), window_tokens=300))
    with open_model(write_gguf(tmp_path / "m.gguf", config, random_weights(config))) as source:
        planned = plan(source, recipe)
        found = memory_needs(planned, Workload(rows=300, window=300))
        execute(planned, tmp_path / "out", text)
    needs, ((packed, store),) = {amount.what: amount.bytes for amount in found}, ran
    assert needs["keys and values of a window"] == store
    assert 0.9 * packed < needs["the quantized model"]


def test_memory_does_not_follow_the_number_of_layers(tmp_path):
    totals = []
    for layers in (2, 12):
        config = {**CONFIGS["llama"], "num_hidden_layers": layers}
        path = write_gguf(tmp_path / f"{layers}.gguf", config, random_weights(config))
        with open_model(path) as source:
            needs = memory_needs(plan(source, built_in("gptq-int4-g32")), TEXT)
            totals.append(sum(a.bytes for a in needs))
    assert totals[0] == totals[1]


def test_work_that_is_kept_takes_disk_beside_the_artefact(llama):
    planned = plan(llama, built_in("gptq-int4-g32"))
    artefact, kept = disk_needs(planned, TEXT)
    assert artefact.bytes == planned.promised_bytes
    assert 0 < kept.bytes < planned.promised_bytes
    assert len(disk_needs(plan(llama, built_in("rtn-int4-g32")), Workload())) == 1


def test_a_disk_without_room_is_said_before_anything_is_done(llama, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    planned = plan(llama, built_in("gptq-int4-g32"))
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, planned.promised_bytes))
    with pytest.raises(OutputError, match=r"and the disk has .* left; make room"):
        require_disk(planned, TEXT, tmp_path / "out")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, 1 << 40))
    require_disk(planned, TEXT, tmp_path / "out")


def test_what_earlier_work_takes_is_not_asked_for_again(llama, tmp_path, monkeypatch):
    usage = namedtuple("usage", "total used free")
    planned = plan(llama, built_in("gptq-int4-g32"))
    artefact, kept = disk_needs(planned, TEXT)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(0, 0, artefact.bytes))
    with pytest.raises(OutputError, match="make room"):
        require_disk(planned, TEXT, tmp_path / "out")
    (work_folder(tmp_path / "out") / "tune").mkdir(parents=True)
    (work_folder(tmp_path / "out") / "tune" / "0.safetensors").write_bytes(bytes(kept.bytes))
    require_disk(planned, TEXT, tmp_path / "out")


def test_time_grows_with_text_and_with_what_a_method_does(llama):
    def seconds(name, work):
        planned = plan(llama, built_in(name))
        return sum(d.seconds for d in time_needs(planned, work, Rates(4e11, 5e9)))

    assert seconds("rtn-int4-g32", Workload()) < seconds("hqq-int4-g32", Workload())
    assert seconds("gptq-int4-g32", TEXT) < seconds("gptq-refined-int4-g32", TEXT)
    assert seconds("gptq-int4-g32", TEXT) < seconds("gptq-int4-g32", Workload(rows=8192))
    assert seconds("rtn-w8a8", TEXT) < seconds("smoothquant-w8a8", TEXT)
    one, two = (Workload(rows=8192, threads=n) for n in (1, 2))
    halves = seconds("gptq-int4-g32", one) / seconds("gptq-int4-g32", two)
    assert 1 < halves < 2  # a part of solving is one core's
    assert [duration(s) for s in (0.1, 40, 720, 12600)] == ["1 s", "40 s", "12 min", "3.5 h"]


@pytest.mark.parametrize(
    ("slower", "faster", "method"),
    [
        ("int4-g32-asym", "int4-g32", "gptq"),  # zero points are fitted by NumPy
        ("q4_k", "q4_0", "rtn"),  # two levels of scales are always searched
        ("int4-g32", "q4_0", "mse"),
    ],
)
def test_a_weight_takes_as_long_as_the_search_for_its_scales(llama, slower, faster, method):
    tensor = next(t for t in plan(llama, built_in("rtn-int4-g32")).tensors if t.slot)
    took = [
        _passes(replace(tensor, format=parse_format(form), method=method))
        for form in (slower, faster)
    ]
    assert took[0] > 2 * took[1]


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("form", ["int8-row", "int3-g32-asym", "bf16", "fp8_e4m3-row", "iq4_xs"])
def test_every_method_and_format_has_its_time(llama, method, form):
    tensor = plan(llama, built_in("rtn-int4-g32")).tensors[0]
    assert _passes(replace(tensor, format=parse_format(form), method=method)) > 0


def test_the_plan_of_a_machine_that_is_twice_as_fast_says_half(llama):
    planned = plan(llama, built_in("awq-int4-g32"))
    slow, fast = (time_needs(planned, TEXT, Rates(n * 1e11, n * 1e9)) for n in (1, 2))
    assert [part.what for part in slow] == [part.what for part in fast]
    assert [a.seconds for a in slow] == pytest.approx([2 * b.seconds for b in fast])


def test_rates_are_of_work_not_of_the_clock():
    """A thread that waits takes no time of its own; what it does takes some."""
    assert _least_seconds(lambda: time.sleep(0.2)) < 0.1
    rates = timed_rates()
    assert rates.products > 0 and rates.passes > 0


def test_the_planned_source_is_described_as_the_artefact_will_be(llama, tmp_path):
    planned = plan(llama, built_in("smoothquant-w8a8"))
    outline = planned_source(planned)
    assert outline.info("layers.0.q.weight").format.name == "int8-row"
    assert outline.activations("layers.0.q.weight").value == "int8-token"
    assert outline.info("layers.0.q.weight").nbytes == 64 * (64 + 2)


@pytest.mark.parametrize(
    ("recipe", "out", "target", "said"),
    [
        ("rtn-q4_0", "x.gguf", "llama.cpp", "llama.cpp would take it"),
        ("rtn-int4-g32", "x", "fewbit", "fewbit would take it"),
        ("rtn-int4-g32", "x", "llama.cpp", "reads it after fewbit export --to gguf, with"),
        ("rtn-int4-g32-wo", "x", "vllm", "int6-g32 become bf16"),
    ],
)
def test_a_plan_says_what_the_target_would_refuse(file, capsys, recipe, out, target, said):  # noqa: PLR0917
    assert said in printed(capsys, file, "--recipe", recipe, "--out", out, "--target", target)


def test_what_the_target_would_refuse_is_refused_before_the_work(file, tmp_path, capsys):
    out = tmp_path / "out"
    arguments = ["quantize", str(file), "--recipe", "rtn-int3-g32", "--out", str(out)]
    assert run([*arguments, "--target", "vllm"]) == 2
    assert "vllm would not take this model as it is" in capsys.readouterr().err
    assert not out.exists()


def test_case_21_mixed_formats_inside_a_fusion_are_named_for_vllm(file, tmp_path, capsys):
    recipe = tmp_path / "r.toml"
    rules = [("layers.*.q.weight", "int8-g32"), ("layers.*", "int4-g32")]
    body = "".join(f'[[rules]]\nmatch = "{m}"\nformat = "{f}"\n' for m, f in rules)
    recipe.write_text(f'name = "r"\nmethod = "rtn"\n{body}')
    said = printed(capsys, file, "--recipe", recipe, "--target", "vllm", "--json", "-")
    assert any("q" in r and "v" in r for r in json.loads(said)["refusals"])


def test_plans_need_formats_and_jobs_an_output(file, capsys):
    options = ["--target-bpw", "5", "--plan"]
    assert run(["quantize", str(file), "--recipe", "rtn", *options]) == 2
    assert "formats for a target size are chosen by measuring" in capsys.readouterr().err
    assert run(["quantize", str(file), "--recipe", "rtn-q4_0"]) == 2
    assert "--out is missing" in capsys.readouterr().err


def test_a_container_is_chosen_by_the_output(llama):
    assert plan(llama, built_in("rtn-int4-g32")).container is Container.FEWBIT
