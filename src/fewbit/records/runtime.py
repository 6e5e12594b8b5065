"""The runtimes that an artefact can be made for, by name."""

from __future__ import annotations

from typing import Literal, TypeAlias

Runtime: TypeAlias = Literal["fewbit", "llama.cpp", "vllm"]
