"""A smaller model opened beside the target, to draft for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from fewbit.engine.loaded import LoadedModel
from fewbit.model.runner import Runner, RunSettings, runner_of
from fewbit.model.tokenizer import tokenizer_of
from fewbit.model.weights import open_model
from fewbit.runtime.native import NativeExecutor
from fewbit.sampling import SamplingThreads
from fewbit.speculate.model_draft import DraftModel, ModelDraft
from fewbit.speculate.vocabularies import require_same_tokens


@dataclass(frozen=True)
class LoadedDraft:
    """A draft model with its own weights and KV store, on the target's threads."""

    runner: Runner
    draft: ModelDraft


def load_draft(path: Path, target: LoadedModel, settings: RunSettings) -> LoadedDraft:
    """Open a model and make it ready to draft for another.

    It has a KV store for as many sequences, of the target's context or its own where that is
    shorter, and runs as the target does, but in its own formats.

    Args:
        path: a GGUF file, a Hugging Face folder or an artefact.
        target: what it drafts for.
        settings: how the target is run.

    Raises:
        UsageError: its vocabulary is another one than the target's; names the first tokens.
        BadFileError, MissingError, UnsupportedError, KernelError: as `open_model`, `tokenizer_of`
            and `runner_of`.
    """
    source = open_model(path)
    tokenizer = tokenizer_of(source)
    require_same_tokens(source.path, tokenizer, target.runner.source.path, target.tokenizer)
    executor = target.runner.executor
    pool = executor.pool if isinstance(executor, NativeExecutor) else None
    context = min(target.runner.context, source.config.context)
    own = replace(settings, context=context, kernel=None, activations=None)
    runner = runner_of(source, own, pool)
    rows = runner.program.vocabulary
    model = DraftModel(
        name=source.path.stem if source.path.is_file() else source.path.resolve().name,
        executor=runner.executor,
        context=context,
        readable=rows,
        vocabulary=min(rows, tokenizer.vocabulary_size, target.vocabulary),
        threads=SamplingThreads(pool),
    )
    return LoadedDraft(runner, ModelDraft(model))
