"""Refusing, before anything is made, to calibrate on what will be measured on."""

from __future__ import annotations

from collections.abc import Sequence

from fewbit.calibrate.mix import CalibrationSettings
from fewbit.calibrate.text import collect
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
    documents = (
        d for axis in axes if isinstance(axis, Reads) for t in axis.texts for d in t.documents
    )
    asked = collect("what is measured on", {d.sha256: d for d in documents}.values())
    if asked.documents:
        refuse_named(asked, [part.text for part in text.mix], tokenizer_of(source).decode)
