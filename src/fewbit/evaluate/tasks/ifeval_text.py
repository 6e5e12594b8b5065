"""Words, sentences, paragraphs and marks of an answer, as instructions count them.

Each is our own reading of what a person would count; docs/evaluation/tasks.md states them.
"""

from __future__ import annotations

import json
import re

_WORD = re.compile(r"\S*\w\S*")
_END = re.compile(r"([.!?]+[\"'”’)\]*_]*\s+|[。！？।]+\s*)")
_ABBREVIATIONS = frozenset(
    [
        "mr",
        "mrs",
        "ms",
        "dr",
        "prof",
        "st",
        "jr",
        "sr",
        "vs",
        "etc",
        "e.g",
        "i.e",
        "no",
        "inc",
        "ltd",
        "co",
        "fig",
        "approx",
        "dept",
        "est",
    ]
)
_BULLET = re.compile(r"^[ \t]*[*+-][ \t]+\S", re.MULTILINE)
_HIGHLIGHT = re.compile(r"(?<!\*)(\*{1,3})(?![\s*])([^*\n]*[^*\s])\1(?!\*)")
_PLACEHOLDER = re.compile(r"\[[^\[\]\n]+\]")
_TITLE = re.compile(r"<<[^<>\n]*\w[^<>\n]*>>")
_FENCE = re.compile(r"^```[A-Za-z]*\s*\n?(.*?)\n?\s*```$", re.DOTALL)
_QUOTES = "\"“”«»'’‘`*_ \t\n"


def words(text: str) -> list[str]:
    """Return what stands between spaces and has a letter or a digit."""
    return _WORD.findall(text)


def sentences(text: str) -> list[str]:
    """Return the sentences: each ends with . ! or ? and a space, or with its paragraph.

    Titles such as "Dr." and single initials end none.
    """
    found = []
    for paragraph in re.split(r"\n\s*\n", text):
        parts = _END.split(paragraph)
        ends = [*parts[1::2], ""]
        current = ""
        for body, end in zip(parts[::2], ends, strict=True):
            current += body + end
            if not (end.startswith(".") and _is_abbreviation(body)):
                found.append(current.strip())
                current = ""
        found.append(current.strip())
    return [sentence for sentence in found if words(sentence)]


def _is_abbreviation(before: str) -> bool:
    last = before.rsplit(maxsplit=1)[-1].lstrip("(\"'“") if before.split() else ""
    return last.lower() in _ABBREVIATIONS or (len(last) == 1 and last.isupper() and last != "I")


def parts(text: str, divider: str) -> list[str]:
    """Return what stands between dividers; empty parts at either end are none."""
    found = [part.strip() for part in text.split(divider)]
    while found and not found[0]:
        found.pop(0)
    while found and not found[-1]:
        found.pop()
    return found


def paragraphs(text: str) -> list[str]:
    """Return what stands between empty lines."""
    return [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]


def first_word(text: str) -> str:
    """Return the first word without the marks around it, in lower case."""
    found = re.search(r"\w+(?:['’-]\w+)*", text)
    return found[0].lower() if found else ""


def bullets(text: str) -> int:
    """Return how many lines are bullets of Markdown."""
    return len(_BULLET.findall(text))


def highlights(text: str) -> int:
    """Return how many runs of text stand between asterisks, as *so* or **so**."""
    return len(_HIGHLIGHT.findall(text))


def placeholders(text: str) -> int:
    """Return how many [placeholders] in square brackets there are."""
    return len(_PLACEHOLDER.findall(text))


def has_title(text: str) -> bool:
    """Return whether a <<title>> in double angular brackets is there."""
    return _TITLE.search(text) is not None


def sections(text: str, mark: str) -> int:
    """Return how many lines begin a section, such as `SECTION 1` for the mark SECTION."""
    start = re.compile(rf"^[\s*#_>-]*{re.escape(mark)}[ \t]+[\w]+", re.MULTILINE)
    return len(start.findall(text))


def capital_words(text: str) -> int:
    """Return how many words of at least two letters are in capitals only."""
    return sum(
        word.isupper() and sum(map(str.isalpha, word)) > 1 for word in re.split(r"[^\w'’]+", text)
    )


def count_keyword(text: str, keyword: str) -> int:
    """Return how often a keyword begins a word, whatever its case: `snow` is in `Snowy`."""
    start = r"(?<!\w)" if keyword[:1].isalnum() else ""
    return len(re.findall(start + re.escape(keyword), text, re.IGNORECASE))


def has_word(text: str, word: str) -> bool:
    """Return whether a whole word is there, whatever its case."""
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", text, re.IGNORECASE) is not None


def is_json(text: str) -> bool:
    """Return whether the whole text, but for a code fence, is a JSON object or list."""
    fenced = _FENCE.match(text.strip())
    try:
        value = json.loads(fenced[1] if fenced else text, parse_constant=_refuse)
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict | list)


def _refuse(constant: str) -> None:
    raise ValueError(f"{constant} is no JSON value")


def is_quoted(text: str) -> bool:
    """Return whether double quotation marks stand around the whole text."""
    bare = text.strip()
    return len(bare) > 2 and bare[0] in '"“' and bare[-1] in '"”'


def without_marks(text: str) -> str:
    """Return the text without quotation marks, asterisks and spaces at its end."""
    return text.rstrip(_QUOTES)
