"""Text to token ids and back, and chat templates: built from facts that others have read."""
