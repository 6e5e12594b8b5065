"""Structured output: a JSON schema, a grammar or a pattern, as masks over a tokenizer's tokens.

The masks are computed natively by the `llguidance` library, along a whole draft at once.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

import numpy as np
from llguidance import LLExecutor, LLMatcher, LLTokenizer, TokenizerWrapper
from llguidance import numpy as bitmasks
from numpy.typing import NDArray

from fewbit.errors import RequestError
from fewbit.tokens.grammar import Grammar, GrammarKind
from fewbit.tokens.tokenizer import Tokenizer

JSON_WHITESPACE = r" |\n[ \t]{0,40}"
"""Between the elements of JSON there is nothing, a space, or a new line and its indentation: where
any white space may come, small models write it until their tokens run out."""

_EVERYTHING = -1  # all bits of a word


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
        matcher = LLMatcher(tokens, _source(grammar), log_level=0)
        if matcher.is_error():
            raise RequestError(
                f"the {grammar.kind.value} cannot be used: {_sentence(matcher.get_error())}."
            )
        return GrammarConstraint(matcher, executor, size, grammar.after)

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

    Where the grammar is complete, only the model's ends may follow.
    """

    def __init__(
        self, matcher: LLMatcher, executor: LLExecutor, size: int, after: int | None
    ) -> None:
        self._matcher = matcher
        self._executor = executor
        self._words = -(-size // 32)
        self._after = after

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
            self._matcher.consume_tokens(list(tokens[begin:]))

    def fork(self) -> GrammarConstraint:
        """Return a copy that goes its own way."""
        copied = GrammarConstraint(self._matcher.deep_copy(), self._executor, 0, self._after)
        copied._words = self._words
        return copied

    def _begin(self, tokens: Sequence[int]) -> int | None:
        """Return which of the tokens to come is the grammar's first; None where none is yet."""
        if self._after is None:
            return 0
        return tokens.index(self._after) + 1 if self._after in tokens else None

    def _fill(self, draft: list[int], masks: NDArray[np.int32]) -> None:
        if draft:
            bitmasks.fill_next_token_bitmask_par_with_draft_tokens(
                self._executor, [(self._matcher, 0, draft)], masks
            )
        else:
            bitmasks.fill_next_token_bitmask(self._matcher, masks)


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
    """Return the library's message as one line."""
    return " ".join(error.split()).rstrip(".")
