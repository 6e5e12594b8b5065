"""Where `generate` takes its prompt from, and how it becomes token ids."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fewbit.errors import MissingError, UsageError

if TYPE_CHECKING:
    from fewbit.engine.loaded import LoadedModel


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class PromptOptions:
    """What the model reads."""

    prompt: Annotated[
        str | None,
        Parameter(
            name=("--prompt", "-p"),
            allow_leading_hyphen=True,
            help="The text; - reads it from stdin.",
        ),
    ] = None
    prompt_file: Annotated[Path | None, Parameter(help="Read the text from this file.")] = None
    chat: Annotated[
        bool | None,
        Parameter(
            name="--chat",
            negative="--raw",
            help="Put the model's chat template around the text, or continue it as it is; by "
            "default the template is used where the model has one.",
        ),
    ] = None
    system: Annotated[str | None, Parameter(help="A system message before the text.")] = None

    def text(self) -> str:
        """Return the prompt; raises UsageError and MissingError."""
        if (self.prompt is None) == (self.prompt_file is None):
            raise UsageError('give a prompt by -p "text", by -p - from stdin, or by --prompt-file.')
        if self.prompt_file is not None:
            return read_text(self.prompt_file)
        if self.prompt == "-":
            return sys.stdin.buffer.read().decode("utf-8", "replace")
        assert self.prompt is not None
        return self.prompt

    def ids(self, loaded: LoadedModel, text: str) -> tuple[int, ...]:
        """Return the text's token ids; raises FewbitError where a template is missing or fails."""
        if self.uses_template(loaded):
            messages = [] if self.system is None else [{"role": "system", "content": self.system}]
            return loaded.chat_prompt([*messages, {"role": "user", "content": text}])
        if self.system is not None:
            raise UsageError("--system needs a chat template; leave it out, or leave out --raw.")
        return loaded.text_prompt(text)

    def uses_template(self, loaded: LoadedModel) -> bool:
        """Whether the model's chat template is put around the text."""
        return loaded.template is not None if self.chat is None else self.chat

    def choice(self, loaded: LoadedModel) -> str:
        """Return in words what was decided without being asked for; empty where it was asked."""
        if self.chat is not None:
            return ""
        if loaded.template is None:
            return "the model has no chat template; the text is continued as it is."
        return "the model's chat template is put around the text; --raw leaves it out."


PROMPT = PromptOptions()


def read_text(file: Path) -> str:
    """Return a text file, invalid bytes as U+FFFD; raises MissingError."""
    try:
        return file.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise MissingError(
            f"{file} cannot be read ({error.strerror}); give a text file."
        ) from error
