"""Tuning by distillation: parameters of a quantized model trained against its source."""

from fewbit.tune.distill import distill, require_torch
from fewbit.tune.settings import (
    Job,
    Precision,
    Progress,
    Tuned,
    TuneProgress,
    TuneResult,
    TuneSettings,
    TuneText,
)

__all__ = [
    "Job",
    "Precision",
    "Progress",
    "TuneProgress",
    "TuneResult",
    "TuneSettings",
    "TuneText",
    "Tuned",
    "distill",
    "require_torch",
]
