"""The Program: a decoder as an immutable list of ops over named buffers.

Single assignment: every buffer is written by one op. Widths are static; the number of rows is
whatever the `StepInput` brings. Weights are slots (names such as `layers.3.q.weight`); which
tensor and kernel fills a slot is the binding's business. All buffers are float32 [rows, width];
the rounding of a linear layer's input (float32, or int8 per 32 inputs) belongs to the kernel that
the binding names, so every executor can emulate it.

The rounding of keys and values belongs to the Program's `cache_type`. f16 and bf16 round to
nearest, ties to even. int8 and int4 have one scale per position, key head and run of 32 elements of
the head (`KV_GROUP`); everything is computed in float32, each operation rounded once:

- int8: scale = fp16(min(absmax / 127, 65504)), code = clip(round_half_even(x / scale), -127, 127);
- int4: m = the element of largest magnitude (the positive one of two), scale =
  fp16(clip(m / -8, -65504, 65504)), code = clip(round_half_even(x / scale), -8, 7), so m gets -8;
- a scale of zero has codes of zero; code * scale, exact in float32, is what is read.

A query that meets integer keys is rounded to 16 bits per 32 elements: scale = absmax / 32767 in
float32, code = clip(round_half_even(x / scale), -32767, 32767). So the product of a run's codes is
an exact integer, and scores are sums of those times both scales.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import TypeAlias

Buffer: TypeAlias = str
Slot: TypeAlias = str

OUTSIDE = -1
"""The `layer` of ops that belong to no decoder layer."""


class Activation(Enum):
    """The nonlinearity of a gated MLP."""

    SILU = "silu"
    GELU_TANH = "gelu_tanh"


class CacheType(Enum):
    """How keys and values are rounded in the KV store; the module says how exactly."""

    F32 = "f32"
    F16 = "f16"
    BF16 = "bf16"
    INT8 = "int8"
    INT4 = "int4"

    @property
    def bits(self) -> int:
        """Bits of one stored element, without scales."""
        widths = {"f32": 32, "f16": 16, "bf16": 16, "int8": 8, "int4": 4}
        return widths[self.value]

    @property
    def is_integer(self) -> bool:
        """Whether elements are codes with a scale per `KV_GROUP` of them."""
        return self in (CacheType.INT8, CacheType.INT4)


KV_GROUP = 32
"""Elements of a head that share one scale where the KV store holds integers."""


@dataclass(frozen=True, kw_only=True)
class Op:
    """What all ops share: where they stand, and the buffer they write."""

    layer: int
    site: str
    out: Buffer


@dataclass(frozen=True, kw_only=True)
class Embed(Op):
    """out[r] = scale * decode(weight row of token r)."""

    weight: Slot
    scale: float = 1.0


@dataclass(frozen=True, kw_only=True)
class RopeTable(Op):
    """out[r] = [cos(p f_0) .. cos(p f_{n-1}), sin(p f_0) .. sin(p f_{n-1})] * factor.

    p is row r's position, f `frequencies` (float32, radians per position); width 2 n.
    """

    frequencies: tuple[float, ...]
    factor: float = 1.0


@dataclass(frozen=True, kw_only=True)
class RmsNorm(Op):
    """Over each run of `width` elements: out = x / sqrt(mean(x^2) + eps) * (weight + offset).

    `width` is the row for a layer norm and the head for a q/k norm; weight is float32 [width].
    """

    x: Buffer
    weight: Slot
    width: int
    eps: float
    offset: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Linear(Op):
    """out[r] = weight @ round(x[r]) + bias, with weight [outputs, inputs]."""

    x: Buffer
    weight: Slot
    bias: Slot | None = None


@dataclass(frozen=True, kw_only=True)
class Rope(Op):
    """Rotate each head's halves: (a, b) -> (a cos - b sin, b cos + a sin), a = x[:n], b = x[n:].

    The table's width is `head_dim` (rotation of the whole head, n = head_dim / 2).
    """

    x: Buffer
    table: Buffer
    head_dim: int


@dataclass(frozen=True, kw_only=True)
class Hadamard(Op):
    """out = x @ H / sqrt(size) for each run of `size` elements, with H the Hadamard matrix.

    `size` is a power of two, H in natural order. H / sqrt(size) is orthogonal and symmetric, so
    queries and keys whose heads both pass it have the scores they had, and a matrix whose columns
    pass it as its input does gives the products it gave. Outliers of single elements are spread
    over the run, which integers round better (practice: QuaRot, Ashkboos et al. 2024). Computed by
    log2(size) passes of float32 additions, at distances 1, 2, 4, .. in this order, then one
    multiplication by float32(1 / sqrt(size)).
    """

    x: Buffer
    size: int


@dataclass(frozen=True, kw_only=True)
class Attention(Op):
    """Write the rows' keys and values to the store of `layer`, then attend causally from it.

    s_j = scale * q . k_j (then softcap * tanh(s_j / softcap) where set), over keys j <= own
    position, and j > position - window where a window is set. Query head h uses key head
    h // (heads / kv_heads). Keys and values are read as the store rounded them.
    """

    q: Buffer
    k: Buffer
    v: Buffer
    heads: int
    kv_heads: int
    head_dim: int
    scale: float
    window: int | None = None
    softcap: float | None = None


@dataclass(frozen=True, kw_only=True)
class GatedActivation(Op):
    """out = activation(gate) * up."""

    gate: Buffer
    up: Buffer
    activation: Activation


@dataclass(frozen=True)
class Expert:
    """The matrices of one expert: gate and up [width, hidden], down [hidden, width]."""

    gate: Slot
    up: Slot
    down: Slot


@dataclass(frozen=True, kw_only=True)
class Mixture(Op):
    """out[r] = sum over ranks k of w[r, k] * expert e[r, k] of x[r].

    `router` holds the logits of all experts, float32 [rows, len(experts)]. A row's experts are the
    `used` of the largest logits, in descending order, ties to the lower id; none is ever left out,
    however many rows choose it. Their weights are the softmax over the chosen logits where
    `normalized`, over all logits otherwise (then they sum to less than 1). Softmax over all and a
    division by the sum of the chosen, as some describe it, gives the first. An expert is
    down(activation(gate(x)) * up(x)), its linear layers rounding their inputs as their kernels say.
    The sum runs in the order of ranks from zero, sum = fma(w_k, y_k, sum).
    """

    x: Buffer
    router: Buffer
    experts: tuple[Expert, ...]
    width: int
    """Outputs of an expert's gate and up."""
    used: int
    normalized: bool
    activation: Activation


