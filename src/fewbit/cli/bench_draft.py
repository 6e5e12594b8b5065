"""Measuring a model with a draft: the options, and what `fewbit bench --draft` does with them."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fewbit.cli.costs import DraftCostsOption
from fewbit.cli.drafts import DraftTextOption, DraftTokensOption, DraftTreeOption
from fewbit.errors import UsageError

if TYPE_CHECKING:
    from fewbit.evaluate.machine.speed import SpeedSettings
    from fewbit.evaluate.speculation import SpeculationSettings
    from fewbit.model.runner import RunSettings
    from fewbit.records.speculation import SpeculationReport


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class DraftOptions:
    """The draft whose worth is measured, and on what."""

    draft: Annotated[
        str,
        Parameter(
            help="Measure with and without this draft, named as for generate: ngram, suffix, a "
            "model, ngram+MODEL, nested, exit:8, low-bit:q4_0, or the folder of a head."
        ),
    ] = "none"
    draft_text: DraftTextOption = None
    draft_tokens: DraftTokensOption = 8
    draft_tree: DraftTreeOption = 0
    draft_costs: DraftCostsOption = "kept"
    prompts: Annotated[
        Path | None,
        Parameter(
            help="JSON lines with `prompt` and perhaps `kind`, or Spec-Bench's; by default code to "
            "write, files to rewrite and questions, our own."
        ),
    ] = None
    turns: Annotated[
        int, Parameter(help="Turns of each kind and concurrency, plain and with the draft.")
    ] = 4
    temperature: Annotated[float, Parameter(help="0 takes the likeliest token each time.")] = 0.0
    seed: Annotated[
        int | None, Parameter(help="Of what is drawn; without one drafts may be rejected.")
    ] = None

    @property
    def named(self) -> bool:
        """Whether there is a draft; raises UsageError where only its options are given."""
        from fewbit.cli.drafts import NONE

        if self.draft == NONE and self != DRAFT:
            raise UsageError(
                "--draft-text, --draft-tokens, --draft-tree, --draft-costs, --prompts, --turns, "
                "--temperature and --seed say how a draft is measured; name one by --draft, or "
                "leave them out."
            )
        return self.draft != NONE

    def settings(self, tokens: int, concurrency: tuple[int, ...]) -> SpeculationSettings:
        """Return what is measured; raises UsageError or BadFileError."""
        from fewbit.evaluate.prompts import builtin_prompts, read_prompts
        from fewbit.evaluate.speculation import SpeculationSettings

        return SpeculationSettings(
            prompts=builtin_prompts() if self.prompts is None else read_prompts(self.prompts),
            tokens=tokens,
            concurrency=concurrency,
            turns=self.turns,
            temperature=self.temperature,
            seed=self.seed,
        )


DRAFT = DraftOptions()


def speculation_report(path: Path, speed: SpeedSettings, draft: DraftOptions) -> SpeculationReport:
    """Measure a model with a draft; the costs and what is measured are told on stderr."""
    from fewbit.cli.costs import with_costs
    from fewbit.cli.drafts import chosen_draft, draft_notes
    from fewbit.cli.progress import progress_bar
    from fewbit.engine.loaded import load_model
    from fewbit.evaluate.conditions import conditions
    from fewbit.evaluate.machine.resident import peak_memory
    from fewbit.evaluate.speculation import measure_speculation
    from fewbit.model.facts import model_facts
    from fewbit.records.speculation import SpeculationReport
    from fewbit.runtime.native import threads_of

    settings = draft.settings(speed.tokens, speed.concurrency)
    chosen = chosen_draft(
        draft.draft, draft.draft_tokens, draft.draft_text, branches=draft.draft_tree
    )
    run = chosen.target_settings(_run_settings(speed))
    loaded = load_model(path, run)
    ran = conditions(
        loaded.runner.kernels,
        threads_of(run.threads),
        "native",
        kv=run.cache_type.value,
        rotated_keys=run.rotate_keys,
    )
    plain_memory = peak_memory()
    opened, line = with_costs(
        chosen.opened(loaded, run), loaded, draft.draft_costs, ran, run.sequences
    )
    for note in (*draft_notes(opened), *filter(None, [line])):
        print(note, file=sys.stderr)
    assert opened.speculation is not None
    speculation = opened.speculation
    with progress_bar() as bar:
        task = bar.add_task("measuring", total=None)
        runs = tuple(
            measure_speculation(
                loaded, speculation, settings, lambda what: bar.update(task, description=what)
            )
        )
    return SpeculationReport(
        model=model_facts(loaded.runner.source),
        kernels=loaded.runner.kernels,
        conditions=ran,
        loading=loaded.runner.loading,
        draft=speculation.draft.name,
        draft_model=opened.record,
        draft_kernels=opened.kernels,
        draft_memory=opened.memory,
        longest=speculation.longest,
        tokens=settings.tokens,
        costs=runs[-1].speculation[-1].costs,
        peak_memory_bytes=peak_memory(),
        plain_memory_bytes=plain_memory,
        runs=runs,
    )


def _run_settings(speed: SpeedSettings) -> RunSettings:
    from fewbit.model.runner import RunSettings

    return RunSettings(
        threads=speed.threads,
        sequences=max(speed.concurrency),
        activations=speed.activations,
        cache_type=speed.cache_type,
        rotate_keys=speed.rotate_keys,
        keep_packed=speed.keep_packed,
    )
