"""Counting words, sentences and marks in texts that are easy to miscount."""

from __future__ import annotations

import pytest

from fewbit.evaluate.tasks import ifeval_text as measure


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("One. Two! Three?", 3),
        ("No end", 1),
        ("Mr. Hill met Dr. Wood, e.g. at noon.", 1),
        ("J. K. came. I did, too. So did I. Yes.", 4),
        ('"Stop!" she said. He did...', 3),
        ("It cost 3.50 at example.org today.", 1),
        ("Title\n\nFirst line\nsecond line.", 2),
        ("他来了。他走了！", 2),
        ("", 0),
        ("... !!!", 0),
    ],
)
def test_sentences(text, count):
    assert len(measure.sentences(text)) == count


def test_words_have_letters_or_digits():
    assert measure.words("It's 5 o'clock - at last -- ...") == [
        "It's",
        "5",
        "o'clock",
        "at",
        "last",
    ]


def test_parts_keep_empty_ones_between():
    assert measure.parts("***\na\n***\n\n***\nb\n***", "***") == ["a", "", "b"]
    assert measure.parts("a ****** b", "******") == ["a", "b"]


def test_first_words_lose_their_marks():
    assert measure.first_word('**"Well-known** things') == "well-known"
    assert measure.first_word("...") == ""


def test_keywords_that_begin_with_a_mark():
    assert measure.count_keyword("#a b#a #A", "#a") == 3
    assert measure.count_keyword("sea seaside undersea", "sea") == 2


def test_capital_words_have_two_letters():
    assert measure.capital_words("I saw A UFO, NASA-2 and X1Y2; not Ufo.") == 3
