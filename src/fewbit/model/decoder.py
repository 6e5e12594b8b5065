"""The decoder family, described once: a configuration becomes a Program.

Reads like the model: embedding, then per layer a normed attention and a normed gated MLP or
mixture of them, each added to the residual stream, then the final norm and the logits of the
wanted rows.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TypedDict

from fewbit.errors import UsageError
from fewbit.model.config import MixtureConfig, ModelConfig
from fewbit.model.rope import RopeConfig, rope_frequencies
from fewbit.program import (
    KV_GROUP,
    OUTSIDE,
    Add,
    Attention,
    Buffer,
    CacheType,
    Embed,
    Expert,
    GatedActivation,
    Hadamard,
    Linear,
    Mixture,
    Op,
    Program,
    RmsNorm,
    Rope,
    RopeTable,
    SelectRows,
    Slot,
    Softcap,
)


def build_program(
    config: ModelConfig,
    cache_type: CacheType = CacheType.F16,
    *,
    rotate_keys: bool = False,
    exit_after: int | None = None,
) -> Program:
    """Return the decoder as a Program; the same configuration always gives the same one.

    Args:
        config: the model's configuration.
        cache_type: how keys and values are stored.
        rotate_keys: whether queries and keys pass a Hadamard transform before keys are stored.
        exit_after: how many layers run before the final norm and the logits; None for all. The
            Program still counts all layers, so that it can share the store of the whole one.

    Raises:
        UsageError: an exit that skips no layer or all of them, a head that does not divide into
            runs of 32 for an integer store, or one whose size is no power of two to rotate.
    """
    require_heads(config.head_dim, cache_type, rotate_keys=rotate_keys)
    decoder = Decoder(config, rotate_keys)
    logits = decoder.emit(config.layers if exit_after is None else _exit(config, exit_after))
    return Program(
        ops=tuple(decoder.ops),
        widths=decoder.widths,
        logits=logits,
        layers=config.layers,
        vocabulary=config.vocabulary,
        context=config.context,
        cache_type=cache_type,
    )


def _exit(config: ModelConfig, layers: int) -> int:
    if not 1 <= layers < config.layers:
        raise UsageError(
            f"An exit after {layers} layers cannot be: the model has {config.layers}; choose from "
            f"1 to {config.layers - 1}."
        )
    return layers


def require_heads(head_dim: int, cache_type: CacheType, *, rotate_keys: bool) -> None:
    """Refuse heads that a KV store's type or the rotation of keys does not fit; UsageError."""
    if cache_type.is_integer and head_dim % KV_GROUP:
        raise UsageError(
            f"A KV cache of {cache_type.value} needs heads of a multiple of {KV_GROUP} elements, "
            f"and this model's have {head_dim}; use bf16 or f16."
        )
    if rotate_keys and head_dim & (head_dim - 1):
        raise UsageError(
            "Rotated keys need heads whose size is a power of two, and this model's have "
            f"{head_dim} elements; leave the rotation out."
        )


def slot_shapes(config: ModelConfig) -> dict[Slot, tuple[int, int]]:
    """Return the shape of every slot's tensor, [outputs, inputs]; a vector's is (1, n).

    In order of first use, as `Program.slots()` has them.
    """
    decoder = Decoder(config)
    decoder.emit(config.layers)
    return decoder.shapes


class _Place(TypedDict):
    layer: int
    site: str
    out: Buffer


