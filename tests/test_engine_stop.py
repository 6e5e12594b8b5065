"""Stop strings are found wherever the text is cut into pieces, and nothing of them is shown."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.engine.stop import StopCondition, StopMatcher
from fewbit.errors import RequestError


def whole(text, strings):
    """The slow truth: cut at the first stop string that completes, one character after another."""
    for end in range(len(text) + 1):
        starts = [text[:end].find(s) for s in strings if s in text[:end]]
        if starts:
            return text[: min(starts)], True
    return text, False


@given(st.text("ab", max_size=30), st.lists(st.text("ab", min_size=1, max_size=4), max_size=3))
def test_the_shown_text_is_the_text_before_the_stop(text, strings):
    matcher = StopMatcher(strings)
    shown, stopped = "", False
    for character in text:
        piece, found = matcher.push(character)
        shown += piece
        if found is not None:
            stopped = True
            break
    else:
        shown += matcher.finish()
    assert (shown, stopped) == whole(text, strings)


@given(st.text("abc", max_size=20), st.text("abc", min_size=1, max_size=3), st.data())
def test_one_string_is_found_however_the_text_is_cut(text, string, data):
    matcher = StopMatcher([string])
    shown, at = "", 0
    while at < len(text):
        size = data.draw(st.integers(1, 5))
        piece, found = matcher.push(text[at : at + size])
        shown += piece
        at += size
        if found:
            assert shown == text[: text.find(string)]
            return
    assert shown + matcher.finish() == text
    assert string not in text


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"max_tokens": 0}, "max_tokens is 0"),
        ({"ids": frozenset([-3])}, "stop token -3"),
        ({"strings": ("a", "")}, "stop string is empty"),
    ],
)
def test_a_condition_that_cannot_be_is_refused(fields, words):
    with pytest.raises(RequestError, match=words):
        StopCondition(**fields)
