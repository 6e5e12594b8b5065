"""fewbit as a worker that generates without a draft and with one, in turns.

A setting is what `--draft` takes: `ngram`, `suffix`, `nested`, a model's path. Each draft is opened
when it is first asked for, and its costs are measured then.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import tasks

from fewbit.cli.drafts import chosen_draft
from fewbit.engine.chosen_draft import OpenedDraft
from fewbit.engine.costing import measure_costs
from fewbit.engine.loaded import load_model
from fewbit.engine.request import Request, Speculation
from fewbit.engine.stop import StopCondition
from fewbit.evaluate.machine.resident import peak_memory
from fewbit.evaluate.speculation import measure_turn
from fewbit.model.runner import RunSettings
from fewbit.records.generation import SpeculationRecord
from fewbit.report.costs import describe_costs
from fewbit.sampling import SamplingParams


class Speculative:
    """A target, and the drafts that were opened for it."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        settings = RunSettings(
            threads=chosen.threads, context=chosen.context, sequences=chosen.sequences
        )
        self._settings = chosen_draft(chosen.draft or "none", chosen.longest).target_settings(
            settings
        )
        self._loaded = load_model(Path(chosen.model), self._settings)
        self._longest = chosen.longest
        self._opened: dict[str, tuple[OpenedDraft, str]] = {}
        self._draft: OpenedDraft | None = None
        self._peak_alone = peak_memory()

    def tasks(self) -> Mapping[str, tasks.Task]:
        own = (self.facts, self.prompt, self.warm_up, self.turn)
        return {task.__name__: task for task in own}

    def use(self, setting: str) -> None:
        if setting == "default":
            return
        if setting not in self._opened:
            self._opened[setting] = self._priced(setting)
        self._draft, self._costs = self._opened[setting]

    def _priced(self, setting: str) -> tuple[OpenedDraft, str]:
        opened = chosen_draft(setting, self._longest).opened(self._loaded, self._settings)
        assert opened.speculation is not None
        draft, sequences = opened.speculation.draft, self._settings.sequences
        costs = measure_costs(self._loaded.served, draft, sequences=sequences)
        speculation = Speculation(draft, self._longest, costs)
        return replace(opened, speculation=speculation), describe_costs(costs)

    def facts(self) -> dict[str, Any]:
        """Return what the figures belong to; memory in bytes, alone and by now."""
        kernels = sorted({kernel.kernel for kernel in self._loaded.runner.kernels})
        return {
            "kernels": kernels,
            "costs": self._costs,
            "peak_alone": self._peak_alone,
            "peak": peak_memory(),
        }

    def prompt(self, text: str) -> list[int]:
        """Return the ids of a question as the target's template has it."""
        return list(self._loaded.chat_prompt([{"role": "user", "content": text}]))

    def warm_up(self, prompt: list[int]) -> None:
        """Touch every page of target and draft."""
        self._measure([prompt], 8, 0.0, drafted_first=False)

    def turn(
        self, *, prompts: list[list[int]], tokens: int, temperature: float, drafted_first: bool
    ) -> dict[str, Any] | None:
        """Generate without the draft and with it; None where there was nothing to time."""
        found = self._measure(prompts, tokens, temperature, drafted_first=drafted_first)
        if found is None:
            return None
        turn, record = found
        drafted = sum(position.proposed for position in record.positions)
        return {
            "plain": turn.plain.tokens_per_second,
            "drafted": turn.drafted.tokens_per_second,
            "sooner": turn.sooner,
            "same": turn.same_output,
            "tokens": turn.drafted.tokens,
            "proposed": drafted,
            "accepted": sum(position.accepted for position in record.positions),
            "record": msgspec.to_builtins(record),
        }

    def _measure(
        self, prompts: list[list[int]], tokens: int, temperature: float, *, drafted_first: bool
    ) -> tuple[Any, SpeculationRecord] | None:
        assert self._draft is not None
        assert self._draft.speculation is not None
        params = SamplingParams(temperature=temperature)
        stop = StopCondition(tokens, self._loaded.ends, ())
        requests = [Request(tuple(p), params, stop, sample=i) for i, p in enumerate(prompts)]
        return measure_turn(
            self._loaded,
            self._draft.speculation,
            requests,
            at_once=self._settings.sequences,
            drafted_first=drafted_first,
        )


def main() -> None:
    parser = tasks.parser()
    parser.add_argument("--longest", type=int, default=8)
    parser.add_argument("--draft", default="", help="`nested` packs the target for its own draft")
    chosen = parser.parse_args()
    tasks.serve(lambda: Speculative(chosen))


if __name__ == "__main__":
    main()
