"""Options that `generate` and `chat` share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

from cyclopts import Parameter

from fewbit.cli.activations import ACTIVATIONS_HELP, ActivationsOption, rounding
from fewbit.cli.cache import KV_HELP, ROTATE_HELP, KvOption, RotateOption, cache_type
from fewbit.cli.costs import DraftCostsOption
from fewbit.cli.drafts import DraftTextOption, DraftTokensOption, DraftTreeOption
from fewbit.cli.log import LogOption
from fewbit.errors import UsageError

if TYPE_CHECKING:
    from fewbit.engine.chosen_draft import ChosenDraft
    from fewbit.engine.loaded import LoadedModel
    from fewbit.engine.stop import StopCondition
    from fewbit.model.runner import RunSettings
    from fewbit.records.conditions import Conditions
    from fewbit.sampling import SamplingParams
    from fewbit.tokens.grammar import Grammar


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class SamplingOptions:
    """How tokens are chosen."""

    temperature: Annotated[
        float, Parameter(help="0 takes the likeliest token each time; 1 the model's distribution.")
    ] = 0.0
    top_k: Annotated[int, Parameter(help="Draw among the k likeliest tokens; 0 for all.")] = 0
    top_p: Annotated[
        float, Parameter(help="Draw among the likeliest tokens that hold this share; 1 for all.")
    ] = 1.0
    min_p: Annotated[
        float, Parameter(help="Leave out tokens under this share of the likeliest; 0 for none.")
    ] = 0.0
    repetition_penalty: Annotated[
        float, Parameter(help="Divide the logits of tokens seen before; 1 for none.")
    ] = 1.0
    frequency_penalty: Annotated[
        float, Parameter(help="Lower a token's logit by this each time it was generated.")
    ] = 0.0
    presence_penalty: Annotated[
        float, Parameter(help="Lower a token's logit by this once it was generated.")
    ] = 0.0
    logit_bias: Annotated[
        tuple[str, ...],
        Parameter(
            help="ID=VALUE, added to a token's logit; -100 bans it.",
            negative="",
            show_default=False,
        ),
    ] = ()
    seed: Annotated[
        int | None, Parameter(help="Repeats an output; a fresh one is chosen and shown.")
    ] = None

    def params(self) -> SamplingParams:
        """Return the request's parameters; raises RequestError or UsageError."""
        from fewbit.sampling import SamplingParams

        return SamplingParams(
            temperature=self.temperature,
            top_k=self.top_k,
            top_p=self.top_p,
            min_p=self.min_p,
            repetition_penalty=self.repetition_penalty,
            frequency_penalty=self.frequency_penalty,
            presence_penalty=self.presence_penalty,
            logit_bias=_bias(self.logit_bias),
            seed=self.seed,
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class ChatSamplingOptions(SamplingOptions):
    """How tokens are chosen in a conversation."""

    temperature: Annotated[
        float, Parameter(help="0 takes the likeliest token each time; 1 the model's distribution.")
    ] = 0.7
    top_p: Annotated[
        float, Parameter(help="Draw among the likeliest tokens that hold this share; 1 for all.")
    ] = 0.9


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class RunOptions:
    """How long to generate, with which draft, and how the model runs."""

    max_tokens: Annotated[int, Parameter(help="Tokens to generate at most.")] = 256
    stop: Annotated[
        tuple[str, ...],
        Parameter(
            help="End when the text holds this string; may be given several times.",
            negative="",
            show_default=False,
            allow_leading_hyphen=True,
        ),
    ] = ()
    draft: Annotated[
        str,
        Parameter(
            help="Speculate with a smaller model (a name, a path to a GGUF file, or a folder), or "
            "with the text so far: ngram, suffix, or either and then a model, as in suffix+MODEL; "
            "or with the model itself, cheaper: nested (the upper bits of its 8-bit weights), "
            "exit:8 (its first 8 layers), low-bit:q4_0 (a copy in another format); or with an "
            "EAGLE-3 head, given by its folder; "
            "greedy and seeded output stays the same bit for bit."
        ),
    ] = "none"
    draft_text: DraftTextOption = None
    draft_tokens: DraftTokensOption = 8
    draft_tree: DraftTreeOption = 0
    draft_costs: DraftCostsOption = "kept"
    context: Annotated[int | None, Parameter(help="Positions of the prompt and the output.")] = None
    threads: Annotated[int | None, Parameter(help="Of the native executor; all cores.")] = None
    executor: Annotated[
        Literal["native", "reference"], Parameter(help="reference is NumPy: slow, the truth.")
    ] = "native"
    isa: Annotated[str | None, Parameter(help="Force an instruction set, such as avx2.")] = None
    kernel: Annotated[
        str | None,
        Parameter(help="Force a kernel of `inspect --kernels`, where the weights are its own."),
    ] = None
    activations: Annotated[ActivationsOption, Parameter(help=ACTIVATIONS_HELP)] = None
    kv: Annotated[KvOption, Parameter(help=KV_HELP)] = "f16"
    rotate_keys: Annotated[RotateOption, Parameter(help=ROTATE_HELP)] = False
    keep_packed: Annotated[
        bool,
        Parameter(
            help="Keep the weights as they are run in a file beside the model: the next start is "
            "faster.",
            negative="",
        ),
    ] = False
    strict: Annotated[
        bool,
        Parameter(help="Refuse a model that would not be run in its own formats.", negative=""),
    ] = False
    log: LogOption = None

    def settings(self) -> RunSettings:
        """Return how the model is to be run without a draft; raises UsageError."""
        from fewbit.model.runner import RunSettings

        return RunSettings(
            executor=self.executor,
            threads=self.threads,
            context=self.context,
            isa=self.isa,
            kernel=self.kernel,
            keep_packed=self.keep_packed,
            activations=rounding(self.activations),
            strict=self.strict,
            cache_type=cache_type(self.kv),
            rotate_keys=self.rotate_keys,
        )

    def drafting(self) -> ChosenDraft:
        """Return the draft that is asked for, found but not opened; raises as `chosen_draft`."""
        from fewbit.cli.drafts import chosen_draft

        return chosen_draft(
            self.draft, self.draft_tokens, self.draft_text, branches=self.draft_tree
        )

    def stop_condition(self, ends: frozenset[int]) -> StopCondition:
        """Return when to stop, the model's own ends included; raises RequestError."""
        from fewbit.engine.stop import StopCondition

        return StopCondition(self.max_tokens, ends, self.stop)

    def conditions(self, loaded: LoadedModel) -> Conditions:
        """Return the machine and the software that the figures of a run belong to."""
        from fewbit.evaluate.conditions import conditions
        from fewbit.runtime.native import threads_of

        threads = threads_of(self.threads)
        return conditions(
            loaded.runner.kernels,
            threads,
            self.executor,
            kv=self.kv,
            rotated_keys=self.rotate_keys,
        )


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class GenerateRunOptions(RunOptions):
    """How long to generate, with which draft, how the model runs, and structured output."""

    json_schema: Annotated[
        Path | None, Parameter(help="The text is JSON that satisfies this schema.")
    ] = None
    grammar: Annotated[
        Path | None, Parameter(help="The text is of this grammar, in the language of Lark.")
    ] = None

    def structure(self) -> Grammar | None:
        """Return what the text must be; raises UsageError, MissingError or BadFileError."""
        from fewbit.cli.structure import chosen_grammar

        return chosen_grammar(self.json_schema, self.grammar)


SAMPLING = SamplingOptions()
CHAT_SAMPLING = ChatSamplingOptions()
RUN = RunOptions()
GENERATE_RUN = GenerateRunOptions()


def _bias(entries: tuple[str, ...]) -> Mapping[int, float]:
    bias: dict[int, float] = {}
    for entry in entries:
        token, separator, value = entry.partition("=")
        try:
            bias[int(token)] = float(value)
        except ValueError:
            separator = ""
        if not separator:
            raise UsageError(
                f"--logit-bias is {entry!r}; write a token id and a number, such as 12=-100."
            )
    return bias
