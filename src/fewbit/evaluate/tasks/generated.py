"""Built-in items of multiple choice: facts, grammar, numbers and order; all texts are our own."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

import msgspec

from fewbit.evaluate.tasks.drawing import choice, drawn, shuffled
from fewbit.evaluate.tasks.items import ChoiceItem

_DISTRACTORS = 3


class _Relation(msgspec.Struct):
    """A line of suite/relations.jsonl: what stands in the prompt's gap, and what completes it."""

    relation: str
    prompt: str
    pairs: list[tuple[str, str]]


def facts() -> tuple[ChoiceItem, ...]:
    """Return what small models know; wrong options are what completes the others of a relation."""
    text = files("fewbit.evaluate.tasks").joinpath("suite", "relations.jsonl").read_bytes()
    relations = [msgspec.json.decode(line, type=_Relation) for line in text.splitlines()]
    return tuple(item for relation in relations for item in _facts_of(relation))


def _facts_of(relation: _Relation) -> Iterator[ChoiceItem]:
    for number, (subject, right) in enumerate(relation.pairs, start=1):
        name = f"{relation.relation}-{number}"
        others = {answer for _, answer in relation.pairs} - {right}
        wrong = shuffled(f"{name}/wrong", others)[:_DISTRACTORS]
        yield choice(name, relation.prompt.format(subject), right, wrong)


_NOUNS = (
    ("key", "keys", "to the cabinet", "to the cabinets"),
    ("picture", "pictures", "of the island", "of the islands"),
    ("door", "doors", "behind the curtain", "behind the curtains"),
    ("letter", "letters", "from the lawyer", "from the lawyers"),
    ("road", "roads", "through the valley", "through the valleys"),
    ("label", "labels", "on the bottle", "on the bottles"),
    ("player", "players", "beside the coach", "beside the coaches"),
    ("window", "windows", "above the shop", "above the shops"),
    ("book", "books", "about the painter", "about the painters"),
    ("box", "boxes", "under the table", "under the tables"),
    ("nurse", "nurses", "near the patient", "near the patients"),
    ("bridge", "bridges", "over the river", "over the rivers"),
)
_VERBS = (
    ("is old", "are old"),
    ("was missing", "were missing"),
    ("has been moved", "have been moved"),
    ("looks different now", "look different now"),
)
_LIKED = (
    ("song", "songs", "the teacher", "the teachers"),
    ("dog", "dogs", "the neighbour", "the neighbours"),
    ("cake", "cakes", "the guest", "the guests"),
    ("house", "houses", "the banker", "the bankers"),
    ("coat", "coats", "the actor", "the actors"),
    ("plan", "plans", "the mayor", "the mayors"),
    ("garden", "gardens", "the visitor", "the visitors"),
    ("boat", "boats", "the sailor", "the sailors"),
)
_PAIRS = (
    ("She peeled", "an orange", "a orange"),
    ("He has been here for", "an hour", "a hour"),
    ("They rented", "a yellow van", "an yellow van"),
    ("My aunt studied at", "a university", "an university"),
    ("Yesterday the children", "played outside", "play outside"),
    ("By the time we arrived, the train", "had left", "has leave"),
    ("Tomorrow my uncle", "will visit us", "visited us"),
    ("She has already", "eaten her lunch", "ate her lunch"),
    ("There were too", "many chairs in the room", "much chairs in the room"),
    ("We do not have", "much time", "many time"),
    ("He drank only", "a little milk", "a few milk"),
    ("Only", "a few people came", "a little people came"),
    ("The girl looked at", "herself in the mirror", "himself in the mirror"),
    ("The boys made breakfast for", "themselves", "himself"),
    ("My brother is", "taller than I am", "more tall than I am"),
    ("This is the", "most expensive one", "expensivest one"),
    ("She is very good", "at chess", "in chess"),
    ("It depends", "on the weather", "of the weather"),
    ("He apologised", "for being late", "to be late"),
    ("I am looking forward", "to seeing you", "to see you"),
    ("If I had known, I", "would have called", "will have called"),
    ("Neither of the answers", "is right", "are being right"),
    ("The woman", "who lives next door is a nurse", "which lives next door is a nurse"),
    ("He asked me where", "I lived", "did I live"),
    ("You can borrow my pen if you", "need it", "will need it"),
    ("She made him", "wash the dishes", "to wash the dishes"),
    ("They enjoy", "swimming in the lake", "to swim in the lake"),
    ("Each of the rooms", "has its own bath", "have its own bath"),
    ("The news", "was good", "were good"),
    ("Her advice", "was useful", "were useful"),
)


def grammar() -> tuple[ChoiceItem, ...]:
    """Return beginnings of sentences of which one ending is grammatical."""
    return (*_agreement(), *_relative_clauses(), *_pairs())


