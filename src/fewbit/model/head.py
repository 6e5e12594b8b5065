"""Draft heads that continue from a target's hidden states: their configuration and Programs.

A head is a decoder layer that reads, for each position, the embedding of the token that follows it
and a hidden state; rarely more layers follow, which are those of any decoder. For verified
positions that state is fused from those of several of the target's layers; for drafted ones it is
what the head itself made for the position before. So there are two Programs: one that fuses, and
one of the layers, whose rows bring their state along.

EAGLE-3 (Li et al., "EAGLE-3: Scaling up Inference Acceleration of Large Language Models via
Training-Time Test", 2025) is the one that is read. Both sides of its wide q, k and v matrices,
[outputs, 2 hidden], are linear ops of their own here, and their results are added.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from fewbit.errors import BadFileError, UnsupportedError
from fewbit.model.config import HIDDEN_LIMIT, LAYER_LIMIT, VOCABULARY_LIMIT, ModelConfig
from fewbit.model.decoder import Decoder
from fewbit.model.fields import Fields
from fewbit.model.huggingface import from_huggingface
from fewbit.program import OUTSIDE, Buffer, CacheType, Program, Slot
from fewbit.runtime.executor import Tap

STATES, HIDDEN = "states", "hidden"
"""Buffers that are brought with a step: the target's states side by side, and the fused one."""

NATIVE, SPECULATORS = "LlamaForCausalLMEagle3", "Eagle3Speculator"
ARCHITECTURES = (NATIVE, SPECULATORS, "Eagle3DraftModel")
"""What `config.json` calls an EAGLE-3 head: SGLang's form, and those of speculators."""

TAPPED = 3
"""Layers of the target that EAGLE-3 looks at."""


