"""A draft head opened beside the target whose hidden states it continues from."""

from __future__ import annotations

from dataclasses import dataclass

from fewbit.engine.loaded import LoadedModel
from fewbit.model.head_runner import ROUNDED, HeadRunner, head_runner
from fewbit.model.head_source import HeadSource
from fewbit.runtime.native import NativeExecutor
from fewbit.runtime.step import PAGE
from fewbit.sampling import SamplingThreads
from fewbit.speculate.head_draft import HeadDraft, HeadModel
from fewbit.speculate.head_sequence import KEPT_STATES


@dataclass(frozen=True)
class LoadedHead:
    """A head with its own KV store, on the target's threads."""

    source: HeadSource
    runner: HeadRunner
    model: HeadModel
    draft: HeadDraft

    def new_draft(self) -> HeadDraft:
        """Return a draft with the head that knows no sequence yet."""
        return HeadDraft(self.model)

    @property
    def notes(self) -> tuple[str, ...]:
        """Sentences: what of it is run otherwise than it is stored."""
        rounded = [k.slot for k in self.runner.kernels if k.format == ROUNDED]
        if not rounded:
            return ()
        return (
            f"{len(rounded)} of its {len(self.runner.kernels)} matrices are rounded to {ROUNDED}, "
            "which changes how often it is right, not what is said",
        )


def load_head(source: HeadSource, target: LoadedModel, sequences: int) -> LoadedHead:
    """Make an opened head ready to draft for its target.

    Args:
        source: the head.
        target: loaded with `RunSettings.states` as `source.config.taps` says.
        sequences: of full context that its KV store holds.

    Raises:
        UnsupportedError: it was made for another target.
        KernelError: no kernel runs one of its matrices.
        UsageError: too little memory for it, or keys that the target's KV cache does not fit.
    """
    runner = target.runner
    executor = runner.executor
    pages = sequences * -(-runner.context // PAGE)
    waiting = sequences * min(KEPT_STATES, runner.context)
    head = head_runner(source, runner, pages, waiting)
    model = HeadModel(
        name=source.name,
        head=head,
        context=runner.context,
        vocabulary=target.vocabulary,
        ends=target.ends,
        support=source.support,
        columns=source.columns,
        threads=SamplingThreads(executor.pool if isinstance(executor, NativeExecutor) else None),
        kernels=head.kernels,
    )
    return LoadedHead(source, head, model, HeadDraft(model))
