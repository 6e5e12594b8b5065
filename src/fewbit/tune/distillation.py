"""The whole of a tuning: states of the source, steps, looks at held-out text, the best kept."""

from __future__ import annotations

from collections.abc import Mapping

from fewbit.errors import UnsupportedError
from fewbit.formats.spec import QuantTensor
from fewbit.model.weights import ModelSource
from fewbit.program import Slot
from fewbit.tune.settings import Job, TuneResult, TuneSettings, TuneText


def run(
    source: ModelSource,
    start: Mapping[Slot, QuantTensor],
    text: TuneText,
    settings: TuneSettings,
    job: Job,
) -> TuneResult:
    """Tune as `distill` says."""
    raise UnsupportedError(f"Tuning {settings.what.value} is not there yet; leave it out.")
