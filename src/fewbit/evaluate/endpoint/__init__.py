"""Models behind OpenAI-compatible URLs as parties to an evaluation."""
