"""Answers that are right, nearly right, and wrong, by each rule."""

from __future__ import annotations

from decimal import Decimal

import pytest

from fewbit.evaluate.tasks.items import ChoiceItem, GenerationItem
from fewbit.evaluate.tasks.rules import chosen, is_right, last_number, lead, normalized, scores
from fewbit.records.answers import Likelihood
from fewbit.records.tasks import ChoiceOutcome


def item(*answers):
    return GenerationItem("1", "1", "?", answers)


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("It is 42.", 42),
        ("3 and 4 make 7", 7),
        ("12,345 people", 12345),
        ("It costs $1,000.50!", Decimal("1000.50")),
        ("minus -5 degrees", -5),
        ("−5", -5),
        ("7 + 8 = 15\n#### 15\nShe has 2 cats.", 15),
        ("between 3-4", 4),
        ("1.5.", Decimal("1.5")),
        ("v2 or x1y", None),
        ("none", None),
        ("####", None),
        ("1,2,3", 3),
        ("**18**", 18),
        ("18%", 18),
    ],
)
def test_the_last_number(text, number):
    assert last_number(text) == number


def test_numbers_are_compared_by_value():
    assert is_right("number", item("1,004"), "So she has 1004.0 of them.")
    assert not is_right("number", item("5"), "15") and not is_right("number", item("5"), "many")


def test_exact_is_the_whole_answer():
    assert is_right("exact", item("Paris"), ' "PARIS." ') and is_right("exact", item("a", "b"), "B")
    assert not is_right("exact", item("Paris"), "It is Paris")


def test_contains_wants_whole_words():
    assert is_right("contains", item("the old map"), "It was **the old\nmap**, I think.")
    assert not is_right("contains", item("map"), "maps") and not is_right(
        "contains", item("4"), "44"
    )
    assert is_right("contains", item("C++ (new)"), "in C++ (new)")
    for other in ("5.5", "0.5", "1,5", "5,000", "15"):
        assert not is_right("contains", item("5"), f"It is {other} metres")
    for same in ("5.", "5, or so", "a 5", "(5)"):
        assert is_right("contains", item("5"), f"It is {same}")
    assert is_right("contains", item("Graz"), "1.Graz, then")


def test_normalized_keeps_what_a_reader_would():
    assert normalized("  “ﬁve  Cats!” ") == "five cats" and normalized("3.5") == "3.5"


def outcome(*logprobs):
    found = [Likelihood(logprob=value, tokens=1, greedy=False) for value in logprobs]
    return ChoiceOutcome(likelihoods=tuple(found))


def test_length_normalisation_is_by_bytes_of_the_option():
    one = ChoiceItem("1", "1", ("x",), (" ab", " äöüß"), 1)
    assert chosen(scores("likelihood", one, outcome(-2.0, -4.0))) == 0
    assert scores("likelihood-per-byte", one, outcome(-2.0, -4.0)) == (-1.0, -0.5)
    assert chosen(scores("likelihood-per-byte", one, outcome(-2.0, -4.0))) == 1
    two = ChoiceItem("1", "1", ("x", "y"), (" abcd",), 0)
    assert scores("likelihood-per-byte", two, outcome(-2.0, -4.0)) == (-0.5, -1.0)


def test_ties_go_to_the_first_and_have_no_lead():
    one = ChoiceItem("1", "1", ("x",), (" a", " b", " c"), 1)
    assert chosen((-1.0, -1.0, -2.0)) == 0
    assert lead(one, (-1.0, -1.0, -2.0)) == 0.0 and lead(one, (-3.0, -1.0, -2.0)) == 1.0
