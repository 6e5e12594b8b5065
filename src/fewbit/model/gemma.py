"""What only Gemma's configurations have, whatever file they are in."""

from __future__ import annotations

import math

import numpy as np

from fewbit.model.families import Family
from fewbit.model.fields import Fields


def embed_scale(family: Family, hidden: int) -> float:
    """Return the factor on embeddings: sqrt(hidden) rounded to float32 for Gemma, else 1."""
    return float(np.float32(math.sqrt(hidden))) if family.gemma else 1.0


def softcap(fields: Fields, family: Family, name: str) -> float | None:
    """Return a bound of scores or logits; only Gemma has them, under a name of the file's kind."""
    if not family.gemma or not fields.has(name):
        return None
    return fields.number(name, 1e-3, 1e6)
