"""Codes in 32-bit words, against a bit-by-bit truth."""

import numpy as np
import pytest

from fewbit.formats.pack import pack
from fewbit.formats.words import (
    AWQ_ORDER,
    dense_words,
    from_padded_words,
    from_words,
    pack_across,
    pack_awq,
    pack_down,
    padded_words,
    to_words,
    unpack_across,
    unpack_awq,
    unpack_down,
)

BITS = range(1, 9)


def bits_of(words) -> list[int]:
    """Every bit of a row of words, lowest first."""
    return [(int(word) & 0xFFFFFFFF) >> bit & 1 for word in words for bit in range(32)]


def value_at(bits: list[int], start: int, width: int) -> int:
    return sum(bits[start + k] << k for k in range(width))


def random_codes(bits: int, rows: int, columns: int) -> np.ndarray:
    rng = np.random.default_rng(bits * 1000 + columns)
    return rng.integers(0, 1 << bits, (rows, columns), dtype=np.uint8)


@pytest.mark.parametrize("columns", [1, 10, 11, 31, 32, 33, 96])
@pytest.mark.parametrize("bits", BITS)
def test_dense_words_hold_code_i_at_bit_i_times_its_width(bits, columns):
    codes = random_codes(bits, 3, columns)
    words = to_words(pack(codes, bits), bits, columns)
    assert words.dtype == np.int32 and words.shape == (3, dense_words(columns, bits))
    for row, packed in zip(codes, words, strict=True):
        stored = bits_of(packed)
        assert [value_at(stored, i * bits, bits) for i in range(columns)] == row.tolist()
        assert not any(stored[columns * bits :])
    assert np.array_equal(from_words(words, bits, columns), pack(codes, bits))
    assert np.array_equal(unpack_across(pack_across(codes, bits), bits, columns), codes)


@pytest.mark.parametrize("columns", [1, 10, 32, 96])
@pytest.mark.parametrize("bits", BITS)
def test_padded_words_are_read(bits, columns):
    codes = random_codes(bits, 2, columns)
    per_word = 32 // bits
    words = np.zeros((2, padded_words(columns, bits)), np.uint32)
    for column in range(columns):
        shift = np.uint32(column % per_word * bits)
        words[:, column // per_word] |= codes[:, column].astype(np.uint32) << shift
    read = from_padded_words(words.view(np.int32), bits, columns)
    assert np.array_equal(read, pack(codes, bits))


@pytest.mark.parametrize("bits", BITS)
def test_packing_down_is_packing_across_of_the_transpose(bits):
    codes = random_codes(bits, 64, 5)
    words = pack_down(codes, bits)
    assert words.shape == (dense_words(64, bits), 5)
    assert np.array_equal(words, pack_across(codes.T.copy(), bits).T)
    assert np.array_equal(unpack_down(words, bits, 64), codes)


def test_three_bits_take_three_words_for_thirty_two_codes():
    # A buffer sized by 32 // 3 codes a word would overrun: the 11th code straddles two words.
    codes = random_codes(3, 32, 2)
    words = pack_down(codes, 3).view(np.uint32)
    assert words.shape == (3, 2)
    assert np.array_equal(words[0] >> 30 | (words[1] & 1) << 2, codes[10])
    assert np.array_equal(words[1] >> 31 | (words[2] & 3) << 1, codes[21])


def test_widths_tell_dense_words_from_padded_ones():
    for bits in (3, 5, 6, 7):
        for columns in range(32, 4097, 32):
            assert dense_words(columns, bits) != padded_words(columns, bits)
    for bits in (2, 4, 8):
        assert all(dense_words(n, bits) == padded_words(n, bits) for n in range(1, 300))


def test_awq_holds_outputs_in_its_own_order():
    codes = random_codes(4, 3, 16)
    words = pack_awq(codes)
    assert words.shape == (3, 2)
    for row in range(3):
        for word in range(2):
            stored = int(words[row, word]) & 0xFFFFFFFF
            nibbles = [stored >> 4 * i & 15 for i in range(8)]
            assert nibbles == [codes[row, 8 * word + AWQ_ORDER[i]] for i in range(8)]
    assert np.array_equal(unpack_awq(words), codes)
