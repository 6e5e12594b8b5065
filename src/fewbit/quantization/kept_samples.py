"""Calibration text that a model wrote, kept in a job's folder a batch at a time."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from fewbit.calibrate.mix import Keep
from fewbit.calibrate.samples import Samples, SampleSettings
from fewbit.checkpoint.safetensors_read import SafetensorsFile
from fewbit.checkpoint.safetensors_write import Part, write_safetensors
from fewbit.errors import FewbitError
from fewbit.quantization.job import Job

_NAME = "windows"


def kept_samples(job: Job) -> Keep:
    """Return what writes a batch, or finds it among what an earlier run or an earlier asker left.

    A sample depends on its number and length alone, so the first of a larger batch are a batch.
    """

    def keep(settings: SampleSettings, write: Callable[[], Samples]) -> Samples:
        path = job.folder / f"samples-{settings.seed}-{settings.first}.safetensors"
        if path.exists():
            try:
                with SafetensorsFile(path) as file:
                    shape = file.header.tensors[_NAME].info.shape
                    found = np.array(file.read(_NAME).codes).view(np.int32).reshape(shape)
            except (FewbitError, KeyError):
                found = np.empty((0, 0), np.int32)
            if len(found) >= settings.windows and found.shape[1] == settings.length:
                return tuple(found[: settings.windows])
        written = write()
        stacked = np.stack(written)
        write_safetensors(path, [Part(_NAME, "I32", stacked.shape)], [(_NAME, stacked)], {})
        return written

    return keep
