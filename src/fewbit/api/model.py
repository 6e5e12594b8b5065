"""A model in a script: load it, generate text, look at logits."""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from fewbit.api.arguments import Prompt, checked_ids, prompt_ids, require_whole, strings_of
from fewbit.api.serving import Desk, Generated, TextStream
from fewbit.checkpoint.local import cache_root, local_path
from fewbit.engine.chosen_draft import NONE, ChosenDraft, OpenedDraft, choose_draft, choose_file
from fewbit.engine.costing import measure_costs
from fewbit.engine.engine import Engine
from fewbit.engine.loaded import LoadedModel, load_model
from fewbit.engine.request import Request, Speculation
from fewbit.engine.stop import StopCondition
from fewbit.errors import FaultError, RequestError, UsageError
from fewbit.model.config import ModelConfig
from fewbit.model.runner import Runner, RunSettings, runner_of
from fewbit.model.weights import ModelSource
from fewbit.progress import Fetching, unwatched_bytes
from fewbit.records.costs import CostTable
from fewbit.records.kernels import KernelRecord
from fewbit.records.loading import LoadRecord
from fewbit.sampling import SamplingParams
from fewbit.tokens.grammar import Grammar
from fewbit.tokens.tokenizer import Tokenizer

GREEDY = SamplingParams(temperature=0)
"""The likeliest token each time."""

RUN_SETTINGS = RunSettings()
"""The defaults of `RunSettings`."""

_DRAFT_TOKENS = 8
_LEARNED, _MEASURED = "learned", "measured"


