"""Tiny models that can be evaluated: weights, tokenizer and chat template in one folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tiny_models import CONFIGS, random_weights, write_huggingface
from tokenizers import decoders, models, pre_tokenizers, processors

from fewbit.calibrate.text import Documents, collect, document
from fewbit.evaluate.language.axis import LanguageAxis

CONFIG = {**CONFIGS["llama-tied"], "num_hidden_layers": 2, "bos_token_id": 1, "eos_token_id": 2}
TEMPLATE = "{% for m in messages %}{{ m.content }}{% endfor %}"
SPECIAL = ("<pad>", "<s>", "</s>")


def tokenizer(*, merges: tuple[tuple[str, str], ...] = (("t", "h"), ("th", "e"))) -> Any:
    """Return a byte-level BPE with three special tokens and a few merges."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    texts = [*SPECIAL, *alphabet, *("".join(pair) for pair in merges)]
    vocabulary = {text: token for token, text in enumerate(texts)}
    backend = tokenizers.Tokenizer(models.BPE(vocabulary, list(merges)))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens(list(SPECIAL))
    return backend


def capitals() -> Any:
    """Return a byte-level tokenizer of the capital letters alone."""
    letters = [chr(letter) for letter in range(ord("A"), ord("Z") + 1)]
    backend = tokenizers.Tokenizer(models.BPE({t: i for i, t in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return backend


def begin_with_bos(backend: Any) -> Any:
    """Put <s> before every text."""
    backend.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", 1)]
    )
    return backend


def write_subject(
    folder: Path,
    *,
    config: dict[str, Any] | None = None,
    weights: dict[str, np.ndarray] | None = None,
    backend: Any = None,
    template: str | None = TEMPLATE,
    tokenizer_config: dict[str, Any] | None = None,
) -> Path:
    """Write a model; by default the same one every time."""
    chosen = CONFIG if config is None else config
    write_huggingface(folder, chosen, random_weights(chosen) if weights is None else weights)
    backend = begin_with_bos(tokenizer()) if backend is None else backend
    (folder / "tokenizer.json").write_text(backend.to_str())
    described = {"bos_token": "<s>", "eos_token": "</s>", **(tokenizer_config or {})}
    if template is not None:
        described["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(described))
    return folder


def sharp_weights() -> dict[str, np.ndarray]:
    """Return weights whose model is sure of something, as trained ones are."""
    weights = random_weights(CONFIG)
    weights["model.embed_tokens.weight"] *= np.float32(4)
    return weights


def letters(*, documents: int, characters: int) -> Documents:
    """Return documents of random letters; each character is about one token."""
    rng = np.random.default_rng(0)
    alphabet = np.array(list("abcdefghij the\n"))
    texts = ["".join(rng.choice(alphabet, characters)) for _ in range(documents)]
    return collect("letters", [document(f"d{i}", text) for i, text in enumerate(texts)])


def text_alone(documents: Documents, **settings: Any) -> LanguageAxis:
    """Return the axis of language without what it brings along: seconds on the slow executor."""
    nothing = collect("nothing", ())
    return LanguageAxis(
        documents=documents, conversations=(), passages=nothing, threads=1, **settings
    )
