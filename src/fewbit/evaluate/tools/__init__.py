"""The axis of tools: calls, structured output, and answers that do not end."""
