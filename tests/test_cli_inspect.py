import json

import numpy as np
import pytest
from rich.console import Console
from tiny_models import CONFIGS, random_weights, write_huggingface

from fewbit.cli import app
from fewbit.records.base import from_json, to_json
from fewbit.records.kernels import KernelPlan, KernelRecord
from fewbit.records.model import Inspection
from fewbit.report.inspection import print_inspection
from fewbit.report.kernels import place_of, ranges
from fewbit.runtime import chooser


@pytest.fixture
def folder(tmp_path):
    return write_huggingface(tmp_path / "tiny", CONFIGS["qwen2"], random_weights(CONFIGS["qwen2"]))


def test_the_table_is_on_stdout(folder, capsys):
    assert app.run(["inspect", str(folder)]) == 0
    out = capsys.readouterr().out
    assert "qwen2" in out
    assert "32.00 bits per weight" in out
    assert "no_chat_template" in out


def test_json_on_stdout_is_the_record_alone(folder, capsys):
    assert app.run(["inspect", str(folder), "--json", "-"]) == 0
    inspection = from_json(Inspection, capsys.readouterr().out.encode(), name="stdout")
    assert inspection.facts.architecture == "qwen2"


def test_json_in_a_file_beside_the_table(folder, tmp_path, capsys):
    target = tmp_path / "facts.json"
    assert app.run(["inspect", str(folder), "--json", str(target)]) == 0
    assert json.loads(target.read_text())["tied"] is True
    assert "parameters" in capsys.readouterr().out


