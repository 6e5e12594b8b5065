"""Writing a model in the formats of others: what a target holds, the plan, and the writers."""