class Model:
    """A loaded model; `load` makes it.

    Generations may be interleaved and come from several threads; they take turns, step by step,
    and what one says does not depend on the others.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        settings: RunSettings,
        chosen: ChosenDraft,
        opened: OpenedDraft,
        costs: CostTable | None = None,
    ) -> None:
        self._loaded: LoadedModel | None = loaded
        self._settings = settings
        self._chosen = chosen
        self._opened = opened
        self._costs = costs
        self._desk: Desk | None = None
        self._turn = threading.RLock()
        """Held by whoever steps, scores or changes the model: all write to one KV store."""

    def generate(  # noqa: PLR0913
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = 256,
        sampling: SamplingParams = GREEDY,
        stop: str | Sequence[str] = (),
        top_logprobs: int | None = None,
        grammar: Grammar | None = None,
    ) -> Generated:
        """Generate until the model ends its text, a stop string comes, or there is no more room.

        Args:
            prompt: a text, which is continued as it is, or messages, which go through the model's
                chat template and are answered.
            max_tokens: tokens at most; None for as many as the context holds.
            sampling: how tokens are chosen; the likeliest where nothing is said. A seed repeats.
            stop: strings that end the text, which leaves them out.
            top_logprobs: also return log-probabilities, and so many of the likeliest tokens.
            grammar: what the text must be; None for anything.

        Raises:
            RequestError: the prompt is empty, too long or none, a number is out of range, or the
                grammar is none.
            MissingError: messages, and the model has no chat template.
            TemplateError: the template failed on these messages.
            NumericalError: a logit is not finite.
            UsageError: the model was closed.
        """
        stream = self.stream(
            prompt,
            max_tokens=max_tokens,
            sampling=sampling,
            stop=stop,
            top_logprobs=top_logprobs,
            grammar=grammar,
        )
        for _ in stream:
            pass
        if stream.result is None:
            raise FaultError("a generation ended without its record.")
        return stream.result

    def stream(  # noqa: PLR0913
        self,
        prompt: Prompt,
        *,
        max_tokens: int | None = 256,
        sampling: SamplingParams = GREEDY,
        stop: str | Sequence[str] = (),
        top_logprobs: int | None = None,
        grammar: Grammar | None = None,
    ) -> TextStream:
        """Return the text of `generate` in pieces as they come; arguments and errors are its own.

        What is wrong with the request is said here, and what goes wrong later where it does.
        """
        loaded = self._open()
        if not isinstance(sampling, SamplingParams):
            raise RequestError(
                f"sampling is of type {type(sampling).__name__}; give a fewbit.SamplingParams."
            )
        require_whole("max_tokens", max_tokens)
        require_whole("top_logprobs", top_logprobs)
        if grammar is not None and not isinstance(grammar, Grammar):
            raise RequestError(
                f"grammar is of type {type(grammar).__name__}; give a fewbit.Grammar."
            )
        ending = StopCondition(max_tokens, loaded.ends, strings_of(stop))
        request = Request(
            prompt_ids(loaded, prompt), sampling, ending, top_logprobs=top_logprobs, grammar=grammar
        )
        with self._turn:
            return TextStream(self._serving(), request)

    def logits(self, tokens: ArrayLike, first: int = 0) -> NDArray[np.float32]:
        """Return what the model predicts after each token of one sequence, from `first` on.

        Args:
            tokens: int [n], 1 <= n <= context.
            first: the first position whose logits are wanted.

        Returns:
            float32 [n - first, vocabulary]; row p is about token first + p + 1.

        Raises:
            RequestError: no tokens, more than the context, an id outside the vocabulary, a `first`
                that is no position, or a generation is under way, whose keys and values would be
                written over.
            NumericalError: a logit is NaN or infinite.
            UsageError: the model was closed.
        """
        with self._turn:
            runner = self._open().runner
            self.require_idle("asking for logits")
            ids = checked_ids(runner, tokens, first)
            self._desk = None  # the sequence is written where shared prefixes of generations lay
            rows = [block.copy() for block in runner.score(ids, first)]
        return np.concatenate(rows)

    @property
    def tokenizer(self) -> Tokenizer:
        """Text to token ids and back."""
        return self._open().tokenizer

    @property
    def config(self) -> ModelConfig:
        """Sizes and switches of the architecture."""
        return self.runner.config

    @property
    def context(self) -> int:
        """Positions that a prompt and its answer may take together."""
        return self.runner.context

    @property
    def vocabulary(self) -> int:
        """Logits of a row."""
        return self.runner.program.vocabulary

    @property
    def kernels(self) -> tuple[KernelRecord, ...]:
        """The kernel of every matrix and why no other, in order of first use."""
        return self.runner.kernels

    @property
    def loading(self) -> LoadRecord:
        """How the model was made ready, and the memory it takes."""
        return self.runner.loading

    @property
    def source(self) -> ModelSource:
        """The opened checkpoint, whose tensors can be read."""
        return self.runner.source

    @property
    def runner(self) -> Runner:
        """What runs the model, for those who write their own loop."""
        return self._open().runner

    def close(self) -> None:
        """Let go of weights and files, the draft's too; the model cannot be used afterwards."""
        with self._turn:
            if self._loaded is not None:
                self._loaded.runner.source.close()
            self._opened.close()
            self._opened = OpenedDraft(None)
            self._loaded = self._desk = None

    def __enter__(self) -> Self:
        """Return the model; leaving the block closes it."""
        return self

    def __exit__(self, *_: object) -> None:
        """Close the model."""
        self.close()

    def __repr__(self) -> str:
        """Return its path and its family."""
        if self._loaded is None:
            return "<fewbit.Model, closed>"
        return f"<fewbit.Model {self.source.path}, {self.config.family}>"

    def require_idle(self, before: str) -> None:
        """Refuse what a generation that is under way would not survive; raises RequestError."""
        if self._desk is not None and self._desk.busy:
            raise RequestError(
                f"A generation of this model is under way; finish or close it before {before}."
            )

    def replace_source(self, source: ModelSource) -> None:
        """Run another source of the same model; where that fails, this one stays as it was.

        Raises:
            RequestError: a generation is under way.
            KernelError, NumericalError, UsageError: as `runner_of`.
        """
        with self._turn:
            self.require_idle("changing the model's weights")
            loaded = self._open()
            runner = runner_of(source, replace(self._settings, keep_packed=False))
            self._loaded, self._desk = replace(loaded, runner=runner), None
            self._costs = None

    def _serving(self) -> Desk:
        """Return the one desk; two engines would write to the same pages. The turn is held."""
        loaded = self._open()
        if self._desk is None:
            self._desk = Desk(Engine(loaded.served, self._speculation(loaded)), self._turn)
        return self._desk

    def _speculation(self, loaded: LoadedModel) -> Speculation | None:
        """Return the draft, which knows no sequence yet."""
        found = self._chosen.again(self._opened, loaded)
        return None if found is None else replace(found, costs=self._costs)

    def _open(self) -> LoadedModel:
        if self._loaded is None:
            raise UsageError("The model was closed; load it again with fewbit.load.")
        return self._loaded


