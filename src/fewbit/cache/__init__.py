"""Pages of the KV store: who holds which, and which hold tokens that others can begin with."""
