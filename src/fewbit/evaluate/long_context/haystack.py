"""Long texts with facts hidden in them, and questions that only those facts answer.

Everything is drawn from lists of our own words, by a seed, so that no model has read any of it. The
filler tells of deliveries in a town and has no digits; hidden facts are the codes of things. A list
is nothing but names with numbers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np

from fewbit.keyed_random import Purpose


class Kind(Enum):
    """What is asked; the value is the last part of its slice's name."""

    NEEDLE = "needle"
    """One fact of several that are hidden in the filler."""
    MULTI_NEEDLE = "multi-needle"
    """All of them, in an order that is asked for."""
    KEY_VALUE = "key-value"
    """One line of a list."""


@dataclass(frozen=True)
class Question:
    """A question behind a long text."""

    name: str
    kind: Kind
    asked: str
    """For a conversation."""
    begun: str
    """The answer's beginning, up to what must be known; it follows the text without a break."""
    answer: str
    """What follows, from a space on."""
    others: tuple[str, ...]
    """As likely, were the text not there."""
    needed: tuple[str, ...]
    """What an answer in words must have."""
    depth: float
    """Where in the text the fact stands, 0 to 1; of several the first."""


@dataclass(frozen=True)
class Haystack:
    """A long text with its questions."""

    name: str
    length: int
    """Tokens that text, question and answer have together, at most."""
    text: str
    questions: tuple[Question, ...]


@dataclass(frozen=True)
class Ruler:
    """How tokens are counted, and how many more a question needs than its own."""

    count: Callable[[str], int]
    reserve: int = 8
    """What begins a text, and tokens that come apart where texts are joined."""

    block: int = 1
    """Tokens of a text that are run once for all its questions come in blocks of so many."""

    def fitted(self, parts: Sequence[str], more: Sequence[str], joint: str) -> list[str]:
        """Return parts, the last left out where the text then exceeds whole blocks by less.

        What exceeds them is run again with every question.

        Args:
            parts: of the text.
            more: what else will stand in it.
            joint: what stands between parts.
        """
        whole = self.count(joint.join([*parts, *more]))
        kept, least = len(parts), (whole - _SLACK) % self.block
        for number in range(len(parts) - 1, 0, -1):
            count = self.count(joint.join([*parts[:number], *more]))
            if count <= whole - self.block:
                break
            if (count - _SLACK) % self.block < least:
                kept, least = number, (count - _SLACK) % self.block
        return list(parts[:kept])

    def room(self, length: int, questions: Sequence[Question]) -> int:
        """Return the tokens that are left for a text before any of the questions."""
        ends = (q.begun + max((q.answer, *q.others), key=len) for q in questions)
        return length - self.reserve - max(map(self.count, ends))


NEEDLES = 4
"""Facts hidden in a text, and lines asked for of a list."""

_CHOICES = 4

_SLACK = 2
"""Tokens by which counts may be off: what begins a text, and where facts stand in it."""

_COLOURS = (
    "amber", "copper", "scarlet", "silver", "violet", "ivory", "turquoise", "crimson",
    "golden", "emerald",
)  # fmt: skip
_THINGS = (
    "lantern", "gate", "cabinet", "barge", "compass", "workshop", "locker", "beacon", "trunk",
    "archive",
)  # fmt: skip
_PEOPLE = (
    "Odile", "Tamsin", "Bruno", "Yara", "Kofi", "Ingrid", "Mateus", "Saskia", "Darius", "Noor",
    "Eoin", "Paloma",
)  # fmt: skip
_GOODS = (
    "sacks of flour",
    "crates of pears",
    "bundles of rope",
    "boxes of candles",
    "barrels of cider",
    "rolls of canvas",
    "baskets of eggs",
    "planks of oak",
    "jars of honey",
    "bales of wool",
)
_PLACES = (
    "the mill",
    "the ferry",
    "the old market",
    "the school",
    "the bakery",
    "the north quay",
    "the town hall",
    "the inn by the bridge",
    "the orchard",
    "the smithy",
)
_COUNTS = (
    "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "twenty",
)  # fmt: skip
_DAYS = (
    "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday",
)  # fmt: skip
_ENDS = (
    "and nobody was surprised",
    "although it had rained since dawn",
    "before the bells rang",
    "and was back in time for supper",
    "while the dog slept under the cart",
    "because the other cart had lost a wheel",
    "and left a note on the door",
    "as had been agreed the week before",
    "and asked for a receipt",
    "in spite of the fog on the river",
)
_SENTENCES = (
    "On {day} {person} brought {count} {goods} from {place} to {other} {end}.",
    "{person} counted {count} {goods} at {place} on {day} {end}.",
    "By {day} evening {count} {goods} had reached {other} from {place} {end}.",
    "{person} and {friend} met at {place} on {day}, carried {count} {goods} to {other} {end}.",
    "The {goods} that {person} had left at {place} were gone by {day} {end}.",
)


