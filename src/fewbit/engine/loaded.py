"""A model loaded for generation: its runner, its tokenizer and its chat template."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from fewbit.engine.served import Served
from fewbit.errors import MissingError
from fewbit.model.runner import Runner, RunSettings, runner_of
from fewbit.model.tokenizer import chat_template_of, tokenizer_of
from fewbit.model.weights import open_model
from fewbit.runtime.native import NativeExecutor
from fewbit.sampling import Constraint, SamplingThreads
from fewbit.tokens.chat_template import ChatTemplate
from fewbit.tokens.grammar import Grammar
from fewbit.tokens.tokenizer import Tokenizer

if TYPE_CHECKING:
    from fewbit.tokens.constraint import GrammarCompiler


@dataclass(frozen=True)
class LoadedModel:
    """What text needs to become a request, and a request to be served."""

    runner: Runner
    tokenizer: Tokenizer
    template: ChatTemplate | None

    @property
    def vocabulary(self) -> int:
        """The ids that can be generated are those below; rows of the model beyond are padding."""
        return min(self.tokenizer.vocabulary_size, self.runner.program.vocabulary)

    @property
    def served(self) -> Served:
        """The model as an engine takes it; padding rows of the vocabulary are masked."""
        executor = self.runner.executor
        pool = executor.pool if isinstance(executor, NativeExecutor) else None
        return Served(
            executor=executor,
            vocabulary=self.vocabulary,
            context=self.runner.context,
            decoder=lambda prompt: self.tokenizer.stream(after=prompt),
            threads=SamplingThreads(pool),
            constraint=self.constraints,
            states=self.runner.states if self.runner.gives_states else None,
        )

    @cached_property
    def constraints(self) -> Callable[[Grammar], Constraint]:
        """Turns grammars into constraints, for every engine; the first reads the vocabulary."""
        return _constraints(self.tokenizer)

    @property
    def ends(self) -> frozenset[int]:
        """The ids after which a text or a turn is over."""
        return self.tokenizer.special.end_of_generation

    def text_prompt(self, text: str) -> tuple[int, ...]:
        """Return the ids of a text to be continued as it is; names of special tokens are text."""
        return tuple(self.tokenizer.encode(text))

    def chat_prompt(self, messages: Sequence[Mapping[str, str]]) -> tuple[int, ...]:
        """Return the ids of a conversation that the model is to answer.

        Raises:
            MissingError: the model has no chat template.
            TemplateError: its template failed.
        """
        if self.template is None:
            raise MissingError(
                f"{self.runner.source.path} has no chat template; use --raw to continue a text, or "
                "an instruct model."
            )
        text = self.template.render(messages)
        return tuple(self.tokenizer.encode(text, add_special=False, parse_special=True))


def _constraints(tokenizer: Tokenizer) -> Callable[[Grammar], Constraint]:
    """Return what turns grammars into constraints; their library is loaded with the first one."""

    @cache
    def compiler() -> GrammarCompiler:
        from fewbit.tokens.constraint import GrammarCompiler

        return GrammarCompiler(tokenizer)

    return lambda grammar: compiler().constraint(grammar)


def load_model(path: Path, settings: RunSettings) -> LoadedModel:
    """Open a model and make it ready to generate.

    Raises:
        BadFileError, MissingError, UnsupportedError, KernelError, UsageError: as `open_model`,
            `tokenizer_of` and `runner_of`.
    """
    source = open_model(path)
    # The tokenizers library keeps the interpreter's lock, mapping and packing weights let go of it.
    with ThreadPoolExecutor(1) as beside:
        loading = beside.submit(runner_of, source, settings)
        tokenizer = tokenizer_of(source)
        # Waited for here and not where the pool is left: Ctrl-C there makes CPython 3.11 and 3.12
        # take the thread for ended, and abort when the interpreter ends while it still packs.
        runner = loading.result()
    template = chat_template_of(source)
    chat = None if template is None else ChatTemplate(template, tokenizer.special_texts)
    return LoadedModel(runner, tokenizer, chat)
