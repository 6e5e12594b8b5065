"""Speculation: exact acceptance rules without a model, drafts, and how long a draft should be."""
