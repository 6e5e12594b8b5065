"""GGUF types that are only decoded: the gguf package, or a slow decoder, says the values."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny_models import CONFIGS, random_weights, write_gguf

from fewbit.checkpoint.checkpoint import GgufFacts
from fewbit.checkpoint.gguf_read import GgufCheckpoint
from fewbit.checkpoint.gguf_write import write_gguf as write
from fewbit.errors import KernelError, UnsupportedError
from fewbit.export.job import export
from fewbit.export.plan import plan_export
from fewbit.export.target import ExportSettings
from fewbit.export.targets import find_target
from fewbit.formats.lattices import points
from fewbit.formats.registry import BLOCK_FORMATS, decode, encode
from fewbit.formats.spec import QuantTensor
from fewbit.model.runner import RunSettings, runner_of
from fewbit.model.weights import open_model
from fewbit.runtime.pack import PackedForm, pack, packed_form

PACKAGE = (
    *("iq1_s", "iq1_m", "iq2_xxs", "iq2_xs", "iq2_s", "iq3_xxs", "iq3_s"),
    *("tq1_0", "tq2_0", "nvfp4"),
)
TOKENS = np.arange(40, dtype=np.int32)
OURS = ("q1_0", "q2_0")
"""Types that the released gguf package does not know yet."""


def random_blocks(name: str, rows: int = 5, blocks: int = 3, seed: int = 1) -> QuantTensor:
    """Random bytes, so every code, sign, scale and point comes up; fp16 scales are kept finite."""
    spec = BLOCK_FORMATS[name].spec
    rng = np.random.default_rng(seed)
    raw = rng.integers(0, 256, (rows * blocks, spec.block_bytes), dtype=np.uint8)
    scales = (rng.standard_normal(rows * blocks) * 0.05).astype(np.float16)
    if name == "iq1_m":  # the scale is spread over the top nibbles of four words, lowest first
        words = raw[:, 48:].view("<u2")
        spread = (scales.view(np.uint16)[:, None] >> np.array([0, 4, 8, 12], np.uint16)) & 15
        words[:] = (words & 0x0FFF) | (spread << np.uint16(12))
    elif name in ("tq1_0", "tq2_0"):
        raw[:, -2:] = scales[:, None].view(np.uint8)
    elif name != "nvfp4":
        raw[:, :2] = scales[:, None].view(np.uint8)
    return QuantTensor(spec, (rows, blocks * spec.block_size), raw.reshape(rows, -1))


@pytest.mark.parametrize("name", PACKAGE)
def test_values_are_those_of_the_gguf_package(name):
    tensor = random_blocks(name, rows=40, blocks=4)
    kind = gguf.GGMLQuantizationType[name.upper()]
    expected = gguf.quants.dequantize(tensor.codes, kind)
    np.testing.assert_array_equal(decode(tensor), expected)


def slow(name: str, block: bytes) -> list[float]:
    """Decode one block of Q1_0 or Q2_0 bit by bit, as dequantize_row of llama.cpp does."""
    d = float(np.frombuffer(block[:2], np.float16)[0])
    if name == "q1_0":
        return [d if block[2 + i // 8] >> i % 8 & 1 else -d for i in range(128)]
    return [((block[2 + i // 4] >> 2 * (i % 4) & 3) - 1) * d for i in range(64)]


@pytest.mark.parametrize("name", OURS)
def test_values_are_those_of_the_slow_decoder(name):
    tensor = random_blocks(name)
    blocks = tensor.codes.reshape(-1, tensor.spec.block_bytes)
    expected = np.array([slow(name, block.tobytes()) for block in blocks], np.float32)
    np.testing.assert_array_equal(decode(tensor), expected.reshape(tensor.shape))


@pytest.mark.interop
@pytest.mark.parametrize("name", (*PACKAGE, *OURS))
def test_values_are_those_of_llama_cpp(name):
    import ctypes  # noqa: PLC0415

    import llama_cpp  # noqa: PLC0415

    (library,) = sorted(Path(llama_cpp.__file__).parent.glob("lib/libggml-base.so"))
    function = getattr(ctypes.CDLL(str(library)), f"dequantize_row_{name}")
    tensor = random_blocks(name, rows=1, blocks=16)
    found = np.empty(tensor.shape, np.float32)
    function(
        tensor.codes.ctypes.data_as(ctypes.c_void_p),
        found.ctypes.data_as(ctypes.c_void_p),
        ctypes.c_int64(found.size),
    )
    np.testing.assert_array_equal(decode(tensor), found)


def test_a_planted_fault_in_a_codebook_is_caught(monkeypatch):
    wrong = points("iq2_xs").copy()
    wrong[[3, 4]] = wrong[[4, 3]]
    monkeypatch.setattr("fewbit.formats.iq.points", lambda _: wrong)
    tensor = random_blocks("iq2_xs", rows=40, blocks=4)
    expected = gguf.quants.dequantize(tensor.codes, gguf.GGMLQuantizationType.IQ2_XS)
    assert not np.array_equal(decode(tensor), expected)


@pytest.mark.parametrize("name", (*PACKAGE, *OURS))
def test_kernels_get_every_value_and_the_record_says_so(name):
    tensor = random_blocks(name)
    form = packed_form(tensor)
    assert form == PackedForm(form.source, form.source, note=form.note)
    assert f"no kernel reads {name}" in form.note
    values = decode(tensor)
    held = values.astype(np.float16 if form.source == "f16" else np.float32)
    np.testing.assert_array_equal(held.astype(np.float32), values)
    spec = BLOCK_FORMATS[form.source].spec
    same = QuantTensor(spec, tensor.shape, np.ascontiguousarray(held).view(np.uint8))
    assert pack(tensor).checksum() == pack(same).checksum()
    np.testing.assert_array_equal(pack(tensor).decode_row(2), values[2])


def test_nothing_is_encoded_in_them():
    for name in (*PACKAGE, *OURS):
        spec = BLOCK_FORMATS[name].spec
        with pytest.raises(UnsupportedError, match="cannot be encoded"):
            encode(np.zeros((1, spec.block_size), np.float32), spec)


def with_types(path: Path, changes: dict[str, QuantTensor]) -> Path:
    """Write a tiny model again with some of its tensors exchanged."""
    plain = write_gguf(path / "plain.gguf", CONFIGS["llama"], random_weights(CONFIGS["llama"]))
    with GgufCheckpoint(plain) as source:
        infos = [
            replace(info, format=new.spec, nbytes=new.nbytes)
            if (new := changes.get(info.name))
            else info
            for info in source.tensors.values()
        ]
        facts = GgufFacts(dict(source.facts.metadata), dict(source.facts.types))
        write(path / "m.gguf", facts, infos, lambda n: changes.get(n) or source.read(n))
    return path / "m.gguf"


def test_a_model_with_such_types_runs_and_says_so(tmp_path):
    changes = {
        "blk.0.attn_v.weight": random_blocks("q2_0", rows=32, blocks=1),
        "blk.1.ffn_up.weight": random_blocks("nvfp4", rows=96, blocks=1),
    }
    path = with_types(tmp_path, changes)
    logits = {}
    for executor in ("native", "reference"):
        with open_model(path) as source:
            runner = runner_of(source, RunSettings(executor=executor))
            logits[executor] = np.concatenate([rows.copy() for rows in runner.score(TOKENS)])
            notes = {kernel.slot: kernel.note for kernel in runner.kernels if kernel.note}
            if executor == "native":
                assert set(notes) == {"layers.0.v.weight", "layers.1.up.weight"}
                assert "dequantized to f16" in notes["layers.0.v.weight"]
    # Both compute in float32 in orders of their own: sums of 96 terms in 3 layers.
    deviation = logits["reference"].std()
    assert np.abs(logits["native"] - logits["reference"]).max() < 1e-2 * deviation
    with open_model(path) as source, pytest.raises(KernelError, match=r"q2_0: .*strict"):
        runner_of(source, RunSettings(strict=True))


def test_such_a_model_is_exported_as_it_is_and_dequantized_when_asked(tmp_path):
    path = with_types(tmp_path, {"blk.0.attn_v.weight": random_blocks("q2_0", rows=32, blocks=1)})
    with open_model(path) as source:
        kept = plan_export(source, find_target("gguf", ExportSettings()))
        floats = plan_export(source, find_target("hf", ExportSettings()))
        assert kept.record.changed == ()
        assert [tensor.source_format for tensor in floats.record.changed] == ["q2_0"]
        export(kept, tmp_path / "again.gguf", ExportSettings())
        export(floats, tmp_path / "floats", ExportSettings())
    with open_model(path) as one, open_model(tmp_path / "again.gguf") as other:
        for name in one.checkpoint.tensors:
            assert one.checkpoint.digest(name) == other.checkpoint.digest(name)
