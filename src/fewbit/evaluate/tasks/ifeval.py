"""Instructions whose following a program can check: IFEval's, by our own reading of their names.

The benchmark is of Zhou et al., "Instruction-Following Evaluation for Large Language Models"
(2023). Its data file names an instruction and its parameters, and what is checked here is what
such a request means to a person who reads it (docs/evaluation/tasks.md lists every reading). So
shares are near published ones and not equal to them.

`strict` checks the answer as it is. `loose` is content if the answer passes once its first line,
its last line or its asterisks, or several of these, are left out: a "Sure, here it is:" is
forgiven.
"""

from __future__ import annotations

import difflib
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from fewbit.errors import BadFileError, UnsupportedError
from fewbit.evaluate.tasks import ifeval_text as measure
from fewbit.evaluate.tasks.ifeval_language import LANGUAGES, is_mostly_latin, language_of

_COMMAS = frozenset(",،，")
_PHRASES = ("My answer is yes.", "My answer is no.", "My answer is maybe.")
_STARS = "******"
_DIVIDER = "***"


@dataclass(frozen=True)
class Instruction:
    """One instruction of a prompt: its id, as `length_constraints:number_words`, and parameters."""

    id: str
    parameters: tuple[tuple[str, Any], ...] = ()

    @property
    def values(self) -> dict[str, Any]:
        """The parameters by name."""
        return dict(self.parameters)


def follows(instruction: Instruction, answer: str) -> bool:
    """Return whether an answer follows an instruction; an empty answer follows none."""
    return bool(answer.strip()) and _CHECKS[instruction.id].check(answer, instruction.values)


def follows_loosely(instruction: Instruction, answer: str) -> bool:
    """Return whether the answer, or what is left of it without its frame, follows."""
    return any(follows(instruction, variant) for variant in _variants(answer))


def checked_instruction(id_: str, given: Mapping[str, Any], where: str) -> Instruction:
    """Return an instruction that can be checked.

    Args:
        id_: its name.
        given: its parameters; those that are None count as left out.
        where: the file and line, for messages.

    Raises:
        UnsupportedError: there is no check of that name, or none for its language.
        BadFileError: a parameter is missing, of another type, or none of its own.
    """
    check = _CHECKS.get(id_)
    if check is None:
        near = difflib.get_close_matches(id_, _CHECKS, 2, cutoff=0.5)
        offer = f"did you mean {' or '.join(near)}?" if near else f"There are {', '.join(_CHECKS)}."
        raise UnsupportedError(
            f"{where} has the instruction '{id_}', which cannot be checked; {offer} Or name it in "
            "the task's `leave_out`."
        )
    values = {name: value for name, value in given.items() if value is not None}
    _require_parameters(id_, check.parameters, values, where)
    language = values.get("language")
    if language is not None and language not in LANGUAGES:
        raise UnsupportedError(
            f"{where} asks for the language '{language}', which cannot be told; there are "
            f"{', '.join(LANGUAGES)}."
        )
    return Instruction(id_, tuple(sorted(values.items())))


def _require_parameters(
    id_: str, known: Mapping[str, type], values: Mapping[str, Any], where: str
) -> None:
    for name in [*known, *values]:
        if name not in values or name not in known:
            has = ", ".join(known) or "none"
            state = "lacks" if name in known else "has"
            raise BadFileError(
                f"{where}: the instruction '{id_}' {state} the parameter '{name}'; its parameters "
                f"are: {has}."
            )
        if type(values[name]) is not known[name]:
            raise BadFileError(
                f"{where}: the parameter '{name}' of '{id_}' is {values[name]!r}; give "
                f"{_KINDS[known[name]]}."
            )
        _require_sense(id_, name, values[name], where)


def _require_sense(id_: str, name: str, value: Any, where: str) -> None:
    relation = name.endswith("relation") and value not in _RELATIONS
    empty = value in ("", []) or (isinstance(value, list) and "" in value)
    if relation or empty or (isinstance(value, int) and value < 0):
        offer = " or ".join(_RELATIONS) if relation else "something that is not empty or negative"
        raise BadFileError(
            f"{where}: the parameter '{name}' of '{id_}' is {value!r}; give {offer}."
        )


def _variants(answer: str) -> Iterator[str]:
    """Yield the answer whole, and without first line, last line and asterisks in all mixtures."""
    lines = answer.split("\n")
    cuts = (lines, lines[1:], lines[:-1], lines[1:-1])
    for cut, stars in itertools.product(cuts, (True, False)):
        text = "\n".join(cut).strip()
        yield text if stars else text.replace("*", "")


Check = Callable[[str, Mapping[str, Any]], bool]


@dataclass(frozen=True)
class _Checked:
    check: Check
    parameters: Mapping[str, type]


_KINDS = {int: "a whole number", str: "a string", list: "a list of strings"}

_RELATIONS: Mapping[str, Callable[[int, int], bool]] = {
    "at least": lambda found, bound: found >= bound,
    "less than": lambda found, bound: found < bound,
}

_CHECKS: dict[str, _Checked] = {}


def _checks(id_: str, **parameters: type) -> Callable[[Check], Check]:
    def register(check: Check) -> Check:
        _CHECKS[id_] = _Checked(check, parameters)
        return check

    return register


@_checks("punctuation:no_comma")
def _no_comma(answer: str, _: Mapping[str, Any]) -> bool:
    return not _COMMAS.intersection(answer)


@_checks("change_case:english_capital")
def _capital(answer: str, _: Mapping[str, Any]) -> bool:
    return answer == answer.upper() and is_mostly_latin(answer)


