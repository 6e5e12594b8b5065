"""Structured output: a JSON schema, a grammar or a pattern, as masks over a tokenizer's tokens.

The masks are computed natively by the `llguidance` library, along a whole draft at once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from copy import copy
from functools import partial

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance import numpy as bitmasks
from numpy.typing import NDArray

from fewbit.errors import RequestError
from fewbit.tokens.grammar import Grammar, GrammarKind
from fewbit.tokens.guard import guarded
from fewbit.tokens.tokenizer import Tokenizer

JSON_WHITESPACE = r" |\n[ \t]{0,40}"
"""Between the elements of JSON there is nothing, a space, or a new line and its indentation: where
any white space may come, small models write it until their tokens run out."""

_EVERYTHING, _NOTHING = -1, 0  # the bits of a word


class GrammarCompiler:
    """Turns grammars into constraints for one tokenizer. Safe to share by threads.

    The first grammar makes it read all of the tokenizer's tokens: 0.8 s for 49,152 of them.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._lock = threading.Lock()
        self._compiled: tuple[LLTokenizer, LLExecutor] | None = None

    def constraint(self, grammar: Grammar) -> GrammarConstraint:
        """Return what follows a new sequence.

        Raises:
            RequestError: the grammar is none, or `after` is no token.
        """
        tokens, executor = self._tokens()
        size = self._tokenizer.vocabulary_size
        if grammar.after is not None and not 0 <= grammar.after < size:
            raise RequestError(
                f"the grammar is to begin after token {grammar.after}, but ids are in "
                f"[0, {size - 1}]; name a token of the model."
            )
        with guarded(RequestError, f"the {grammar.kind.value} cannot be used"):
            begun = partial(LLMatcher, tokens, _source(grammar), log_level=0)
            matcher = begun()
        if matcher.is_error():
            raise RequestError(
                f"the {grammar.kind.value} cannot be used: {_sentence(matcher.get_error())}."
            )
        return GrammarConstraint(begun, matcher, executor, size, grammar.after)

    def _tokens(self) -> tuple[LLTokenizer, LLExecutor]:
        with self._lock:
            if self._compiled is None:
                ends = sorted(self._tokenizer.special.end_of_generation)
                if not ends:
                    raise RequestError(
                        "the model's tokenizer has no end of text, so no grammar could ever be "
                        "complete; leave the grammar out."
                    )
                tokens = LLTokenizer(
                    TokenizerWrapper(_Vocabulary(self._tokenizer, ends[0])),
                    n_vocab=self._tokenizer.vocabulary_size,
                    eos_token=ends,
                )
                self._compiled = tokens, LLExecutor(num_threads=1)
            return self._compiled


class GrammarConstraint:
    """Follows one sequence; satisfies `sampling.Constraint`.

    Where the grammar is complete, only the model's ends may follow. Where the library gives up,
    nothing may: it says so in no other way than by allowing the end, as if the text were complete.

    Args:
        begun: returns a matcher at the grammar's beginning.
        matcher: one that it returned.
        executor: the library's threads.
        size: of the vocabulary.
        after: the token after which the grammar begins; None where it has begun.
    """

    def __init__(
        self,
        begun: Callable[[], LLMatcher],
        matcher: LLMatcher,
        executor: LLExecutor,
        size: int,
        after: int | None,
    ) -> None:
        self._begun = begun
        self._matcher = matcher
        self._executor = executor
        self._words = -(-size // 32)
        self._after = after
        self._taken: list[int] = []
        self._problem = ""

    @property
    def problem(self) -> str:
        """Why nothing may come any more; empty where all is well."""
        return self._problem

    def masks(self, draft: Sequence[int]) -> NDArray[np.int32]:
        """Return which tokens may follow the text and each prefix of a draft: see `Constraint`."""
        found = np.full((len(draft) + 1, self._words), _EVERYTHING, np.int32)
        begin = self._begin(draft)
        if begin is not None:
            self._fill(list(draft[begin:]), found[begin:])
        return found

    def advance(self, tokens: Sequence[int]) -> None:
        """Add tokens to the text."""
        begin = self._begin(tokens)
        if begin is not None:
            self._after = None
            self._taken += tokens[begin:]
            # Up to an end: what comes behind that changes nothing.
            self._matcher.try_consume_tokens(list(tokens[begin:]))

    def fork(self) -> GrammarConstraint:
        """Return a copy that goes its own way."""
        copied = copy(self)
        copied._matcher = self._matcher.deep_copy()
        copied._taken = self._taken.copy()
        return copied

    def _begin(self, tokens: Sequence[int]) -> int | None:
        """Return which of the tokens to come is the grammar's first; None where none is yet."""
        if self._after is None:
            return 0
        return tokens.index(self._after) + 1 if self._after in tokens else None

    def _fill(self, draft: list[int], masks: NDArray[np.int32]) -> None:
        if not draft:
            self._fill_one(self._matcher, masks)
            return
        bitmasks.fill_next_token_bitmask_par_with_draft_tokens(
            self._executor, [(self._matcher, 0, draft)], masks
        )
        if self._matcher.is_error():
            # For ever, though perhaps over a drafted token that is never taken.
            self._matcher = self._begun()
            self._matcher.try_consume_tokens(self._taken)
            self._fill_one_by_one(draft, masks)

    def _fill_one_by_one(self, draft: list[int], masks: NDArray[np.int32]) -> None:
        """Fill the rows up to the one where the library gives up, and those behind with nothing."""
        follower = self._matcher.deep_copy()
        masks[:] = _NOTHING
        for row, token in enumerate([*draft, None]):
            self._fill_one(follower, masks[row:])
            if token is None or not follower.try_consume_tokens([token]):
                break
        self._note(follower)

    def _fill_one(self, matcher: LLMatcher, masks: NDArray[np.int32]) -> None:
        bitmasks.fill_next_token_bitmask(matcher, masks)
        if matcher.is_error():
            masks[0] = _NOTHING
            self._note(matcher)

    def _note(self, matcher: LLMatcher) -> None:
        """Keep why a matcher has given up, if it has."""
        if matcher.is_error():
            self._problem = (
                f"the text's grammar is too complex to go on ({_sentence(matcher.get_error())}); "
                "give a simpler one."
            )


class _Vocabulary:
    """The tokenizer as the library asks for it."""

    def __init__(self, tokenizer: Tokenizer, end: int) -> None:
        self.eos_token_id = end
        self.bos_token_id = tokenizer.special.bos
        self.tokens = [_bytes_of(tokenizer, token) for token in range(tokenizer.vocabulary_size)]
        self.special_token_ids = sorted(tokenizer.special_ids)
        self._tokenizer = tokenizer

    def __call__(self, text: str | bytes) -> list[int]:
        return self._tokenizer.encode(text, add_special=False)


def _bytes_of(tokenizer: Tokenizer, token: int) -> bytes:
    """Return a token's bytes, none for an id without a token."""
    try:
        return tokenizer.token_bytes(token)
    except RequestError:
        return b""


def _source(grammar: Grammar) -> str:
    match grammar.kind:
        case GrammarKind.JSON_SCHEMA:
            return LLMatcher.grammar_from_json_schema(
                grammar.text, defaults={"whitespace_pattern": JSON_WHITESPACE}
            )
        case GrammarKind.LARK:
            return LLMatcher.grammar_from_lark(grammar.text)
        case GrammarKind.REGEX:
            return LLMatcher.grammar_from_regex(grammar.text)


def _sentence(error: str) -> str:
    """Return the library's message as one line, without the state of its parser."""
    return " ".join(error.partition("<state>")[0].split()).rstrip(".")
