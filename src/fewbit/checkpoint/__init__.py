"""Checkpoints on disk: recognized, read lazily through a memory map, and written atomically."""
