"""The axis of long context: what is found again in it, and divergence along it."""
