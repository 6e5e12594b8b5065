"""Notes to be written as JSON, made by counting: thirteen kinds of note, eight of each."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fewbit.evaluate.tools.structured import SchemaItem

_NOTES_OF_A_KIND = 8
_SHIFTED_EVERY = 4
"""Notes after which all values move on by one, since some counts divide others."""

_NAMES = ("Ada Lind", "Boris Hale", "Chloe Marsh", "Dmitri Voss", "Ella Quist")
_TOWNS = ("Lisbon", "Oslo", "Graz", "Lyon", "Turin", "Cork", "Ghent")
_DAYS = ("2026-03-14", "2026-07-01", "2026-11-23")

_STRING = {"type": "string"}
_FLAG = {"type": "boolean"}


@dataclass(frozen=True)
class _Kind:
    """A kind of note: its fields in order, a sentence with each of them, and values to put in."""

    name: str
    fields: Mapping[str, Mapping[str, Any]]
    sentence: str
    values: Mapping[str, Sequence[str]]


def _whole(least: int, most: int) -> Mapping[str, Any]:
    return {"type": "integer", "minimum": least, "maximum": most}


def _number(least: float) -> Mapping[str, Any]:
    return {"type": "number", "minimum": least}


def _choice(*values: str) -> Mapping[str, Any]:
    return {"type": "string", "enum": list(values)}


def _list(of: Mapping[str, Any], least: int, most: int) -> Mapping[str, Any]:
    return {"type": "array", "items": of, "minItems": least, "maxItems": most}


def _object(fields: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Any]:
    return {
        "type": "object",
        "properties": dict(fields),
        "required": list(fields),
        "additionalProperties": False,
    }


_DATE = {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"}

_KINDS = (
    _Kind(
        "person",
        {"name": _STRING, "age": _whole(0, 120), "town": _STRING},
        "{name} is {age} years old and lives in {town}.",
        {"name": _NAMES, "age": ("34", "51", "27"), "town": _TOWNS},
    ),
    _Kind(
        "book",
        {"title": _STRING, "author": _STRING, "pages": _whole(1, 5000), "lent": _FLAG},
        "The book 'The {title}' by {name} has {pages} pages; it is {lent}.",
        {
            "title": ("Long Winter", "Salt Road", "Last Bell"),
            "name": _NAMES,
            "pages": ("212", "340", "96"),
            "lent": ("lent to a neighbour", "on the shelf"),
        },
    ),
    _Kind(
        "order",
        {"item": _STRING, "count": _whole(1, 1000), "price": _number(0), "paid": _FLAG},
        "{count} pieces of {item} at {price} euros each, {paid}.",
        {
            "item": ("rope", "candle", "bucket", "hammer"),
            "count": ("12", "30", "5"),
            "price": ("3.50", "12", "7.25"),
            "paid": ("paid", "not paid yet"),
        },
    ),
    _Kind(
        "ticket",
        {"number": _whole(1, 99999), "priority": _choice("low", "normal", "high"), "text": _STRING},
        "Ticket {number}, priority {priority}: the {thing} does not work.",
        {
            "number": ("1042", "2210", "3187"),
            "priority": ("low", "normal", "high", "normal"),
            "thing": ("printer", "door bell", "lift", "login page", "scanner"),
        },
    ),
    _Kind(
        "train",
        {"from": _STRING, "to": _STRING, "date": _DATE, "stops": _list(_STRING, 1, 3)},
        "A train from {start} to {goal} on {date}. It stops in {stops}.",
        {
            "start": _TOWNS[:4],
            "goal": _TOWNS[4:],
            "date": _DAYS,
            "stops": ("Bern and Basel", "Namur", "Cologne, Mainz and Ulm"),
        },
    ),
    _Kind(
        "weather",
        {
            "town": _STRING,
            "celsius": {"type": "number"},
            "sky": _choice("clear", "cloudy", "rain", "snow"),
        },
        "In {town} it is {celsius} degrees, sky: {sky}.",
        {
            "town": _TOWNS,
            "celsius": ("21.5", "-3", "8"),
            "sky": ("clear", "cloudy", "rain", "snow"),
        },
    ),
    _Kind(
        "recipe",
        {"dish": _STRING, "minutes": _whole(1, 600), "ingredients": _list(_STRING, 2, 4)},
        "{dish} takes {minutes} minutes and needs {ingredients}.",
        {
            "dish": ("Pancakes", "Onion soup", "Rice pudding", "Dumplings"),
            "minutes": ("20", "45", "35"),
            "ingredients": ("eggs and milk", "onions, butter and stock", "rice and cream"),
        },
    ),
    _Kind(
        "address",
        {
            "person": _STRING,
            "address": _object({"street": _STRING, "number": _whole(1, 999), "town": _STRING}),
        },
        "{name} lives at {number} {street} in {town}.",
        {
            "name": _NAMES,
            "number": ("7", "112", "45"),
            "street": ("Mill Lane", "Harbour Street", "Elm Road", "Station Square"),
            "town": _TOWNS,
        },
    ),
    _Kind(
        "match",
        {"home": _STRING, "away": _STRING, "score": _list(_whole(0, 20), 2, 2)},
        "{home} played against {away}, and it ended {score}.",
        {"home": _TOWNS[:4], "away": _TOWNS[4:], "score": ("2 to 1", "0 to 0", "3 to 4")},
    ),
    _Kind(
        "room",
        {"name": _STRING, "seats": _whole(1, 500), "beamer": _FLAG, "floor": _whole(-2, 40)},
        "The room '{room}' on floor {floor} has {seats} seats and {beamer}.",
        {
            "beamer": ("a beamer", "no beamer"),
            "room": ("Oak", "Birch", "Maple", "Ash", "Elm"),
            "floor": ("2", "0", "5"),
            "seats": ("8", "24", "60"),
        },
    ),
    _Kind(
        "invoice",
        {
            "customer": _STRING,
            "lines": _list(_object({"item": _STRING, "euros": _number(0)}), 1, 2),
            "due": _DATE,
        },
        "{name} owes for {lines}; it is due on {date}.",
        {
            "name": _NAMES,
            "lines": ("a rope (4 euros)", "a lamp (19.90 euros) and a bulb (2.50 euros)"),
            "date": _DAYS,
        },
    ),
    _Kind(
        "review",
        {"product": _STRING, "stars": _whole(1, 5), "recommends": _FLAG},
        "{stars} of 5 stars for the {product}. {said}",
        {
            "stars": ("4", "2", "5"),
            "product": ("kettle", "tent", "desk lamp"),
            "said": ("I would buy it again.", "Do not buy it."),
        },
    ),
    _Kind(
        "animal",
        {"name": _STRING, "kind": _choice("cat", "dog", "horse"), "kilograms": _number(0)},
        "{name} is a {kind} of {weight} kilograms.",
        {
            "name": ("Pepper", "Bruno", "Saffron", "Moss", "Juno"),
            "kind": ("cat", "dog", "horse"),
            "weight": ("4.2", "18", "510"),
        },
    ),
)


def builtin_schemas() -> tuple[SchemaItem, ...]:
    """Return the suite, notes of one kind one after the other."""
    return tuple(item for kind in _KINDS for item in _notes(kind))


def _notes(kind: _Kind) -> Iterator[SchemaItem]:
    schema = _object(kind.fields)
    for number in range(_NOTES_OF_A_KIND):
        values = {
            name: of[(number * (i + 1) + number // _SHIFTED_EVERY) % len(of)]
            for i, (name, of) in enumerate(kind.values.items())
        }
        name = f"{kind.name}/{number}"
        yield SchemaItem(name, name, schema, f"Note: {kind.sentence.format(**values)}")
