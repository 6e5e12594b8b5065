"""The conversations and passages that the axis of language brings along, all written for it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewbit.calibrate.text import Documents, collect, document

_FOLDER = Path(__file__).parent / "texts"


@dataclass(frozen=True)
class Chat:
    """A conversation."""

    name: str
    messages: tuple[Mapping[str, Any], ...]
    """Objects with `role` and `content`, oldest first."""


def conversations() -> tuple[Chat, ...]:
    """Return the built-in conversations: those written out, then those that call a function."""
    return tuple(Chat(line["name"], tuple(line["messages"])) for line in _lines("chat")) + _calls()


def passages() -> Documents:
    """Return built-in passages in languages other than English."""
    found = (document(line["name"], line["text"]) for line in _lines("languages"))
    return collect("passages in other languages", found)


def chats_text(chats: Sequence[Chat]) -> Documents:
    """Return conversations as plain documents, to be looked for in other text."""
    texts = ("\n\n".join(message["content"] for message in chat.messages) for chat in chats)
    named = zip((chat.name for chat in chats), texts, strict=True)
    return collect("conversations", (document(name, text) for name, text in named))


def _lines(name: str) -> list[dict[str, Any]]:
    text = (_FOLDER / f"{name}.jsonl").read_text(encoding="utf-8")
    return [json.loads(line) for line in text.splitlines()]


@dataclass(frozen=True)
class _Call:
    """A function, what it is asked for in words, and what it gives."""

    function: str
    about: str
    asked: str
    arguments: Mapping[str, Any]
    result: Mapping[str, Any]
    said: str


_CALLS = (
    _Call(
        "convert_currency",
        "Amount in another currency",
        "How much are 250 Swiss francs in Norwegian kroner?",
        {"amount": 250, "from": "CHF", "to": "NOK"},
        {"amount": 3120.5},
        "250 Swiss francs are about 3,120 Norwegian kroner.",
    ),
    _Call(
        "book_table",
        "Reserve a table in a restaurant",
        "A table for six on Friday at eight in the Blue Lantern, please, outside if you can.",
        {
            "restaurant": "Blue Lantern",
            "guests": 6,
            "day": "Friday",
            "time": "20:00",
            "outside": True,
        },
        {"status": "confirmed", "table": "T14"},
        "Your table for six at the Blue Lantern is booked: Friday at eight, table T14 outside.",
    ),
    _Call(
        "track_parcel",
        "Where a parcel is",
        "Where is my parcel RX-4471-B?",
        {"number": "RX-4471-B"},
        {"place": "Lyon", "state": "on its way", "expected": "2026-11-12"},
        "It is on its way, in Lyon at the moment, and should reach you on 12 November.",
    ),
    _Call(
        "send_message",
        "Send a text message",
        "Tell Amara that I am ten minutes late.",
        {"to": "Amara", "text": "I am ten minutes late."},
        {"sent": True},
        "Amara has your message.",
    ),
    _Call(
        "find_route",
        "Way between two places",
        "How do I get from the museum to the harbour on foot?",
        {"start": "museum", "end": "harbour", "mode": "walking"},
        {"minutes": 18, "steps": ["Mill Street", "Long Bridge", "Harbour Road"]},
        "It is a walk of 18 minutes: along Mill Street, over Long Bridge and down Harbour Road.",
    ),
    _Call(
        "set_thermostat",
        "Set the temperature of a room",
        "Make the study 19 and a half degrees until six in the evening.",
        {"room": "study", "celsius": 19.5, "until": "18:00"},
        {"room": "study", "celsius": 19.5},
        "The study is set to 19.5 degrees until six.",
    ),
    _Call(
        "look_up_word",
        "Meaning of a word",
        "What does the Portuguese word saudade mean?",
        {"word": "saudade", "language": "pt"},
        {"meanings": ["longing for somebody or something absent"]},
        "It is a longing for somebody or something that is absent.",
    ),
    _Call(
        "play_song",
        "Play music",
        "Play something calm by a cello quartet in the kitchen, quietly.",
        {"query": "calm cello quartet", "room": "kitchen", "volume": 20},
        {"playing": "Evening, four cellos"},
        "A piece for four cellos, Evening, is playing quietly in the kitchen.",
    ),
    _Call(
        "create_ticket",
        "Report a fault to the caretaker",
        "The lift in house 7 has been stuck on the third floor since this morning, it is urgent.",
        {"place": "house 7", "fault": "lift stuck on the third floor", "urgent": True},
        {"ticket": 90417},
        "The caretaker knows: your ticket is 90417, marked as urgent.",
    ),
    _Call(
        "count_calories",
        "Energy of a meal",
        "How many calories do two slices of rye bread and an apple have?",
        {"items": [{"food": "rye bread, slice", "count": 2}, {"food": "apple", "count": 1}]},
        {"kilocalories": 261},
        "Together about 260 kilocalories.",
    ),
    _Call(
        "water_plants",
        "Run the irrigation of the garden",
        "Give the beans and the roses water for a quarter of an hour tonight.",
        {"beds": ["beans", "roses"], "minutes": 15, "when": "tonight"},
        {"planned": "21:30"},
        "Both beds get 15 minutes of water tonight at half past nine.",
    ),
    _Call(
        "query_sales",
        "Sum of sales between two days",
        "What did we sell in the shop in Ghent in March?",
        {"shop": "Ghent", "first": "2026-03-01", "last": "2026-03-31"},
        {"pieces": 1840, "euros": 27312.4},
        "In March the shop in Ghent sold 1,840 pieces for 27,312.40 euros.",
    ),
)


def _calls() -> tuple[Chat, ...]:
    return tuple(Chat(f"call of {call.function}", _messages(call)) for call in _CALLS)


def _messages(call: _Call) -> tuple[Mapping[str, Any], ...]:
    described = json.dumps(
        {"name": call.function, "description": call.about, "parameters": _schema(call.arguments)}
    )
    asked = json.dumps({"name": call.function, "arguments": call.arguments})
    return (
        {
            "role": "system",
            "content": "You can call functions. To call one, write a JSON object inside "
            f"<tool_call></tool_call> tags.\n\n<tools>\n{described}\n</tools>",
        },
        {"role": "user", "content": call.asked},
        {"role": "assistant", "content": f"<tool_call>\n{asked}\n</tool_call>"},
        {
            "role": "user",
            "content": f"<tool_response>\n{json.dumps(call.result)}\n</tool_response>",
        },
        {"role": "assistant", "content": call.said},
    )


_TYPES = {str: "string", bool: "boolean", int: "integer", float: "number", list: "array"}


def _schema(arguments: Mapping[str, Any]) -> dict[str, Any]:
    properties = {name: {"type": _TYPES[type(value)]} for name, value in arguments.items()}
    return {"type": "object", "properties": properties, "required": list(arguments)}
