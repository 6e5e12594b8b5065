"""What models called and what JSON they wrote, judged by answer keys and schemas."""

from __future__ import annotations

from enum import Enum

from fewbit.records.base import Record
from fewbit.records.drawn import Example


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


class OutcomeCount(Record, frozen=True, kw_only=True):
    """How often an outcome was met among the items of a kind."""

    kind: str
    """`simple`, `multiple`, `parallel`, `parallel-multiple` or `irrelevance`."""
    outcome: CallOutcome
    source: int
    candidate: int
    floor: int | None
    """None where that arm was not run."""


class LeftOut(Record, frozen=True, kw_only=True):
    """An item that could not be asked."""

    name: str
    why: str


class ToolsDetails(Record, frozen=True, kw_only=True, tag="tools"):
    """What stands behind the slices of axis `tools`."""

    presentation: str
    """How the functions were told to the models, in one sentence."""
    form: CallForm
    """The form of calls that the models were asked for."""
    loop_rule: str
    outcomes: tuple[OutcomeCount, ...]
    examples: tuple[Example, ...]
    """Where the candidate fails and the source does not, the worst first."""
    left_out: tuple[LeftOut, ...] = ()
