"""What tests of quantizing share: recipes, tiny sources, and a hash of what was written."""

import hashlib
from pathlib import Path

from tiny_models import CONFIGS, random_weights, write_huggingface

from fewbit.records.recipe import Recipe, Role, Rule

LINEAR_4 = Rule(role=Role.LINEAR, format="int4-g32")
HEAD_8 = Rule(role=Role.HEAD, format="int8-g32")


def recipe(*rules: Rule, method: str = "rtn") -> Recipe:
    return Recipe(name="test", method=method, rules=rules)


def folder(tmp_path: Path, name: str = "llama") -> Path:
    """Write a tiny model of a family."""
    return write_huggingface(tmp_path / name, CONFIGS[name], random_weights(CONFIGS[name]))


def tree_hash(path: Path) -> dict[str, str]:
    """Return the hash of every file in a folder, or of one file, by name."""
    files = [path] if path.is_file() else sorted(path.rglob("*"))
    return {p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in files if p.is_file()}
