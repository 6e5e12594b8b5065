"""A torch model of two blocks, and the configurations that it is quantized with."""

from __future__ import annotations

import torch

import fewbit

CONFIGS = {
    "int4": fewbit.Int4WeightOnlyConfig(group_size=32),
    "int8": fewbit.Int8WeightOnlyConfig(),
    "int8-group": fewbit.Int8WeightOnlyConfig(granularity=fewbit.PerGroup(32)),
    "int8-tensor": fewbit.Int8WeightOnlyConfig(granularity=fewbit.PerTensor()),
    "w8a8": fewbit.Int8DynamicActivationInt8WeightConfig(),
    "fp8": fewbit.Float8WeightOnlyConfig(),
    "fp8-tensor": fewbit.Float8WeightOnlyConfig(granularity=fewbit.PerTensor()),
}
INT4 = CONFIGS["int4"]


class Block(torch.nn.Module):
    """Nested, with and without bias."""

    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(64, 96)
        self.inner = torch.nn.Sequential(torch.nn.GELU(), torch.nn.Linear(96, 64, bias=False))

    def forward(self, x):
        return x + self.inner(self.up(x))


def block(dtype=torch.float32):
    return torch.nn.Sequential(Block(), torch.nn.LayerNorm(64), Block()).to(dtype).eval()
