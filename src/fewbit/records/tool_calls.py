"""What models called and what JSON they wrote, judged by answer keys and schemas."""

from __future__ import annotations

from enum import Enum

from fewbit.records.base import Record


class CallForm(Enum):
    """How a call is written."""

    TAGGED = "<tool_call> tags"
    JSON = "JSON"
    PYTHON = "Python calls"


class CallOutcome(Enum):
    """What became of an item; the first is right, the others are failures of their kinds."""

    RIGHT = "right"
    UNPARSED = "not parsed"
    """It begins as a call and cannot be read as one."""
    NO_CALL = "no call"
    UNASKED = "a call where no function fits"
    WRONG_FUNCTION = "wrong function"
    WRONG_NUMBER = "wrong number of calls"
    WRONG_ARGUMENTS = "wrong arguments"


class JudgedAnswer(Record, frozen=True, kw_only=True):
    """One answer and what was found in it."""

    outcome: CallOutcome
    why: str
    """In words; empty where it is right."""
    form: CallForm | None
    """In which form the calls were; None without any."""
    loop: str
    """What it repeats, empty where it does not loop."""
    capped: bool
    """Cut off at the most tokens."""
    tokens: int
    text: str


class JudgedJson(Record, frozen=True, kw_only=True):
    """One answer that was to be JSON of a schema."""

    fault: str
    """The first violation; empty where it is valid."""
    loop: str
    capped: bool
    tokens: int
    text: str


class ToolExample(Record, frozen=True, kw_only=True):
    """What both made of one question."""

    name: str
    kind: str
    """`simple`, `multiple`, `parallel`, `parallel-multiple` or `irrelevance`."""
    question: str
    offered: tuple[str, ...]
    expected: tuple[str, ...]
    """A call each, with every accepted value; empty where none is right."""
    source: JudgedAnswer
    candidate: JudgedAnswer


class JsonExample(Record, frozen=True, kw_only=True):
    """What both made of one schema."""

    name: str
    constrained: bool
    """Whether a grammar of the schema held while the answer was generated."""
    question: str
    source: JudgedJson
    candidate: JudgedJson


class OutcomeCount(Record, frozen=True, kw_only=True):
    """How often an outcome was met among the items of a kind."""

    kind: str
    outcome: CallOutcome
    source: int
    candidate: int
    floor: int | None


class ToolsDetails(Record, frozen=True, kw_only=True, tag="tools"):
    """What stands behind the slices of axis `tools`."""

    presentation: str
    """How the functions were told to the models, in one sentence."""
    form: CallForm
    """The form of calls that was asked for."""
    outcomes: tuple[OutcomeCount, ...]
    calls: tuple[ToolExample, ...]
    """Where the candidate fails and the source does not, the worst first."""
    json: tuple[JsonExample, ...]
    """The same of schemas."""
    left_out: tuple[str, ...]
    """Items that could not be asked, and why."""
