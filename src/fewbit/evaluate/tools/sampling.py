"""Whether an arm samples as it is asked to: greedily where that is asked, and not otherwise.

A runtime that ignores the temperature looks like a good model on every other figure here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from fewbit.evaluate.answers import Ask, Prompt
from fewbit.evaluate.arms import Role
from fewbit.records.answers import Answer
from fewbit.records.measurement import Finding
from fewbit.sampling import SamplingParams

AXIS = "tools"

REPEATABLE, TEMPERATURE = FINDINGS = ("answers/repeatable", "answers/temperature")

_TOKENS = 16
_QUESTIONS = (
    "Tell me a story about a fox.",
    "Describe a town that you made up.",
    "What should I cook tonight?",
    "Write a poem about the wind.",
    "Invent a name for a boat, and say why it fits.",
    "What would you take to an island?",
)
_SEEDS = (1, 2, 3)

_UNLIKE_ALLOWED = 1
"""Of the questions asked twice: another runtime's sums may depend on what runs beside, and so, now
and then, a greedy choice. Sampled texts of so many tokens are practically never the same."""


def sampling_asks(prompt: Callable[[str], Prompt]) -> tuple[Ask, ...]:
    """Return questions that are asked greedily twice, and at temperature 1 with several seeds.

    Args:
        prompt: makes what is asked of what a user says.
    """
    twice = [_ask(f"again/{i}/{time}", prompt(q)) for i, q in _numbered() for time in (1, 2)]
    drawn = [
        _ask(f"drawn/{i}/{seed}", prompt(q), SamplingParams(seed=seed))
        for i, q in _numbered()
        for seed in _SEEDS
    ]
    return *twice, *drawn


def sampling_findings(answers: Mapping[Role, Mapping[str, Answer]]) -> tuple[Finding, ...]:
    """Return whether every arm samples as it is asked to."""
    unlike = {role: _unlike(given) for role, given in answers.items()}
    alike = {role: _alike(given) for role, given in answers.items()}
    count = len(_QUESTIONS)
    return (
        Finding(
            name=REPEATABLE,
            axis=AXIS,
            passed=all(found <= _UNLIKE_ALLOWED for found in unlike.values()),
            found=f"Of {count} questions asked greedily twice the answers differ in "
            f"{_by_arm(unlike)}; at most {_UNLIKE_ALLOWED} may.",
        ),
        Finding(
            name=TEMPERATURE,
            axis=AXIS,
            passed=all(found < count for found in alike.values()),
            found=f"Of {count} questions asked at temperature 1 with {len(_SEEDS)} seeds all "
            f"answers are the same in {_by_arm(alike)}; where it is all of them, the temperature "
            "is ignored.",
        ),
    )


def _numbered() -> enumerate[str]:
    return enumerate(_QUESTIONS)


def _ask(name: str, prompt: Prompt, sampling: SamplingParams | None = None) -> Ask:
    if sampling is None:
        return Ask(name, prompt, _TOKENS)
    return Ask(name, prompt, _TOKENS, sampling)


def _unlike(answers: Mapping[str, Answer]) -> int:
    pairs = ([answers[f"again/{i}/{time}"].text for time in (1, 2)] for i, _ in _numbered())
    return sum(one != other for one, other in pairs)


def _alike(answers: Mapping[str, Answer]) -> int:
    texts = ({answers[f"drawn/{i}/{seed}"].text for seed in _SEEDS} for i, _ in _numbered())
    return sum(len(found) == 1 for found in texts)


def _by_arm(counts: Mapping[Role, int]) -> str:
    return ", ".join(f"{count} ({role.value})" for role, count in counts.items())
