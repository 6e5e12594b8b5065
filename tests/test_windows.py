"""Documents cut into windows."""

import numpy as np
import pytest

from fewbit.calibrate.text import collect, document
from fewbit.calibrate.windows import cut_windows
from fewbit.errors import UsageError


def encode(text):
    return [ord(c) for c in text]


def cut(*texts, prefix=(1,), length=8, limit=100):
    documents = collect("t", [document(str(i), text) for i, text in enumerate(texts)])
    return cut_windows(documents, encode, prefix, length=length, limit=limit)


def test_every_window_begins_with_the_prefix_and_none_is_too_long():
    windows = cut("abcdefghijklmnop", "xyz")
    assert all(w.tokens[0] == 1 and len(w.tokens) <= 8 for w in windows)
    assert windows[0].tokens.dtype == np.int32


def test_tokens_follow_each_other_without_loss():
    windows = [w for w in cut("abcdefghijklmnop") if w.document == 0]
    text = np.concatenate([w.tokens[1:] for w in windows])
    assert bytes(text.tolist()).decode() == "abcdefghijklmn"  # the rest is under four tokens


def test_first_windows_of_all_documents_come_first():
    windows = cut("a" * 30, "b" * 5, "c" * 30)
    assert [w.document for w in windows[:5]] == [0, 1, 2, 0, 2]
    assert [w.document for w in cut("a" * 30, "b" * 30, "c" * 30, limit=2)] == [0, 1]


def test_documents_without_a_second_half_give_no_window():
    assert [w.document for w in cut("", "ab", "abc")] == [2]


@pytest.mark.parametrize(("texts", "prefix"), [((), (1,)), (("", "ab"), (1,)), (("abc",), ())])
def test_a_text_without_a_window_is_refused(texts, prefix):
    with pytest.raises(UsageError, match="The text 't' has no document of at least 4 tokens"):
        cut(*texts, prefix=prefix)
