"""Packing keeps every weight's exact value, and about the bytes of the source."""

import gguf
import numpy as np
import pytest
from quantized import (
    AFFINE,
    BLOCKS,
    FLOATS,
    INTEGER_FORMATS,
    decoded,
    float32_scales,
    format_id,
    random_floats,
    random_tensor,
)

from fewbit import _native
from fewbit._native import PackedMatrix
from fewbit.errors import KernelError
from fewbit.formats.registry import BLOCK_FORMATS, FP8, encoded_bytes
from fewbit.formats.spec import Granularity, QuantSpec, QuantTensor
from fewbit.runtime.pack import obstacle, pack, packed_form, size_of
from fewbit.runtime.reference import linear


def rows_of(packed: PackedMatrix) -> np.ndarray:
    return np.stack([packed.decode_row(row) for row in range(packed.rows)])


@pytest.mark.parametrize("form", INTEGER_FORMATS, ids=format_id)
@pytest.mark.parametrize("rows", [1, 16, 37])
def test_rows_decode_to_the_same_bits(form, rows):
    tensor = random_tensor(form, rows, 512, np.random.default_rng(rows))
    got = rows_of(pack(tensor))
    assert np.array_equal(got.view(np.uint32), decoded(tensor).view(np.uint32))


@pytest.mark.parametrize("name", BLOCKS)
def test_blocks_decode_as_the_gguf_package_decodes_them(name):
    tensor = random_tensor(name, 20, 768, np.random.default_rng(1))
    kind = gguf.GGMLQuantizationType(BLOCK_FORMATS[name].spec.type_id)
    truth = gguf.dequantize(tensor.codes, kind)
    assert np.array_equal(rows_of(pack(tensor)).view(np.uint32), truth.view(np.uint32))


@pytest.mark.parametrize("shape", [(21, 50), (37, 300)])
@pytest.mark.parametrize("name", FLOATS)
def test_floats_are_kept(name, shape):
    tensor, values = random_floats(name, *shape, np.random.default_rng(2))
    assert np.array_equal(rows_of(pack(tensor)), values)


@pytest.mark.parametrize("form", INTEGER_FORMATS, ids=format_id)
def test_the_number_of_threads_does_not_matter(form):
    tensor = random_tensor(form, 100, 256, np.random.default_rng(3))
    assert np.array_equal(rows_of(pack(tensor)), rows_of(pack(tensor, threads=3)))


def test_every_row_stands_where_it_should():
    # A planted exchange of two rows, or of the two nibbles of a byte, must be seen.
    tensor = random_tensor("q4_0", 32, 64, np.random.default_rng(4))
    good = rows_of(pack(tensor))
    exchanged = tensor.take_rows(np.array([1, 0, *range(2, 32)]))
    assert not np.array_equal(rows_of(pack(exchanged)), good)
    codes = tensor.codes.copy()
    codes[:, 2:18] = (codes[:, 2:18] >> 4) | (codes[:, 2:18] << 4)
    assert not np.array_equal(rows_of(pack(QuantTensor(tensor.spec, (32, 64), codes))), good)


@pytest.mark.parametrize("form", INTEGER_FORMATS, ids=format_id)
def test_the_size_is_known_before_packing(form):
    tensor = random_tensor(form, 64, 512, np.random.default_rng(5))
    assert pack(tensor).nbytes == size_of(packed_form(tensor), tensor.shape)


@pytest.mark.parametrize(
    ("spec", "columns", "words"),
    [
        (float32_scales(AFFINE[0]), 64, "its scales are f32"),
        (QuantSpec(4, Granularity.CHANNEL), 64, "a scale per input channel"),
        (QuantSpec(4, Granularity.ROW), 40, "40 columns are not a multiple of 32"),
        (QuantSpec(4, Granularity.GROUP, 16), 64, "groups of 16"),
        (BLOCK_FORMATS["q8_k"].spec, 256, "no kernel reads q8_k"),
    ],
)
def test_what_no_kernel_reads_is_refused_with_the_reason(spec, columns, words):
    tensor = QuantTensor(spec, (16, columns), np.zeros((16, 1), np.uint8))
    assert words in str(obstacle(tensor))
    with pytest.raises(KernelError, match=words.split(" are")[0]):
        pack(tensor)


def test_an_empty_matrix_is_refused():
    tensor = QuantTensor(BLOCK_FORMATS["q4_0"].spec, (0, 32), np.zeros((0, 18), np.uint8))
    with pytest.raises(KernelError, match="0 x 32"):
        pack(tensor)


