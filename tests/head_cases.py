"""Draft heads for tests: tiny random ones on disk, and one that is unforgiving about its rows."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
from fakes import FakeExecutor
from safetensors.numpy import save_file
from tiny_models import CONFIGS

from fewbit.model.runner import RunSettings, runner_of
from fewbit.model.weights import open_model

SIZES = {
    **CONFIGS["llama"],
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_attention_heads": 3,
    "num_key_value_heads": 1,
}
"""A target whose inputs no run of 32 divides, so that its head stays in floats."""

KEPT = np.array([1, 2, 5, 7, 11, 30, 31, 64, 100, 101, 200, 301, 302, 303, 310, 319])


def head_weights(config, kept=KEPT, seed=5, own_embedding=True, layers=1):
    """Return float32 weights by the names of speculators, for a target of this configuration."""
    rng = np.random.default_rng(seed)
    hidden, inner = config["hidden_size"], config["intermediate_size"]
    keys = hidden // config["num_attention_heads"] * config["num_key_value_heads"]
    shapes = {
        "fc.weight": (hidden, 3 * hidden),
        "layers.0.self_attn.q_proj.weight": (hidden, 2 * hidden),
        "layers.0.self_attn.k_proj.weight": (keys, 2 * hidden),
        "layers.0.self_attn.v_proj.weight": (keys, 2 * hidden),
        "layers.0.self_attn.o_proj.weight": (hidden, hidden),
        "layers.0.mlp.gate_proj.weight": (inner, hidden),
        "layers.0.mlp.up_proj.weight": (inner, hidden),
        "layers.0.mlp.down_proj.weight": (hidden, inner),
        "lm_head.weight": (len(kept), hidden),
        "norm.weight": (hidden,),
        **{
            f"layers.0.{name}.weight": (hidden,)
            for name in ("input_layernorm", "hidden_norm", "post_attention_layernorm")
        },
    }
    for n in range(1, layers):
        first = {name: shape for name, shape in shapes.items() if name.startswith("layers.0.")}
        for name, (rows, *columns) in first.items():
            wide = any(f".{site}_proj" in name for site in "qkv")
            later = name.replace("layers.0.", f"layers.{n}.")
            shapes[later] = (rows, hidden) if wide else (rows, *columns)
    if own_embedding:
        shapes["embed_tokens.weight"] = (config["vocab_size"], hidden)
    found = {}
    for name, shape in shapes.items():
        values = rng.standard_normal(shape)
        scaled = values / np.sqrt(shape[-1]) if len(shape) == 2 else 1 + 0.2 * values
        found[name] = scaled.astype(np.float32)
    return found


def write_speculators(folder: Path, config, weights, kept=KEPT, **fields):
    """Write a head in the form of speculators."""
    stated = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "transformer_layer_config": {**config, "num_hidden_layers": 1},
        "draft_vocab_size": len(kept),
        "norm_before_residual": False,
        "eagle_aux_hidden_state_layer_ids": [1, 2, 3],
        **fields,
    }
    return _write(folder, stated, weights, kept)


def write_native(folder: Path, config, weights, kept=KEPT, **fields):
    """Write a head in the form that SGLang and its authors use."""
    stated = {
        **config,
        "architectures": ["LlamaForCausalLMEagle3"],
        "num_hidden_layers": 1,
        "draft_vocab_size": len(kept),
        "eagle_config": {"eagle_aux_hidden_state_layer_ids": [0, 1, 2]},
        **fields,
    }
    named = {name.replace("layers.0.", "midlayer."): value for name, value in weights.items()}
    return _write(folder, stated, named, kept)


def _write(folder: Path, stated, weights, kept):
    folder.mkdir(parents=True, exist_ok=True)
    arrays = dict(weights)
    if kept is not None:
        arrays["d2t"] = np.asarray(kept, np.int64) - np.arange(len(kept))
        arrays["t2d"] = np.isin(np.arange(320), kept)
    save_file(arrays, folder / "model.safetensors")
    (folder / "config.json").write_text(json.dumps(stated))
    return folder


class StatefulExecutor(FakeExecutor):
    """The fake target, which hands out a state for each row: its position, and what it has read."""

    def step(self, step):
        logits = super().step(step)
        self._states = []
        for span in step.spans:
            pages = span.pages.tolist()
            self._states += [
                (p, self._read(p, pages) % 65536)
                for p in range(span.position, span.position + span.count)
            ]
        return logits

    def states(self, rows):
        return np.array([self._states[row] for row in rows], np.float32).reshape(-1, 2)


class FakeHead:
    """A head whose rows depend on their states, and later rows on both, through a paged store.

    A true row's state must follow that of the row before it; drafted rows have states of their own.
    """

    width = 2

    def __init__(self, vocabulary=30, pages=64, seed=0, repeat=0.0):
        self.executor = FakeExecutor(vocabulary, pages, seed + 1)
        self.order = FakeExecutor(vocabulary, 1, seed)._order
        self.repeat = repeat
        self.true_rows = 0
        self.strict = True

    @property
    def pages(self):
        return self.executor.pages

    def fuse(self, states):
        self.true_rows += len(states)
        return np.ascontiguousarray(states)

    def step(self, step, hidden):
        assert hidden.shape == (len(step.tokens), 2)
        for span in step.spans:
            positions = hidden[span.start : span.start + span.count, 0]
            follows = (np.diff(positions) == 1).all()
            assert follows or not self.strict, "states of other rows than these"
        mixed = (step.tokens + hidden[:, 1].astype(np.int64)) % 30
        inner = step._replace(tokens=mixed.astype(np.int32))
        logits = self.executor.step(inner)
        rows = np.arange(len(step.wanted))
        logits[rows, self.order[step.tokens[step.wanted]]] += self.repeat
        own = hidden[step.wanted] * 7 + step.tokens[step.wanted][:, None] + 3
        return logits, np.ascontiguousarray((own % 4093).astype(np.float32))


def target_of(folder, executor="native", after=(1, 2, 3), **settings):
    fields = {"context": 128, "executor": executor, "states": lambda layers: after, **settings}
    return runner_of(open_model(folder), RunSettings(**fields))
