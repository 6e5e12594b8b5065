"""Refusing, before anything is made, to calibrate on what will be measured on."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from fewbit.calibrate.mix import DEFAULT, SAMPLES, CalibrationSettings
from fewbit.calibrate.text import Half, default_name
from fewbit.evaluate.axis import Axis, Reads
from fewbit.evaluate.language.calibrated import refuse_named
from fewbit.model.tokenizer import tokenizer_of
from fewbit.model.weights import ModelSource


def require_unseen(axes: Sequence[Axis], text: CalibrationSettings, source: ModelSource) -> None:
    """Compare the texts of axes with calibration text.

    The evaluation of what was made would refuse it as well, after the work.

    Raises:
        UsageError: a document that is measured on is largely contained in calibration text.
        BadFileError, MissingError: a calibration file cannot be read.
    """
    names = list(_names(text))
    if names:
        decode = tokenizer_of(source).decode
        for documents in (t for axis in axes if isinstance(axis, Reads) for t in axis.texts):
            refuse_named(documents, names, decode)


def _names(text: CalibrationSettings) -> Iterator[str]:
    """Yield what records call the texts; nobody else has what the model writes itself."""
    for part in text.mix:
        if part.source == DEFAULT:
            yield default_name(Half.CALIBRATION)
        elif part.source != SAMPLES:
            yield part.source