@_checks("change_case:english_lowercase")
def _lowercase(answer: str, _: Mapping[str, Any]) -> bool:
    return answer == answer.lower() and is_mostly_latin(answer)


@_checks("change_case:capital_word_frequency", capital_frequency=int, capital_relation=str)
def _capital_words(answer: str, given: Mapping[str, Any]) -> bool:
    relation = _RELATIONS[given["capital_relation"]]
    return relation(measure.capital_words(answer), given["capital_frequency"])


@_checks("combination:repeat_prompt", prompt_to_repeat=str)
def _repeats_prompt(answer: str, given: Mapping[str, Any]) -> bool:
    return " ".join(answer.split()).startswith(" ".join(given["prompt_to_repeat"].split()))


@_checks("combination:two_responses")
def _two_responses(answer: str, _: Mapping[str, Any]) -> bool:
    found = measure.parts(answer, _STARS)
    return len(found) == 2 and all(found) and found[0] != found[1]


@_checks("detectable_content:number_placeholders", num_placeholders=int)
def _placeholders(answer: str, given: Mapping[str, Any]) -> bool:
    return measure.placeholders(answer) >= int(given["num_placeholders"])


@_checks("detectable_content:postscript", postscript_marker=str)
def _postscript(answer: str, given: Mapping[str, Any]) -> bool:
    marker = given["postscript_marker"].rstrip(".").upper().replace(" ", "")
    starts = (line.strip(" *_").upper().replace(" ", "") for line in answer.splitlines())
    return any(start.startswith(marker) and start.strip(marker + ".:") for start in starts)


@_checks("detectable_format:constrained_response")
def _constrained(answer: str, _: Mapping[str, Any]) -> bool:
    return sum(phrase in answer for phrase in _PHRASES) == 1


@_checks("detectable_format:json_format")
def _json(answer: str, _: Mapping[str, Any]) -> bool:
    return measure.is_json(answer)


@_checks("detectable_format:multiple_sections", section_spliter=str, num_sections=int)
def _sections(answer: str, given: Mapping[str, Any]) -> bool:
    return measure.sections(answer, given["section_spliter"]) >= int(given["num_sections"])


@_checks("detectable_format:number_bullet_lists", num_bullets=int)
def _bullets(answer: str, given: Mapping[str, Any]) -> bool:
    return measure.bullets(answer) == int(given["num_bullets"])


@_checks("detectable_format:number_highlighted_sections", num_highlights=int)
def _highlights(answer: str, given: Mapping[str, Any]) -> bool:
    return measure.highlights(answer) >= int(given["num_highlights"])


@_checks("detectable_format:title")
def _title(answer: str, _: Mapping[str, Any]) -> bool:
    return measure.has_title(answer)


@_checks("keywords:existence", keywords=list)
def _keywords(answer: str, given: Mapping[str, Any]) -> bool:
    return all(measure.count_keyword(answer, keyword) for keyword in given["keywords"])


@_checks("keywords:forbidden_words", forbidden_words=list)
def _forbidden(answer: str, given: Mapping[str, Any]) -> bool:
    return not any(measure.has_word(answer, word) for word in given["forbidden_words"])


@_checks("keywords:frequency", keyword=str, frequency=int, relation=str)
def _keyword_frequency(answer: str, given: Mapping[str, Any]) -> bool:
    found = measure.count_keyword(answer, given["keyword"])
    return _RELATIONS[given["relation"]](found, given["frequency"])


@_checks("keywords:letter_frequency", letter=str, let_frequency=int, let_relation=str)
def _letter_frequency(answer: str, given: Mapping[str, Any]) -> bool:
    found = answer.lower().count(str(given["letter"]).lower())
    return _RELATIONS[given["let_relation"]](found, given["let_frequency"])


@_checks("language:response_language", language=str)
def _language(answer: str, given: Mapping[str, Any]) -> bool:
    return language_of(answer) == str(given["language"])


@_checks(
    "length_constraints:nth_paragraph_first_word",
    num_paragraphs=int,
    nth_paragraph=int,
    first_word=str,
)
def _nth_paragraph(answer: str, given: Mapping[str, Any]) -> bool:
    found = measure.paragraphs(answer)
    if len(found) != given["num_paragraphs"] or not 0 < given["nth_paragraph"] <= len(found):
        return False
    word = measure.first_word(found[given["nth_paragraph"] - 1])
    return word == measure.first_word(given["first_word"])


@_checks("length_constraints:number_paragraphs", num_paragraphs=int)
def _paragraphs(answer: str, given: Mapping[str, Any]) -> bool:
    found = measure.parts(answer, _DIVIDER)
    return len(found) == int(given["num_paragraphs"]) and all(found)


@_checks("length_constraints:number_sentences", num_sentences=int, relation=str)
def _sentences(answer: str, given: Mapping[str, Any]) -> bool:
    found = len(measure.sentences(answer))
    return _RELATIONS[given["relation"]](found, given["num_sentences"])


@_checks("length_constraints:number_words", num_words=int, relation=str)
def _words(answer: str, given: Mapping[str, Any]) -> bool:
    return _RELATIONS[given["relation"]](len(measure.words(answer)), given["num_words"])


@_checks("startend:end_checker", end_phrase=str)
def _ends(answer: str, given: Mapping[str, Any]) -> bool:
    end = measure.without_marks(given["end_phrase"]).lower()
    return measure.without_marks(answer).lower().endswith(end)


@_checks("startend:quotation")
def _quotation(answer: str, _: Mapping[str, Any]) -> bool:
    return measure.is_quoted(answer)


INSTRUCTIONS = tuple(_CHECKS)
"""The ids of all instructions that can be checked."""
