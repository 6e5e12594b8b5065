"""The Python interface: what `import fewbit` gives to scripts and notebooks.

Everything here is a thin way into the packages below. The names are collected in `fewbit` itself.
"""