def load(  # noqa: PLR0913
    model: str | Path,
    settings: RunSettings = RUN_SETTINGS,
    *,
    draft: str | Path = NONE,
    draft_tokens: int = _DRAFT_TOKENS,
    draft_tree: int = 0,
    draft_text: str | Path | None = None,
    draft_costs: str = _LEARNED,
    progress: Fetching = unwatched_bytes,
) -> Model:
    """Make a model ready to generate.

    Args:
        model: a GGUF file, a Hugging Face folder or an artefact of fewbit; or a name as `fewbit
            pull` takes it, such as `smollm2-135m`, which is fetched into the cache if it is not
            there yet.
        settings: how it is to be run: threads, context, type of the KV cache, and so on.
        draft: `ngram` and `suffix` speculate with the text so far; `nested`, `exit:8` and
            `low-bit:q4_0` with the model itself, cheaper; a smaller model, given as `model` is, and
            the folder of an EAGLE-3 head with what they would say; `suffix+MODEL` with the one and
            then the other. Greedy and seeded text stays the same, bit for bit.
        draft_tokens: tokens drafted at once, at most.
        draft_tree: branches beside the drafted chain at most, where they are expected to pay.
        draft_text: a UTF-8 file that a suffix draft looks in too.
        draft_costs: what the lengths of drafts are chosen by: `learned` from each engine's own
            steps, or `measured` now, which takes some seconds.
        progress: called while a model is fetched, with bytes done and bytes there are.

    Raises:
        MissingError: there is no such model, or it lacks a tensor or its tokenizer.
        DownloadError: it could not be fetched.
        BadFileError, UnsupportedError: it cannot be used; the message says why.
        KernelError: no kernel can run a matrix.
        UsageError: an argument that cannot be, or more memory than there is.
    """
    if not isinstance(settings, RunSettings):
        raise UsageError(
            f"settings is of type {type(settings).__name__}; give a fewbit.RunSettings."
        )
    chosen = _chosen(draft, draft_tokens, draft_tree, draft_text, progress)
    if draft_costs not in (_LEARNED, _MEASURED):
        raise UsageError(f"draft_costs is {draft_costs!r}; choose {_LEARNED} or {_MEASURED}.")
    settings = chosen.target_settings(settings)
    loaded = load_model(located(model, progress), settings)
    try:
        opened = chosen.opened(loaded, settings)
        speculation, costs = opened.speculation, None
        if speculation is not None and draft_costs == _MEASURED:
            served, sequences = loaded.served, settings.sequences
            costs = measure_costs(served, speculation.draft, sequences=sequences)
    except BaseException:
        loaded.runner.source.close()
        raise
    return Model(loaded, settings, chosen, opened, costs)


def _chosen(
    draft: object, longest: object, branches: object, text: object, progress: Fetching
) -> ChosenDraft:
    """Return the draft that is asked for; a path is taken as it is, whatever its name."""
    if not isinstance(draft, str | Path):
        raise UsageError(f"draft is of type {type(draft).__name__}; give a name or a path.")
    if not isinstance(longest, int):
        raise UsageError(f"draft_tokens is {longest!r}; give a whole number.")
    if not isinstance(branches, int):
        raise UsageError(f"draft_tree is {branches!r}; give a whole number.")
    if text is not None and not isinstance(text, str | Path):
        raise UsageError(f"draft_text is of type {type(text).__name__}; give the path of a file.")
    if isinstance(draft, Path):
        return choose_file(draft, longest, branches=branches)
    path = None if text is None else Path(text)
    return choose_draft(
        draft, longest, lambda name: located(name, progress), path, branches=branches
    )


def located(model: str | Path, progress: Fetching = unwatched_bytes) -> Path:
    """Return the path of what a user calls a model; a name is fetched first where it is not here.

    Raises:
        UsageError: neither a string nor a path.
        MissingError, DownloadError: as `checkpoint.download.resolve`.
    """
    if isinstance(model, Path):
        return model
    if not isinstance(model, str):
        raise UsageError(
            f"The model is of type {type(model).__name__}; give a path, or a name such as "
            "smollm2-135m."
        )
    cache = cache_root(os.environ)
    here = local_path(model, cache)
    if here is not None:
        return here
    from fewbit.checkpoint.download import resolve  # noqa: PLC0415 - what a network needs is slow

    return resolve(model, cache, progress)
