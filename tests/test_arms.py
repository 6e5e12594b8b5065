"""Arms: what decides their outcomes."""

from tiny_arms import SETTINGS, arms_of, party
from tiny_subjects import sharp_weights, write_subject

from fewbit.evaluate.arms import Role
from fewbit.model.weights import open_model
from fewbit.quantization import quantize
from fewbit.recipes import find
from fewbit.records.answers import Likelihood


def test_equal_bytes_that_are_run_otherwise_have_outcomes_of_their_own(tmp_path):
    """The two differ in how inputs are rounded, which stands beside the tensors' bytes."""
    source = write_subject(tmp_path / "source", weights=sharp_weights())
    for name in ("rtn-int4-g64", "rtn-int4-g64-wo"):
        with open_model(source) as model:
            quantize(model, find(name), tmp_path / name)
    one, other = (party(tmp_path / n, SETTINGS) for n in ("rtn-int4-g64", "rtn-int4-g64-wo"))
    assert one.fingerprint != other.fingerprint
    assert one.fingerprint == party(tmp_path / "rtn-int4-g64", SETTINGS).fingerprint


def test_what_another_build_kept_is_not_found(tmp_path, monkeypatch):
    """Both are of one version, as an installation is that was changed in its place."""
    source = write_subject(tmp_path / "source")
    found = Likelihood(logprob=-1.0, tokens=1, greedy=False)
    arms_of(source, source, tmp_path / "work").kept(Role.SOURCE, "axis").add("one", found)

    def kept():
        return arms_of(source, source, tmp_path / "work").kept(Role.SOURCE, "axis").names()

    assert kept() == {"one"}
    monkeypatch.setattr("fewbit.evaluate.arms.program_digest", lambda: "rebuilt")
    assert kept() == set()
    monkeypatch.undo()
    assert kept() == {"one"}
