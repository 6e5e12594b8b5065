"""What searches for channel factors found, kept in a job's folder a site at a time."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fewbit.checkpoint.safetensors_read import SafetensorsFile
from fewbit.checkpoint.safetensors_write import Part, write_safetensors
from fewbit.errors import FewbitError
from fewbit.methods.scaling import Scaling
from fewbit.quantization.job import Stop
from fewbit.records.base import Record, from_json, to_json

_FACTORS, _RECORD = "factors", "scaling"


class KeptScaling(Record, frozen=True, kw_only=True):
    """A `Scaling` but for its factors."""

    detail: str
    before: float
    after: float


@dataclass(frozen=True)
class KeptScalings:
    """A file for each site of each transform; the job's key ties them to what they come from."""

    folder: Path
    stop: Stop
    name: str = "transform"

    def of(self, transform: str) -> KeptScalings:
        """Return those of one transform of the recipe, by a name that no other has."""
        return replace(self, name=f"transform-{transform}")

    def find(self, number: int, width: int) -> Scaling | None:
        """Return what was found for a site, by its number; None where that must be searched."""
        path = self._path(number)
        if not path.exists():
            return None
        try:
            with SafetensorsFile(path) as file:
                record = from_json(
                    KeptScaling, file.header.metadata[_RECORD].encode(), name=str(path)
                )
                factors = np.array(file.read(_FACTORS).codes).view(np.float32).reshape(-1)
        except (FewbitError, KeyError):
            return None
        if factors.shape != (width,):
            return None
        return Scaling(factors, record.detail, record.before, record.after)

    def keep(self, number: int, scaling: Scaling) -> None:
        """Keep what was found for a site; a good place to stop.

        Raises:
            OutputError: the folder cannot be written.
            StoppedError: that was asked for.
        """
        record = KeptScaling(detail=scaling.detail, before=scaling.before, after=scaling.after)
        factors = np.ascontiguousarray(scaling.factors, np.float32)
        parts = [Part(_FACTORS, "F32", factors.shape)]
        metadata = {_RECORD: to_json(record).decode()}
        write_safetensors(self._path(number), parts, [(_FACTORS, factors)], metadata)
        self.stop.check()

    def _path(self, number: int) -> Path:
        return self.folder / f"{self.name}-{number:05d}.safetensors"
