"""From answers to slices: what every arm got wrong, item by item."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

from fewbit.evaluate.answers import Ask
from fewbit.evaluate.arms import Role
from fewbit.evaluate.tools.asked import Presentation
from fewbit.evaluate.tools.endings import LOOP_RULE, repeated_call, repeated_end
from fewbit.evaluate.tools.forms import Parsed, read_calls
from fewbit.evaluate.tools.key import ToolItem, judge_calls
from fewbit.evaluate.tools.sampling import AXIS, sampling_findings
from fewbit.evaluate.tools.structured import SchemaItem, json_fault
from fewbit.records.answers import Answer
from fewbit.records.base import readable
from fewbit.records.drawn import Example
from fewbit.records.generation import FinishReason
from fewbit.records.measurement import AxisResult, Item, Measure, Slice
from fewbit.records.tools import CallForm, CallOutcome, LeftOut, OutcomeCount, ToolsDetails

LOOPS, CAP = "tools/loops", "answers/cap"

SLICES = (
    "tools/call",
    "tools/arguments",
    "tools/form",
    "tools/irrelevance",
    "structured/free",
    "structured/constrained",
    LOOPS,
    CAP,
)
"""All that there can be; those without items are left out."""

MOST_EXAMPLES = 12
_SHOWN = 2000
"""Characters of an example's texts, at most."""

_FEW_RIGHT = 0.1
"""A source that gets less than this share right leaves a candidate little to lose."""

_NO_RIGHT_CALL = frozenset(
    {
        CallOutcome.UNPARSED,
        CallOutcome.NO_CALL,
        CallOutcome.WRONG_FUNCTION,
        CallOutcome.WRONG_NUMBER,
    }
)


@dataclass(frozen=True)
class Asked:
    """What is asked of every arm, and by the asks' names what it is judged by.

    Some asks are judged by neither: those that tell whether an arm samples as it is asked to.
    """

    presentation: Presentation
    form: CallForm
    asks: tuple[Ask, ...]
    """Those with one beginning stand together, so that it is run once."""
    calls: Mapping[str, ToolItem]
    schemas: Mapping[str, SchemaItem]
    left_out: tuple[LeftOut, ...] = ()

    @property
    def constrained(self) -> frozenset[str]:
        """The names of those that a grammar holds."""
        return frozenset(ask.name for ask in self.asks if ask.grammar is not None)

    def without(self, left_out: tuple[LeftOut, ...]) -> Asked:
        """Return it without what cannot be asked either."""
        out = {left.name for left in left_out}
        return replace(
            self,
            asks=tuple(ask for ask in self.asks if ask.name not in out),
            calls={name: item for name, item in self.calls.items() if name not in out},
            schemas={name: item for name, item in self.schemas.items() if name not in out},
            left_out=(*self.left_out, *left_out),
        )


@dataclass(frozen=True)
class Judged:
    """An answer with what is wrong about it."""

    answer: Answer
    outcome: CallOutcome
    why: str
    parsed: Parsed
    loop: str

    @property
    def capped(self) -> bool:
        """Whether it was cut off."""
        return self.answer.finish is FinishReason.LENGTH

    @property
    def wrong(self) -> bool:
        """Whether it is not what was asked for."""
        return self.outcome is not CallOutcome.RIGHT

    @property
    def says(self) -> str:
        """What was found, in words."""
        found = f"{self.outcome.value}: {self.why}" if self.why else self.outcome.value
        ended = f"; repeats {self.loop[:60]!r}" if self.loop else "; cut off" * self.capped
        return found + ended


Found = Mapping[Role, Mapping[str, Judged]]
"""Of every arm, by the names of asks."""


def measured(
    asked: Asked, answers: Mapping[Role, Mapping[str, Answer]], seconds: float
) -> AxisResult:
    """Return the axis' result.

    Args:
        asked: what was asked.
        answers: of every arm, all of it by name.
        seconds: that it took.
    """
    found = {role: _judged(asked, given) for role, given in answers.items()}
    slices = tuple(_slices(asked, found))
    return AxisResult(
        axis=AXIS,
        slices=slices,
        findings=sampling_findings(answers),
        details=ToolsDetails(
            presentation=asked.presentation.value,
            form=asked.form,
            loop_rule=LOOP_RULE,
            outcomes=tuple(_outcomes(asked, found)),
            examples=tuple(_examples(asked, found)[:MOST_EXAMPLES]),
            left_out=asked.left_out,
        ),
        notes=tuple(_notes(asked, found)),
        seconds=seconds,
    )


def _judged(asked: Asked, answers: Mapping[str, Answer]) -> dict[str, Judged]:
    found = {name: judge_tool(item, answers[name]) for name, item in asked.calls.items()}
    for name, schema in asked.schemas.items():
        found[name] = judge_json(schema, answers[name])
    return found


def judge_tool(item: ToolItem, answer: Answer) -> Judged:
    """Judge an answer to a question about functions."""
    parsed = read_calls(answer.text, item.offered)
    judged = judge_calls(item, parsed)
    again = repeated_call(call.text for call in parsed.calls)
    loop = str(again) if again is not None else _loop(answer)
    return Judged(answer, judged.outcome, readable(judged.why), parsed, loop)


def judge_json(item: SchemaItem, answer: Answer) -> Judged:
    """Judge an answer that was to be JSON."""
    fault = json_fault(answer.text, item.schema)
    outcome = CallOutcome.UNPARSED if fault else CallOutcome.RIGHT
    return Judged(answer, outcome, readable(fault), Parsed(), _loop(answer))


