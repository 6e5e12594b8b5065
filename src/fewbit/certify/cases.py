"""What a certificate runs: prompts, ways of sampling, draft lengths and batch sizes."""

from __future__ import annotations

from dataclasses import dataclass

from fewbit.errors import UsageError
from fewbit.sampling import SamplingParams

PROMPTS = {
    "rewrite": "def area(width, height):\n    return width * height\n\n"
    "def volume(width, height, depth):\n    return width * height * depth\n\n"
    "# The same again, with types.\n\n"
    "def area(width: float, height: float) -> float:\n",
    "question": "Question: Why is the sky blue, and why are sunsets red?\nAnswer:",
    "list": "1. one\n2. two\n3. three\n4. four\n5. five\n6.",
    "table": "| name | colour |\n|---|---|\n| apple | red |\n| banana | yellow |\n| plum |",
}
"""Texts to continue: repetitive ones, which an n-gram draft can follow, and an open one."""

SAMPLED = {
    "greedy": SamplingParams(temperature=0),
    "greedy, penalties": SamplingParams(
        temperature=0, frequency_penalty=0.6, repetition_penalty=1.1
    ),
    "temperature 0.7, top-p 0.9": SamplingParams(temperature=0.7, top_p=0.9, seed=11),
    "temperature 1, min-p 0.02, presence penalty, bias": SamplingParams(
        min_p=0.02, presence_penalty=0.4, logit_bias={0: -100, 3: 1.5}, seed=12
    ),
}
"""Ways of sampling whose output is a function of the prompt."""


@dataclass(frozen=True)
class CertifySettings:
    """How much is run.

    `tokens` are generated for each request. `lengths` are the numbers of tokens drafted at once,
    `together` the batch sizes. `long` adds the test by sampling, which takes minutes.

    Raises:
        UsageError: a number below 1, or nothing to run.
    """

    tokens: int = 24
    lengths: tuple[int, ...] = (1, 4, 8)
    together: tuple[int, ...] = (1, 4, 16)
    branches: int = 3
    long: bool = False

    def __post_init__(self) -> None:
        named = [("tokens", (self.tokens,)), ("lengths", self.lengths), ("together", self.together)]
        for name, values in named:
            if not values or min(values) < 1:
                raise UsageError(
                    f"{name} is {', '.join(map(str, values)) or 'empty'}; give numbers of at "
                    "least 1."
                )
        if self.branches < 0:
            raise UsageError(f"branches is {self.branches}; give 0, for chains alone, or more.")
