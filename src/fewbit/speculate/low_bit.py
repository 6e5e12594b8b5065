"""Drafts that are the target in fewer bits: the upper bits of its own, or a rounded copy."""

from __future__ import annotations

from fewbit.formats.spec import NumberFormat
from fewbit.model.beside import beside, low_bit_copy, upper_halves
from fewbit.model.runner import Runner
from fewbit.sampling import SamplingThreads
from fewbit.speculate.shared_store import SharedStoreDraft


def nested_draft(
    target: Runner,
    vocabulary: int,
    threads: SamplingThreads | None = None,
    ends: frozenset[int] = frozenset(),
) -> SharedStoreDraft:
    """Return a draft that reads the upper four bits of a target's weights of 8 bits.

    No second copy is made: a step reads about half of the target's bytes, from where they are.

    Args:
        target: loaded with `RunSettings.nested`.
        vocabulary: of its tokenizer; ids from here on are padding.
        threads: draw for several sequences at once.
        ends: ids after which a text is over.

    Raises:
        UsageError: the target has no weights of 8 bits, or they do not lie nested.
    """
    binding = upper_halves(target)
    kernels = tuple(binding.kernels.values())
    return SharedStoreDraft("nested", beside(target, binding), vocabulary, threads, kernels, ends)


def low_bit_draft(
    target: Runner,
    form: NumberFormat,
    vocabulary: int,
    threads: SamplingThreads | None = None,
    ends: frozenset[int] = frozenset(),
) -> SharedStoreDraft:
    """Return a draft with a copy of a target's matrices rounded to a format.

    Args:
        target: the model; its embedding and norms are read as they are.
        form: of the copy, such as `q4_0`; it takes memory of its own.
        vocabulary: of its tokenizer; ids from here on are padding.
        threads: draw for several sequences at once.
        ends: ids after which a text is over.

    Raises:
        KernelError: no kernel reads a matrix in that format.
        UsageError: the format's groups or blocks do not divide a matrix, or memory is short.
    """
    binding = low_bit_copy(target, form)
    executor, kernels = beside(target, binding), tuple(binding.kernels.values())
    return SharedStoreDraft(f"low-bit:{form.name}", executor, vocabulary, threads, kernels, ends)
