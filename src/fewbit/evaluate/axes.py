"""The axes by name, and how each is made from what a user asks for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType

from fewbit.calibrate.text import Documents, collect, evaluation_text
from fewbit.errors import UsageError
from fewbit.evaluate.axis import Axis
from fewbit.evaluate.language.axis import LanguageAxis
from fewbit.evaluate.language.conversations import conversations, passages
from fewbit.evaluate.long_context.axis import LongContextAxis
from fewbit.evaluate.machine.kernel_axis import KernelAxis
from fewbit.evaluate.machine.memory_axis import MemoryAxis
from fewbit.evaluate.machine.numerics_axis import NumericsAxis
from fewbit.evaluate.machine.speed_axis import SpeedAxis
from fewbit.evaluate.safety.axis import safety_axis
from fewbit.evaluate.tasks.axis import tasks_axis
from fewbit.evaluate.tools.axis import tools_axis

ALL = "all"
DEFAULT: Mapping[str, tuple[str, ...]] = MappingProxyType(
    {"native": ("language", "kernels", "numerics"), "reference": ("language",)}
)
"""What runs where no axes are asked for, by the executor: seconds to a minute each. The reference
executor has neither kernels nor taps."""


@dataclass(frozen=True, kw_only=True)
class AxisOptions:
    """What a user may say of the axes; each takes what it understands."""

    text: Path | None = None
    """What is read; None for text that this Python carries."""
    windows: int = 40
    window_tokens: int = 512
    suite: Path | None = None
    """A folder of tasks; None for the built-in suite."""
    executor: str = "native"
    threads: int | None = None
    level: float = 0.95
    """Confidence of the intervals in the details."""

    @property
    def documents(self) -> Documents:
        """The text; raises as `evaluation_text`."""
        return evaluation_text(self.text)


def first_look(options: AxisOptions, windows: int) -> tuple[Axis, ...]:
    """Return what is looked at first of a candidate that may be hopeless: so many windows of text.

    None at all where that is all that will be measured.
    """
    if windows >= options.windows:
        return ()
    return (_language_on(replace(options, windows=windows), whole=False),)


def _language(options: AxisOptions) -> Axis:
    """Return the axis; on the slow executor without the conversations and passages it brings."""
    return _language_on(options, whole=options.executor != "reference")


def _language_on(options: AxisOptions, *, whole: bool) -> Axis:
    return LanguageAxis(
        conversations=conversations() if whole else (),
        passages=passages() if whole else collect("none", ()),
        documents=options.documents,
        windows=options.windows,
        window_tokens=options.window_tokens,
        threads=options.threads,
        level=options.level,
    )


def _tasks(options: AxisOptions) -> Axis:
    return tasks_axis(options.suite)


def _safety(options: AxisOptions) -> Axis:
    return safety_axis(options.suite)


def _long_context(options: AxisOptions) -> Axis:
    return LongContextAxis(
        documents=options.documents, threads=options.threads, level=options.level
    )


def _tools(options: AxisOptions) -> Axis:
    return tools_axis(options.suite)


def _speed(_: AxisOptions) -> Axis:
    return SpeedAxis()


def _memory(_: AxisOptions) -> Axis:
    return MemoryAxis()


def _kernels(_: AxisOptions) -> Axis:
    return KernelAxis()


def _numerics(options: AxisOptions) -> Axis:
    return NumericsAxis(documents=options.documents)


AXES: Mapping[str, Callable[[AxisOptions], Axis]] = {
    "language": _language,
    "tasks": _tasks,
    "safety": _safety,
    "long-context": _long_context,
    "tools": _tools,
    "speed": _speed,
    "memory": _memory,
    "kernels": _kernels,
    "numerics": _numerics,
}
"""All axes, in the order in which they run."""

_READ_SUITES = ("tasks", "safety", "tools")
_READ_TEXT = ("language", "long-context", "numerics")


def axes_named(names: Sequence[str], options: AxisOptions) -> tuple[Axis, ...]:
    """Return the axes of these names, each once, in the order in which they run.

    Args:
        names: of axes; `all` for all; none for the default ones.
        options: what else is asked for.

    Raises:
        UsageError: a name is none; the nearest ones are named. Or none of the axes reads the
            suite, or the text.
        BadFileError, MissingError: a text or a suite cannot be read.
    """
    chosen = set(AXES if ALL in names else names or DEFAULT[options.executor])
    for name in names:
        if name != ALL and name not in AXES:
            near = get_close_matches(name, [*AXES, ALL], n=2)
            hint = f"did you mean {' or '.join(near)}?" if near else f"there are {', '.join(AXES)}."
            raise UsageError(f"There is no axis '{name}'; {hint}")
    if options.suite is not None and chosen.isdisjoint(_READ_SUITES):
        raise UsageError(
            f"No axis that is measured reads the suite {options.suite}; name one that does, for "
            f"instance --axes {','.join(_READ_SUITES)}."
        )
    if options.text is not None and chosen.isdisjoint(_READ_TEXT):
        raise UsageError(
            f"No axis that is measured reads the text {options.text}; name one that does, for "
            f"instance --axes {','.join(_READ_TEXT)}, or leave --text out."
        )
    return tuple(make(options) for name, make in AXES.items() if name in chosen)
