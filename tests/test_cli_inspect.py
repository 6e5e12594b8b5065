import json

import numpy as np
import pytest
from rich.console import Console
from tiny_models import CONFIGS, random_weights, write_huggingface

from fewbit.cli import app
from fewbit.records.base import from_json, to_json
from fewbit.records.kernels import KernelRecord
from fewbit.records.model import Inspection
from fewbit.report.inspection import print_inspection


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