def hidden_facts(seed: int, length: int, ruler: Ruler) -> Haystack | None:
    """Return filler with facts hidden at even depths, and questions for each and for all.

    Args:
        seed: which of the texts of this length.
        length: tokens that text, question and answer have together, at most.
        ruler: how tokens are counted.

    Returns:
        None where that is too short for the facts.
    """
    draw, name = _Draw.of(seed, length, 0), f"facts/{length}/{seed}"
    things, codes = draw.things(NEEDLES), draw.numbers(NEEDLES)
    facts = [f"The code of the {t} is {c}." for t, c in zip(things, codes, strict=True)]
    needles = [_needle(name, things, codes, i) for i in range(NEEDLES)]
    questions = (*needles, _all_needles(name, things, codes, draw))
    room = ruler.room(length, questions) - sum(ruler.count(f"{fact} ") for fact in facts)
    filler = ruler.fitted(list(_until(draw.sentences(), room, ruler.count)), facts, " ")
    if len(filler) < NEEDLES:
        return None
    places = [round(len(filler) * (i + 0.5) / NEEDLES) for i in range(NEEDLES)]
    for place, fact in sorted(zip(places, facts, strict=True), reverse=True):
        filler.insert(place, fact)
    return Haystack(name, length, " ".join(filler), questions)


def key_values(seed: int, length: int, ruler: Ruler) -> Haystack | None:
    """Return a list of names with numbers, and questions for lines at even depths.

    Arguments and what is returned are those of `hidden_facts`.
    """
    draw, name = _Draw.of(seed, length, 1), f"list/{length}/{seed}"
    pairs = draw.pairs()
    room = ruler.room(length, [_line(name, pairs[:_CHOICES], 0, draw)])
    lines = ruler.fitted(list(_until(map(": ".join, pairs), room, ruler.count)), (), "\n")
    if len(lines) < 2 * NEEDLES:
        return None
    there = pairs[: len(lines)]
    places = [round((len(lines) - 1) * (i + 0.5) / NEEDLES) for i in range(NEEDLES)]
    questions = tuple(_line(name, there, place, draw) for place in places)
    return Haystack(name, length, "\n".join(lines), questions)


def _needle(name: str, things: Sequence[str], codes: Sequence[str], number: int) -> Question:
    thing, code = things[number], codes[number]
    others = [c for c in codes[:NEEDLES] if c != code][: _CHOICES - 1]
    return Question(
        name=f"{name}/{thing.replace(' ', '-')}",
        kind=Kind.NEEDLE,
        asked=f"What is the code of the {thing}? Answer with the code alone.",
        begun=f"\n\nAs was said above, the code of the {thing} is",
        answer=f" {code}",
        others=tuple(f" {other}" for other in others),
        needed=(code,),
        depth=(number + 0.5) / NEEDLES,
    )


