"""Certificates: evidence, over the path that users run, that a draft changes nothing."""
