"""Formats that can be stored and not run are refused in the plan."""

import pytest
from quantize_cases import HEAD_8, LINEAR_4, folder, recipe

from fewbit.cli.app import run
from fewbit.errors import UnsupportedError
from fewbit.model.weights import open_model
from fewbit.quantization import plan
from fewbit.quantization.runnable import require_runnable
from fewbit.recipes import built_in
from fewbit.records.recipe import Rule


@pytest.mark.parametrize(
    ("form", "why"),
    [
        ("int4-channel", "a scale per input channel"),
        ("int4-g48", "groups of 48 inputs are not a multiple"),
        ("int4-g32-f32", "scales are f32"),
    ],
)
def test_what_no_kernel_runs_is_refused(tmp_path, form, why):
    odd = Rule(match="layers.1.down.weight", format=form)
    planned = plan(open_model(folder(tmp_path)), recipe(odd, LINEAR_4, HEAD_8))
    with pytest.raises(UnsupportedError, match=rf"1 matrix in .*down_proj.*{form}.*{why}"):
        require_runnable(planned)


def test_the_command_refuses_it(tmp_path, capsys):
    path = tmp_path / "odd.toml"
    rule = '[[rules]]\nrole = "linear"\nformat = "int4-channel"\n'
    path.write_text(f'name = "odd"\nmethod = "rtn"\n{rule}')
    arguments = ["--recipe", str(path), "--out", str(tmp_path / "out")]
    assert run(["quantize", str(folder(tmp_path)), *arguments]) == 2
    assert "can be stored but not run" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    "name", ["rtn-int4-g32", "rtn-q4_k", "rtn-w8a8", "rtn-fp8", "mse-int3-row"]
)
def test_built_in_recipes_run(tmp_path, name):
    require_runnable(plan(open_model(folder(tmp_path)), built_in(name)))
