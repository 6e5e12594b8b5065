"""Built-in passages with questions on them, short questions, and instructions; all are our own."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from fewbit.evaluate.tasks.drawing import choice, drawn, one_of, shuffled
from fewbit.evaluate.tasks.ifeval import Instruction
from fewbit.evaluate.tasks.items import ChoiceItem, GenerationItem, InstructionItem

_GAPS = {
    "person": ("Clara", "Hugo", "Nadia", "Oscar", "Irene", "Felix", "Greta", "Simon"),
    "place": ("the harbour", "the museum", "the forest", "the market", "the castle", "the lake"),
    "thing": ("a lantern", "a blue scarf", "a wooden box", "an old map", "a silver spoon"),
    "day": ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"),
    "colour": ("green", "red", "yellow", "white", "purple"),
    "food": ("soup", "pancakes", "rice", "fish", "noodles", "salad"),
    "weather": ("foggy", "sunny", "windy", "stormy", "snowy"),
    "animal": ("a parrot", "a goat", "a tortoise", "a donkey", "a rabbit"),
    "number": ("three", "five", "seven", "nine", "twelve"),
    "job": ("a baker", "a carpenter", "a gardener", "a violinist", "a fisherman"),
}


@dataclass(frozen=True)
class _Passage:
    """A text with gaps such as {person}, and questions with the gap that answers each."""

    text: str
    questions: tuple[tuple[str, str], ...]


_PASSAGES = (
    _Passage(
        "On {day} morning {person} walked to {place} because the weather was {weather} and there "
        "was nothing to do at home. Behind a bench lay {thing}, and nobody seemed to miss it.",
        (
            ("What lay behind the bench?", "thing"),
            ("On which day did the walk take place?", "day"),
            ("What was the weather like?", "weather"),
            ("Where did {person} go?", "place"),
        ),
    ),
    _Passage(
        "{person} works as {job} and lives with {animal} in a house with a {colour} door. In the "
        "evening there is usually {food} for dinner, which takes half an hour to make.",
        (
            ("What is the job of {person}?", "job"),
            ("Which animal lives in the house?", "animal"),
            ("What colour is the door?", "colour"),
            ("What is there for dinner?", "food"),
        ),
    ),
    _Passage(
        "The club meets every {day} near {place}. This week only {number} members came, since it "
        "was {weather} outside. They talked about {animal} that had run away, and then went home.",
        (
            ("On which day does the club meet?", "day"),
            ("How many members came this week?", "number"),
            ("What was the weather like?", "weather"),
            ("What had run away?", "animal"),
        ),
    ),
    _Passage(
        "For the birthday party {person} cooked {food} for {number} guests and painted the wall "
        "{colour}. The best present was {thing}, wrapped in an old newspaper.",
        (
            ("What was cooked for the party?", "food"),
            ("How many guests were there?", "number"),
            ("What colour was the wall painted?", "colour"),
            ("What was the best present?", "thing"),
        ),
    ),
)
_FILLS = 3
"""How often each passage is filled."""


def reading() -> tuple[ChoiceItem, ...]:
    """Return questions whose answers stand in a passage; a passage is a cluster."""
    return tuple(item for n in range(_FILLS) for p in _PASSAGES for item in _questions(p, n))


def _questions(passage: _Passage, fill: int) -> Iterator[ChoiceItem]:
    cluster = f"passage-{_PASSAGES.index(passage) + 1}-{fill + 1}"
    filled = {gap: one_of(f"{cluster}/{gap}", values) for gap, values in _GAPS.items()}
    text = passage.text.format(**filled)
    for number, (question, gap) in enumerate(passage.questions, start=1):
        name = f"{cluster}-{number}"
        others = [value for value in _GAPS[gap] if value != filled[gap]]
        wrong = shuffled(f"{name}/wrong", others)[:3]
        prompt = f"{text}\nQuestion: {question.format(**filled)}\nAnswer:"
        yield choice(name, prompt, filled[gap], wrong, cluster=cluster)


_CODES = ("the cellar", "the garage", "the red gate", "the library", "the tower", "the old safe")
_SENTENCES = (
    "The grey cat sleeps under the kitchen table.",
    "Nine ships left the harbour before noon.",
    "My neighbour plants beans along the fence.",
    "A cold wind came down from the hills.",
    "She keeps her letters in a tin box.",
    "The last bus stops at the mill.",
    "Two boys carried the ladder home.",
    "Rain fell on the empty square.",
)
_KINDS = (
    ("animal", "a dog", ("a spoon", "a roof", "a shoe")),
    ("fruit", "a pear", ("a nail", "a river", "a coat")),
    ("colour", "purple", ("seven", "window", "sugar")),
    ("musical instrument", "a flute", ("a carpet", "a cloud", "a bread knife")),
    ("vehicle", "a tram", ("a pillow", "a candle", "a forest")),
    ("number", "eleven", ("orange", "bridge", "summer")),
    ("tool", "a hammer", ("a cousin", "a sunset", "a poem")),
    ("drink", "lemonade", ("a chair", "gravel", "a stamp")),
    ("piece of clothing", "a jacket", ("a turnip", "a lighthouse", "a coin")),
    ("day of the week", "Thursday", ("August", "winter", "midnight")),
)


def short_answers() -> tuple[GenerationItem, ...]:
    """Return questions whose answers are a few words that stand in them."""
    return (*_codes(), *_repeats(), *_picks())


def _codes() -> Iterator[GenerationItem]:
    for number, room in enumerate(_CODES, start=1):
        other = _CODES[number % len(_CODES)]
        code, wrong = drawn(f"code/{number}", 1000, 9999), drawn(f"code/x/{number}", 1000, 9999)
        prompt = (
            f"The code of {room} is {code} and the code of {other} is {wrong}. What is the code of "
            f"{room}? Answer with the number only."
        )
        yield GenerationItem(f"code-{number}", f"code-{number}", prompt, (str(code),))


def _repeats() -> Iterator[GenerationItem]:
    for number, sentence in enumerate(_SENTENCES, start=1):
        prompt = f"Repeat this sentence word for word and say nothing else: {sentence}"
        yield GenerationItem(f"repeat-{number}", f"repeat-{number}", prompt, (sentence,))


def _picks() -> Iterator[GenerationItem]:
    for number, (kind, right, wrong) in enumerate(_KINDS, start=1):
        listed = ", ".join(shuffled(f"pick/{number}", (right, *wrong)))
        prompt = f"Which of these is a {kind}: {listed}? Answer with that one only."
        answer = right.removeprefix("a ")
        yield GenerationItem(f"pick-{number}", f"pick-{number}", prompt, (answer,))


_STOCKS = (
    ("A shop", ("chairs", "lamps", "clocks", "carpets")),
    ("A zoo", ("monkeys", "zebras", "parrots", "snakes")),
    ("A school", ("pupils", "teachers", "classrooms", "computers")),
    ("A harbour", ("sailing boats", "ferries", "cranes", "fishing boats")),
)
_WORKED = (
    "Question: A farm has 14 cows, 52 hens and 33 goats. How many hens does it have?\nAnswer: 52"
)
"""What an answer looks like, before each question."""
_COUNTS = 24


def lookups() -> tuple[GenerationItem, ...]:
    """Return questions on one of three counts that stand in them."""
    return tuple(_lookup(number) for number in range(_COUNTS))


def _lookup(number: int) -> GenerationItem:
    name = f"lookup-{number + 1}"
    place, things = _STOCKS[number % len(_STOCKS)]
    three = shuffled(name, things)[:3]
    counts = shuffled(name, [drawn(f"{name}/{i}", 11 + 27 * i, 35 + 27 * i) for i in range(3)])
    one, two, last = (f"{count} {thing}" for count, thing in zip(counts, three, strict=True))
    asked = drawn(f"{name}/asked", 0, 2)
    prompt = (
        f"{_WORKED}\n\nQuestion: {place} has {one}, {two} and {last}. "
        f"How many {three[asked]} does it have?\nAnswer:"
    )
    return GenerationItem(name, name, prompt, (str(counts[asked]),))


_TOPICS = ("the sea", "a rainy day", "bread", "bicycles", "the moon", "old trees")


@dataclass(frozen=True)
class _Demand:
    """What is asked of a text on a topic, and how it is checked."""

    text: str
    id: str
    parameters: tuple[tuple[str, object], ...] = ()


_DEMANDS = (
    _Demand("Write one sentence about {}. Do not use any commas.", "punctuation:no_comma"),
    _Demand(
        "Write one sentence about {}. Use lowercase letters only, no capitals.",
        "change_case:english_lowercase",
    ),
    _Demand(
        "WRITE ONE SENTENCE ABOUT {}. USE CAPITAL LETTERS ONLY.", "change_case:english_capital"
    ),
    _Demand(
        "Describe {} in fewer than 30 words.",
        "length_constraints:number_words",
        (("num_words", 30), ("relation", "less than")),
    ),
    _Demand(
        "Describe {} in fewer than 3 sentences.",
        "length_constraints:number_sentences",
        (("num_sentences", 3), ("relation", "less than")),
    ),
    _Demand(
        'Write one sentence about {} with the words "quiet" and "window" in it.',
        "keywords:existence",
        (("keywords", ["quiet", "window"]),),
    ),
    _Demand(
        'Write two sentences about {} without the word "the".',
        "keywords:forbidden_words",
        (("forbidden_words", ["the"]),),
    ),
    _Demand(
        "Name exactly 3 things about {} as short bullet points. Begin each with an asterisk, "
        "like:\n* a point",
        "detectable_format:number_bullet_lists",
        (("num_bullets", 3),),
    ),
    _Demand(
        "Write a title for a poem about {} in double angular brackets, like <<title>>.",
        "detectable_format:title",
    ),
    _Demand(
        "Write one sentence about {} and put the whole answer in double quotation marks.",
        "startend:quotation",
    ),
    _Demand(
        "Write one sentence about {}. Then end with exactly these words: That is all.",
        "startend:end_checker",
        (("end_phrase", "That is all."),),
    ),
    _Demand(
        'Give a JSON object with the key "topic" and the value "{}". Write nothing but JSON.',
        "detectable_format:json_format",
    ),
    _Demand(
        "Write one sentence about {} and highlight one word in it with asterisks, like *this*.",
        "detectable_format:number_highlighted_sections",
        (("num_highlights", 1),),
    ),
)
_EACH = 3
"""Topics of each demand."""


def instructions() -> tuple[InstructionItem, ...]:
    """Return short texts to write under a demand that a program checks; a demand is a cluster."""
    return tuple(
        _demanded(number, demand, topic)
        for number, demand in enumerate(_DEMANDS, start=1)
        for topic in shuffled(f"topics/{number}", _TOPICS)[:_EACH]
    )


def _demanded(number: int, demand: _Demand, topic: str) -> InstructionItem:
    cluster = f"demand-{number}"
    instruction = Instruction(demand.id, tuple(sorted(demand.parameters)))
    shown = topic.upper() if demand.text.isupper() else topic
    name = f"{cluster}-{topic.replace(' ', '-')}"
    return InstructionItem(name, cluster, demand.text.format(shown), (instruction,))
