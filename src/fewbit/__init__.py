"""fewbit: make a language model smaller and faster, and prove that it is still the same model."""

from __future__ import annotations

__version__ = "0.1.0"
