"""What an engine serves: a model, which requests it can serve, and what draws its tokens."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from fewbit.engine.request import Request, TextDecoder
from fewbit.errors import RequestError, UsageError
from fewbit.runtime.executor import Executor
from fewbit.runtime.step import PAGE
from fewbit.sampling import Constraint, Drawn, SamplingThreads, TokenSampler, sample_blocks
from fewbit.speculate.drafts import Draft, Watching, watching
from fewbit.tokens.grammar import Grammar


@dataclass(frozen=True)
class Served:
    """The model as the engine sees it.

    `vocabulary` is the tokenizer's; logits beyond it are padding. A sequence takes at most
    `context` positions. `decoder` starts the text that follows a prompt. `threads` draw the tokens
    of several sequences at once. `constraint` turns a request's grammar into masks over the
    vocabulary; None where requests have none. `states` returns hidden states of chosen rows of the
    executor's last step, float32 [rows, width]; None where the model hands out none.
    """

    executor: Executor
    vocabulary: int
    context: int
    decoder: Callable[[Sequence[int]], TextDecoder]
    threads: SamplingThreads | None = None
    constraint: Callable[[Grammar], Constraint] | None = None
    states: Callable[[NDArray[np.int32]], NDArray[np.float32]] | None = None

    @property
    def longest(self) -> int:
        """The most positions a sequence can take: the model's, or what the store holds."""
        return min(self.context, self.executor.pages * PAGE)

    def positions_of(self, request: Request) -> int:
        """Return how many positions it can take in the store; its last token takes none."""
        limit = request.stop.max_tokens
        if limit is None:
            return self.longest - 1
        return min(self.longest, len(request.prompt) + limit) - 1

    def admit(self, request: Request) -> Constraint | None:
        """Refuse a request that can never be served; return what its grammar allows, if it has one.

        Raises:
            RequestError: the prompt fills the context, an id is outside the vocabulary, or a
                grammar cannot be applied.
        """
        if len(request.prompt) >= self.longest:
            raise RequestError(
                f"the prompt has {len(request.prompt)} tokens and the context holds "
                f"{self.longest} (of the model's {self.context}, what the KV store's "
                f"{self.executor.pages} pages of {PAGE} have room for), which leaves no "
                "room for an answer; shorten the prompt or give a longer context."
            )
        for token in request.prompt:
            if not 0 <= token < self.vocabulary:
                raise RequestError(
                    f"the prompt has token {token}, but the vocabulary has {self.vocabulary} "
                    "tokens; use the model's own tokenizer."
                )
        request.params.require_vocabulary(self.vocabulary)
        if request.grammar is None:
            return None
        if self.constraint is None:
            raise RequestError(
                "the request has a grammar, but this engine was given nothing to apply it with; "
                "leave the grammar out."
            )
        return self.constraint(request.grammar)

    def watched_by(self, draft: Draft) -> tuple[Watching, ...]:
        """Return the parts of a draft that want the model's hidden states.

        Raises:
            UsageError: there are such parts, and the model hands out none.
        """
        found = watching(draft)
        if found and self.states is None:
            raise UsageError(
                f"The draft {draft.name} continues from the model's hidden states, which this "
                "model was not loaded to hand out; load it with RunSettings.states."
            )
        return found


@dataclass(frozen=True)
class Drawing:
    """What draws: for a request a sampler, and along its drafts the tokens of a step.

    A certificate puts in their place what lays numbers down, or what is wrong on purpose.
    """

    sampler: Callable[..., TokenSampler] = TokenSampler
    draw: Callable[..., list[Drawn]] = sample_blocks


DRAWING = Drawing()
