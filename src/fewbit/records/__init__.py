"""Frozen, serializable records: everything fewbit writes down, and nothing that computes."""
