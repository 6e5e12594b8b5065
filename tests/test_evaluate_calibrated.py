import pytest
from msgspec.structs import replace
from test_quantize_calibrated import SETTINGS, folder, linear

from fewbit.calibrate.text import read_text
from fewbit.errors import UsageError
from fewbit.evaluate.calibrated import refuse_calibrated
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.records.calibration import CalibrationText

STORY = " ".join(f"word{i} of a story that goes on" for i in range(400))
OTHER = " ".join(f"term{i} in a text of another kind" for i in range(400))


def manifest_of(tmp_path, name: str):
    manifest = quantize(open_model(folder(tmp_path)), linear("rtn"), tmp_path / "out")
    text = CalibrationText(name=name, sha256="0", windows=1)
    facts = replace(SETTINGS.calibration.facts, texts=(text,))
    return replace(manifest, calibration=facts)


def test_a_text_that_was_calibrated_on_is_refused_and_another_is_not(tmp_path):
    path, other = tmp_path / "story.txt", tmp_path / "other.txt"
    path.write_text(STORY)
    other.write_text(OTHER)
    manifest = manifest_of(tmp_path, str(path))
    with pytest.raises(UsageError, match="evaluation documents are in the calibration text"):
        refuse_calibrated(read_text(path), manifest)
    refuse_calibrated(read_text(other), manifest)
    refuse_calibrated(read_text(path), None)
    path.unlink()
    refuse_calibrated(read_text(other), manifest)
