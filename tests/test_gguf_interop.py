"""llama.cpp loads what we write, and computes with it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from fewbit.checkpoint.checkpoint import GgufFacts, TensorInfo
from fewbit.checkpoint.gguf_types import ValueType
from fewbit.checkpoint.gguf_write import overlay, write_gguf
from fewbit.formats.registry import encode, parse_format
from fewbit.formats.spec import QuantTensor

WIDTH, HIDDEN, HEADS, VOCABULARY = 64, 96, 2, 40
METADATA = {
    "general.architecture": (ValueType.STRING, "llama"),
    "llama.block_count": (ValueType.UINT32, 1),
    "llama.context_length": (ValueType.UINT32, 64),
    "llama.embedding_length": (ValueType.UINT32, WIDTH),
    "llama.feed_forward_length": (ValueType.UINT32, HIDDEN),
    "llama.attention.head_count": (ValueType.UINT32, HEADS),
    "llama.attention.head_count_kv": (ValueType.UINT32, HEADS),
    "llama.attention.layer_norm_rms_epsilon": (ValueType.FLOAT32, 1e-5),
    "llama.rope.dimension_count": (ValueType.UINT32, WIDTH // HEADS),
    "llama.vocab_size": (ValueType.UINT32, VOCABULARY),
    "tokenizer.ggml.model": (ValueType.STRING, "none"),
}


def tiny_llama() -> dict[str, tuple[tuple[int, ...], QuantTensor]]:
    random = np.random.default_rng(3)

    def weight(rows: int, columns: int, form: str) -> tuple[tuple[int, ...], QuantTensor]:
        values = random.standard_normal((rows, columns)).astype(np.float32) / 8
        return (rows, columns), encode(values, parse_format(form))

    def norm() -> tuple[tuple[int, ...], QuantTensor]:
        return (WIDTH,), encode(np.ones((1, WIDTH), np.float32), parse_format("f32"))

    return {
        "token_embd.weight": weight(VOCABULARY, WIDTH, "q8_0"),
        "output_norm.weight": norm(),
        "blk.0.attn_norm.weight": norm(),
        "blk.0.attn_q.weight": weight(WIDTH, WIDTH, "q4_0"),
        "blk.0.attn_k.weight": weight(WIDTH, WIDTH, "q8_0"),
        "blk.0.attn_v.weight": weight(WIDTH, WIDTH, "f16"),
        "blk.0.attn_output.weight": weight(WIDTH, WIDTH, "q4_0"),
        "blk.0.ffn_norm.weight": norm(),
        "blk.0.ffn_gate.weight": weight(HIDDEN, WIDTH, "q4_0"),
        "blk.0.ffn_up.weight": weight(HIDDEN, WIDTH, "q8_0"),
        "blk.0.ffn_down.weight": weight(WIDTH, HIDDEN, "q4_0"),
    }


@pytest.mark.interop
def test_llama_cpp_runs_a_file_we_wrote(tmp_path: Path) -> None:
    import llama_cpp  # noqa: PLC0415

    tensors = tiny_llama()
    infos = [TensorInfo(n, t.spec, shape, t.nbytes) for n, (shape, t) in tensors.items()]
    path = tmp_path / "tiny.gguf"
    write_gguf(path, overlay(GgufFacts({}), METADATA), infos, lambda name: tensors[name][1])
    model = llama_cpp.Llama(str(path), n_ctx=32, n_threads=1, logits_all=True, verbose=False)
    model.eval([1, 5, 9])
    logits = model.scores[:3]
    model.close()
    assert logits.shape == (3, VOCABULARY)
    assert np.isfinite(logits).all()
    assert logits.std() > 0
