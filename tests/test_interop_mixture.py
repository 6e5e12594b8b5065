"""Mixtures in llama.cpp itself: files that its converter would write, and those we quantize."""

# ruff: noqa: PLC0415  (llama_cpp is imported inside the tests: `make test-interop` only)
from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
from tiny_models import CONFIGS, random_weights, write_gguf

from fewbit.model.runner import RunSettings, runner_of
from fewbit.model.weights import open_model
from fewbit.program import CacheType
from fewbit.quantization import quantize
from fewbit.records.recipe import Recipe, Role, Rule

pytestmark = pytest.mark.interop

TOKENS = np.random.default_rng(7).integers(0, 320, 40).astype(np.int32)
BOUND = 0.05
"""llama.cpp rounds attention to f16 (a dense model of this size differs by 0.01); an expert taken
for another moves logits by 1."""


def with_vocabulary(path: Path, out: Path) -> Path:
    """Copy a GGUF file and say that it has 320 ids without texts."""
    reader = gguf.GGUFReader(path)
    writer = gguf.GGUFWriter(out, reader.fields["general.architecture"].contents())
    for key, field in reader.fields.items():
        if not key.startswith("GGUF.") and key != "general.architecture":
            writer.add_key_value(key, field.contents(), field.types[0])
    writer.add_string("tokenizer.ggml.model", "no_vocab")
    writer.add_vocab_size(320)
    for tensor in reader.tensors:
        writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return out


def their_logits(path: Path) -> np.ndarray:
    import llama_cpp

    llama_cpp.llama_backend_init()
    model = llama_cpp.llama_model_load_from_file(
        str(path).encode(), llama_cpp.llama_model_default_params()
    )
    settings = llama_cpp.llama_context_default_params()
    settings.n_ctx, settings.n_threads, settings.type_k, settings.type_v = 64, 1, 0, 0
    context = llama_cpp.llama_init_from_model(model, settings)
    batch = llama_cpp.llama_batch_init(len(TOKENS), 0, 1)
    batch.n_tokens = len(TOKENS)
    for i, token in enumerate(TOKENS):
        batch.token[i], batch.pos[i], batch.n_seq_id[i] = int(token), i, 1
        batch.seq_id[i][0], batch.logits[i] = 0, 1
    assert llama_cpp.llama_decode(context, batch) == 0
    rows = [llama_cpp.llama_get_logits_ith(context, i) for i in range(len(TOKENS))]
    found = np.stack([np.ctypeslib.as_array(row, (320,)).copy() for row in rows])
    llama_cpp.llama_batch_free(batch)
    llama_cpp.llama_free(context)
    llama_cpp.llama_model_free(model)
    return found


def our_logits(path: Path) -> np.ndarray:
    settings = RunSettings(executor="reference", cache_type=CacheType.F32, context=64)
    with open_model(path) as source:
        return np.concatenate([rows.copy() for rows in runner_of(source, settings).score(TOKENS)])


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe"])
def test_llama_cpp_chooses_the_same_experts(name, tmp_path):
    plain = write_gguf(tmp_path / "plain.gguf", CONFIGS[name], random_weights(CONFIGS[name]))
    path = with_vocabulary(plain, tmp_path / "m.gguf")
    assert np.abs(our_logits(path) - their_logits(path)).max() < BOUND


@pytest.mark.parametrize("name", ["mixtral", "qwen3-moe"])
def test_llama_cpp_runs_what_we_quantize(name, tmp_path):
    plain = write_gguf(tmp_path / "plain.gguf", CONFIGS[name], random_weights(CONFIGS[name]))
    rules = tuple(Rule(role=role, format="q8_0") for role in Role)
    recipe = Recipe(name="mine", method="rtn", rules=rules)
    with open_model(with_vocabulary(plain, tmp_path / "m.gguf")) as source:
        quantize(source, recipe, tmp_path / "q.gguf")
    error = np.abs(our_logits(tmp_path / "q.gguf") - their_logits(tmp_path / "q.gguf"))
    # Both round activations to 8 bits in runs of 32, so some choices of experts flip.
    assert np.median(error) < BOUND
