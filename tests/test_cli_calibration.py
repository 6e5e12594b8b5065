"""Options of calibration that a recipe has no use for."""

import pytest
from quantize_cases import folder

from fewbit.cli.app import run


@pytest.mark.parametrize(
    ("recipe", "option", "message"),
    [
        ("rtn-int4-g32", "--calibration", "'rtn-int4-g32' looks at no text"),
        ("hqq-q4_0", "--calibration", "'hqq-q4_0' looks at no text"),
        ("mse-int4-g32", "--imatrix", "'mse-int4-g32' weighs no inputs"),
    ],
)
def test_what_would_do_nothing_is_refused(tmp_path, capsys, recipe, option, message):
    arguments = [
        "--recipe",
        recipe,
        option,
        str(tmp_path / "absent"),
        "--out",
        str(tmp_path / "out"),
    ]
    assert run(["quantize", str(folder(tmp_path)), *arguments]) == 2
    assert message in " ".join(capsys.readouterr().err.split())
    assert not (tmp_path / "out").exists()
