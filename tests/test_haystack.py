"""Long texts: their facts are where they should be, and nothing else answers the questions."""

import re

import pytest

from fewbit.evaluate.long_context.haystack import NEEDLES, Kind, Ruler, hidden_facts, key_values

WORDS = Ruler(lambda text: len(text.split()))


@pytest.mark.parametrize("make", [hidden_facts, key_values])
@pytest.mark.parametrize("length", [200, 1000])
def test_a_text_is_a_pure_function_of_seed_and_length(make, length):
    one = make(3, length, WORDS)
    assert one == make(3, length, WORDS)
    assert one.text != make(4, length, WORDS).text
    assert one.name != make(4, length, WORDS).name


@pytest.mark.parametrize("make", [hidden_facts, key_values])
def test_text_question_and_answer_fill_the_length_and_no_more(make):
    for seed in range(5):
        for length in (180, 400, 1600):
            found = make(seed, length, WORDS)
            for q in found.questions:
                for end in (q.answer, *q.others):
                    assert WORDS.count(found.text + q.begun + end) <= length - WORDS.reserve
            assert WORDS.count(found.text) > 0.85 * length - 60


def test_facts_are_hidden_once_at_even_depths():
    found = hidden_facts(1, 1500, WORDS)
    assert [q.kind for q in found.questions] == [Kind.NEEDLE] * NEEDLES + [Kind.MULTI_NEEDLE]
    for q in found.questions[:NEEDLES]:
        thing = re.search("code of the (.+) is", q.begun).group(1)
        fact = f"The code of the {thing} is{q.answer}."
        assert found.text.count(fact) == found.text.count(q.needed[0]) == 1
        assert found.text.index(fact) / len(found.text) == pytest.approx(q.depth, abs=0.08)
        assert len({q.answer, *q.others}) == 4
        assert all(other.strip() in found.text for other in q.others)
    digits = set(re.findall(r"\d+", found.text))
    assert digits == {q.needed[0] for q in found.questions[:NEEDLES]}


def test_all_facts_are_asked_for_in_an_order_of_their_own():
    q = hidden_facts(2, 800, WORDS).questions[-1]
    assert len(q.needed) == NEEDLES
    assert [q.answer.index(code) for code in q.needed] == sorted(map(q.answer.index, q.needed))
    assert len({q.answer, *q.others}) == 4
    assert all(sorted(re.findall(r"\d+", o)) == sorted(q.needed) for o in q.others)


def test_lines_of_a_list_have_names_of_their_own():
    found = key_values(5, 2000, WORDS)
    lines = dict(line.split(": ") for line in found.text.splitlines())
    assert len(lines) == len(found.text.splitlines())
    assert [q.kind for q in found.questions] == [Kind.KEY_VALUE] * NEEDLES
    for q in found.questions:
        name = re.search("number of (.+) is", q.begun).group(1)
        assert f" {lines[name]}" == q.answer
        assert list(lines).index(name) / len(lines) == pytest.approx(q.depth, abs=0.01)
        assert len({q.answer, *q.others}) == 4
        assert all(other.strip() in lines.values() for other in q.others)


@pytest.mark.parametrize(("make", "most"), [(hidden_facts, 25), (key_values, 4)])
def test_a_text_hardly_exceeds_whole_blocks(make, most):
    blocks = Ruler(WORDS.count, block=64)
    for seed in range(6):
        whole, fitted = (make(seed, 700, ruler).text for ruler in (WORDS, blocks))
        assert (WORDS.count(fitted) - 2) % 64 < most
        assert WORDS.count(whole) - 64 < WORDS.count(fitted) <= WORDS.count(whole)


@pytest.mark.parametrize("make", [hidden_facts, key_values])
def test_what_is_too_short_is_left_out(make):
    assert make(0, 40, WORDS) is None
