"""Texts recognised in one another, in one piece or many, whatever the script."""

import pytest

from fewbit.calibrate.overlap import overlap, refuse_overlap
from fewbit.calibrate.shingles import words
from fewbit.calibrate.text import collect, document
from fewbit.errors import UsageError

WORDS = [f"w{i}" for i in range(300)]


def texts(*parts):
    return collect("calibration.txt", [document(f"d{i}", part) for i, part in enumerate(parts)])


def test_calibrating_on_the_evaluation_text_is_refused_with_the_share_and_an_example():
    calibration = texts("Before.\n" + "\n".join(WORDS).upper())
    with pytest.raises(UsageError) as caught:
        refuse_overlap(texts(" ".join(WORDS)), calibration)
    assert "1 of 1 evaluation documents" in str(caught.value)
    assert f"'d0' to 100%, as in \"{' '.join(WORDS[:12])}\" of calibration.txt" in str(caught.value)
    refuse_overlap(texts(" ".join(WORDS)), texts("another " * 300))


def test_the_example_is_the_first_run_that_both_have():
    (found,) = overlap(texts(" ".join(WORDS)), texts(" ".join(WORDS[100:200])))
    assert found.example == " ".join(WORDS[100:112])
    assert found.share == 1.0  # of the shorter


def test_a_text_cut_into_pieces_of_many_files_is_recognised():
    evaluation = texts(" ".join(WORDS))
    strange = [" ".join(f"x{i}y{j}" for j in range(60)) for i in range(10)]
    pieces = [f"{strange[i]} {' '.join(WORDS[30 * i : 30 * i + 30])}" for i in range(10)]
    # Each piece shares 19 of its 79 shingles, and all of them 190 of the document's 289.
    (found,) = overlap(evaluation, texts(*pieces))
    assert found.share == pytest.approx(190 / 289)


def test_a_common_header_is_no_overlap():
    header = " ".join(f"licence{i}" for i in range(30))
    one, other = (f"{header} " + " ".join(f"{k}{i}" for i in range(300)) for k in "ab")
    assert overlap(texts(one), texts(other)) == ()


def test_texts_without_spaces_are_compared_by_characters():
    river = "大河から水を引く町では春になると人々が堰を直しに集まり昼には握り飯を分け合う"
    assert words("河は Wide 広い") == ["河", "は", "wide", "広", "い"]
    (found,) = overlap(texts(f"前置き。{river}"), texts(f"{river}。それから別の話。"))
    assert found.share > 0.5
    assert overlap(texts(river), texts(river[::-1])) == ()
