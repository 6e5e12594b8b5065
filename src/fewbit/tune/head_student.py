"""A draft head in torch: what `model.head` describes, with gradients.

Rows of a window are computed at once. Block position s of row i reads the token s behind the row's
own and the state that position s - 1 made there; it attends to the true rows up to i and to the
earlier positions of its own block, which is what a store holds when the head drafts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

from fewbit.model.head import HeadConfig
from fewbit.model.rope import rope_frequencies

_LAYER = "layers.0."


@dataclass
class Memory:
    """Keys and values so far, [kv heads, rows, head size] each: the true rows', then positions'."""

    keys: list[Tensor] = field(default_factory=list)
    values: list[Tensor] = field(default_factory=list)


class HeadStudent:
    """A head's parameters by the names of speculators, and its forward pass."""

    def __init__(self, config: HeadConfig, weights: dict[str, NDArray[np.float32]]) -> None:
        self.config = config
        self.parameters = {
            name: torch.from_numpy(value.copy()).requires_grad_() for name, value in weights.items()
        }
        frequencies, factor = rope_frequencies(config.layer.rope, config.layer.head_dim)
        self._frequencies = torch.tensor(frequencies, dtype=torch.float64)
        self._factor = factor

    def fuse(self, states: Tensor) -> Tensor:
        """Return what true rows read, [rows, hidden], for states [rows, 3 * target hidden]."""
        if self.config.norm_before_fuse:
            states = self._norm("input_norm", states)
        return functional.linear(states, self.parameters["fc.weight"])

    def advance(self, embedded: Tensor, hidden: Tensor, memory: Memory) -> tuple[Tensor, Tensor]:
        """Run the next block position of rows 0 to n - 1.

        Args:
            embedded: [n, hidden], of each row's next token.
            hidden: [n, hidden], the state beside it.
            memory: of the positions before; this one's keys and values are added.

        Returns:
            Logits [n, kept], and the states that the next position reads [n, hidden].
        """
        normed = self._norm(f"{_LAYER}hidden_norm", hidden)
        read = torch.cat([self._norm(f"{_LAYER}input_layernorm", embedded), normed], dim=-1)
        kept = normed if self.config.norm_before_residual else hidden
        x = kept + self._attention(read, memory)
        x = x + self._mlp(self._norm(f"{_LAYER}post_attention_layernorm", x))
        final = self._norm("norm", x)
        logits = functional.linear(final, self.parameters["lm_head.weight"])
        return logits, final if self.config.norm_output else x

    def _attention(self, read: Tensor, memory: Memory) -> Tensor:
        layer, rows, step = self.config.layer, len(read), len(memory.keys)
        q, k, v = (self._heads(read, site) for site in "qkv")
        positions = torch.arange(rows) + step
        q, k = self._rotated(q, positions), self._rotated(k, positions)
        memory.keys.append(k)
        memory.values.append(v)
        share = layer.heads // layer.kv_heads
        keys = [key[:, :rows].repeat_interleave(share, 0) for key in memory.keys]
        values = [value[:, :rows].repeat_interleave(share, 0) for value in memory.values]
        scale = layer.head_dim**-0.5
        true = (q @ keys[0].transpose(1, 2) * scale).masked_fill(
            torch.ones(rows, rows, dtype=torch.bool).triu(1), -math.inf
        )
        own = [(q * key).sum(-1, keepdim=True) * scale for key in keys[1:]]
        weights = torch.softmax(torch.cat([true, *own], dim=-1), dim=-1)
        mixed = weights[..., :rows] @ values[0]
        for i, value in enumerate(values[1:]):
            mixed = mixed + weights[..., rows + i, None] * value
        joined = mixed.transpose(0, 1).reshape(rows, -1)
        return functional.linear(joined, self.parameters[f"{_LAYER}self_attn.o_proj.weight"])

    def _heads(self, read: Tensor, site: str) -> Tensor:
        weight = self.parameters[f"{_LAYER}self_attn.{site}_proj.weight"]
        wide = functional.linear(read, weight)
        return wide.view(len(read), -1, self.config.layer.head_dim).transpose(0, 1)

    def _rotated(self, x: Tensor, positions: Tensor) -> Tensor:
        angles = positions[:, None].double() * self._frequencies
        cos, sin = (f(angles).float() * self._factor for f in (torch.cos, torch.sin))
        a, b = x.chunk(2, dim=-1)
        return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)

    def _mlp(self, x: Tensor) -> Tensor:
        gate, up, down = (
            self.parameters[f"{_LAYER}mlp.{site}_proj.weight"] for site in ("gate", "up", "down")
        )
        inner = functional.silu(functional.linear(x, gate)) * functional.linear(x, up)
        return functional.linear(inner, down)

    def _norm(self, name: str, x: Tensor) -> Tensor:
        inverse = torch.rsqrt(x.square().mean(-1, keepdim=True) + self.config.layer.eps)
        return x * inverse * self.parameters[f"{name}.weight"]
