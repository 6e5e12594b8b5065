"""The records that can be drawn again, and how a file is told to be one of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from rich.console import Console

from fewbit.errors import BadFileError, UsageError
from fewbit.records.base import Record, from_json
from fewbit.records.certificate import Certificate
from fewbit.records.comparison import Comparison
from fewbit.records.evaluation import CompressReport, Evaluation
from fewbit.records.manifest import Manifest
from fewbit.records.model import Inspection
from fewbit.records.pair import PairReport
from fewbit.records.speculation import SpeculationReport
from fewbit.records.speed import SpeedReport
from fewbit.records.speed_model import SpeedModelReport
from fewbit.records.validation import Validation
from fewbit.report.certificate import print_certificate
from fewbit.report.comparison import comparison_page, print_comparison
from fewbit.report.html import certificate_page, compress_page, evaluation_page, record_page
from fewbit.report.inspection import print_inspection
from fewbit.report.pair import print_pair
from fewbit.report.quantization import print_manifest
from fewbit.report.speculation import print_speculation
from fewbit.report.speed import print_speed
from fewbit.report.speed_model import print_speed_model, speed_model_page
from fewbit.report.terminal import print_compress, print_evaluation
from fewbit.report.validation import print_validation, validation_page


@dataclass(frozen=True)
class Kind:
    """A kind of record: what it is called, its class, and its two drawings."""

    name: str
    record: type[Record]
    command: str
    """What writes it."""
    draw: Callable[[Any, Console], None]
    page: Callable[[Any], str]

    @property
    def fields(self) -> frozenset[str]:
        """The names at the top of its JSON."""
        return frozenset(field.name for field in msgspec.structs.fields(self.record))

    @property
    def required(self) -> frozenset[str]:
        """Those that every file of the kind has."""
        fields = msgspec.structs.fields(self.record)
        return frozenset(field.name for field in fields if field.required)


def _plain(title: str) -> Callable[[Record], str]:
    return lambda record: record_page(title, record)


KINDS = (
    Kind("evaluation", Evaluation, "fewbit eval", print_evaluation, evaluation_page),
    Kind("compress", CompressReport, "fewbit compress", print_compress, compress_page),
    Kind("certificate", Certificate, "fewbit certify", print_certificate, certificate_page),
    Kind("comparison", Comparison, "fewbit report", print_comparison, comparison_page),
    Kind("validation", Validation, "fewbit validate", print_validation, validation_page),
    Kind("pair", PairReport, "fewbit pair", print_pair, _plain("Pair check")),
    Kind("speed", SpeedReport, "fewbit bench", print_speed, _plain("Speed")),
    Kind(
        "speculation",
        SpeculationReport,
        "fewbit bench --draft",
        print_speculation,
        _plain("Speed with a draft"),
    ),
    Kind(
        "speed-model", SpeedModelReport, "fewbit speed-model", print_speed_model, speed_model_page
    ),
    Kind("manifest", Manifest, "fewbit quantize", print_manifest, _plain("Manifest")),
    Kind("inspection", Inspection, "fewbit inspect", print_inspection, _plain("Model")),
)


def read_record(content: bytes, name: str) -> tuple[Kind, Record]:
    """Return a record of whatever kind it is.

    A kind is told by the names at the top of the JSON: all that it requires are there, and none
    that it does not know.

    Args:
        content: a file's bytes.
        name: what it is called in an error, usually its path.

    Raises:
        BadFileError: it is no JSON object, no record that can be drawn, or a broken one.
    """
    try:
        found = frozenset(msgspec.json.decode(content, type=dict[str, msgspec.Raw]))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise BadFileError(f"{name} is no JSON record: {error}.") from error
    nearest = max(KINDS, key=lambda kind: _likeness(kind, found))
    if _likeness(nearest, found) < 0.5:
        commands = ", ".join(dict.fromkeys(kind.command for kind in KINDS))
        raise BadFileError(
            f"{name} is JSON but no record that can be drawn; give what one of these wrote with "
            f"--json: {commands}."
        )
    return nearest, from_json(nearest.record, content, name=name)


def schema(name: str) -> bytes:
    """Return the JSON Schema (2020-12) of a kind of record, indented, as UTF-8.

    Raises:
        UsageError: there is no such kind; names all.
    """
    kind = next((kind for kind in KINDS if kind.name == name), None)
    if kind is None:
        known = ", ".join(kind.name for kind in KINDS)
        raise UsageError(f"There is no record called '{name}'; there are {known}.")
    made = msgspec.json.schema(kind.record)
    made = {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}
    return msgspec.json.format(msgspec.json.encode(made), indent=2) + b"\n"


def _likeness(kind: Kind, found: frozenset[str]) -> float:
    """Return which share of all names, those of the kind's and those met, are in both."""
    return len(kind.fields & found) / len(kind.required | found)
