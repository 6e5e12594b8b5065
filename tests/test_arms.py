"""Arms: what decides their outcomes."""

from tiny_arms import SETTINGS, party
from tiny_subjects import sharp_weights, write_subject

from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.recipes import find


def test_equal_bytes_that_are_run_otherwise_have_outcomes_of_their_own(tmp_path):
    """The two differ in how inputs are rounded, which stands beside the tensors' bytes."""
    source = write_subject(tmp_path / "source", weights=sharp_weights())
    for name in ("rtn-int4-g64", "rtn-int4-g64-wo"):
        with open_model(source) as model:
            quantize(model, find(name), tmp_path / name)
    one, other = (party(tmp_path / n, SETTINGS) for n in ("rtn-int4-g64", "rtn-int4-g64-wo"))
    assert one.fingerprint != other.fingerprint
    assert one.fingerprint == party(tmp_path / "rtn-int4-g64", SETTINGS).fingerprint
