"""A draft that is the target's first layers with its own final norm and head."""

from __future__ import annotations

from fewbit.model.beside import beside, early_exit
from fewbit.model.runner import Runner
from fewbit.sampling import SamplingThreads
from fewbit.speculate.shared_store import SharedStoreDraft


def early_exit_draft(
    target: Runner,
    layers: int,
    vocabulary: int,
    threads: SamplingThreads | None = None,
    ends: frozenset[int] = frozenset(),
) -> SharedStoreDraft:
    """Return a draft that leaves a target after some layers.

    The keys of the layers that it skips are missing until the target verifies, and are never read
    before: the layers that run have all of theirs.

    Args:
        target: the model; its weights are read where they are.
        layers: how many run, at least 1 and fewer than it has.
        vocabulary: of its tokenizer; ids from here on are padding.
        threads: draw for several sequences at once.
        ends: ids after which a text is over.

    Raises:
        UsageError: no layer is skipped, or all are.
    """
    binding = early_exit(target, layers)
    executor, kernels = beside(target, binding), tuple(binding.kernels.values())
    return SharedStoreDraft(f"exit:{layers}", executor, vocabulary, threads, kernels, ends)
