"""Exports in the runtimes they are for: llama.cpp and transformers."""

# ruff: noqa: PLC0415  (torch and llama_cpp are imported inside the tests)
from __future__ import annotations

import json
import unicodedata
from pathlib import Path

import numpy as np
import pytest
from tiny_models import CONFIGS, HUGGINGFACE_ONLY, random_weights, write_gguf, write_huggingface
from tiny_tokenizers import METADATA_OF_FOLDERS, PROBES, folder_tokenizer

from fewbit.export.job import export
from fewbit.export.plan import plan_export
from fewbit.export.target import ExportSettings
from fewbit.export.targets import find_target
from fewbit.formats.registry import F32
from fewbit.model.runner import RunSettings, runner_of
from fewbit.model.weights import open_model
from fewbit.program import CacheType
from fewbit.quantization import quantize
from fewbit.recipes import find
from fewbit.tokens.from_hugging_face import from_hugging_face

pytestmark = pytest.mark.interop

SETTINGS = ExportSettings()

EXPRESSIBLE = [name for name in CONFIGS if name not in HUGGINGFACE_ONLY]
TOKENS = np.random.default_rng(7).integers(0, 320, 60).astype(np.int32)
FLOAT_BOUND = 2e-4
"""Both compute float32 weights in float32; llama.cpp rounds keys and values to f16, which the
settings below switch off. Sums over at most 96 terms in 4 layers leave a few 1e-6; its GELU goes
through a table of f16, which Gemma's bound makes room for."""
GEMMA_BOUND = 2e-2
"""f16 tables of GELU: 2^-11 of each gated value."""


def exported(source: Path, out: Path, to: str, settings: ExportSettings = SETTINGS) -> Path:
    with open_model(source) as model:
        export(plan_export(model, find_target(to, settings)), out, settings)
    return out


def our_logits(path: Path) -> np.ndarray:
    settings = RunSettings(executor="reference", cache_type=CacheType.F32)
    with open_model(path) as source:
        runner = runner_of(source, settings)
        return np.concatenate([rows.copy() for rows in runner.score(TOKENS)])


def llama_cpp_logits(path: Path) -> np.ndarray:
    import llama_cpp

    model = llama_cpp.Llama(
        str(path),
        n_ctx=128,
        n_threads=1,
        n_batch=128,
        logits_all=True,
        verbose=False,
        type_k=llama_cpp.GGML_TYPE_F32,
        type_v=llama_cpp.GGML_TYPE_F32,
    )
    model.eval(TOKENS.tolist())
    logits = model.scores[: len(TOKENS)].copy()
    model.close()
    return logits


def transformers_logits(folder: Path) -> np.ndarray:
    import torch
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    with torch.no_grad():
        return model(torch.from_numpy(TOKENS.astype(np.int64))[None]).logits[0].numpy()


def folder(path: Path, name: str) -> Path:
    return write_huggingface(path / name, CONFIGS[name], random_weights(CONFIGS[name]))


@pytest.mark.parametrize("name", EXPRESSIBLE)
def test_llama_cpp_gives_our_logits(name, tmp_path):
    source = folder(tmp_path, name)
    theirs = llama_cpp_logits(exported(source, tmp_path / "m.gguf", "gguf"))
    bound = GEMMA_BOUND if name.startswith("gemma") else FLOAT_BOUND
    assert np.abs(theirs - our_logits(source)).max() <= bound


def test_a_planted_permutation_is_caught(tmp_path, monkeypatch):
    source = folder(tmp_path, "llama")
    monkeypatch.setattr(
        "fewbit.model.weights.interleaved_rows", lambda heads, width: np.arange(heads * width)
    )
    theirs = llama_cpp_logits(exported(source, tmp_path / "m.gguf", "gguf"))
    assert np.abs(theirs - our_logits(source)).max() > 0.1


@pytest.mark.parametrize("recipe", ["rtn-int4-g32", "rtn-q8_0", "rtn-int4-g32-asym"])
@pytest.mark.parametrize("name", ["llama", "qwen2"])
def test_llama_cpp_runs_a_quantized_artefact(recipe, name, tmp_path):
    source = folder(tmp_path, name)
    with open_model(source) as model:
        quantize(model, find(recipe), tmp_path / "artefact")
    theirs = llama_cpp_logits(exported(tmp_path / "artefact", tmp_path / "m.gguf", "gguf"))
    ours = our_logits(tmp_path / "artefact")
    # Both round the inputs of 13 matrices in a row to int8 per 32, after other roundings each: a
    # step of 1/127 of the largest of 32 is an error of 1/127/sqrt(12) * 2.2 deviations, 0.5%, twice
    # over 13 steps 2.5%. A scale or zero point that is off by one costs far more.
    assert (theirs - ours).std() < 0.04 * ours.std()


def test_llama_cpp_loads_parts(tmp_path):
    source = folder(tmp_path, "llama")
    exported(source, tmp_path / "m.gguf", "gguf", ExportSettings(split_bytes=100_000))
    first = min(tmp_path.glob("m-00001-of-*.gguf"))
    assert np.abs(llama_cpp_logits(first) - our_logits(source)).max() <= FLOAT_BOUND


