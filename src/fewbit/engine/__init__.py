"""Requests in, tokens out: what runs in a step, and the loop around it."""
