"""Solvers and transforms on arrays: no files, no model, no state."""
