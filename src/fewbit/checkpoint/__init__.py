"""Checkpoints on disk: recognized, read lazily through a memory map, and written atomically."""

from fewbit.checkpoint.open import open_checkpoint

__all__ = ["open_checkpoint"]