def _agreement() -> Iterator[ChoiceItem]:
    """A noun and its verb, with a noun of the other number between them."""
    for index, (one, many, beside_one, beside_many) in enumerate(_NOUNS):
        single, plural = _VERBS[index % len(_VERBS)]
        cluster = f"agreement-{one}"
        prompt = f"The {one} {beside_many}"
        yield choice(f"{cluster}-one", prompt, f"{single}.", [f"{plural}."], cluster=cluster)
        prompt = f"The {many} {beside_one}"
        yield choice(f"{cluster}-many", prompt, f"{plural}.", [f"{single}."], cluster=cluster)


def _relative_clauses() -> Iterator[ChoiceItem]:
    for one, many, person, people in _LIKED:
        cluster = f"clause-{one}"
        prompt = f"The {one} that {people} like"
        yield choice(f"{cluster}-one", prompt, "is here.", ["are here."], cluster=cluster)
        prompt = f"The {many} that {person} likes"
        yield choice(f"{cluster}-many", prompt, "are here.", ["is here."], cluster=cluster)


def _pairs() -> Iterator[ChoiceItem]:
    for number, (start, right, wrong) in enumerate(_PAIRS, start=1):
        yield choice(f"pair-{number}", start, f"{right}.", [f"{wrong}."])


_SUMS = 30
"""Items of each operation, and sequences."""


def numbers() -> tuple[ChoiceItem, ...]:
    """Return sums and products behind a worked one; wrong options are near the right one."""
    return tuple(_calculations())


def _calculations() -> Iterator[ChoiceItem]:
    for n in range(_SUMS):
        a, b = drawn(f"plus/a/{n}", 3, 9 + n), drawn(f"plus/b/{n}", 2, 9)
        yield _calculation(f"plus-{n + 1}", f"2 + 3 = 5\n{a} + {b} =", a + b)
        e, f = drawn(f"times/e/{n}", 3, 5 + n // 3), drawn(f"times/f/{n}", 2, 9)
        yield _calculation(f"times-{n + 1}", f"3 * 4 = 12\n{e} * {f} =", e * f)


def _calculation(name: str, prompt: str, right: int) -> ChoiceItem:
    near = [right + step for step in (1, -1, 2, -2, 10, -10) if right + step > 0]
    wrong = shuffled(f"{name}/wrong", near)[:_DISTRACTORS]
    return choice(name, prompt, str(right), [str(value) for value in wrong])


def _sequences() -> Iterator[ChoiceItem]:
    for n in range(_SUMS):
        start, step = drawn(f"sequence/start/{n}", 1, 30), drawn(f"sequence/step/{n}", 2, 9)
        shown = ", ".join(str(start + step * i) for i in range(4))
        yield _calculation(f"sequence-{n + 1}", f"{shown},", start + 4 * step)


_PEOPLE = ("Anna", "Peter", "Maria", "James", "Sarah", "Daniel", "Laura", "Robert")
_ORDERS = (
    ("taller", "tallest", "shortest"),
    ("older", "oldest", "youngest"),
    ("faster", "fastest", "slowest"),
    ("richer", "richest", "poorest"),
    ("stronger", "strongest", "weakest"),
    ("heavier", "heaviest", "lightest"),
)
_LISTS = (
    "one two three four five",
    "Monday Tuesday Wednesday Thursday Friday",
    "January February March April May",
    "first second third fourth fifth",
    "ten twenty thirty forty fifty",
    "A B C D E",
    "spring summer autumn winter spring",
    "five six seven eight nine",
    "August September October November December",
    "morning noon afternoon evening night",
    "ten nine eight seven six",
    "P Q R S T",
    "red blue red blue red",
    "big bigger biggest small smaller smallest",
    "I II III IV V",
    "Z Y X W V",
    "a1 b2 c3 d4 e5",
    "Friday Thursday Wednesday Tuesday Monday",
    "cat dog dog cat dog dog cat",
    "eleven twelve thirteen fourteen fifteen",
    "2000 2004 2008 2012 2016",
    "two four six eight ten",
    "go went gone see saw seen",
    "hundred ninety eighty seventy sixty",
)
"""Words in their order; the last is to be found, among those before."""


def patterns() -> tuple[ChoiceItem, ...]:
    """Return lists and sequences to go on with, and people to compare."""
    return (*_lists(), *_sequences(), *_comparisons())


def _comparisons() -> Iterator[ChoiceItem]:
    for more, most, least in _ORDERS:
        for superlative in (most, least):
            name = f"order-{superlative}"
            first, second, third = shuffled(name, _PEOPLE)[:3]
            prompt = (
                f"{first} is {more} than {second}, and {second} is {more} than {third}. "
                f"The {superlative} of the three is"
            )
            three = (first, second, third)
            right = first if superlative == most else third
            yield choice(name, prompt, right, [person for person in three if person != right])


def _lists() -> Iterator[ChoiceItem]:
    for number, words in enumerate(_LISTS, start=1):
        *shown, right = words.split()
        wrong = [word for word in shown if word != right][:_DISTRACTORS]
        yield choice(f"list-{number}", f"{', '.join(shown)},", right, wrong)
