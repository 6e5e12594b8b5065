"""How the texts begin that a model writes for its own calibration.

A few words decide the language and the kind of a text, and the model goes on. They are short, so
that almost every token is the model's own, and of many kinds: prose, code, data, and several
languages. A model with a chat template also answers questions.
"""

from __future__ import annotations

from fewbit.tokens.chat_template import ChatTemplate
from fewbit.tokens.tokenizer import Tokenizer

TEXTS = (
    "",
    "The ",
    "import ",
    "In 19",
    "Die ",
    "def ",
    "She ",
    "#include <",
    "Le ",
    "1. ",
    "class ",
    "El ",
    "It is ",
    "{",
    "今天",
    "We show that ",
    "function ",
    "В ",
    "How to ",
    "SELECT ",
    "Il ",
    "Once upon a time",
    "<html>",
    "日本",
    "According to ",
    "# ",
    "A ",
    "使用",
    "Let ",
    "package ",
    "O ",
    "I ",
)
"""Beginnings of texts; the empty one is the tokenizer's own beginning, where it has one."""

QUESTIONS = (
    "Tell me a story about somebody who comes home after many years.",
    "Write a Python function that merges two sorted lists, with tests.",
    "What causes the seasons?",
    "Fasse die Geschichte der Eisenbahn in einigen Sätzen zusammen.",
    "A shop sells pens at 3 for 2 dollars. How much do 27 pens cost? Think step by step.",
    "用简单的话解释什么是通货膨胀。",
    "Explain recursion to a child.",
    "Écris une lettre à un ami qui a déménagé.",
    "Write an SQL query for the ten customers who spent the most last year, and explain it.",
    "¿Qué se debe saber antes de visitar Perú?",
    "List the pros and cons of working from home.",
    "Return a JSON object that describes a book, with five fields.",
)
"""What the model is asked where it has a chat template."""


def openings(tokenizer: Tokenizer, template: ChatTemplate | None) -> tuple[tuple[int, ...], ...]:
    """Return openings as token ids, none empty; questions and texts take turns.

    Raises:
        TemplateError: the model's template failed.
    """
    texts = [tuple(tokenizer.encode(text)) for text in TEXTS]
    begun = [ids for ids in texts if ids]
    if template is None:
        return tuple(begun)
    asked = [_asked(tokenizer, template, question) for question in QUESTIONS]
    pairs = [(asked[i % len(asked)], ids) for i, ids in enumerate(begun)]
    return tuple(ids for pair in pairs for ids in pair)


def _asked(tokenizer: Tokenizer, template: ChatTemplate, question: str) -> tuple[int, ...]:
    text = template.render([{"role": "user", "content": question}])
    return tuple(tokenizer.encode(text, add_special=False, parse_special=True))