def _all_needles(name: str, things: Sequence[str], codes: Sequence[str], draw: _Draw) -> Question:
    order = draw.order(NEEDLES)
    named = [f"the {things[i]}" for i in order]
    right = [codes[i] for i in order]
    return Question(
        name=f"{name}/all",
        kind=Kind.MULTI_NEEDLE,
        asked=f"What are the codes of {_listed(named)}? Answer with the codes, in this order.",
        begun=f"\n\nAs was said above, the codes of {_listed(named)} are, in this order,",
        answer=f" {_listed(right)}",
        others=tuple(f" {_listed(_swapped(right, i))}" for i in range(_CHOICES - 1)),
        needed=tuple(right),
        depth=0.5 / NEEDLES,
    )


def _line(name: str, pairs: Sequence[tuple[str, str]], place: int, draw: _Draw) -> Question:
    key, value = pairs[place]
    near = [pairs[i][1] for i in draw.order(len(pairs)) if i != place][: _CHOICES - 1]
    return Question(
        name=f"{name}/{key.replace(' ', '-')}",
        kind=Kind.KEY_VALUE,
        asked=f"What is the number of {key}? Answer with the number alone.",
        begun=f"\n\nAs the list says, the number of {key} is",
        answer=f" {value}",
        others=tuple(f" {other}" for other in near),
        needed=(value,),
        depth=place / max(len(pairs) - 1, 1),
    )


def _listed(parts: Sequence[str]) -> str:
    return f"{', '.join(parts[:-1])} and {parts[-1]}"


def _swapped(parts: Sequence[str], place: int) -> list[str]:
    """Return a list with the part at `place` and the next one exchanged."""
    found = list(parts)
    found[place], found[place + 1] = found[place + 1], found[place]
    return found


def _until(parts: Iterator[str], room: int, count: Callable[[str], int]) -> Iterator[str]:
    """Yield parts while they fit; tokens of parts joined are no more than those of them apart."""
    for part in parts:
        room -= count(f"{part} ")
        if room < 0:
            return
        yield part


@dataclass(frozen=True)
class _Draw:
    """Words and numbers of one text, a pure function of what it was made of."""

    random: np.random.Generator

    @classmethod
    def of(cls, seed: int, length: int, form: int) -> _Draw:
        """Return the draws of one text."""
        key = np.array([seed << 32 | length << 1 | form, Purpose.HAYSTACK], np.uint64)
        return cls(np.random.Generator(np.random.Philox(key=key)))

    def order(self, count: int) -> list[int]:
        """Return a permutation."""
        found: list[int] = self.random.permutation(count).tolist()
        return found

    def of_list(self, words: Sequence[str]) -> str:
        """Return one of several."""
        return words[int(self.random.integers(len(words)))]

    def things(self, count: int) -> list[str]:
        """Return so many different things, no two of one colour or kind."""
        colours, kinds = self.order(len(_COLOURS)), self.order(len(_THINGS))
        pairs = list(zip(colours, kinds, strict=True))[:count]
        return [f"{_COLOURS[colour]} {_THINGS[thing]}" for colour, thing in pairs]

    def numbers(self, count: int) -> list[str]:
        """Return so many different numbers of five digits."""
        found = dict.fromkeys(self.random.integers(10_000, 100_000, size=4 * count).tolist())
        return [str(number) for number in found][:count]

    def sentences(self) -> Iterator[str]:
        """Yield filler without end."""
        while True:
            place, other = self.order(len(_PLACES))[:2]
            person, friend = self.order(len(_PEOPLE))[:2]
            yield self.of_list(_SENTENCES).format(
                day=self.of_list(_DAYS),
                person=_PEOPLE[person],
                friend=_PEOPLE[friend],
                count=self.of_list(_COUNTS),
                goods=self.of_list(_GOODS),
                place=_PLACES[place],
                other=_PLACES[other],
                end=self.of_list(_ENDS),
            )

    def pairs(self) -> list[tuple[str, str]]:
        """Return names with numbers, in any order; no name comes twice."""
        letters = "ABCDEFGHJKLMNPQRSTUVWXYZ"
        names = [f"{c} {t} {x}" for c in _COLOURS for t in _THINGS for x in letters]
        chosen = [names[index] for index in self.order(len(names))]
        return list(zip(chosen, self.numbers(len(chosen)), strict=True))