def test_a_mixture_says_its_experts_and_its_kernels_share_a_line(tmp_path, capsys):
    config = CONFIGS["qwen3-moe-sparse"]  # of 4 layers one has experts
    folder = write_huggingface(tmp_path / "moe", config, random_weights(config))
    assert app.run(["inspect", str(folder)]) == 0
    assert "3 of 8 experts of 32 in 1 of 4 layers, MLP 96" in " ".join(
        capsys.readouterr().out.split()
    )
    assert app.run(["inspect", str(folder), "--kernels"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines() if "experts." in line]
    assert [line[:3] for line in lines] == [
        ["experts.gate", "1", "8"],
        ["experts.up", "1", "8"],
        ["experts.down", "1", "8"],
    ]


def test_bad_input_is_one_line_and_2(folder, capsys):
    config = json.loads((folder / "config.json").read_text())
    for change in ({"architectures": ["X"]}, {"hidden_size": -1}, {"num_hidden_layers": 4}):
        (folder / "config.json").write_text(json.dumps(config | change))
        assert app.run(["inspect", str(folder)]) == 2
        captured = capsys.readouterr()
        assert captured.out == ""
        assert captured.err.count("\n") == 1


def test_kernels_of_one_kind_share_a_line_and_notes_are_shown(folder, capsys):
    assert app.run(["inspect", str(folder), "--json", "-"]) == 0
    inspection = from_json(Inspection, capsys.readouterr().out.encode(), name="stdout")
    kernels = [
        KernelRecord(
            slot=f"{i}",
            format="int3-g32",
            kernel="w4.sym.g32/a8.g32/avx2",
            activations="int8-g32",
            bytes=500_000,
            note=note,
        )
        for i, note in enumerate(("widened to 4 bits", "widened to 4 bits", ""))
    ]
    fields = {name: getattr(inspection, name) for name in Inspection.__struct_fields__}
    record = Inspection(**{**fields, "kernels": tuple(kernels)})
    console = Console(width=200, no_color=True)
    with console.capture() as captured:
        print_inspection(record, console)
    lines = [line for line in captured.get().splitlines() if line.startswith("w4.sym")]
    assert len(lines) == 2
    assert lines[0].split()[1:4] == ["2", "1.0", "MB"]
    assert "widened to 4 bits" in lines[0]
    assert from_json(Inspection, to_json(record), name="again") == record


def test_unused_parameters_are_counted_as_stored(tmp_path, capsys):
    weights = random_weights(CONFIGS["llama"]) | {"mtp.weight": np.zeros((3, 5), np.float32)}
    folder = write_huggingface(tmp_path / "m", CONFIGS["llama"], weights)
    assert app.run(["inspect", str(folder), "--json", "-"]) == 0
    facts = json.loads(capsys.readouterr().out)["facts"]
    assert facts["parameters"] == sum(w.size for w in weights.values())


@pytest.fixture
def small(folder, tmp_path):
    """A quantized model: layers in int4-g32, tables in int6-g32."""
    out = tmp_path / "small"
    assert app.run(["quantize", str(folder), "--recipe", "rtn-int4-g32", "--out", str(out)]) == 0
    return out


def lines_of(text):
    """The table's rows by their first word."""
    return {line.split()[0]: line.split() for line in text.splitlines() if line.strip()}


def test_kernels_of_equal_layers_share_a_line_with_a_count(small, capsys):
    capsys.readouterr()
    assert app.run(["inspect", str(small), "--kernels", "--isa", "portable"]) == 0
    rows = lines_of(capsys.readouterr().out)
    layers = CONFIGS["qwen2"]["num_hidden_layers"]
    for matrix in ("q", "k", "v", "o", "gate", "up", "down"):
        where, count, form, kernel = rows[matrix][1:5]
        assert (where, count, form) == (f"0-{layers - 1}", str(layers), "int4-g32")
        assert kernel == "w4.sym.g32/a8.g32/portable"
    assert rows["embed"][1:4] == ["1", "int6-g32", "w6.sym.g32/a8.g32/portable"]
    total = int(rows["all"][1])
    assert total == 7 * layers + 1
    assert rows["*/a8.g32/avx2"][1:] == [str(total), "portable", "was", "asked", "for"]


def test_kernels_in_json_are_all_there_with_every_reason(small, capsys):
    capsys.readouterr()
    assert app.run(["inspect", str(small), "--kernels", "--json", "-"]) == 0
    plan = from_json(KernelPlan, capsys.readouterr().out.encode(), name="stdout")
    assert plan.model == "small"
    assert plan.isa == chooser.available_isas()[0]
    assert len({kernel.slot for kernel in plan.kernels}) == len(plan.kernels)
    for kernel in plan.kernels:
        assert kernel.bytes > 0
        weights = kernel.kernel.partition("/")[0]
        assert {r.kernel.rpartition("/")[2] for r in kernel.rejected} >= {"portable"}
        assert all(r.reason and r.kernel.startswith(weights) for r in kernel.rejected)


def test_a_forced_kernel_that_is_missing_is_one_line_with_every_reason(small, capsys, monkeypatch):
    monkeypatch.setattr(chooser, "available_isas", lambda: ["portable"])
    capsys.readouterr()
    asked = "w4.sym.g32/a8.g32/avx2"
    assert app.run(["inspect", str(small), "--kernels", "--kernel", asked]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    for lacking in (
        "AMX tiles",
        "AVX-512 F, BW, VL, DQ and VNNI",
        "AVX2, FMA and F16C",
    ):
        assert f"this CPU lacks {lacking}" in captured.err
    assert f"w4.sym.g32/a8.g32/portable: {asked} was asked for" in captured.err


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--isa", "avx2"], "give --kernels with them"),
        (["--kernels", "--isa", "mmx"], "No instruction set 'mmx'"),
        (["--kernels", "--kernel", "w4"], "'w4' is no kernel"),
        (["--kernels", "--kernel", "w9.sym.g32/a8.g32/portable"], "no matrix of the model has"),
    ],
)
def test_what_cannot_be_forced_is_refused(folder, capsys, options, words):
    assert app.run(["inspect", str(folder), *options]) == 2
    captured = capsys.readouterr()
    assert words in captured.err
    assert captured.out == ""


def test_layers_are_told_in_ranges():
    assert ranges([]) == ""
    assert ranges([0, 1, 2, 5, 7, 8]) == "0-2, 5, 7-8"
    assert place_of("layers.12.q.weight") == ("q", 12)
    assert place_of("layers.3.experts.15.gate.weight") == ("experts.gate", 3)
    assert place_of("head.weight") == ("head", None)
