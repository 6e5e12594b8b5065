"""Every instruction with answers that follow it and answers that only seem to."""

from __future__ import annotations

import pytest

from fewbit.errors import BadFileError, UnsupportedError
from fewbit.evaluate.tasks.ifeval import (
    INSTRUCTIONS,
    Instruction,
    checked_instruction,
    follows,
    follows_loosely,
)

CASES = [
    ("punctuation:no_comma", {}, ["A day. Good."], ["Well, no.", "نعم، لا"]),
    ("change_case:english_capital", {}, ["ALL 3 OF US!"], ["ALL of us", "123", "ДА НЕТ"]),
    ("change_case:english_lowercase", {}, ["all of us."], ["All of us.", "да нет"]),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "at least"},
        ["NASA met the UN."],
        ["NASA met me. I am A man."],
    ),
    (
        "change_case:capital_word_frequency",
        {"capital_frequency": 2, "capital_relation": "less than"},
        ["NASA met me."],
        ["NASA met the UN."],
    ),
    (
        "combination:repeat_prompt",
        {"prompt_to_repeat": "Name a  tree."},
        ["Name a tree.\nAn oak."],
        ["An oak. Name a tree.", "name a tree. Oak"],
    ),
    (
        "combination:two_responses",
        {},
        ["One.\n******\nTwo."],
        ["One. ****** One.", "One", "One ****** Two ****** Three", "One ******"],
    ),
    (
        "detectable_content:number_placeholders",
        {"num_placeholders": 2},
        ["[name] of [town]"],
        ["[name]", "[]()[]", "[a[b]"],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.S."},
        ["Bye.\nP.S. Write soon.", "Bye.\n**P.S.** Write."],
        ["Bye. A word on P.S. marks.", "Bye.\nP.S."],
    ),
    (
        "detectable_content:postscript",
        {"postscript_marker": "P.P.S"},
        ["Bye.\nP.P.S. More."],
        ["Bye.\nP.S. More."],
    ),
    (
        "detectable_format:constrained_response",
        {},
        ["My answer is no."],
        ["No.", "My answer is no. My answer is yes."],
    ),
    (
        "detectable_format:json_format",
        {},
        ['{"a": 1}', '```json\n{"a": [1]}\n```', "[1, 2]"],
        ['Here: {"a": 1}', "{'a': 1}", "3", "[" * 100_000, '{"a": NaN}', "[-Infinity]"],
    ),
    (
        "detectable_format:multiple_sections",
        {"section_spliter": "SECTION", "num_sections": 2},
        ["SECTION 1\nx\n**SECTION 2**\ny"],
        ["SECTION 1\nx", "Section 1\nSection 2", "see SECTION 1 and SECTION 2"],
    ),
    (
        "detectable_format:number_bullet_lists",
        {"num_bullets": 2},
        ["* a\n* b", "- a\n  - b"],
        ["* a", "* a\n* b\n* c", "*a*\n*b*", "**a** x\n**b** y"],
    ),
    (
        "detectable_format:number_highlighted_sections",
        {"num_highlights": 2},
        ["*one* and **two words**"],
        ["*one*", "* one\n* two", "****", "2 * 3 * 4"],
    ),
    ("detectable_format:title", {}, ["<<A Day>>\nText"], ["<A Day>", "<<>>", "<<\n>>"]),
    (
        "keywords:existence",
        {"keywords": ["snow", "wind"]},
        ["Snowy hills and WIND"],
        ["snow only", "resnow wind"],
    ),
    (
        "keywords:forbidden_words",
        {"forbidden_words": ["rock"]},
        ["rocket"],
        ["Rock!", "on a rock."],
    ),
    (
        "keywords:frequency",
        {"keyword": "sea", "frequency": 2, "relation": "at least"},
        ["The sea. Seas."],
        ["The sea is there. Sesea."],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "!", "let_frequency": 2, "let_relation": "at least"},
        ["a!b!"],
        ["a!"],
    ),
    (
        "keywords:letter_frequency",
        {"letter": "o", "let_frequency": 2, "let_relation": "less than"},
        ["Oh"],
        ["Oho"],
    ),
    (
        "language:response_language",
        {"language": "de"},
        ["Das ist nicht der Hund, den ich auf dem Hof gesehen habe."],
        ["This is not the dog that I saw on the farm.", "123"],
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 2, "nth_paragraph": 2, "first_word": "Then"},
        ["One.\n\n\n*Then* two."],
        ["One.\n\nNow two.", "Then two.", "One.\n\nTwo.\n\nThen three."],
    ),
    (
        "length_constraints:nth_paragraph_first_word",
        {"num_paragraphs": 1, "nth_paragraph": 2, "first_word": "Then"},
        [],
        ["Then one."],
    ),
    (
        "length_constraints:number_paragraphs",
        {"num_paragraphs": 2},
        ["One\n***\nTwo", "***\nOne\n***\nTwo\n***"],
        ["One\n\nTwo", "One\n***\n***\nTwo"],
    ),
    (
        "length_constraints:number_sentences",
        {"num_sentences": 3, "relation": "less than"},
        ["Dr. Smith of the U. S. Army came. He left!"],
        ["He came. He left. He died.", "One\n\nTwo\n\nThree"],
    ),
    (
        "length_constraints:number_words",
        {"num_words": 3, "relation": "at least"},
        ["It's well-known, no?"],
        ["It - is!"],
    ),
    (
        "startend:end_checker",
        {"end_phrase": "That is all."},
        ["Yes. That is all.", 'Yes. "That is ALL."\n'],
        ["That is all. Bye.", "That is."],
    ),
    ("startend:quotation", {}, ['"Yes."', "“Yes.”\n"], ['"Yes" he said', '""', "Yes"]),
]


