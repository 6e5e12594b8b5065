"""Options that ask for a size, and the choice of formats for it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fewbit.errors import FaultError, UsageError

if TYPE_CHECKING:
    from fewbit.quantization.target import Target
    from fewbit.records.manifest import Manifest


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class TargetOptions:
    """A size for which every matrix's format is chosen; the recipe's formats are not used then."""

    target_size: Annotated[
        str | None,
        Parameter(
            help="Choose formats so that the artefact takes at most this, 90MB or 86MiB for "
            "example: a GGUF file as a whole, of a folder the tensors."
        ),
    ] = None
    target_bpw: Annotated[
        float | None,
        Parameter(help="Choose formats so that all tensors take so many bits per weight at most."),
    ] = None

    def target(self) -> Target | None:
        """Return what is asked for, or None; raises UsageError."""
        from fewbit.quantization.target import parse_bits, parse_size

        if self.target_size is not None and self.target_bpw is not None:
            raise UsageError("--target-size and --target-bpw were both given; give one of them.")
        if self.target_size is not None:
            return parse_size(self.target_size)
        return None if self.target_bpw is None else parse_bits(self.target_bpw)


TARGET = TargetOptions()


def require_kept(manifest: Manifest, out: Path) -> None:
    """Compare what was written with the target; raises FaultError where it takes more."""
    found = manifest.allocation
    if found is None:
        return
    written = out.stat().st_size if found.counts == "file" else manifest.tensor_bytes
    if written > found.target_bytes:
        raise FaultError(
            f"{out} takes {written} bytes, more than the target of {found.target_bytes}."
        )
