"""A model ready to run: loaded once, then one step after another."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fewbit.errors import KernelError, NumericalError, RequestError, UsageError
from fewbit.model.chosen_kernels import bound
from fewbit.model.config import ModelConfig
from fewbit.model.decoder import build_program, slot_shapes
from fewbit.model.memory import plan_memory, require_room
from fewbit.model.packed import find_kept, keep
from fewbit.model.pieces import Piece, step_of
from fewbit.model.weights import ModelSource, open_model
from fewbit.program import OUTSIDE, CacheType, Program
from fewbit.records.kernels import Activations, KernelRecord, kernel_fallbacks
from fewbit.records.loading import LoadRecord, MemoryPlan
from fewbit.runtime.chooser import demand
from fewbit.runtime.executor import Binding, Executor, Tap
from fewbit.runtime.native import NativeExecutor, Pool, threads_of
from fewbit.runtime.reference import ReferenceExecutor
from fewbit.runtime.step import PAGE

DEFAULT_CONTEXT = 8192
"""Positions of a sequence where the caller names none and the model has more."""

EXECUTORS = ("native", "reference")

_Kind = TypeVar("_Kind", bound=Enum)

_PROMPT_ROWS = 512
"""Rows of a prompt run in one step; with law 1 the size changes speed and memory only."""


class Runner:
    """One loaded model and its executor; not for use by several threads at once."""

    def __init__(  # noqa: PLR0913, PLR0917
        self,
        source: ModelSource,
        binding: Binding,
        executor: Executor,
        loading: LoadRecord,
        context: int,
        taps: tuple[Tap, ...] = (),
    ):
        self._taps = taps
        self.source = source
        self.binding = binding
        self.executor = executor
        self.context = context
        """Positions a sequence may take."""
        self.loading = loading
        """How the model was made ready, and the memory it takes."""

    @property
    def config(self) -> ModelConfig:
        """The model's configuration."""
        return self.source.config

    @property
    def gives_states(self) -> bool:
        """Whether `states` can be asked for."""
        return bool(self._taps)

    def states(self, rows: NDArray[np.int32]) -> NDArray[np.float32]:
        """Return hidden states of chosen rows of the last step, those of all layers side by side.

        Args:
            rows: int32 [n], of the step's.

        Returns:
            float32 [n, layers * hidden], for the layers of `RunSettings.states`.
        """
        executor = self.executor
        assert isinstance(executor, NativeExecutor | ReferenceExecutor)
        return np.concatenate([executor.tap(*tap, rows) for tap in self._taps], axis=1)

    @property
    def program(self) -> Program:
        """The Program that runs."""
        return self.binding.program

    @property
    def kernels(self) -> tuple[KernelRecord, ...]:
        """The kernel of every matrix, in order of first use."""
        return tuple(self.binding.kernels.values())

    def score(
        self, tokens: ArrayLike, first: int = 0, block: int = 64
    ) -> Iterator[NDArray[np.float32]]:
        """Run one sequence from its start and give the logits of positions `first` and on.

        Row p predicts token p + 1. Memory is bounded: at most `block` rows of logits exist. The
        sequence uses the executor's pages 0 and on, whatever was in them.

        Args:
            tokens: int [n], 1 <= n <= context.
            first: the first position whose logits are wanted.
            block: rows of logits in one array, at most.

        Yields:
            float32 [rows, vocabulary], in order of positions, valid until the next is asked for.

        Raises:
            RequestError: no tokens, more than the context, or an id outside the vocabulary.
            NumericalError: a logit is NaN or infinite.
        """
        ids = self.checked(tokens)
        pages = np.arange(-(-len(ids) // PAGE), dtype=np.int32)
        position = 0
        while position < len(ids):
            wanted = position >= first
            rows = (
                min(block, len(ids) - position) if wanted else min(_PROMPT_ROWS, first - position)
            )
            chunk = ids[position : position + rows]
            chosen = np.arange(len(chunk) if wanted else 0, dtype=np.int32)
            logits = self.executor.step(step_of([Piece(chunk, position, pages, chosen)]))
            if wanted:
                yield _finite(logits, position)
            position += len(chunk)

    def checked(self, tokens: ArrayLike) -> NDArray[np.int32]:
        """Return token ids as int32 [n]; raises RequestError as `score` says."""
        ids = np.asarray(tokens)
        if ids.ndim != 1 or len(ids) == 0:
            raise RequestError("There are no tokens to run; give a prompt of at least one token.")
        if len(ids) > self.context:
            raise RequestError(
                f"The sequence has {len(ids)} tokens and the context is {self.context}; shorten it "
                f"or load the model with a longer context (the model was made for "
                f"{self.config.context})."
            )
        wrong = ids[(ids < 0) | (ids >= self.config.vocabulary)]
        if len(wrong):
            raise RequestError(
                f"Token id {wrong[0]} is outside the vocabulary of {self.config.vocabulary}; the "
                "tokenizer belongs to another model."
            )
        return ids.astype(np.int32)


@dataclass(frozen=True, kw_only=True)
class RunSettings:
    """How a model is to be run."""

    executor: str = "native"
    """`native`, or `reference` (NumPy, slow, the truth)."""
    threads: int | None = None
    """Of the native executor; None for every core."""
    context: int | None = None
    """Positions a sequence may take; None for the model's own, at most `DEFAULT_CONTEXT`."""
    sequences: int = 1
    """How many sequences of full context the KV store holds."""
    isa: str | None = None
    """An instruction set to force; None for the best."""
    kernel: str | None = None
    """A kernel to force for the matrices whose weights it reads, such as
    `w4.sym.g32/a8.g32/avx2`; its instruction set is then that of the whole model."""
    activations: Activations | None = None
    """How the inputs of all layers with integer weights are rounded; None for what the model's
    artefact says of each, int8 where it says nothing."""
    cache_type: CacheType = CacheType.F16
    """How keys and values are rounded."""
    rotate_keys: bool = False
    """Whether keys pass a Hadamard transform along the head before they are rounded."""
    keep_packed: bool = False
    """Keep the packed weights in a file beside the model, for a faster start the next time."""
    nested: bool = False
    """Pack symmetric weights of 8 bits so that a draft can read their upper four bits alone."""
    strict: bool = False
    """Refuse a model of which some matrix would not be run as it is stored."""
    states: Callable[[int], tuple[int, ...]] | None = None
    """Given how many layers the model has, after which of them hidden states can be asked for."""

    def __post_init__(self) -> None:
        if self.executor not in EXECUTORS:
            raise UsageError(f"executor is '{self.executor}'; choose from {', '.join(EXECUTORS)}.")
        for name in ("isa", "kernel"):
            forced = getattr(self, name)
            if forced is not None and self.executor != "native":
                raise UsageError(
                    f"{name} is '{forced}' with the executor '{self.executor}', which has none; "
                    "leave one of them out."
                )
        if self.nested and self.keep_packed:
            raise UsageError(
                "keep_packed cannot be had with nested weights, which no file of packed weights "
                "holds; leave one of them out."
            )
        for name in ("threads", "context", "sequences"):
            value = getattr(self, name)
            if value is not None and (not isinstance(value, int) or value < 1):
                raise UsageError(f"{name} is {value!r}; it must be a whole number, at least 1.")
        object.__setattr__(self, "cache_type", _member("cache_type", CacheType, self.cache_type))
        if self.activations is not None:
            found = _member("activations", Activations, self.activations)
            object.__setattr__(self, "activations", found)


def _member(name: str, kind: type[_Kind], value: object) -> _Kind:
    """Return a member of an enum for it or its value."""
    try:
        return kind(value)
    except ValueError as error:
        choices = ", ".join(str(member.value) for member in kind)
        raise UsageError(f"{name} is {value!r}; choose from {choices}.") from error


def load(
    path: Path | str,
    executor: str = "native",
    threads: int | None = None,
    context: int | None = None,
    sequences: int = 1,
) -> Runner:
    """Open a model and make it ready to run; `runner_of` takes the other settings.

    Args:
        path: a GGUF file, a Hugging Face folder or an artefact of fewbit.
        executor: as all that follow, see `RunSettings`.
        threads: of the native executor.
        context: positions a sequence may take.
        sequences: how many sequences of full context the KV store holds.

    Raises:
        UsageError: an unknown executor, or a number out of range.
        BadFileError, MissingError, UnsupportedError: as `open_model`.
        KernelError: no kernel can run a matrix.
    """
    settings = RunSettings(executor=executor, threads=threads, context=context, sequences=sequences)
    return runner_of(open_model(Path(path)), settings)


def runner_of(
    source: ModelSource,
    settings: RunSettings,
    pool: Pool | None = None,
    target: MemoryPlan | None = None,
) -> Runner:
    """Make an opened model ready to run.

    Weights are packed slot by slot and the file's pages let go of as they are, so peak memory is
    about that of the packed weights and the KV store. Where a file of packed weights lies beside
    the model and fits it, that is mapped instead.

    Args:
        source: the model.
        settings: how it is run.
        pool: threads that another executor of this process has, to share them; None for new ones.
        target: the memory of the model that it drafts for; None where it serves itself.

    Raises:
        UsageError: a context longer than the model was made for, heads that the KV cache's type
            or its rotation does not fit, or more memory than there is.
        KernelError: no kernel can run a matrix, or one needs a fallback that `strict` forbids.
    """
    context = _context(source.config, settings.context)
    pages = settings.sequences * -(-context // PAGE)
    program = build_program(source.config, settings.cache_type, rotate_keys=settings.rotate_keys)
    binding = bound(source, program, settings)
    if settings.strict:
        _refuse_fallbacks(binding)
    shapes = slot_shapes(source.config)
    memory = plan_memory(shapes, [program], binding.kernels.values(), pages)
    require_room(memory, "The model" if target is None else "The draft model", target)
    taps = _taps(source.config, settings)
    if settings.executor == "reference":
        loading = LoadRecord(memory=memory, notes=source.checkpoint.notes, seconds=0.0)
        reference = ReferenceExecutor(binding, pages, frozenset(taps))
        return Runner(source, binding, reference, loading, context, taps)
    executor, loading = _load_native(source, binding, pages, settings, memory, pool)
    return Runner(source, binding, executor, loading, context, taps)


def _taps(config: ModelConfig, settings: RunSettings) -> tuple[Tap, ...]:
    """Return where the residual stream is taken, after each of the settings' layers."""
    after = () if settings.states is None else settings.states(config.layers)
    return tuple((n - 1, "mlp_add") if n else (OUTSIDE, "embed") for n in after)


def _load_native(  # noqa: PLR0913, PLR0917
    source: ModelSource,
    binding: Binding,
    pages: int,
    settings: RunSettings,
    memory: MemoryPlan,
    pool: Pool | None,
) -> tuple[NativeExecutor, LoadRecord]:
    """Take the weights from where they are kept, or pack them, and keep them where asked to."""
    began = time.perf_counter()
    threads = pool.size if pool else threads_of(settings.threads)
    isa = demand(settings.isa, settings.kernel).isa
    kept = find_kept(source, binding, threads)
    executor = NativeExecutor(
        kept.bound(binding),
        pages=pages,
        threads=pool or threads,
        isa=isa,
        taps=frozenset(_taps(source.config, settings)),
    )
    notes, written = [*source.checkpoint.notes, kept.note], ""
    if settings.keep_packed and not kept.matrices:
        notes.append(keep(kept, executor.matrices))
        written = "" if notes[-1] else str(kept.path)
    record = LoadRecord(
        memory=memory,
        packed=str(kept.path) if kept.matrices else "",
        kept=written,
        notes=tuple(filter(None, notes)),
        seconds=time.perf_counter() - began,
    )
    return executor, record


def _refuse_fallbacks(binding: Binding) -> None:
    found = kernel_fallbacks(binding.kernels.values())
    if found:
        raise KernelError(
            "Not every matrix would be run as it is stored, which strict forbids "
            f"({' '.join(found)}); use another format, or leave strict out."
        )


def _context(config: ModelConfig, asked: int | None) -> int:
    if asked is None:
        return min(config.context, DEFAULT_CONTEXT)
    if asked > config.context:
        raise UsageError(
            f"context is {asked}, but the model was made for {config.context} positions; ask for "
            "no more than that."
        )
    return asked


def _finite(logits: NDArray[np.float32], position: int) -> NDArray[np.float32]:
    finite = np.isfinite(logits)
    if finite.all():
        return logits
    row, token = np.argwhere(~finite)[0]
    raise NumericalError(
        f"The logit of token {token} at position {position + row} is {logits[row, token]}; a "
        "weight of the model is out of range."
    )
