"""A smaller model opened beside the target, to draft for it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from fewbit.engine.loaded import LoadedModel
from fewbit.model.cut_head import kept_ids
from fewbit.model.facts import model_facts
from fewbit.model.runner import Runner, RunSettings, runner_of
from fewbit.model.tokenizer import chat_template_of
from fewbit.model.weights import ModelSource, open_draft_model
from fewbit.records.pair import PairDifference
from fewbit.runtime.native import NativeExecutor
from fewbit.sampling import SamplingThreads
from fewbit.speculate.model_draft import DraftModel, ModelDraft
from fewbit.speculate.pair import require_usable
from fewbit.speculate.pair_member import Pair, PairMember, member_of, pair_of
from fewbit.tokens.mapping import TokenMap


@dataclass(frozen=True)
class LoadedDraft:
    """A draft model with its own weights and KV store, on the target's threads."""

    runner: Runner
    model: DraftModel
    draft: ModelDraft
    differences: tuple[PairDifference, ...] = ()
    """What sets it apart from its target and may cost accepted tokens."""

    def new_draft(self) -> ModelDraft:
        """Return a draft with the model that knows no sequence yet."""
        return ModelDraft(self.model)


def load_draft(path: Path, target: LoadedModel, settings: RunSettings) -> LoadedDraft:
    """Open a model and make it ready to draft for another.

    It has a KV store for as many sequences, of the target's context or its own where that is
    shorter, and runs as the target does, but in its own formats. Where its tokens have other ids,
    or it has others, the two are mapped.

    Args:
        path: a GGUF file, a Hugging Face folder, an artefact, or a draft that was prepared.
        target: what it drafts for.
        settings: how the target is run.

    Raises:
        UnsupportedError: it shares too few tokens with the target; names the first that differ.
        BadFileError, MissingError, UnsupportedError, KernelError: as `open_model`, `tokenizer_of`
            and `runner_of`.
    """
    source = open_draft_model(path)
    pair = pair_of(_target_member(target), member_of(source))
    differences = require_usable(pair)
    executor = target.runner.executor
    pool = executor.pool if isinstance(executor, NativeExecutor) else None
    context = min(target.runner.context, source.config.context)
    own = replace(settings, context=context, kernel=None, activations=None, nested=False)
    runner = runner_of(source, own, pool, target.runner.loading.memory)
    model = DraftModel(
        name=pair.draft.name,
        executor=runner.executor,
        context=context,
        vocabulary=target.vocabulary,
        ends=target.ends,
        threads=SamplingThreads(pool),
    )
    model = _mapped(model, source, pair)
    return LoadedDraft(runner, model, ModelDraft(model), differences)


def _target_member(target: LoadedModel) -> PairMember:
    source = target.runner.source
    facts = model_facts(source)
    return PairMember(
        name=facts.name,
        path=facts.path,
        tokenizer=target.tokenizer,
        template=chat_template_of(source),
        context=source.config.context,
        rows=source.config.vocabulary,
    )


def _mapped(model: DraftModel, source: ModelSource, pair: Pair) -> DraftModel:
    """Return a draft model with what its logits stand for, and how it reads the target's tokens."""
    kept = kept_ids(source)
    mapping: TokenMap | None = None if pair.tokens.passes_ids else pair.tokens
    if kept is None:
        if mapping is None:
            return model
        return replace(model, tokens=mapping, support=mapping.support, columns=mapping.draft_ids)
    left = pair.tokens.restricted(kept)
    columns = np.searchsorted(kept, left.draft_ids).astype(np.int32)
    in_order = np.array_equal(columns, np.arange(len(kept)))
    return replace(
        model, tokens=mapping, support=left.support, columns=None if in_order else columns
    )
