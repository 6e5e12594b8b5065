"""A loaded model once more, cheaper, over its own KV store: what drafts for it without a cache.

Three ways, each a binding for an executor beside the model's: the upper four bits of its own 8-bit
weights (no second copy), a copy of its weights in fewer bits, and its first layers with its own
final norm and head. Their keys and values are provisional: the model's own step writes over them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace

import numpy as np

from fewbit.errors import UsageError
from fewbit.formats.nested import has_halves, upper_half
from fewbit.formats.registry import decode_rows, encode
from fewbit.formats.spec import Granularity, NumberFormat, QuantSpec, QuantTensor
from fewbit.model.binding import is_vector
from fewbit.model.decoder import build_program
from fewbit.model.runner import Runner
from fewbit.program import Hadamard, Linear, Mixture, Program, Slot, slots_of
from fewbit.records.figures import size
from fewbit.records.kernels import KernelRecord
from fewbit.runtime.chooser import Demand, choose, upper_record
from fewbit.runtime.executor import Binding, Executor
from fewbit.runtime.memory import available_memory
from fewbit.runtime.native import NativeExecutor
from fewbit.runtime.pack import Layout, layout_of
from fewbit.runtime.pack import upper_half as packed_upper_half
from fewbit.runtime.reference import ReferenceExecutor, choose_reference

_HEAD, _EMBEDDING = "head.weight", "embed.weight"
_PIECE = 1 << 22
"""Weights encoded at once."""

HEAD_ROWS = 1 << 16
"""Rows of the head that the upper bits are read of: of the Qwen2 vocabulary of 151,936 tokens, 98%
of those in code and in English text are below."""


def beside(runner: Runner, binding: Binding) -> Executor:
    """Return an executor of a binding over the KV store of a loaded model."""
    target = runner.executor
    if isinstance(target, NativeExecutor):
        return NativeExecutor.beside(target, binding)
    assert isinstance(target, ReferenceExecutor)
    return ReferenceExecutor.beside(target, binding)


def early_exit(runner: Runner, layers: int) -> Binding:
    """Return the model's first layers with its final norm and head, all of its own weights.

    Raises:
        UsageError: no layer is skipped, or all are.
    """
    own = runner.program
    program = build_program(
        runner.config, own.cache_type, rotate_keys=_rotates_keys(own), exit_after=layers
    )
    kernels = {
        slot: runner.binding.kernels[slot] for slot in program.slots() if not is_vector(slot)
    }
    return _bound(runner, program, kernels)


def upper_halves(runner: Runner, head_rows: int = HEAD_ROWS) -> Binding:
    """Return the model with the upper four bits of its weights of 8 bits; others are its own.

    The input embedding, of which a step reads one row, keeps its bits.

    Args:
        runner: the model, loaded with `RunSettings.nested`.
        head_rows: logits of the first ids, at most so many: a byte-pair vocabulary has frequent
            tokens first.

    Raises:
        UsageError: no weight has 8 bits, or they were not packed as `Layout.NESTED`.
    """
    program = _untied(runner)
    kernels = _own_kernels(runner, program)
    halves = frozenset(
        slot
        for slot in _multiplied(program)
        if has_halves(runner.source.outline(_own(runner, slot)).spec)
    )
    target = runner.executor
    if not halves or (isinstance(target, NativeExecutor) and not _all_nested(kernels, halves)):
        raise UsageError(
            f"No upper bits can be read of {runner.source.path}: a nested draft needs weights in "
            "int8 (symmetric) or q8_0; quantize the model to one of these, or take another draft."
        )
    rows = min(head_rows, runner.config.vocabulary) if _HEAD in halves else None
    program = _untied(runner, rows)

    def upper(slot: Slot, tensor: QuantTensor) -> QuantTensor:
        if slot not in halves:
            return tensor
        return upper_half(tensor.take_rows(slice(rows)) if slot == _HEAD else tensor)

    binding = _bound(runner, program, kernels, upper)
    if not isinstance(target, NativeExecutor):
        return binding
    packed = {
        slot: packed_upper_half(matrix, rows if slot == _HEAD else None)
        if slot in halves
        else matrix
        for slot, matrix in binding.packed.items()
    }
    records = {s: upper_record(k, target.isa) if s in halves else k for s, k in kernels.items()}
    return replace(binding, kernels=records, packed=packed)


def _all_nested(kernels: Mapping[Slot, KernelRecord], slots: frozenset[Slot]) -> bool:
    return all(layout_of(kernels[slot].kernel) is Layout.NESTED for slot in slots)


def low_bit_copy(runner: Runner, form: NumberFormat) -> Binding:
    """Return the model with its matrices rounded to a format; the embedding is its own.

    Raises:
        KernelError: no kernel reads a matrix in that format.
        UsageError: the format's groups or blocks do not divide a matrix, or the copy needs more
            memory than there is.
    """
    program = _untied(runner)
    copied = _multiplied(program)
    kernels = _own_kernels(runner, program)
    for slot in copied:
        rows, columns = runner.source.outline(_own(runner, slot)).shape
        outline = QuantTensor(form, (rows, columns), np.empty((rows, 0), np.uint8))
        kernels[slot] = _chosen(runner, slot, outline)
    copy = sum(kernels[slot].bytes for slot in copied)
    _require_room(copy, runner.loading.memory.yet_to_take, f"A copy in {form.name}")
    binding = _bound(
        runner, program, kernels, lambda slot, t: _encoded(t, form) if slot in copied else t
    )
    return replace(binding, packed={s: m for s, m in binding.packed.items() if s not in copied})


def _require_room(needed: int, waiting: int, what: str) -> None:
    available = available_memory()
    if available.bytes is not None and needed + waiting > available.bytes:
        raise UsageError(
            f"{what} needs {size(needed)} of memory beside the model, which takes {size(waiting)} "
            f"more as it serves, and {size(available.bytes)} "
            f"is {available.limit}; take fewer bits, or a nested draft, which needs none."
        )


def _chosen(runner: Runner, slot: Slot, outline: QuantTensor) -> KernelRecord:
    target = runner.executor
    if isinstance(target, NativeExecutor):
        return choose(slot, outline, Demand(isa=target.isa))
    return choose_reference(slot, outline)


def _bound(
    runner: Runner,
    program: Program,
    kernels: Mapping[Slot, KernelRecord],
    changed: Callable[[Slot, QuantTensor], QuantTensor] = lambda slot, tensor: tensor,
) -> Binding:
    """Return a Program with the model's own tensors, changed, and its packed matrices."""
    target = runner.executor
    packed = {}
    if isinstance(target, NativeExecutor):
        packed = {slot: target.matrices[_own(runner, slot)] for slot in kernels}
    orders = runner.binding.orders
    own = {slot: _own(runner, slot) for slot in kernels}
    return Binding(
        program,
        _Tensors(runner, changed),
        kernels,
        lambda slot: runner.binding.release(_own(runner, slot)),
        packed,
        {slot: orders[name] for slot, name in own.items() if name in orders},
    )


