"""Questions about functions that we wrote ourselves, made of sentences, names and numbers.

Sixteen functions of four households of things (a home, a calendar, a shop, a journey). A sentence
has one reading: every value stands in it as it belongs into the call. Whatever varies does so by
counting, so that the items are the same everywhere.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fewbit.evaluate.tools.key import Expected, ToolItem

Value = str | int | float | bool


@dataclass(frozen=True)
class _Function:
    """A function, and sentences that ask for it with every argument in them."""

    name: str
    does: str
    arguments: Mapping[str, tuple[Mapping[str, Any], Sequence[Value]]]
    """Of each argument its schema, and values for it; their counts differ, so that they mix."""
    sentences: Sequence[str]


def _text(what: str, *values: str) -> tuple[Mapping[str, Any], Sequence[Value]]:
    return {"type": "string", "description": what}, values


def _choice(what: str, *values: str) -> tuple[Mapping[str, Any], Sequence[Value]]:
    return {"type": "string", "description": what, "enum": list(values)}, values


def _whole(what: str, *values: int) -> tuple[Mapping[str, Any], Sequence[Value]]:
    return {"type": "integer", "description": what}, values


def _number(what: str, *values: float) -> tuple[Mapping[str, Any], Sequence[Value]]:
    return {"type": "number", "description": what}, values


_ROOMS = _text("Which room.", "kitchen", "hall", "bedroom", "study", "attic")
_CITIES = ("Lisbon", "Oslo", "Graz", "Lyon", "Turin", "Cork", "Ghent")

_HOME = (
    _Function(
        "set_lamp",
        "Set how bright the lamp of a room is.",
        {"room": _ROOMS, "percent": _whole("Brightness, 0 to 100.", 20, 75, 40, 90)},
        (
            "Set the lamp in the {room} to {percent} percent.",
            "I want the {room} lamp at {percent} percent brightness.",
        ),
    ),
    _Function(
        "set_heating",
        "Set the temperature that a room is heated to.",
        {"room": _ROOMS, "celsius": _number("Degrees Celsius.", 19.5, 21, 18, 22.5)},
        (
            "Heat the {room} to {celsius} degrees Celsius.",
            "Please set the heating of the {room} to {celsius} degrees Celsius.",
        ),
    ),
    _Function(
        "move_blind",
        "Move the blind of a room.",
        {"room": _ROOMS, "position": _choice("Where to.", "open", "half", "closed")},
        (
            "Move the blind in the {room} to the position {position}.",
            "The blind of the {room} should be {position}.",
        ),
    ),
    _Function(
        "play_radio",
        "Play a radio station in a room.",
        {
            "station": _text("Name of the station.", "Radio Nord", "Jazz Wave", "Classic One"),
            "room": _ROOMS,
        },
        (
            "Play {station} on the radio in the {room}.",
            "Turn on the radio in the {room}, station {station}.",
        ),
    ),
)

_PEOPLE = _text("First name.", "Ada", "Boris", "Chloe", "Dmitri", "Ella")
_DATES = _text("Date as YYYY-MM-DD.", "2026-03-14", "2026-07-01", "2026-11-23")

_CALENDAR = (
    _Function(
        "add_meeting",
        "Put a meeting with somebody into the calendar.",
        {"person": _PEOPLE, "date": _DATES, "minutes": _whole("How long.", 30, 45, 60, 90)},
        (
            "Add a meeting of {minutes} minutes with {person} on {date}.",
            "I meet {person} on {date} for {minutes} minutes; put it into my calendar.",
        ),
    ),
    _Function(
        "add_birthday",
        "Put somebody's birthday into the calendar.",
        {"person": _PEOPLE, "date": _DATES},
        ("Add the birthday of {person}, which is {date}.", "{person} was born on {date}; note it."),
    ),
    _Function(
        "cancel_meetings",
        "Cancel all meetings of a day.",
        {"date": _DATES},
        ("Cancel all my meetings on {date}.", "I am ill on {date}, so drop every meeting then."),
    ),
    _Function(
        "send_reminder",
        "Remind somebody of something.",
        {
            "person": _PEOPLE,
            "message": _text(
                "What to remember.", "bring the keys", "water the plants", "call the bank"
            ),
        },
        ("Remind {person} to {message}.", "Send {person} a reminder that says: {message}"),
    ),
)

_GOODS = _text("What is sold.", "rope", "candle", "bucket", "hammer", "lantern")

_SHOP = (
    _Function(
        "order_goods",
        "Order goods from the supplier.",
        {"item": _GOODS, "count": _whole("How many.", 12, 30, 5, 48)},
        ("Order {count} of '{item}'.", "We need {count} more of '{item}'; order it."),
    ),
    _Function(
        "set_price",
        "Set the price of an item.",
        {"item": _GOODS, "euros": _number("Price in euros.", 3.5, 12, 7.25, 20)},
        (
            "Set the price of '{item}' to {euros} euros.",
            "Sell '{item}' for {euros} euros.",
        ),
    ),
    _Function(
        "count_stock",
        "Look up how many of an item are in stock.",
        {"item": _GOODS},
        ("How many of '{item}' are in stock?", "Look up the stock of '{item}'."),
    ),
    _Function(
        "refund_order",
        "Give a customer the money of an order back.",
        {
            "order": _whole("Number of the order.", 1042, 2210, 3187, 4096),
            "reason": _choice("Why.", "broken", "late", "unwanted"),
        },
        ("Refund order {order}, reason: {reason}.", "Order {order} was {reason}; refund it."),
    ),
)

_JOURNEY = (
    _Function(
        "find_train",
        "Find a train between two cities.",
        {
            "start": _text("City of departure.", *_CITIES[:4]),
            "goal": _text("City of arrival.", *_CITIES[4:]),
            "date": _DATES,
        },
        (
            "Find a train from {start} to {goal} on {date}.",
            "Which train goes from {start} to {goal} on {date}?",
        ),
    ),
    _Function(
        "get_weather",
        "Get the weather of a city.",
        {"city": _text("The city.", *_CITIES)},
        ("What is the weather in {city}?", "Get me the weather of {city}."),
    ),
    _Function(
        "book_room",
        "Book a hotel room in a city.",
        {
            "city": _text("The city.", *_CITIES),
            "nights": _whole("How many nights.", 1, 2, 3, 5),
            "breakfast": ({"type": "boolean", "description": "With breakfast?"}, (True, False)),
        },
        (
            "Book a room in {city} for {nights} nights (breakfast: {breakfast}).",
            "I need a hotel room in {city}, {nights} nights, breakfast {breakfast}.",
        ),
    ),
    _Function(
        "convert_money",
        "Convert an amount of money.",
        {
            "amount": _number("How much.", 100, 250.5, 75),
            "currency": _choice("Into which currency.", "USD", "GBP", "NOK", "CHF"),
        },
        ("Convert {amount} euros to {currency}.", "How much are {amount} euros in {currency}?"),
    ),
)

_HOUSEHOLDS = (_HOME, _CALENDAR, _SHOP, _JOURNEY)

_ROUNDS = 2
"""How often each sentence is asked, with other values every time."""

_ELSEWHERE = (
    "What is the capital of Australia?",
    "Name three poets of the nineteenth century.",
    "Translate 'good night' into Spanish.",
    "Why do cats purr?",
    "What is seven times eight?",
    "Who painted the Mona Lisa?",
    "Give me a word that rhymes with 'stone'.",
    "How many legs has a spider?",
    "What does the word 'nocturnal' mean?",
    "Is the sun a star or a planet?",
    "Which gas do plants take in?",
    "Write one sentence about the sea.",
    "What comes after Wednesday?",
    "How far away is the moon?",
    "What is the plural of 'mouse'?",
    "Who wrote Hamlet?",
    "Why is the sea salty?",
    "Name a metal that is liquid when it is warm outside.",
    "What do bees make?",
    "How do you say 'thank you' in French?",
    "What is the opposite of 'early'?",
    "Tell me something about volcanoes.",
    "Which continent is Egypt in?",
    "What is a sonnet?",
    "How many minutes are there in two hours?",
    "Give me three words for 'happy'.",
)
"""Questions that no function above has to do with."""


def builtin_items() -> tuple[ToolItem, ...]:
    """Return the suite: those with one set of functions one after the other."""
    return tuple(
        item
        for household in _HOUSEHOLDS
        for kind in (_simple, _multiple, _parallel, _parallel_multiple, _irrelevance)
        for item in kind(household)
    )


def _simple(household: Sequence[_Function]) -> Iterator[ToolItem]:
    for function in household:
        for variant, number in _asked(function):
            yield _item("simple", number, [function], [_said(function, variant, variant + number)])


def _multiple(household: Sequence[_Function]) -> Iterator[ToolItem]:
    for function in household:
        for variant, number in _asked(function):
            said = [_said(function, variant, variant + 2 + number)]
            yield _item("multiple", number, household, said)


def _parallel(household: Sequence[_Function]) -> Iterator[ToolItem]:
    for function in household:
        for number in range(_ROUNDS):
            said = [_said(function, i % 2, i + 1 + number) for i in (0, 2)]
            yield _item("parallel", number, [function], said)


def _parallel_multiple(household: Sequence[_Function]) -> Iterator[ToolItem]:
    for i, function in enumerate(household):
        other = household[(i + 1) % len(household)]
        for number in range(_ROUNDS):
            said = [_said(function, 0, i + number), _said(other, 1, i + 1 + number)]
            yield _item("parallel-multiple", number, household, said)


def _asked(function: _Function) -> Iterator[tuple[int, int]]:
    """Yield each sentence as often as it is asked."""
    return itertools.product(range(len(function.sentences)), range(_ROUNDS))


def _irrelevance(household: Sequence[_Function]) -> Iterator[ToolItem]:
    offered = tuple(map(_schema, household))
    for i, question in enumerate(_ELSEWHERE):
        yield ToolItem(
            name=f"irrelevance/{household[0].name}/{i}",
            kind="irrelevance",
            cluster=f"irrelevance/{i}",
            messages=({"role": "user", "content": question},),
            tools=offered,
            expected=(),
        )


@dataclass(frozen=True)
class _Said:
    """One sentence, and the call that is right."""

    key: str
    text: str
    expected: Expected


def _said(function: _Function, sentence: int, number: int) -> _Said:
    """Fill a sentence with the values of some number."""
    values = {
        name: of[(number + i * sentence) % len(of)]
        for i, (name, (_, of)) in enumerate(function.arguments.items())
    }
    text = function.sentences[sentence].format(**{n: _word(v) for n, v in values.items()})
    expected = Expected(function.name, {name: (value,) for name, value in values.items()})
    return _Said(f"{function.name}-{sentence}", text, expected)


def _word(value: Value) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return str(value)


def _item(kind: str, number: int, offered: Sequence[_Function], said: Sequence[_Said]) -> ToolItem:
    text = " ".join(one.text for one in said)
    key = "+".join(one.key for one in said)
    return ToolItem(
        name=f"{kind}/{key}/{number}",
        kind=kind,
        cluster=f"{kind}/{key}",
        messages=({"role": "user", "content": text},),
        tools=tuple(map(_schema, offered)),
        expected=tuple(one.expected for one in said),
    )


def _schema(function: _Function) -> Mapping[str, Any]:
    """Return a function as the OpenAI API has it."""
    return {
        "type": "function",
        "function": {
            "name": function.name,
            "description": function.does,
            "parameters": {
                "type": "object",
                "properties": {name: schema for name, (schema, _) in function.arguments.items()},
                "required": list(function.arguments),
            },
        },
    }