@pytest.mark.parametrize(
    "arguments",
    [
        {"source": "q4_0", "columns": 64, "codes": np.zeros((16, 18), np.uint8)},
        {"source": "q4_0", "columns": 40, "codes": np.zeros((16, 18), np.uint8)},
        {"source": "q4_k", "columns": 32, "codes": np.zeros((16, 18), np.uint8)},
        {"source": "q9_9", "columns": 32, "codes": np.zeros((16, 18), np.uint8)},
        {"source": "affine", "columns": 32, "codes": np.zeros((16, 16), np.uint8), "bits": 4},
        {"source": "affine", "columns": 32, "codes": np.zeros((16, 16), np.uint8), "bits": 9},
        {"source": "f32", "columns": 0, "codes": np.zeros((16, 0), np.uint8)},
    ],
)
def test_the_native_packer_checks_sizes(arguments):
    with pytest.raises(ValueError):
        PackedMatrix(**arguments)


@pytest.mark.parametrize("shape", [(15, 1), (16, 2), (1, 2)])
def test_the_native_packer_checks_scales(shape):
    codes = np.zeros((16, 16), np.uint8)
    scales = np.zeros(shape, np.uint16)
    with pytest.raises(ValueError, match="scales need"):
        PackedMatrix("affine", 32, codes, bits=4, group=32, scales=scales)


def test_the_layout_has_a_version():
    # Packed matrices may be kept in files, which must not be read as another layout's.
    assert _native.layout_version >= 2


ALL_AFFINE = tuple(
    QuantSpec(bits, Granularity.GROUP if group else where, group, symmetric)
    for bits in range(2, 9)
    for where, group in (
        (Granularity.GROUP, 32),
        (Granularity.GROUP, 64),
        (Granularity.GROUP, 128),
        (Granularity.ROW, None),
        (Granularity.TENSOR, None),
    )
    for symmetric in (True, False)
)
EVERY_FORMAT = (*(BLOCK_FORMATS[name].spec for name in (*BLOCKS, *FLOATS)), *ALL_AFFINE, *FP8)


@pytest.mark.parametrize("spec", EVERY_FORMAT, ids=lambda spec: spec.name)
@pytest.mark.parametrize("shape", [(16, 1024), (48, 1536), (4096, 8192)])
def test_a_packed_matrix_is_at_most_two_hundredths_larger(spec, shape):
    # The one thing that costs: a tensor's one scale, and zero point, is repeated for every row, 3
    # bytes for at least 256 of codes, or 4 for 1024.
    described = QuantTensor(spec, shape, np.zeros((1, 1), np.uint8))
    assert obstacle(described) is None
    assert size_of(packed_form(described), shape) <= 1.02 * encoded_bytes(spec, shape)


def test_rows_are_padded_to_whole_tiles_and_that_is_all():
    spec, rng = BLOCK_FORMATS["q4_0"].spec, np.random.default_rng(7)
    tiles = [
        size_of(packed_form(random_tensor("q4_0", rows, 64, rng)), (rows, 64))
        for rows in (1, 16, 17)
    ]
    assert tiles == [encoded_bytes(spec, (rows, 64)) for rows in (16, 16, 32)]


def within_rounding(tensor: QuantTensor, x: np.ndarray, got: np.ndarray) -> bool:
    """Whether a product is the reference executor's, but for the order of sums.

    The reference sums in float64; the chain rounds each of its steps, at most six a run of 32, by
    2^-24 of the largest partial sum, which the sum of magnitudes bounds (each rounded activation is
    at most its run's largest).
    """
    weights = decoded(tensor)
    expected = linear(x, weights, None, "int8-g32")
    magnitude = np.full_like(x, np.abs(x).max()) @ np.abs(weights).T
    steps = x.shape[1] / 32 * 6
    return bool((np.abs(got - expected) <= steps * 2.0**-24 * magnitude + 2.0**-140).all())


@pytest.mark.parametrize("form", INTEGER_FORMATS, ids=format_id)
def test_a_packed_matrix_multiplies_as_the_reference_executor_does(form):
    rng = np.random.default_rng(6)
    tensor = random_tensor(form, 48, 256, rng)
    x = rng.standard_normal((5, 256)).astype(np.float32)
    best = _native.available_isas()[0]
    assert within_rounding(tensor, x, _native.multiply(pack(tensor), x, None, best))
    # Two codes exchanged, the least that a wrong order does, are seen: as if x were exchanged.
    exchanged = x.copy()
    exchanged[:, [3, 20]] = x[:, [20, 3]]
    assert not within_rounding(tensor, x, _native.multiply(pack(tensor), exchanged, None, best))
