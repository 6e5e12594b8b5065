"""How much memory a process may still take, as the system and its containers say."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

UNLIMITED = 1 << 60
"""cgroup v1 writes a number near 2^63 where there is no limit."""


@dataclass(frozen=True)
class Available:
    """Bytes that can be taken; None where the system does not say."""

    bytes: int | None
    limit: str
    """What sets the bound, in words."""


def available_memory(root: Path = Path("/")) -> Available:
    """Return the least that Linux and the process's cgroups leave.

    Memory that only caches files counts as free in both. Elsewhere than on Linux nothing is known.

    Args:
        root: where /proc and /sys lie.
    """
    found = [*_of_system(root), *_of_cgroups(root)]
    if not found:
        return Available(None, "this system does not say how much memory is left")
    return min(found, key=lambda available: available.bytes or 0)


def _of_system(root: Path) -> Iterator[Available]:
    for line in _lines(root / "proc/meminfo"):
        name, _, value = line.partition(":")
        if name == "MemAvailable" and value.split()[0].isdigit():
            yield Available(int(value.split()[0]) << 10, "available in the system")


def _of_cgroups(root: Path) -> Iterator[Available]:
    """Yield what each cgroup that limits this process has left, its parents included."""
    mounted = root / "sys/fs/cgroup"
    for line in _lines(root / "proc/self/cgroup"):
        number, controllers, path = [*line.split(":", 2), "", ""][:3]
        if number == "0":
            yield from _left(mounted, path, "memory.max", "memory.current")
        elif "memory" in controllers.split(","):
            base = mounted / "memory"
            yield from _left(base, path, "memory.limit_in_bytes", "memory.usage_in_bytes")


def _left(base: Path, path: str, limit_name: str, used_name: str) -> Iterator[Available]:
    """Yield what the group at a path and those around it leave; inside a container base is it."""
    parts = [part for part in path.split("/") if part not in ("", "..")]
    for depth in range(len(parts) + 1):
        group = base.joinpath(*parts[:depth])
        limit, used = _number(group / limit_name), _number(group / used_name)
        if limit is None or used is None or limit >= UNLIMITED:
            continue
        cached = _file_cache(group / "memory.stat")
        yield Available(max(0, limit - used + min(cached, used)), f"left in the cgroup {group}")


def _file_cache(stat: Path) -> int:
    """Return bytes that cache files and can be dropped, of `memory.stat`."""
    values = dict(line.split()[:2] for line in _lines(stat) if len(line.split()) >= 2)
    names = ("inactive_file", "active_file")
    return sum(int(values[name]) for name in names if values.get(name, "").isdigit())


def _number(path: Path) -> int | None:
    text = next(_lines(path), "")
    return int(text) if text.isdigit() else None


def _lines(path: Path) -> Iterator[str]:
    with contextlib.suppress(OSError, UnicodeDecodeError):
        yield from path.read_text().splitlines()