@dataclass(frozen=True, kw_only=True)
class Add(Op):
    """out = x + y."""

    x: Buffer
    y: Buffer


@dataclass(frozen=True, kw_only=True)
class SelectRows(Op):
    """out = the rows of x whose logits are wanted, in the order of `StepInput.wanted`."""

    x: Buffer


@dataclass(frozen=True, kw_only=True)
class Softcap(Op):
    """out = cap * tanh(x / cap)."""

    x: Buffer
    cap: float


@dataclass(frozen=True)
class Program:
    """A decoder: ops in order, the buffer that holds the logits, and static widths."""

    ops: tuple[Op, ...]
    widths: dict[Buffer, int]
    logits: Buffer
    layers: int
    vocabulary: int
    """Token ids that it reads; the logits are those of all of them, or of fewer."""
    context: int
    cache_type: CacheType = CacheType.F16

    def inputs(self, op: Op) -> tuple[Buffer, ...]:
        """Return the buffers that `op` reads."""
        names = ("x", "y", "q", "k", "v", "gate", "up", "table", "router")
        return tuple(getattr(op, name) for name in names if hasattr(op, name))

    def slots(self) -> tuple[Slot, ...]:
        """Return every weight slot once, in order of first use."""
        return tuple(dict.fromkeys(slot for op in self.ops for slot in slots_of(op)))


def slots_of(op: Op) -> tuple[Slot, ...]:
    """Return the weight slots that an op reads; of a mixture, expert after expert."""
    if isinstance(op, Mixture):
        return tuple(slot for e in op.experts for slot in (e.gate, e.up, e.down))
    named = (getattr(op, name, None) for name in ("weight", "bias"))
    return tuple(slot for slot in named if slot is not None)
