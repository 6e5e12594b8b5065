"""What fewbit writes it reads back, and an artefact that is not whole is refused."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors
from hostile.safetensors_files import safetensors as raw_safetensors

from fewbit.checkpoint import open_checkpoint
from fewbit.checkpoint.artefact import ArtefactCheckpoint, encoded_info, write_artefact
from fewbit.checkpoint.checkpoint import HuggingFaceFacts, TensorInfo
from fewbit.errors import FaultError, FewbitError, MissingError, OutputError
from fewbit.formats.registry import encode, parse_format
from fewbit.formats.spec import QuantTensor
from fewbit.records.kernels import Activations

FORMATS = (
    "int4-g32",
    "int3-g64-asym",
    "int8-row",
    "int2-channel",
    "int5-tensor-asym-f32",
    "int6-g32-f32",
    "fp8_e4m3-row",
    "fp8_e4m3-tensor",
    "q4_0",
    "q8_0",
    "mxfp4",
    "f32",
    "f16",
    "bf16",
)


def tensors() -> dict[str, QuantTensor]:
    random = np.random.default_rng(1)
    values = random.standard_normal((5, 64)).astype(np.float32)
    encoded = {f"{name}.weight": encode(values, parse_format(name)) for name in FORMATS}
    return {**encoded, "norm.weight": encode(values[:1], parse_format("f32"))}


def write(
    folder: Path,
    read: Callable[[str], QuantTensor] | None = None,
    manifest: Callable[[], bytes] = lambda: b"{}",
) -> dict[str, QuantTensor]:
    stored = tensors()
    write_artefact(
        folder,
        config={"model_type": "llama"},
        sidecars={"tokenizer.json": b"{}"},
        tensors=[
            encoded_info(name, tensor.spec, (64,) if "norm" in name else tensor.shape)
            for name, tensor in stored.items()
        ],
        read=read or stored.__getitem__,
        manifest=manifest,
    )
    return stored


def test_every_format_survives(tmp_path: Path) -> None:
    stored = write(tmp_path / "out")
    with open_checkpoint(tmp_path / "out") as checkpoint:
        assert set(checkpoint.tensors) == set(stored)
        for name, expected in stored.items():
            read = checkpoint.read(name)
            assert (read.spec, read.shape) == (expected.spec, expected.shape)
            assert checkpoint.tensors[name].nbytes == expected.nbytes
            parts = [("codes", np.uint8), ("scales", None), ("zeros", np.uint8)]
            digest = hashlib.sha256()
            for part, _ in parts:
                ours, theirs = getattr(read, part), getattr(expected, part)
                assert (ours is None) == (theirs is None)
                if ours is not None:
                    digest.update(ours.tobytes())
                    assert ours.tobytes() == theirs.tobytes()
                    assert not ours.flags.writeable
                    assert ours.flags.aligned
                    if part != "codes":
                        assert (ours.dtype, ours.shape) == (theirs.dtype, theirs.shape)
            assert checkpoint.digest(name) == digest.hexdigest()
            checkpoint.release(name)
        assert checkpoint.tensors["norm.weight"].shape == (64,)


def test_the_folder_is_in_the_hugging_face_layout(tmp_path: Path) -> None:
    write(tmp_path / "out")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"config.json", "tokenizer.json", "model.safetensors", "manifest.json"}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config == {
        "model_type": "llama",
        "quantization_config": {"quant_method": "fewbit", "format_version": 1},
    }
    with safetensors.safe_open(tmp_path / "out" / "model.safetensors", "numpy") as file:
        assert "int3-g64-asym.weight.zeros" in file.keys()  # noqa: SIM118
        described = json.loads(file.metadata()["int3-g64-asym.weight"])
    assert described == {"format": "int3-g64-asym", "shape": [5, 64]}


def test_the_same_input_gives_the_same_bytes(tmp_path: Path) -> None:
    write(tmp_path / "one")
    write(tmp_path / "two")
    for path in (tmp_path / "one").iterdir():
        assert path.read_bytes() == (tmp_path / "two" / path.name).read_bytes()


def test_the_manifest_is_asked_for_after_the_last_tensor(tmp_path: Path) -> None:
    seen: list[str] = []
    stored = tensors()

    def read(name: str) -> QuantTensor:
        seen.append(name)
        return stored[name]

    def manifest() -> bytes:
        return json.dumps(seen).encode()

    write(tmp_path / "out", read, manifest)
    assert json.loads((tmp_path / "out" / "manifest.json").read_bytes()) == list(stored)


def test_an_error_leaves_nothing(tmp_path: Path) -> None:
    def fail(name: str) -> QuantTensor:
        raise KeyError(name)

    with pytest.raises(KeyError):
        write(tmp_path / "out", fail)
    assert not list(tmp_path.iterdir())


def test_a_folder_with_content_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    write(tmp_path / "out")
    with pytest.raises(OutputError, match=r"out exists already; remove it"):
        write(tmp_path / "out")
    with pytest.raises(OutputError, match="cannot be written"):
        write(tmp_path / "absent" / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["out"]


@pytest.mark.parametrize("name", ["model.safetensors", "manifest.json"])
def test_an_artefact_that_lacks_a_file_is_refused(name: str, tmp_path: Path) -> None:
    write(tmp_path / "out")
    (tmp_path / "out" / name).unlink()
    with pytest.raises(MissingError, match=f"lacks {name}"):
        open_checkpoint(tmp_path / "out")


def test_a_later_version_is_refused(tmp_path: Path) -> None:
    write(tmp_path / "out")
    config = tmp_path / "out" / "config.json"
    config.write_text(config.read_text().replace('"format_version": 1', '"format_version": 2'))
    with pytest.raises(FewbitError, match="format version 2"):
        open_checkpoint(tmp_path / "out")


def raw_artefact(folder: Path, description: object, codes: tuple[str, list[int], int]) -> None:
    """Write an artefact of one tensor `w`, described and stored as given."""
    dtype, shape, nbytes = codes
    text = description if isinstance(description, str) else json.dumps(description)
    header = {
        "__metadata__": {"w": text},
        "w.codes": {"dtype": dtype, "shape": shape, "data_offsets": [0, nbytes]},
    }
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(raw_safetensors(header, bytes(nbytes)))
    (folder / "manifest.json").write_bytes(b"{}")
    marks = {"quant_method": "fewbit", "format_version": 1}
    (folder / "config.json").write_text(json.dumps({"quantization_config": marks}))


Q4_0 = {"format": "q4_0", "shape": [2, 32]}
STATIC = {**Q4_0, "activations": "int8-static", "input_scale": 0.5}
CODES = ("U8", [2, 18], 36)


@pytest.mark.parametrize(
    ("description", "codes", "says"),
    [
        ("{", CODES, "description of 'w' is not sound JSON"),
        ("[]", CODES, "holds a list"),
        ({"format": "q4_0"}, CODES, "'w' is not described by exactly"),
        ({**Q4_0, "code": 1}, CODES, "'w' is not described by exactly"),
        ({**Q4_0, "format": 4}, CODES, "'w' is not described by exactly"),
        ({**Q4_0, "format": "q99"}, CODES, "'w' has a format that cannot be .*q99"),
        ({**Q4_0, "format": "int9-g32"}, CODES, "'w' has a format that cannot be .*9"),
        ({**Q4_0, "format": "int4-g32"}, CODES, "'w.codes' is u8 .2, 18. where"),
        ({**Q4_0, "shape": [2, 33]}, CODES, "'w' has a format that cannot be"),
        ({**Q4_0, "shape": []}, CODES, "'w' has the shape"),
        ({**Q4_0, "shape": [-2, -32]}, CODES, "'w' has the shape"),
        ({**Q4_0, "shape": [2, 32.0]}, CODES, "'w' has the shape"),
        ({**Q4_0, "shape": [1 << 47, 1 << 47]}, CODES, "'w.codes' is u8"),
        ({**Q4_0, "activations": "int8-static"}, CODES, "'w' has the input scale 'None'"),
        ({**STATIC, "input_scale": "1"}, CODES, "'w' has the input scale '1', not a float32"),
        ({**STATIC, "input_scale": True}, CODES, "'w' has the input scale"),
        ({**STATIC, "input_scale": -0.5}, CODES, "'w' has the input scale"),
        ({**STATIC, "input_scale": 1e39}, CODES, "'w' has the input scale"),
        ({**Q4_0, "input_scale": 0.5}, CODES, "'w' has an input scale, but activations int8"),
        (Q4_0, ("U8", [36], 36), "'w.codes' is u8"),
        (Q4_0, ("I8", [2, 18], 36), "'w.codes' is i8"),
    ],
)
def test_parts_that_do_not_fit_are_refused(
    description: object, codes: tuple[str, list[int], int], says: str, tmp_path: Path
) -> None:
    raw_artefact(tmp_path / "out", description, codes)
    with pytest.raises(FewbitError, match=says):
        ArtefactCheckpoint(tmp_path / "out")


def test_a_part_without_a_description_is_refused(tmp_path: Path) -> None:
    raw_artefact(tmp_path / "out", Q4_0, CODES)
    path = tmp_path / "out" / "model.safetensors"
    path.write_bytes(path.read_bytes().replace(b"w.codes", b"x.codes"))
    with pytest.raises(FewbitError, match=r"'w.codes' is missing"):
        ArtefactCheckpoint(tmp_path / "out")
    header = {"x.codes": {"dtype": "U8", "shape": [1], "data_offsets": [0, 1]}}
    path.write_bytes(raw_safetensors(header, b"x"))
    with pytest.raises(FewbitError, match=r"'x.codes' is in u8 without a format"):
        ArtefactCheckpoint(tmp_path / "out")


def test_the_scale_of_static_activations_survives(tmp_path: Path) -> None:
    tensor = tensors()["q4_0.weight"]
    scale = float(np.float32(0.1))
    info = replace(encoded_info("w", tensor.spec, tensor.shape), activations=Activations.STATIC)

    def write_one(folder: Path, info: TensorInfo) -> None:
        write_artefact(
            folder,
            config={},
            sidecars={},
            tensors=[info],
            read=lambda _: tensor,
            manifest=lambda: b"{}",
        )

    write_one(tmp_path / "out", replace(info, input_scale=scale))
    with ArtefactCheckpoint(tmp_path / "out") as checkpoint:
        found = checkpoint.tensors["w"]
        assert (found.activations, found.input_scale) == (Activations.STATIC, scale)
    with pytest.raises(FaultError, match="'w' has static activations, but no scale"):
        write_one(tmp_path / "without", info)


def test_a_sound_one_of_these_is_read(tmp_path: Path) -> None:
    raw_artefact(tmp_path / "out", Q4_0, CODES)
    with ArtefactCheckpoint(tmp_path / "out") as checkpoint:
        assert isinstance(checkpoint.facts, HuggingFaceFacts)
        assert checkpoint.read("w").shape == (2, 32)