def instruction(id_, given):
    return checked_instruction(id_, given, "Line 1 of x.jsonl")


@pytest.mark.parametrize(("id_", "given", "right", "wrong"), CASES)
def test_what_follows_and_what_only_seems_to(id_, given, right, wrong):
    one = instruction(id_, given)
    for answer in right:
        assert follows(one, answer), answer
    for answer in wrong:
        assert not follows(one, answer), answer[:50]


def test_every_instruction_has_a_case():
    assert set(INSTRUCTIONS) == {case[0] for case in CASES}
    assert len(INSTRUCTIONS) == 25


@pytest.mark.parametrize(("id_", "given"), [case[:2] for case in CASES])
def test_an_empty_answer_follows_nothing(id_, given):
    one = instruction(id_, given)
    assert not follows(one, " \n") and not follows_loosely(one, " \n")


def test_loose_forgives_a_frame_and_asterisks_and_strict_does_not():
    capital = instruction("change_case:english_capital", {})
    framed = "Sure, here it is:\nTHE SEA IS COLD.\nI hope this helps!"
    assert not follows(capital, framed) and follows_loosely(capital, framed)
    quoted = instruction("startend:quotation", {})
    assert not follows(quoted, '**"Yes."**') and follows_loosely(quoted, '**"Yes."**')
    assert not follows_loosely(capital, "A\nb\nc\nD\nE")


def test_parameters_that_are_none_count_as_left_out():
    assert instruction("punctuation:no_comma", {"num_words": None}) == Instruction(
        "punctuation:no_comma"
    )


@pytest.mark.parametrize(
    ("id_", "given", "message"),
    [
        ("length_constraints:number_words", {"num_words": 3}, "lacks the parameter 'relation'"),
        ("punctuation:no_comma", {"x": 1}, "has the parameter 'x'; its parameters are: none"),
        ("detectable_format:number_bullet_lists", {"num_bullets": "3"}, "give a whole number"),
        ("detectable_format:number_bullet_lists", {"num_bullets": True}, "give a whole number"),
        (
            "length_constraints:number_words",
            {"num_words": 3, "relation": "about"},
            "give at least or less than",
        ),
        ("keywords:existence", {"keywords": []}, "not empty"),
        ("startend:end_checker", {"end_phrase": ""}, "not empty"),
    ],
)
def test_parameters_that_cannot_be_are_named_with_their_line(id_, given, message):
    with pytest.raises(BadFileError, match=r"Line 1 of x.jsonl") as caught:
        instruction(id_, given)
    assert message in str(caught.value)


def test_an_instruction_that_cannot_be_checked_is_named_with_a_near_one():
    with pytest.raises(UnsupportedError, match="did you mean punctuation:no_comma"):
        instruction("punctuation:no_commas", {})
    with pytest.raises(UnsupportedError, match="'xx', which cannot be told; there are ar, bg"):
        instruction("language:response_language", {"language": "xx"})
