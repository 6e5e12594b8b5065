"""A candidate measured against its exact source: identity, axes with intervals, and a verdict."""
