import pytest

from fewbit.evaluate.tools.endings import repeated_call, repeated_end


def slow_repeated_end(text):
    """The rule word for word: try every period."""
    text = text.rstrip()
    for period in range(1, len(text)):
        whole = period
        while whole < len(text) and text[-1 - whole] == text[-1 - whole + period]:
            whole += 1
        if whole >= max(4 * period, 60):
            return text[-period:]
    return ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "a",
        "The lamp is set. " * 5,
        "The lamp is set. " * 3,
        "Sure.\n" + '{"name": "f"}\n' * 20,
        "-" * 59,
        "-" * 60,
        "abc" * 19 + "abcd",
        "x" * 30 + "yz" * 40,
        "no end is like another, says the rule of ends",
        "one two " * 10 + "one tw",
    ],
)
def test_an_end_repeats_as_the_rule_says(text):
    assert repeated_end(text) == slow_repeated_end(text)


def test_what_is_repeated_is_the_shortest_piece():
    assert repeated_end("ab" * 50) == "ab"
    assert repeated_end("Well. " + "I can. " * 20) == " I can."


def test_a_table_of_three_rows_is_no_loop():
    assert repeated_end("| a long row of a table with words |\n" * 3) == ""


def test_a_call_made_three_times_is_a_loop():
    assert repeated_call(["f", "g", "f", "f"]) == "f"
    assert repeated_call(["f", "g", "f"]) is None
