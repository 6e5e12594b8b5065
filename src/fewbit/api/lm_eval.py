"""lm-eval on our engine: `python -m fewbit.api.lm_eval run --model fewbit ...`.

Importing this registers the model `fewbit` with lm-eval, for scripts that call
`lm_eval.simple_evaluate(model="fewbit", model_args="pretrained=model.gguf", ...)`. It needs the
extra `fewbit[lm-eval]`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from lm_eval.api.model import LM
from lm_eval.api.registry import register_model

from fewbit.api.harness import Harness, Instance
from fewbit.api.model import located
from fewbit.engine.loaded import load_model
from fewbit.errors import UsageError
from fewbit.model.runner import RunSettings

_SEQUENCES = 8
_LOGGER = logging.getLogger("fewbit")


@register_model("fewbit")
class FewbitLM(LM):
    """A model that our engine runs; every request goes to `Harness`."""

    def __init__(  # noqa: PLR0913, PLR0917 - the names that lm-eval passes
        self,
        pretrained: str,
        context: int | None = None,
        threads: int | None = None,
        batch_size: int | str = _SEQUENCES,
        max_batch_size: int | None = None,
        device: str | None = None,
        **settings: Any,
    ) -> None:
        """Load a model.

        Args:
            pretrained: a GGUF file, a folder, or a name as `fewbit pull` takes it.
            context: tokens of a request and its answer at most; None for the model's own, at most
                8192.
            threads: None for every core.
            batch_size: generations served at once; `auto` for 8.
            max_batch_size: what lm-eval passes beside `auto`; bounds it.
            device: lm-eval's command line passes `cuda:0` where nothing is said; it runs on the
                CPU whatever is passed, and logs that.
            **settings: others of `RunSettings`, such as `cache_type` and `activations`.

        Raises:
            UsageError: a setting that there is not.
            FewbitError: as `load_model`.
        """
        super().__init__()
        if device not in (None, "cpu"):
            _LOGGER.warning("fewbit's engine runs on the cpu, not on %s.", device)
        automatic = str(batch_size).startswith("auto")
        sequences = min(_SEQUENCES, max_batch_size or _SEQUENCES) if automatic else int(batch_size)
        try:
            run = RunSettings(context=context, threads=threads, sequences=sequences, **settings)
        except TypeError as error:
            raise UsageError(f"model_args has a name that there is not: {error}.") from error
        self._loaded = load_model(located(pretrained), run)
        self._harness = Harness(self._loaded, sequences=sequences)

    def loglikelihood(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[tuple[float, bool]]:
        """Return (log-probability, whether greedy) for each (context, continuation)."""
        return self._harness.loglikelihood(requests, self._keeping("loglikelihood"))

    def loglikelihood_rolling(
        self, requests: Sequence[Instance], disable_tqdm: bool = False
    ) -> list[float]:
        """Return the log-probability of each text."""
        return self._harness.loglikelihood_rolling(requests, self._keeping("loglikelihood_rolling"))

    def generate_until(self, requests: Sequence[Instance], disable_tqdm: bool = False) -> list[str]:
        """Return the generated text for each (context, keywords)."""
        return self._harness.generate_until(requests, self._keeping("generate_until"))

    def apply_chat_template(
        self, chat_history: Sequence[Mapping[str, Any]], add_generation_prompt: bool = True
    ) -> str:
        """Return a conversation as text."""
        return self._harness.apply_chat_template(
            chat_history, add_generation_prompt=add_generation_prompt
        )

    @property
    def tokenizer_name(self) -> str:
        """What lm-eval keys its cache of requests by."""
        template = self._loaded.template
        return f"fewbit-{'none' if template is None else template.digest[:16]}"

    def chat_template(self, chat_template: bool | str = False) -> str:
        """Return the template's source, which lm-eval puts into its record."""
        template = self._loaded.template
        return template.source if chat_template and template is not None else ""

    def _keeping(self, method: str) -> Callable[[tuple[Any, ...], Any], None]:
        """Return what puts results into lm-eval's cache as they come."""
        return partial(self.cache_hook.add_partial, method)


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
