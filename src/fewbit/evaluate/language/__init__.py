"""The axis of language: divergence, perplexity and agreement, by text, position and confidence."""
