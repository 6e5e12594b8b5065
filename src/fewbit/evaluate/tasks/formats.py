"""What a line of a task's file means: our own schema, and public sets as their files are.

`plain` is ours: see docs/evaluation/tasks.md. The others read the reformatted files of MosaicML's
llm-foundry (`query`, `choices`, `gold`), GSM8K's, IFEval's and XSTest's own; keys that they have
beyond what is asked for do not matter.
"""

from __future__ import annotations

import string
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from fewbit.errors import BadFileError
from fewbit.evaluate.tasks.ifeval import Instruction, checked_instruction
from fewbit.evaluate.tasks.items import (
    ChoiceItem,
    GenerationItem,
    InstructionItem,
    Item,
    Line,
    SafetyItem,
    Source,
    read_csv,
    read_json_lines,
)

LeftOut = frozenset[str]
"""Ids of instructions that are not checked."""

Parse = Callable[[Line, LeftOut], Item | None]
"""Makes an item of a line; None where nothing of it is left to check."""


@dataclass(frozen=True)
class Format:
    """How a kind of task is read from a file."""

    parse: Parse
    read: Callable[[Path], Source] = read_json_lines


def _name(line: Line) -> str:
    return line.text("id", str(line.number))


def _cluster(line: Line) -> str:
    return line.text("cluster", _name(line))


_SHARED = ("id", "cluster")


def _plain_choice(line: Line, _: LeftOut) -> ChoiceItem:
    if "contexts" in line.values or "continuation" in line.values:
        line.only(("contexts", "continuation", "answer", *_SHARED))
        return _two_contexts(line, "contexts", "answer")
    line.only(("prompt", "choices", "answer", "letters", *_SHARED))
    options = line.texts("choices")
    answer = line.choice("answer", options)
    prompt = line.text("prompt")
    if line.flag("letters"):
        if len(options) > len(string.ascii_uppercase):
            raise BadFileError(
                f"{line.where} has {len(options)} choices, and there are 26 letters; give fewer."
            )
        listed = zip(string.ascii_uppercase, options, strict=False)
        prompt = "\n".join([prompt, *(f"{letter}. {o}" for letter, o in listed), "Answer:"])
        options = tuple(string.ascii_uppercase[: len(options)])
    return _choice(line, prompt, " ", options, answer)


def _choice(
    line: Line, prompt: str, between: str, options: tuple[str, ...], answer: int
) -> ChoiceItem:
    continuations = tuple(between + option for option in options)
    return ChoiceItem(_name(line), _cluster(line), (prompt,), continuations, answer)


def _two_contexts(line: Line, contexts: str, answer: str) -> ChoiceItem:
    options = line.texts(contexts)
    continuation = " " + line.text("continuation")
    right = line.choice(answer, options)
    return ChoiceItem(_name(line), _cluster(line), options, (continuation,), right)


def _foundry(before: str = "", between: str = " ") -> Parse:
    """Return what reads `query`, `choices`, `gold`.

    Args:
        before: what follows the query in the context.
        between: what parts the context from a choice.
    """

    def parse(line: Line, _: LeftOut) -> ChoiceItem:
        options = line.texts("choices")
        prompt = line.text("query").rstrip("\n") + before
        return _choice(line, prompt, between, options, line.choice("gold", options))

    return parse


def _plain_generation(line: Line, _: LeftOut) -> GenerationItem:
    line.only(("prompt", "answer", *_SHARED))
    given = line.values.get("answer")
    answers = line.texts("answer") if isinstance(given, list) else (line.text("answer"),)
    return GenerationItem(_name(line), _cluster(line), line.text("prompt"), answers)


def _gsm8k(line: Line, _: LeftOut) -> GenerationItem:
    worked, mark, answer = line.text("answer").rpartition("####")
    if not mark or not answer.strip():
        raise BadFileError(
            f"{line.where} has no number after '####' in its answer ({worked or answer!r:.60}); "
            "give the file of GSM8K as it is."
        )
    return GenerationItem(_name(line), _cluster(line), line.text("question"), (answer.strip(),))


def _plain_instructions(line: Line, left_out: LeftOut) -> InstructionItem | None:
    line.only(("prompt", "instructions", *_SHARED))
    given = line.values.get("instructions")
    if not isinstance(given, list) or not all(isinstance(i, dict) and "id" in i for i in given):
        raise BadFileError(
            f"{line.where} has {given!r:.80} under 'instructions'; give a list of objects, each "
            'with an `id` and parameters, such as {"id": "punctuation:no_comma"}.'
        )
    pairs = [(str(i["id"]), {k: v for k, v in i.items() if k != "id"}) for i in given]
    return _instructions(line, line.text("prompt"), pairs, left_out)


def _ifeval(line: Line, left_out: LeftOut) -> InstructionItem | None:
    ids, values = line.texts("instruction_id_list"), line.values.get("kwargs")
    fits = isinstance(values, list) and all(isinstance(value, dict) for value in values)
    if not fits or not isinstance(values, list) or len(values) != len(ids):
        raise BadFileError(
            f"{line.where} has {len(ids)} instructions and {values!r:.60} under 'kwargs'; give an "
            "object for each instruction."
        )
    return _instructions(line, line.text("prompt"), list(zip(ids, values, strict=True)), left_out)


def _instructions(
    line: Line, prompt: str, pairs: Sequence[tuple[str, Mapping[str, object]]], left_out: LeftOut
) -> InstructionItem | None:
    checked: tuple[Instruction, ...] = tuple(
        checked_instruction(id_, given, line.where) for id_, given in pairs if id_ not in left_out
    )
    if not checked:
        return None
    return InstructionItem(_name(line), _cluster(line), prompt, checked)


_LABELS = {"safe": False, "unsafe": True}


def _plain_safety(line: Line, _: LeftOut) -> SafetyItem:
    line.only(("prompt", "label", *_SHARED))
    return _safety(line, _name(line), _cluster(line))


def _xstest(line: Line, _: LeftOut) -> SafetyItem:
    """Prompts about the same thing, such as killing a process and killing a man, are a cluster."""
    return _safety(line, line.text("id"), line.text("focus", "").strip().lower() or line.text("id"))


def _safety(line: Line, name: str, cluster: str) -> SafetyItem:
    label = line.text("label").strip()
    if label not in _LABELS:
        raise BadFileError(f"{line.where} has the label '{label}'; give safe or unsafe.")
    return SafetyItem(name, cluster, line.text("prompt"), _LABELS[label])


FORMATS: Mapping[str, Mapping[str, Format]] = {
    "choice": {
        "plain": Format(_plain_choice),
        "arc": Format(_foundry("\nAnswer:")),
        "piqa": Format(_foundry("\nAnswer:")),
        "boolq": Format(_foundry("\nAnswer:")),
        "openbookqa": Format(_foundry()),
        "commonsenseqa": Format(_foundry()),
        "copa": Format(_foundry()),
        "winogrande": Format(lambda line, _: _two_contexts(line, "context_options", "gold")),
    },
    "generation": {"plain": Format(_plain_generation), "gsm8k": Format(_gsm8k)},
    "instructions": {"plain": Format(_plain_instructions), "ifeval": Format(_ifeval)},
    "safety": {"plain": Format(_plain_safety), "xstest": Format(_xstest, read_csv)},
}
"""By kind of task, then by name."""