def _untied(runner: Runner, head_rows: int | None = None) -> Program:
    """Return the model's Program with a slot of its own for the head, perhaps of fewer rows."""
    config = replace(runner.config, tied=False, head_rows=head_rows)
    own = runner.program
    return build_program(config, own.cache_type, rotate_keys=_rotates_keys(own))


def _own(runner: Runner, slot: Slot) -> Slot:
    """Return the model's slot for one of an untied Program."""
    return _EMBEDDING if slot == _HEAD and runner.config.tied else slot


def _own_kernels(runner: Runner, program: Program) -> dict[Slot, KernelRecord]:
    kernels = runner.binding.kernels
    return {slot: kernels[_own(runner, slot)] for slot in program.slots() if not is_vector(slot)}


def _multiplied(program: Program) -> frozenset[Slot]:
    """Return the matrices that activations are multiplied by: all but the embedding and routers."""
    linear = {
        slot
        for op in program.ops
        if isinstance(op, Linear | Mixture)
        for slot in slots_of(op)
        if not is_vector(slot)
    }
    return frozenset(slot for slot in linear if not slot.endswith("router.weight"))


def _rotates_keys(program: Program) -> bool:
    return any(isinstance(op, Hadamard) and op.site == "k_rotate" for op in program.ops)


def _encoded(tensor: QuantTensor, form: NumberFormat) -> QuantTensor:
    """Round a matrix to a format, some rows at a time where no scale spans them."""
    rows, columns = tensor.shape
    whole = isinstance(form, QuantSpec) and form.granularity is Granularity.TENSOR
    step = rows if whole else max(1, _PIECE // columns)
    pieces = [
        encode(decode_rows(tensor, slice(at, at + step)), form) for at in range(0, rows, step)
    ]

    def joined(name: str) -> np.ndarray | None:
        parts = [getattr(piece, name) for piece in pieces]
        return None if parts[0] is None else np.concatenate(parts)

    codes = np.concatenate([piece.codes for piece in pieces])
    return QuantTensor(form, (rows, columns), codes, joined("scales"), joined("zeros"))


class _Tensors(Mapping[Slot, QuantTensor]):
    """The model's tensors by the slots of a Program beside it, changed as they are read."""

    def __init__(self, runner: Runner, changed: Callable[[Slot, QuantTensor], QuantTensor]) -> None:
        self._runner = runner
        self._changed = changed

    def __getitem__(self, slot: Slot) -> QuantTensor:
        return self._changed(slot, self._runner.binding.tensors[_own(self._runner, slot)])

    def __iter__(self) -> Iterator[Slot]:
        return iter(self._runner.binding.tensors)

    def __len__(self) -> int:
        return len(self._runner.binding.tensors)
