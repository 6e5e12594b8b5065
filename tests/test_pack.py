import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fewbit.formats.pack import pack, packed_bytes, unpack


def bit_by_bit(codes: np.ndarray, bits: int) -> np.ndarray:
    """The slow truth: one big integer a row."""
    rows = []
    for row in codes:
        word = sum(int(code) << (i * bits) for i, code in enumerate(row))
        rows.append(list(word.to_bytes(packed_bytes(len(row), bits), "little")))
    return np.array(rows, np.uint8).reshape(len(codes), packed_bytes(codes.shape[1], bits))


@given(
    bits=st.integers(2, 8),
    rows=st.integers(1, 4),
    columns=st.integers(1, 70),
    seed=st.integers(0, 2**32 - 1),
)
def test_pack_equals_the_big_integer_and_unpack_undoes_it(bits, rows, columns, seed):
    codes = np.random.default_rng(seed).integers(0, 1 << bits, (rows, columns), np.uint8)
    packed = pack(codes, bits)
    assert np.array_equal(packed, bit_by_bit(codes, bits))
    assert np.array_equal(unpack(packed, bits, columns), codes)


@pytest.mark.parametrize("bits", range(2, 9))
@pytest.mark.parametrize("columns", range(1, 34))
def test_a_row_takes_the_ceiling_of_its_bits(bits, columns):
    codes = np.full((2, columns), (1 << bits) - 1, np.uint8)
    packed = pack(codes, bits)
    assert packed.shape == (2, -(-columns * bits // 8))
    assert np.unpackbits(packed).sum() == 2 * columns * bits


def test_three_bits_are_not_packed_ten_to_a_word():
    # 32 // 3 codes a word would need 4 words for 32 codes; dense packing needs 3 (12 bytes).
    assert packed_bytes(32, 3) == 12
    assert pack(np.zeros((1, 32), np.uint8), 3).shape == (1, 12)


def test_the_most_significant_bit_first_is_another_layout():
    codes = np.array([[1, 2, 3, 4, 5, 6, 7, 0]], np.uint8)
    planes = np.unpackbits(codes[..., None], axis=-1)[..., -3:]
    assert not np.array_equal(np.packbits(planes.reshape(1, -1), axis=1), pack(codes, 3))


def test_bits_after_the_last_code_are_ignored():
    assert unpack(np.array([[0b1111_1101]], np.uint8), 3, 1).tolist() == [[0b101]]
