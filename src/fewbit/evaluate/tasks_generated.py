"""Built-in items of multiple choice: facts, grammar, numbers and order; all texts are our own."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.resources import files

import msgspec

from fewbit.evaluate.tasks_drawing import choice, drawn, shuffled
from fewbit.evaluate.tasks_items import ChoiceItem

_DISTRACTORS = 3


class _Relation(msgspec.Struct):
    """A line of suite/relations.jsonl: what stands in the prompt's gap, and what completes it."""

    relation: str
    prompt: str
    pairs: list[tuple[str, str]]


def facts() -> tuple[ChoiceItem, ...]:
    """Return what small models know; wrong options are what completes the others of a relation."""
    text = files("fewbit.evaluate").joinpath("suite", "relations.jsonl").read_bytes()
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


_SUMS = 20
"""Items of each operation."""


def numbers() -> tuple[ChoiceItem, ...]:
    """Return sums, differences, products and sequences; wrong options are near the right one."""
    return (*_calculations(), *_sequences())


def _calculations() -> Iterator[ChoiceItem]:
    for n in range(_SUMS):
        a, b = drawn(f"plus/a/{n}", 11, 20 + 4 * n), drawn(f"plus/b/{n}", 6, 12 + 3 * n)
        yield _calculation(f"plus-{n + 1}", f"{a} + {b} =", a + b)
        c, d = drawn(f"minus/c/{n}", 30, 50 + 3 * n), drawn(f"minus/d/{n}", 3, 12 + n)
        yield _calculation(f"minus-{n + 1}", f"{c} - {d} =", c - d)
        e, f = drawn(f"times/e/{n}", 3, 12), drawn(f"times/f/{n}", 2, 9)
        yield _calculation(f"times-{n + 1}", f"{e} * {f} =", e * f)


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
_THINGS = (
    ("heavier", "a brick", "a feather"),
    ("larger", "an elephant", "a mouse"),
    ("faster", "an aeroplane", "a bicycle"),
    ("hotter", "boiling water", "ice"),
    ("longer", "a century", "a week"),
    ("louder", "thunder", "a whisper"),
    ("sweeter", "honey", "vinegar"),
    ("harder", "a diamond", "butter"),
    ("deeper", "an ocean", "a puddle"),
    ("taller", "a skyscraper", "a cottage"),
    ("softer", "a pillow", "a rock"),
    ("more expensive", "a new car", "a new pencil"),
    ("brighter", "the sun", "a candle"),
    ("older", "a grandmother", "a baby"),
    ("smaller", "an ant", "a horse"),
    ("slower", "a snail", "a cheetah"),
)
_WORDS = (
    ("apple", "grape", "melon"),
    ("bread", "milk", "sugar"),
    ("blue", "green", "yellow"),
    ("cat", "horse", "zebra"),
    ("chair", "lamp", "table"),
    ("duck", "goose", "swan"),
    ("ear", "mouth", "nose"),
    ("fork", "knife", "spoon"),
    ("gold", "iron", "silver"),
    ("hat", "scarf", "tie"),
)


def order() -> tuple[ChoiceItem, ...]:
    """Return comparisons: of people that are named, of things that are known, of the alphabet."""
    return (*_comparisons(), *_known_things(), *_births(), *_alphabet())


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


def _known_things() -> Iterator[ChoiceItem]:
    for number, (more, right, wrong) in enumerate(_THINGS, start=1):
        first, second = shuffled(f"thing/{number}", (right, wrong))
        prompt = f"Question: Which is {more}, {first} or {second}?\nAnswer:"
        yield choice(f"thing-{number}", prompt, right, [wrong])


def _births() -> Iterator[ChoiceItem]:
    for n in range(12):
        one, other = shuffled(f"birth/{n}", _PEOPLE)[:2]
        early = drawn(f"birth/early/{n}", 1920, 1980)
        late = early + drawn(f"birth/gap/{n}", 2, 25)
        first, second = shuffled(f"birth/order/{n}", ((one, early), (other, late)))
        asked, right = (("older", one), ("younger", other))[n % 2]
        prompt = (
            f"{first[0]} was born in {first[1]} and {second[0]} was born in {second[1]}. "
            f"The {asked} of the two is"
        )
        yield choice(f"birth-{n + 1}", prompt, right, [other if right == one else one])


def _alphabet() -> Iterator[ChoiceItem]:
    for number, words in enumerate(_WORDS, start=1):
        asked, right = (("first", words[0]), ("last", words[-1]))[number % 2]
        listed = shuffled(f"alphabet/{number}", words)
        prompt = (
            f"Of the words {listed[0]}, {listed[1]} and {listed[2]}, "
            f"the one that comes {asked} in a dictionary is"
        )
        yield choice(f"alphabet-{number}", prompt, right, [w for w in words if w != right])