def _loop(answer: Answer) -> str:
    return repeated_end(answer.text) if answer.finish is FinishReason.LENGTH else ""


def _slices(asked: Asked, found: Found) -> Iterable[Slice]:
    """Yield the slices that have items."""
    called = {name: item.cluster for name, item in asked.calls.items() if item.expected}
    others = {name: item.cluster for name, item in asked.calls.items() if not item.expected}
    bound = asked.constrained
    constrained = {name: s.cluster for name, s in asked.schemas.items() if name in bound}
    free = {name: s.cluster for name, s in asked.schemas.items() if name not in bound}
    everything = {**called, **others, **free, **constrained}
    planned: list[tuple[str, str, Mapping[str, str], Callable[[Judged], bool]]] = [
        ("tools/call", "no call of the right functions", called, _no_right_call),
        ("tools/arguments", "calls that are not wholly right", called, _wrong),
        (
            "tools/form",
            f"calls not written as {asked.form.value}",
            called,
            lambda judged: judged.parsed.form is not asked.form or bool(judged.parsed.fault),
        ),
        ("tools/irrelevance", "calls where no function fits", others, _wrong),
        ("structured/free", "answers that are not JSON of the schema", free, _wrong),
        (
            "structured/constrained",
            "answers under a grammar that are not JSON of the schema",
            constrained,
            _wrong,
        ),
        (LOOPS, "answers that repeat themselves", everything, lambda j: bool(j.loop)),
        (CAP, "answers cut off at the most tokens", everything, lambda j: j.capped),
    ]
    for slice_name, title, clusters, harm in planned:
        if clusters:
            items = tuple(_item(name, cluster, found, harm) for name, cluster in clusters.items())
            yield Slice(
                name=slice_name,
                axis=AXIS,
                measure=Measure.PROPORTION,
                unit="",
                title=title,
                items=items,
                note=LOOP_RULE if slice_name == LOOPS else "",
            )


def _no_right_call(judged: Judged) -> bool:
    return judged.outcome in _NO_RIGHT_CALL


def _wrong(judged: Judged) -> bool:
    return judged.wrong


def _item(name: str, cluster: str, found: Found, harm: Callable[[Judged], bool]) -> Item:
    values: dict[Role, float] = {role: float(harm(of[name])) for role, of in found.items()}
    return Item(
        name=name,
        cluster=cluster,
        source=values[Role.SOURCE],
        candidate=values[Role.CANDIDATE],
        floor=values.get(Role.FLOOR),
    )


def _outcomes(asked: Asked, found: Found) -> Iterable[OutcomeCount]:
    counts = {
        role: Counter((item.kind, of[name].outcome) for name, item in asked.calls.items())
        for role, of in found.items()
    }
    for kind in dict.fromkeys(item.kind for item in asked.calls.values()):
        for outcome in CallOutcome:
            given = {role: count[kind, outcome] for role, count in counts.items()}
            if any(given.values()):
                yield OutcomeCount(
                    kind=kind,
                    outcome=outcome,
                    source=given[Role.SOURCE],
                    candidate=given[Role.CANDIDATE],
                    floor=given.get(Role.FLOOR),
                )


def _examples(asked: Asked, found: Found) -> list[Example]:
    """Return where the candidate fails and the source does not: loops first, then by outcome."""
    source, candidate = found[Role.SOURCE], found[Role.CANDIDATE]
    worse = [n for n in candidate if _fails(candidate[n]) and not _fails(source[n])]
    severity = list(CallOutcome)
    worse.sort(key=lambda n: (not candidate[n].loop, severity.index(candidate[n].outcome)))
    return [_example(asked, name, source[name], candidate[name]) for name in worse]


def _fails(judged: Judged) -> bool:
    return judged.wrong or bool(judged.loop)


def _example(asked: Asked, name: str, source: Judged, candidate: Judged) -> Example:
    if tool := asked.calls.get(name):
        where = "tools/arguments" if tool.expected else "tools/irrelevance"
        question = f"{tool.question}\n\n[functions: {', '.join(tool.offered)}]"
        expected = "\n".join(call.text for call in tool.expected)
    else:
        where = "structured/constrained" if name in asked.constrained else "structured/free"
        question, expected = asked.schemas[name].question, ""
    return Example(
        name=name,
        slice=where,
        asked=question[:_SHOWN],
        source=source.answer.text[:_SHOWN],
        candidate=candidate.answer.text[:_SHOWN],
        source_says=source.says,
        candidate_says=candidate.says,
        expected=expected[:_SHOWN],
        harm=1.0,
    )


def _notes(asked: Asked, found: Found) -> Iterable[str]:
    yield asked.presentation.value
    if asked.left_out:
        yield (
            f"{len(asked.left_out)} questions could not be asked and count nowhere; the first: "
            f"{asked.left_out[0].name}, {asked.left_out[0].why}."
        )
    source = found[Role.SOURCE]
    wanted = [name for name, item in asked.calls.items() if item.expected]
    right = sum(not source[name].wrong for name in wanted)
    if wanted and right < _FEW_RIGHT * len(wanted):
        yield (
            f"The source itself makes {right} of {len(wanted)} calls rightly, so that tools/call "
            "and tools/arguments can hardly show a loss."
        )
    for role, of in found.items():
        broken = sum(of[name].wrong and not of[name].capped for name in asked.constrained)
        if broken:
            yield (
                f"{broken} answers of the {role.value} under a grammar ended and are not valid by "
                "the schema: the two libraries read these schemas differently."
            )