@dataclass
class Decoder:
    """Appends the ops of a decoder, and notes each buffer's width and each slot's shape."""

    config: ModelConfig
    rotate_keys: bool = False
    ops: list[Op] = field(default_factory=list)
    widths: dict[Buffer, int] = field(default_factory=dict)
    shapes: dict[Slot, tuple[int, int]] = field(default_factory=dict)

    def emit(self, layers: int) -> Buffer:
        """Emit the decoder with its first layers; return the buffer of the logits."""
        config = self.config
        ropes = dict.fromkeys(config.rope_of(layer) for layer in range(layers))
        tables = {rope: self.rope_table(rope) for rope in ropes}
        x = self.embed()
        for layer in range(layers):
            x = self.attention_block(layer, x, tables[config.rope_of(layer)])
            x = self.mlp_block(layer, x)
        return self.logits(x)

    def embed(self) -> Buffer:
        """Look up the tokens' rows of the embedding."""
        config = self.config
        weight = self.slot("embed.weight", config.vocabulary, config.hidden)
        place = self.place(OUTSIDE, "embed", config.hidden)
        return self.add(Embed(**place, weight=weight, scale=config.embed_scale))

    def rope_table(self, rope: RopeConfig) -> Buffer:
        """Compute cosines and sines of the rows' positions for a rope."""
        site = "local_rope" if rope == self.config.local_rope else "rope"
        frequencies, factor = rope_frequencies(rope, self.config.head_dim)
        place = self.place(OUTSIDE, site, self.config.head_dim)
        return self.add(RopeTable(**place, frequencies=frequencies, factor=factor))

    def attention_block(self, layer: int, x: Buffer, table: Buffer) -> Buffer:
        """Add what attention makes of the normed residual stream to it."""
        config = self.config
        normed = self.norm(layer, "attn_norm", x)
        q = self.linear(layer, "q", normed, config.query_width, bias=config.qkv_bias)
        k = self.linear(layer, "k", normed, config.key_width, bias=config.qkv_bias)
        v = self.linear(layer, "v", normed, config.key_width, bias=config.qkv_bias)
        return self.residual(layer, "attn_add", x, self.attend(layer, q, k, v, table))

    def attend(self, layer: int, q: Buffer, k: Buffer, v: Buffer, table: Buffer) -> Buffer:
        """Return what attention adds to the residual stream, from projected inputs."""
        config = self.config
        if config.qk_norm:
            q = self.head_norm(layer, "q_norm", q)
            k = self.head_norm(layer, "k_norm", k)
        q = self.rope(layer, "q_rope", q, table)
        k = self.rope(layer, "k_rope", k, table)
        if self.rotate_keys:
            q = self.hadamard(layer, "q_rotate", q, self.config.head_dim)
            k = self.hadamard(layer, "k_rotate", k, self.config.head_dim)
        mixed = self.attention(layer, q, k, v)
        out = self.linear(layer, "o", mixed, config.hidden, bias=config.output_bias)
        if config.sandwich_norms:
            out = self.norm(layer, "post_attn_norm", out)
        return out

    def mlp_block(self, layer: int, x: Buffer) -> Buffer:
        """Add what the MLP, or the mixture in its place, makes of the stream to it."""
        config = self.config
        normed = self.norm(layer, "mlp_norm", x)
        if config.mixture is not None and config.mixture.layers[layer]:
            out = self.mixture(layer, normed, config.mixture)
        else:
            out = self.dense(layer, normed)
        if config.sandwich_norms:
            out = self.norm(layer, "post_mlp_norm", out)
        return self.residual(layer, "mlp_add", x, out)

    def dense(self, layer: int, normed: Buffer) -> Buffer:
        """Return what the gated MLP makes of its normed input."""
        config = self.config
        gate = self.linear(layer, "gate", normed, config.intermediate, bias=config.mlp_bias)
        up = self.linear(layer, "up", normed, config.intermediate, bias=config.mlp_bias)
        place = self.place(layer, "activation", config.intermediate)
        gated = self.add(GatedActivation(**place, gate=gate, up=up, activation=config.activation))
        if config.mlp_rotation:
            gated = self.hadamard(layer, "mlp_rotate", gated, config.mlp_rotation)
        return self.linear(layer, "down", gated, config.hidden, bias=config.mlp_bias)

    def mixture(self, layer: int, normed: Buffer, mixture: MixtureConfig) -> Buffer:
        """Return what the mixture of experts makes of its normed input."""
        router = self.linear(layer, "router", normed, mixture.experts, bias=False)
        experts = tuple(self.expert(layer, e, mixture.width) for e in range(mixture.experts))
        return self.add(
            Mixture(
                **self.place(layer, "mixture", self.config.hidden),
                x=normed,
                router=router,
                experts=experts,
                width=mixture.width,
                used=mixture.used,
                normalized=mixture.normalized,
                activation=self.config.activation,
            )
        )

    def expert(self, layer: int, expert: int, width: int) -> Expert:
        """Name the slots of an expert's matrices."""
        stem, hidden = f"{_prefix(layer)}experts.{expert}", self.config.hidden
        return Expert(
            gate=self.slot(f"{stem}.gate.weight", width, hidden),
            up=self.slot(f"{stem}.up.weight", width, hidden),
            down=self.slot(f"{stem}.down.weight", hidden, width),
        )

    def logits(self, x: Buffer) -> Buffer:
        """Return the logits of the wanted rows, behind the final norm."""
        config = self.config
        x = self.add(SelectRows(**self.place(OUTSIDE, "select", config.hidden), x=x))
        x = self.norm(OUTSIDE, "final_norm", x)
        name = "embed.weight" if config.tied else "head.weight"
        rows = config.vocabulary if config.head_rows is None else config.head_rows
        weight = self.slot(name, rows, config.hidden)
        place = self.place(OUTSIDE, "head", rows)
        logits = self.add(Linear(**place, x=x, weight=weight))
        if config.logits_softcap is None:
            return logits
        place = self.place(OUTSIDE, "logits_softcap", rows)
        return self.add(Softcap(**place, x=logits, cap=config.logits_softcap))

    def norm(self, layer: int, site: str, x: Buffer) -> Buffer:
        """Norm whole rows."""
        return self.rms_norm(layer, site, x, self.widths[x])

    def head_norm(self, layer: int, site: str, x: Buffer) -> Buffer:
        """Norm each head by itself."""
        return self.rms_norm(layer, site, x, self.config.head_dim)

    def rms_norm(self, layer: int, site: str, x: Buffer, width: int) -> Buffer:
        """Norm runs of `width` elements by a weight of the site's name."""
        weight = self.slot(f"{_prefix(layer)}{site}.weight", 1, width)
        place = self.place(layer, site, self.widths[x])
        eps, offset = self.config.eps, self.config.norm_offset
        return self.add(RmsNorm(**place, x=x, weight=weight, width=width, eps=eps, offset=offset))

    def linear(self, layer: int, site: str, x: Buffer, outputs: int, *, bias: bool) -> Buffer:
        """Multiply by the site's matrix of that many outputs."""
        weight = self.slot(f"{_prefix(layer)}{site}.weight", outputs, self.widths[x])
        vector = self.slot(f"{_prefix(layer)}{site}.bias", 1, outputs) if bias else None
        place = self.place(layer, site, outputs)
        return self.add(Linear(**place, x=x, weight=weight, bias=vector))

    def rope(self, layer: int, site: str, x: Buffer, table: Buffer) -> Buffer:
        """Rotate heads by a table."""
        place = self.place(layer, site, self.widths[x])
        return self.add(Rope(**place, x=x, table=table, head_dim=self.config.head_dim))

    def hadamard(self, layer: int, site: str, x: Buffer, size: int) -> Buffer:
        """Transform runs of `size` elements."""
        place = self.place(layer, site, self.widths[x])
        return self.add(Hadamard(**place, x=x, size=size))

    def attention(self, layer: int, q: Buffer, k: Buffer, v: Buffer) -> Buffer:
        """Attend from the store, the rows' keys and values written first."""
        config = self.config
        return self.add(
            Attention(
                **self.place(layer, "attention", config.query_width),
                q=q,
                k=k,
                v=v,
                heads=config.heads,
                kv_heads=config.kv_heads,
                head_dim=config.head_dim,
                scale=config.attention_scale,
                window=config.windows[layer],
                softcap=config.attention_softcap,
            )
        )

    def residual(self, layer: int, site: str, x: Buffer, y: Buffer) -> Buffer:
        """Add two buffers."""
        return self.add(Add(**self.place(layer, site, self.widths[x]), x=x, y=y))

    def place(self, layer: int, site: str, width: int) -> _Place:
        """Name a new buffer of this width after where it stands."""
        out = f"{_prefix(layer)}{site}"
        assert out not in self.widths, f"buffer {out} is written twice"
        self.widths[out] = width
        return {"layer": layer, "site": site, "out": out}

    def slot(self, name: Slot, rows: int, columns: int) -> Slot:
        """Note a slot with its shape."""
        known = self.shapes.setdefault(name, (rows, columns))
        assert known == (rows, columns), f"slot {name} has two shapes"
        return name

    def add(self, op: Op) -> Buffer:
        """Append an op; return the buffer that it writes."""
        self.ops.append(op)
        return op.out


def _prefix(layer: int) -> str:
    return "" if layer == OUTSIDE else f"layers.{layer}."
