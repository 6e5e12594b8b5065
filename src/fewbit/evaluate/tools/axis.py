"""Axis `tools`: calls of functions, JSON of a schema, and answers that do not end.

Every arm is asked the same; prompts are written for the source. An answer is judged by rules alone:
calls by an answer key, JSON by its schema, endings by what they repeat.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import replace

from fewbit.engine.loaded import LoadedModel
from fewbit.errors import BadFileError, MissingError, RequestError, UsageError
from fewbit.evaluate.answers import Ask, answer_missing
from fewbit.evaluate.arms import Arm, Arms, Room
from fewbit.evaluate.axis import Brings
from fewbit.evaluate.seen import refuse_seen_prompts
from fewbit.evaluate.tools.asked import (
    Presentation,
    json_ask,
    presentation_of,
    question,
    tool_ask,
)
from fewbit.evaluate.tools.files import read_bfcl, read_schemas
from fewbit.evaluate.tools.forms import form_of
from fewbit.evaluate.tools.judged import SLICES, Asked, measured
from fewbit.evaluate.tools.key import ToolItem
from fewbit.evaluate.tools.sampling import FINDINGS, sampling_asks
from fewbit.evaluate.tools.structured import SchemaItem
from fewbit.evaluate.tools.structured_suite import builtin_schemas
from fewbit.evaluate.tools.suite import builtin_items
from fewbit.progress import Progress
from fewbit.records.answers import Answer
from fewbit.records.kept import fingerprint
from fewbit.records.measurement import AxisResult, Measure
from fewbit.records.tools import CallForm, LeftOut
from fewbit.sampling import Constraint
from fewbit.tokens.grammar import Grammar

BUILTIN_CONTEXT = 1024
"""Positions; the longest prompt of the built-in suite and its answer take about 700."""

FILES_CONTEXT, FILES_SEQUENCES = 2048, 8


@dataclass(frozen=True, kw_only=True)
class ToolsAxis:
    """What is asked, and how much room it is given.

    Raises:
        UsageError: nothing is asked.
    """

    items: tuple[ToolItem, ...] = field(default_factory=builtin_items)
    schemas: tuple[SchemaItem, ...] = field(default_factory=builtin_schemas)
    context: int = BUILTIN_CONTEXT
    """Positions of a prompt and its answer; what does not fit is left out."""
    sequences: int = 32
    """Answered at once."""
    left_out: tuple[LeftOut, ...] = ()
    """What a file had that cannot be asked."""
    notes: tuple[str, ...] = ()
    """What is to be said of where the items come from."""

    def __post_init__(self) -> None:
        if not self.items and not self.schemas:
            raise UsageError("axis tools has neither functions nor schemas; give some of either.")

    @property
    def name(self) -> str:
        """The axis."""
        return "tools"

    @property
    def brings(self) -> Brings:
        """Calls, JSON and endings, and that arms sample as they are asked to."""
        return Brings(dict.fromkeys(SLICES, Measure.PROPORTION), FINDINGS)

    def run(self, arms: Arms, progress: Progress) -> AxisResult:
        """Ask every arm and judge what it answers; see `Axis`.

        Raises:
            UsageError: the candidate was calibrated on a question.
        """
        began = time.perf_counter()
        unknown = refuse_seen_prompts("questions about functions", self._prompts(), arms)
        asked: Asked | None = None
        found = {}
        for role in arms.roles:
            with arms.open(role, Room(context=self.context, sequences=self.sequences)) as arm:
                asked = asked or self._asked(arm)
                found[role] = _answered(arms, arm, asked, progress)
        assert asked is not None
        result = measured(asked, found, time.perf_counter() - began)
        return replace(result, notes=(*self.notes, *unknown, *result.notes))

    def _prompts(self) -> dict[str, str]:
        """Return what users say; of schemas what stands beside them, where anything does."""
        notes = {item.name: item.text for item in self.schemas if item.text}
        return {item.name: item.question for item in self.items} | notes

    def _asked(self, source: Arm) -> Asked:
        """Return what is asked of all arms: what the source can be asked."""
        if source.model is None:
            return _asked_of(self, Presentation.ENDPOINT, CallForm.TAGGED)
        template = source.loaded.template
        form = form_of(None if template is None else template.source)
        asked = _asked_of(self, presentation_of(template), form)
        return _possible(asked, source.loaded)


def tools_axis(suite: Path | None) -> ToolsAxis:
    """Return the axis over what a folder has in `tools/` and `schemas/`, or over our own suite.

    Raises:
        MissingError: there is no such folder.
        BadFileError: two questions have one id.
        BadFileError, MissingError, UnsupportedError: as `read_bfcl` and `read_schemas`.
    """
    if suite is None:
        return ToolsAxis()
    if not suite.is_dir():
        raise MissingError(f"The suite {suite} is no folder; give one with tools/ or schemas/.")
    bfcl = sorted((suite / "tools").glob("*.json"))
    schemas = sorted((suite / "schemas").glob("*.jsonl"))
    if not bfcl and not schemas:
        note = f"{suite} has neither tools/*.json nor schemas/*.jsonl, so the built-in suite ran."
        return ToolsAxis(notes=(note,))
    read = [read_schemas(path) for path in schemas]
    items = tuple(item for path in bfcl for item in read_bfcl(path))
    asked = tuple(item for found, _ in read for item in found)
    _require_named_once(suite, items)
    _require_named_once(suite, asked)
    return ToolsAxis(
        items=items,
        schemas=asked,
        context=FILES_CONTEXT,
        sequences=FILES_SEQUENCES,
        left_out=tuple(left for _, out in read for left in out),
    )


def _require_named_once(suite: Path, items: Sequence[ToolItem | SchemaItem]) -> None:
    """Refuse ids that two have: answers are kept by them, so that one would be lost."""
    counts = Counter(item.name for item in items)
    twice = next((name for name, count in counts.items() if count > 1), None)
    if twice is not None:
        raise BadFileError(
            f"The suite {suite} has two questions with the id '{twice}'; rename one."
        )


def _asked_of(axis: ToolsAxis, presentation: Presentation, form: CallForm) -> Asked:
    calls = [(tool_ask(item, presentation), item) for item in axis.items]
    schemas = [
        (json_ask(item, presentation, constrained=constrained), item)
        for item in axis.schemas
        for constrained in (False, True)
    ]
    sampled = sampling_asks(lambda text: question(text, presentation))
    return Asked(
        presentation,
        form,
        (*(ask for ask, _ in (*calls, *schemas)), *sampled),
        {ask.name: item for ask, item in calls},
        {ask.name: item for ask, item in schemas},
        axis.left_out,
    )


def _possible(asked: Asked, source: LoadedModel) -> Asked:
    """Leave out what does not fit the context, and schemas that no grammar is made of."""
    grammars = source.served.constraint
    assert grammars is not None
    obstacles = {
        ask.name: _too_long(ask, source) or _no_grammar(ask, grammars) for ask in asked.asks
    }
    left = tuple(LeftOut(name=name, why=why) for name, why in obstacles.items() if why)
    return asked.without(left)


def _no_grammar(ask: Ask, grammars: Callable[[Grammar], Constraint]) -> str:
    if ask.grammar is None:
        return ""
    try:
        grammars(ask.grammar)
    except RequestError as error:
        return str(error).rstrip(".")
    return ""


def _too_long(ask: Ask, source: LoadedModel) -> str:
    if isinstance(ask.prompt, str):
        tokens = len(source.text_prompt(ask.prompt))
    else:
        assert source.template is not None
        text = source.template.render(ask.prompt, ask.tools or None)
        tokens = len(source.tokenizer.encode(text, add_special=False, parse_special=True))
    if tokens + ask.max_tokens <= source.runner.context:
        return ""
    room = source.runner.context
    return f"a prompt of {tokens:,} tokens and {ask.max_tokens} more do not fit {room:,}"


def _answered(arms: Arms, arm: Arm, asked: Asked, progress: Progress) -> Mapping[str, Answer]:
    """Return an arm's answers by the names of the asks; what was kept is not asked again."""
    asks = asked.asks
    kept = arms.kept(arm.role, fingerprint("tools", [_deciding(ask) for ask in asks]))
    what = f"tools, {arm.role.value}"
    return answer_missing(arm.answerer, asks, kept, lambda done: progress(what, done, len(asks)))


def _deciding(ask: Ask) -> Sequence[object]:
    grammar = None if ask.grammar is None else ask.grammar.text
    return ask.name, ask.prompt, ask.max_tokens, ask.sampling.seed, ask.tools, grammar, ask.stop
