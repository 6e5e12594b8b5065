"""Pages of the KV store: who holds which, growing, rolling back, and keeping a finished prefix."""
