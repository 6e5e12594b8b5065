"""The axis of safety: what is refused and what is answered."""