@pytest.mark.parametrize("kind", METADATA_OF_FOLDERS)
def test_llama_cpp_tokenizes_as_the_folder_does(kind, tmp_path):
    import llama_cpp

    config = {**CONFIGS["llama"], "vocab_size": 1100}
    source = write_huggingface(tmp_path / "source", config, random_weights(config))
    content, configured = folder_tokenizer(kind)
    (source / "tokenizer.json").write_bytes(content)
    (source / "tokenizer_config.json").write_text(json.dumps(configured))
    out = exported(source, tmp_path / "m.gguf", "gguf")
    ours = from_hugging_face(content, configured)
    peer = llama_cpp.Llama(str(out), vocab_only=True, verbose=False)
    for text in PROBES:
        # llama.cpp leaves out the composed form that Qwen's tokenizer asks for.
        probe = unicodedata.normalize("NFC", text) if kind == "qwen2" else text
        for special in (False, True):
            theirs = peer.tokenize(probe.encode(), add_bos=special, special=False)
            assert ours.encode(probe, add_special=special) == theirs, probe
    peer.close()


@pytest.mark.parametrize("name", EXPRESSIBLE)
def test_transformers_gives_our_logits_for_a_gguf_file(name, tmp_path):
    source = write_gguf(tmp_path / "m.gguf", CONFIGS[name], random_weights(CONFIGS[name]))
    out = exported(source, tmp_path / "out", "hf")
    assert np.abs(transformers_logits(out) - our_logits(source)).max() <= 1e-4


@pytest.mark.parametrize("name", [n for n in CONFIGS if "moe" in n or "mixtral" in n])
def test_transformers_runs_a_mixture_as_a_folder(name, tmp_path):
    out = exported(folder(tmp_path, name), tmp_path / "out", "hf")
    assert np.abs(transformers_logits(out) - our_logits(tmp_path / name)).max() <= 1e-4


def test_exchanged_experts_would_be_seen(tmp_path):
    weights = random_weights(CONFIGS["mixtral"])
    gate, up = (f"model.layers.1.block_sparse_moe.experts.0.{w}.weight" for w in ("w1", "w3"))
    source = folder(tmp_path, "mixtral")
    planted = {**weights, gate: weights[up], up: weights[gate]}
    theirs = transformers_logits(write_huggingface(tmp_path / "p", CONFIGS["mixtral"], planted))
    assert np.abs(theirs - our_logits(source)).max() > 0.05


@pytest.mark.parametrize(
    ("to", "recipe"),
    [("hf", "rtn-int4-g32"), ("compressed-tensors", "rtn-w8a8"), ("torchao", "rtn-w8a8")],
)
def test_transformers_reads_shards_as_one_file(tmp_path, to, recipe):
    with open_model(folder(tmp_path, "llama")) as model:
        quantize(model, find(recipe), tmp_path / "artefact")
    whole = exported(tmp_path / "artefact", tmp_path / "whole", to)
    cut = exported(tmp_path / "artefact", tmp_path / "cut", to, ExportSettings(shard_bytes=8_000))
    assert len(list(cut.glob("model-*.safetensors"))) > 5
    np.testing.assert_array_equal(transformers_logits(cut), transformers_logits(whole))


def test_transformers_gives_our_logits_for_a_quantized_artefact(tmp_path):
    with open_model(folder(tmp_path, "qwen3")) as model:
        quantize(model, find("rtn-int4-g32"), tmp_path / "artefact")
    settings = ExportSettings(dtype=F32)
    out = exported(tmp_path / "artefact", tmp_path / "out", "hf", settings)
    # float32 holds every decoded value; ours are compared on the same floats.
    assert np.abs(transformers_logits(out) - our_logits(out)).max() <= 1e-4


def test_transformers_reads_tokenizer_template_and_ends(tmp_path):
    from transformers import AutoTokenizer, GenerationConfig

    config = {**CONFIGS["llama"], "vocab_size": 1100}
    source = write_huggingface(tmp_path / "source", config, random_weights(config))
    text, configured = folder_tokenizer("smollm")
    (source / "tokenizer.json").write_bytes(text)
    (source / "tokenizer_config.json").write_text(
        json.dumps({**configured, "chat_template": "{{ messages[0]['content'] }}<|last|>"})
    )
    middle = exported(source, tmp_path / "m.gguf", "gguf")
    out = exported(middle, tmp_path / "out", "hf")
    ours, theirs = from_hugging_face(text, configured), AutoTokenizer.from_pretrained(out)
    for probe in PROBES:
        assert theirs.encode(probe, add_special_tokens=False) == ours.encode(
            probe, add_special=False, parse_special=True
        )
    chat = theirs.apply_chat_template([{"role": "user", "content": "hi"}], tokenize=False)
    assert chat == "hi<|last|>"
    assert ours.special.eos in GenerationConfig.from_pretrained(out).eos_token_id
