"""The native core's functions as Python sees them; their users document them."""

from collections.abc import Sequence
from typing import overload

import numpy as np
from numpy.typing import NDArray

layout_version: int

class PackedArena:
    def __init__(self) -> None: ...

class PackedMatrix:
    def __init__(
        self,
        source: str,
        columns: int,
        codes: NDArray[np.uint8],
        bits: int = 0,
        group: int = 0,
        scales: NDArray[np.uint16] | None = None,
        zeros: NDArray[np.uint8] | None = None,
        row_scales: NDArray[np.float32] | None = None,
        arena: PackedArena | None = None,
        threads: int = 1,
        form: str = "plain",
    ) -> None: ...
    def upper_half(self, rows: int) -> PackedMatrix: ...
    def decode_row(self, row: int) -> NDArray[np.float32]: ...
    def checksum(self) -> int: ...
    def bytes(self, offset: int, size: int) -> bytes: ...
    @property
    def rows(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def nbytes(self) -> int: ...

class PackedFile:
    def __init__(self, path: str) -> None: ...
    def populate(self) -> bool: ...
    def copy(self, threads: int) -> PackedFile: ...
    def checksums(self, ranges: Sequence[tuple[int, int]], threads: int) -> list[int]: ...
    def matrix(
        self,
        offset: int,
        source: str,
        rows: int,
        columns: int,
        bits: int,
        group: int,
        asymmetric: bool,
    ) -> PackedMatrix: ...
    def read(self, offset: int, size: int) -> bytes: ...
    @property
    def address(self) -> int: ...
    @property
    def size(self) -> int: ...

def available_isas() -> list[str]: ...
def packed_bytes(
    source: str,
    rows: int,
    columns: int,
    bits: int,
    group: int,
    asymmetric: bool,
    form: str = "plain",
) -> int: ...
def multiply(
    packed: PackedMatrix,
    x: NDArray[np.float32],
    bias: NDArray[np.float32] | None,
    isa: str,
    tiles_at_once: int = 0,
    rows_at_once: int = 0,
    activations: str = "int8-g32",
    input_scale: float = 0.0,
) -> NDArray[np.float32]: ...
def simd_read(isa: str, x: NDArray[np.uint8]) -> int: ...
def time_multiply(
    packed: PackedMatrix, x: NDArray[np.float32], isa: str, repeats: int
) -> float: ...
def multiply_split(
    packed: PackedMatrix,
    x: NDArray[np.float32],
    bias: NDArray[np.float32] | None,
    tiles_at_once: int = 0,
    rows_at_once: int = 0,
) -> NDArray[np.float32]: ...
def multiply_weight_only(
    packed: PackedMatrix,
    x: NDArray[np.float32],
    bias: NDArray[np.float32] | None,
    isa: str,
    tiles_at_once: int = 0,
    rows_at_once: int = 0,
) -> NDArray[np.float32]: ...
def time_weight_only(
    packed: PackedMatrix, x: NDArray[np.float32], isa: str, repeats: int
) -> float: ...
def round_activations(
    x: NDArray[np.float32], isa: str
) -> tuple[NDArray[np.float32], NDArray[np.float32]]: ...
def quantize_activations(
    x: NDArray[np.float32], isa: str, activations: str = "int8-g32", input_scale: float = 0.0
) -> tuple[NDArray[np.int8], NDArray[np.float32], NDArray[np.float32], NDArray[np.int32]]: ...

class ScriptedNumbers:
    def __init__(self, numbers: dict[tuple[int, int, int], float]) -> None: ...
    @property
    def asked(self) -> list[tuple[int, int, int]]: ...

class TokenSampler:
    def __init__(
        self,
        *,
        temperature: float,
        top_k: int,
        top_p: float,
        min_p: float,
        repetition_penalty: float,
        frequency_penalty: float,
        presence_penalty: float,
        biased: Sequence[int],
        bias: Sequence[float],
        seed: int,
        sample: int,
        numbers: ScriptedNumbers | None = None,
    ) -> None: ...
    def remember(self, tokens: Sequence[int], *, generated: bool) -> None: ...
    def fork(self) -> TokenSampler: ...
    def uniform(self, position: int, purpose: int, start: int = 0) -> float: ...
    def probabilities(
        self, logits: NDArray[np.float32], vocabulary: int, isa: str | None = None
    ) -> tuple[NDArray[np.float64], str, int]: ...

class SamplingThreads:
    def __init__(self, pool: ThreadPool | None) -> None: ...
    def draw(
        self,
        logits: NDArray[np.float32],
        vocabulary: int,
        blocks: Sequence[
            tuple[
                TokenSampler,
                int,
                int,
                Sequence[int],
                int,
                str,
                NDArray[np.float32] | None,
                NDArray[np.int32] | None,
                NDArray[np.int32] | None,
                Sequence[tuple[int, Sequence[int]]],
            ]
        ],
    ) -> list[
        tuple[list[int], int, list[tuple[float, float, list[int], list[float]]], str, int, int]
    ]: ...
    def propose(
        self,
        logits: NDArray[np.float32],
        vocabulary: int,
        support: NDArray[np.int32] | None,
        draws: Sequence[
            tuple[
                TokenSampler,
                int,
                int,
                int,
                NDArray[np.float32] | None,
                NDArray[np.int32] | None,
                int,
            ]
        ],
    ) -> list[tuple[int, list[int], str, int, int]]: ...

def keyed_uniform(seed: int, sample: int, position: int, purpose: int, start: int = 0) -> float: ...

class ThreadPool:
    def __init__(self, threads: int) -> None: ...
    @property
    def size(self) -> int: ...

class Program:
    logits: int
    def __init__(self, layers: int, vocabulary: int, context: int, cache_type: str) -> None: ...
    def buffer(self, width: int, tapped: bool) -> int: ...
    def given(self, out: int) -> None: ...
    def embed(self, out: int, weight: PackedMatrix, scale: float) -> None: ...
    def rope_table(self, out: int, frequencies: NDArray[np.float32], factor: float) -> None: ...
    def rms_norm(
        self, out: int, x: int, weight: NDArray[np.float32], width: int, eps: float
    ) -> None: ...
    def linear(
        self,
        out: int,
        x: int,
        weight: PackedMatrix,
        bias: NDArray[np.float32] | None,
        activations: str,
        input_scale: float = 0.0,
        order: NDArray[np.int32] | None = None,
    ) -> None: ...
    def rope(self, out: int, x: int, table: int, head_dim: int) -> None: ...
    def hadamard(self, out: int, x: int, head_dim: int) -> None: ...
    def attention(
        self,
        out: int,
        q: int,
        k: int,
        v: int,
        layer: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        scale: float,
        window: int,
        softcap: float,
    ) -> None: ...
    def gated_activation(self, out: int, gate: int, up: int, activation: str) -> None: ...
    def mixture(
        self,
        out: int,
        x: int,
        router: int,
        experts: list[
            tuple[
                PackedMatrix,
                PackedMatrix,
                PackedMatrix,
                str,
                str,
                str,
                float,
                float,
                NDArray[np.int32] | None,
                NDArray[np.int32] | None,
            ]
        ],
        used: int,
        normalized: bool,
        activation: str,
    ) -> None: ...
    def add(self, out: int, x: int, y: int) -> None: ...
    def select_rows(self, out: int, x: int) -> None: ...
    def softcap(self, out: int, x: int, cap: float) -> None: ...

class Executor:
    @overload
    def __init__(self, program: Program, pages: int, pool: ThreadPool, isa: str) -> None: ...
    @overload
    def __init__(self, program: Program, beside: Executor) -> None: ...
    def step(
        self,
        tokens: NDArray[np.int32],
        spans: list[tuple[int, int, int, NDArray[np.int32], int]],
        wanted: NDArray[np.int32],
        given: list[tuple[int, NDArray[np.float32]]] = ...,
    ) -> NDArray[np.float32]: ...
    def run(
        self,
        tokens: NDArray[np.int32],
        spans: list[tuple[int, int, int, NDArray[np.int32], int]],
        wanted: NDArray[np.int32],
        given: list[tuple[int, NDArray[np.float32]]],
        results: list[tuple[int, NDArray[np.float32]]],
    ) -> None: ...
    def tap(self, buffer: int) -> NDArray[np.float32]: ...
    @property
    def pages(self) -> int: ...
    @property
    def store_bytes(self) -> int: ...
    def page(self, page: int) -> bytes: ...
    @property
    def workspace_bytes(self) -> int: ...

def gram_kernel(isa: str) -> str: ...
def add_gram(
    gram: NDArray[np.float32],
    x: NDArray[np.float32],
    lengths: list[int],
    isa: str,
    pool: ThreadPool,
) -> None: ...
def add_cross(
    cross: NDArray[np.float32],
    left: NDArray[np.float32],
    right: NDArray[np.float32],
    lengths: list[int],
    isa: str,
    pool: ThreadPool,
) -> None: ...
def mirror_gram(gram: NDArray[np.float32], pool: ThreadPool) -> None: ...
def add_moments(
    squares: NDArray[np.float64],
    absolute: NDArray[np.float64],
    largest: NDArray[np.float32],
    x: NDArray[np.float32],
    isa: str,
    pool: ThreadPool,
) -> None: ...

class ReadBuffer:
    def __init__(self, bytes: int, threads: int) -> None: ...
    def read(self, isa: str) -> tuple[float, int]: ...
    @property
    def nbytes(self) -> int: ...

def integer_peak(isa: str, threads: int, steps: int) -> float: ...

rounding_tile_rows: int

def advance_targets(
    pool: ThreadPool,
    factor: NDArray[np.float32],
    errors: NDArray[np.float32],
    targets: NDArray[np.float32],
    first: int,
    start: int,
    stop: int,
    isa: str | None = None,
) -> None: ...
def round_columns(
    pool: ThreadPool,
    *,
    factor: NDArray[np.float32],
    weights: NDArray[np.float32],
    errors: NDArray[np.float32],
    targets: NDArray[np.float32],
    codes: NDArray[np.uint8],
    scales: NDArray[np.float32],
    offsets: NDArray[np.float32] | None,
    groups: NDArray[np.int32],
    origin: int,
    first: int,
    levels: NDArray[np.float32],
    midpoints: NDArray[np.float32] | None,
    isa: str | None = None,
) -> None: ...
def search_scales(
    pool: ThreadPool,
    targets: NDArray[np.float32],
    first: int,
    *,
    importance: NDArray[np.float32],
    low: float,
    high: float,
    shifts: bool,
    isa: str | None = None,
) -> tuple[NDArray[np.float32], NDArray[np.float32]]: ...
def factor_hessian(
    pool: ThreadPool,
    *,
    gram: NDArray[np.float32],
    order: NDArray[np.int64],
    unit: float,
    diagonal: NDArray[np.float64],
    feedback: NDArray[np.float32],
    variance: NDArray[np.float32],
    isa: str | None = None,
) -> bool: ...

class GridShape:
    def __init__(
        self,
        *,
        levels: Sequence[float],
        midpoints: Sequence[float],
        group: int,
        block: int,
        scale_type: str,
        offset: str,
        steps: tuple[float, float],
        offset_steps: tuple[float, float],
    ) -> None: ...

def search_block(
    pool: ThreadPool,
    shape: GridShape,
    targets: NDArray[np.float32],
    first: int,
    *,
    places: NDArray[np.int32],
    importance: NDArray[np.float32],
    isa: str | None = None,
) -> tuple[
    NDArray[np.float32],
    NDArray[np.float32] | None,
    NDArray[np.float32] | None,
    NDArray[np.float32] | None,
]: ...
def refine_rows(
    pool: ThreadPool,
    shape: GridShape,
    *,
    gram: NDArray[np.float32],
    added: NDArray[np.float32],
    weights: NDArray[np.float32],
    codes: NDArray[np.uint8],
    scale: NDArray[np.float32],
    steps: NDArray[np.int16] | None,
    offset: NDArray[np.float32] | None,
    offset_steps: NDArray[np.int16] | None,
    span: int,
    rounds: int,
    isa: str | None = None,
) -> NDArray[np.float64]: ...
def simd_to_bfloat(isa: str, x: NDArray[np.float32]) -> NDArray[np.uint16]: ...
def dequantize_rows(
    pool: ThreadPool,
    *,
    levels: NDArray[np.uint8],
    signed: bool,
    scales: NDArray[np.float32],
    offsets: NDArray[np.float32] | None,
    zeros: NDArray[np.float32] | None,
    out: NDArray[np.uint16],
    isa: str,
) -> None: ...
def norm(
    pool: ThreadPool,
    *,
    x: NDArray[np.float32] | NDArray[np.uint16],
    factor: NDArray[np.float32],
    eps: float,
    out: NDArray[np.uint16],
    inverse: NDArray[np.float32],
    isa: str,
) -> None: ...
def norm_back(
    pool: ThreadPool,
    *,
    x: NDArray[np.float32] | NDArray[np.uint16],
    factor: NDArray[np.float32],
    inverse: NDArray[np.float32],
    gradient: NDArray[np.uint16],
    towards: NDArray[np.float32] | NDArray[np.uint16],
    towards_factor: NDArray[np.float32],
    isa: str,
) -> None: ...
def rotate(
    pool: ThreadPool,
    *,
    x: NDArray[np.uint16],
    table: NDArray[np.float32],
    back: bool,
    out: NDArray[np.uint16],
    isa: str,
) -> None: ...
def attended(
    pool: ThreadPool,
    *,
    q: NDArray[np.uint16],
    k: NDArray[np.uint16],
    v: NDArray[np.uint16],
    length: int,
    width: int,
    window: int,
    scale: float,
    out: NDArray[np.uint16],
    isa: str,
) -> None: ...
def attended_back(
    pool: ThreadPool,
    *,
    q: NDArray[np.uint16],
    k: NDArray[np.uint16],
    v: NDArray[np.uint16],
    length: int,
    width: int,
    window: int,
    scale: float,
    gradient: NDArray[np.uint16],
    towards_q: NDArray[np.uint16],
    towards_k: NDArray[np.uint16],
    towards_v: NDArray[np.uint16],
    isa: str,
) -> None: ...
def multiplies(isa: str) -> bool: ...
def multiplied(
    pool: ThreadPool,
    *,
    left: NDArray[np.uint16],
    right: NDArray[np.uint16],
    out: NDArray[np.uint16],
    add: bool,
    isa: str,
) -> None: ...
def gather_groups(
    pool: ThreadPool,
    *,
    levels: NDArray[np.uint8],
    signed: bool,
    scales: NDArray[np.float32],
    zeros: NDArray[np.float32] | None,
    gradient: NDArray[np.uint16],
    products: NDArray[np.float32],
    sums: NDArray[np.float32] | None,
    isa: str,
) -> None: ...
def seen_softmax(
    pool: ThreadPool, scores: NDArray[np.uint16], window: int, scale: float, isa: str
) -> None: ...
def seen_softmax_back(
    pool: ThreadPool,
    gradient: NDArray[np.uint16],
    probabilities: NDArray[np.uint16],
    window: int,
    scale: float,
    isa: str,
) -> None: ...
def pull_logits(
    pool: ThreadPool,
    *,
    theirs: NDArray[np.uint16],
    ours: NDArray[np.uint16],
    shares: NDArray[np.float32],
    divergences: NDArray[np.float32],
    their_cap: float,
    our_cap: float,
    isa: str,
) -> None: ...
def gated(
    pool: ThreadPool,
    gate: NDArray[np.uint16],
    up: NDArray[np.uint16],
    gelu: bool,
    out: NDArray[np.uint16],
    isa: str,
) -> None: ...
def gated_back(
    pool: ThreadPool,
    *,
    gradient: NDArray[np.uint16],
    gate: NDArray[np.uint16],
    up: NDArray[np.uint16],
    gelu: bool,
    towards_gate: NDArray[np.uint16],
    towards_up: NDArray[np.uint16],
    isa: str,
) -> None: ...