@dataclass(frozen=True, kw_only=True)
class HeadConfig:
    """An EAGLE-3 head.

    `layer` is its decoder layer, or all of them, as a model; its vocabulary is the target's and
    its `head_rows` the tokens that it can propose.
    """

    layer: ModelConfig
    target_hidden: int
    """Width of the target's residual stream."""
    after: tuple[int, ...] | None
    """After how many of the target's layers a state is taken, 0 being the embedding; None for the
    usual ones."""
    norm_before_residual: bool = False
    """Whether the layer adds to the normed state instead of to the state."""
    norm_before_fuse: bool = False
    """Whether the target's states are normed, all as one row, before they are fused."""
    norm_output: bool = False
    """Whether the next position gets the state behind the final norm instead of before it."""
    fuse_bias: bool = False

    def taps(self, layers: int) -> tuple[int, ...]:
        """Return after how many layers of a target of `layers` states are taken.

        Raises:
            UnsupportedError: the target has fewer layers than that.
        """
        after = self.after or (2, layers // 2, layers - 3)
        if min(after) < 0 or max(after) > layers:
            raise UnsupportedError(
                f"The head reads the hidden states after layers {', '.join(map(str, after))}, and "
                f"the target has {layers}; it belongs to another model."
            )
        return after


def is_head(config: Mapping[str, Any]) -> bool:
    """Return whether a `config.json` describes a draft head of a kind that is read."""
    names = config.get("architectures")
    named = isinstance(names, list) and any(name in ARCHITECTURES for name in names)
    return named or config.get("speculators_model_type") == "eagle3"


def read_head_config(config: Mapping[str, Any], owner: str = "config.json") -> HeadConfig:
    """Return what a `config.json` of an EAGLE-3 head says, of SGLang's form or of speculators'.

    Raises:
        MissingError, BadFileError: a field is absent, of the wrong type or out of range.
        UnsupportedError: no EAGLE-3 head, or one with a window, or norms that this reader does not
            know.
    """
    fields = Fields(config, owner)
    if not is_head(config):
        raise UnsupportedError(
            f"{owner} describes no draft head that is read; supported is EAGLE-3 "
            f"({', '.join(ARCHITECTURES)})."
        )
    nested = fields.has("transformer_layer_config")
    inner = fields.part("transformer_layer_config") if nested else fields
    layer = _layer(fields, inner)
    _refuse_unknown(fields)
    return HeadConfig(
        layer=layer,
        target_hidden=fields.integer("target_hidden_size", 1, HIDDEN_LIMIT, layer.hidden),
        after=_after(fields),
        norm_before_residual=fields.flag("norm_before_residual", False),
        norm_before_fuse=fields.flag("norm_before_fc", False),
        norm_output=fields.flag("norm_output", False),
    )


def head_program(config: HeadConfig, cache_type: CacheType, *, rotate_keys: bool) -> Program:
    """Return the Program of its layers: from tokens and `HIDDEN` to logits over its own tokens."""
    decoder, logits = _layer_decoder(config, rotate_keys=rotate_keys)
    return _program(config, decoder, logits, cache_type, config.layer.layers)


def fuse_program(config: HeadConfig) -> Program:
    """Return the Program that fuses: from `STATES` to `HIDDEN`."""
    return _program(config, _fuse_decoder(config), HIDDEN, CacheType.F32, 1)


def next_state(config: HeadConfig) -> Tap:
    """Return where the layer's Program has the state that the next position reads."""
    return OUTSIDE, "final_norm" if config.norm_output else "select"


def head_shapes(config: HeadConfig) -> dict[Slot, tuple[int, int]]:
    """Return the shape of every slot's tensor, [outputs, inputs]; a vector's is (1, n)."""
    layer, _ = _layer_decoder(config, rotate_keys=False)
    return _fuse_decoder(config).shapes | layer.shapes


def _fuse_decoder(config: HeadConfig) -> Decoder:
    decoder = Decoder(config.layer)
    decoder.widths[STATES] = TAPPED * config.target_hidden
    x = STATES
    if config.norm_before_fuse:
        x = decoder.norm(OUTSIDE, "states_norm", x)
    decoder.linear(OUTSIDE, HIDDEN, x, config.layer.hidden, bias=config.fuse_bias)
    return decoder


def _layer_decoder(config: HeadConfig, *, rotate_keys: bool) -> tuple[Decoder, Buffer]:
    """Return the layers' ops and the buffer of the logits."""
    layer = config.layer
    decoder = Decoder(layer, rotate_keys)
    decoder.widths[HIDDEN] = layer.hidden
    table = decoder.rope_table(layer.rope)
    embedded = decoder.norm(0, "embed_norm", decoder.embed())
    normed = decoder.norm(0, "hidden_norm", HIDDEN)
    sides = _Sides(decoder, embedded, normed)
    q = sides.linear("q", layer.query_width)
    k = sides.linear("k", layer.key_width)
    v = sides.linear("v", layer.key_width)
    kept = normed if config.norm_before_residual else HIDDEN
    x = decoder.residual(0, "attn_add", kept, decoder.attend(0, q, k, v, table))
    x = decoder.mlp_block(0, x)
    for n in range(1, layer.layers):
        x = decoder.mlp_block(n, decoder.attention_block(n, x, table))
    return decoder, decoder.logits(x)


@dataclass(frozen=True)
class _Sides:
    """The two inputs of the first layer's attention, side by side in the head's own matrices."""

    decoder: Decoder
    embedded: Buffer
    normed: Buffer

    def linear(self, site: str, outputs: int) -> Buffer:
        """Return the sum of both sides' products; a bias belongs to that of the states."""
        decoder, bias = self.decoder, self.decoder.config.qkv_bias
        left = decoder.linear(0, f"{site}_embed", self.embedded, outputs, bias=False)
        right = decoder.linear(0, f"{site}_state", self.normed, outputs, bias=bias)
        return decoder.residual(0, site, left, right)


def _program(
    config: HeadConfig, decoder: Decoder, out: Buffer, cache_type: CacheType, layers: int
) -> Program:
    return Program(
        ops=tuple(decoder.ops),
        widths=decoder.widths,
        logits=out,
        layers=layers,
        vocabulary=config.layer.vocabulary,
        context=config.layer.context,
        cache_type=cache_type,
    )


def _layer(fields: Fields, inner: Fields) -> ModelConfig:
    """Return the decoder layers as a model of their own."""
    layers = inner.integer("num_hidden_layers", 1, LAYER_LIMIT, 1)
    kinds = inner.raw("layer_types", [])
    if kinds not in ([], ["full_attention"] * layers):
        raise UnsupportedError(
            f"{inner.owner}: layer_types is {kinds!r}; a head that looks back over everything, in "
            f"each of its layers ({layers}), is supported."
        )
    stated = dict(inner.values)
    stated |= {"architectures": ["LlamaForCausalLM"], "model_type": "llama"}
    stated |= {"num_hidden_layers": layers, "tie_word_embeddings": False}
    layer = from_huggingface(stated, inner.owner)
    rows = fields.integer("draft_vocab_size", 1, VOCABULARY_LIMIT, layer.vocabulary)
    if rows > layer.vocabulary:
        raise BadFileError(
            f"{fields.owner}: draft_vocab_size is {rows}, more than the target's vocab_size of "
            f"{layer.vocabulary}; the configuration is damaged, fetch the head again."
        )
    return replace(layer, head_rows=rows)


def _after(fields: Fields) -> tuple[int, ...] | None:
    """Return the layers that are looked at, in one way of counting.

    vLLM and speculators count the state before a layer, so the embedding is 0; SGLang's nested
    `eagle_config` names the layer whose output it is.
    """
    name, nested = "eagle_aux_hidden_state_layer_ids", "eagle_config"
    if fields.has(name):
        return _numbers(fields, name, 0)
    if fields.has(nested) and fields.part(nested).has(name):
        return _numbers(fields.part(nested), name, 1)
    return None


def _numbers(fields: Fields, name: str, more: int) -> tuple[int, ...]:
    found = fields.raw(name)
    whole = isinstance(found, list) and len(found) == TAPPED
    if not whole or not all(type(n) is int and 0 <= n <= LAYER_LIMIT for n in found):
        raise fields.refuse(name, found, f"expected {TAPPED} numbers of layers")
    return tuple(n + more for n in found)


def _refuse_unknown(fields: Fields) -> None:
    inner = fields.part("eagle_config") if fields.has("eagle_config") else Fields({}, fields.owner)
    if not inner.flag("use_aux_hidden_state", True):
        raise UnsupportedError(
            f"{fields.owner}: use_aux_hidden_state is false; heads that fuse the states of "
            f"{TAPPED} layers are supported."
        )
    if fields.flag("fc_norm", False):
        raise UnsupportedError(
            f"{fields.owner}: fc_norm is true, a norm for each of the target's states; supported "
            "are none, and one over all of them (norm_before_fc)."
        )
