"""vLLM on the CPU as a worker: many sequences at once, tokens drawn by its own sampler."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import tasks


class Peer:
    """A Hugging Face folder, loaded as bf16."""

    def __init__(self, path: str, threads: int, context: int) -> None:
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "2")
        os.environ.setdefault("VLLM_CPU_OMP_THREADS_BIND", f"0-{threads - 1}")
        import vllm  # noqa: PLC0415 - reads the environment

        self._parameters = vllm.SamplingParams
        self._version = vllm.__version__
        self._model = vllm.LLM(model=path, dtype="bfloat16", max_model_len=context)

    def tasks(self) -> Mapping[str, tasks.Task]:
        return {"facts": self.facts, "concurrent": self.concurrent}

    def use(self, setting: str) -> None:
        assert setting == "default"

    def facts(self) -> dict[str, Any]:
        return {"system": f"vLLM {self._version}"}

    def concurrent(self, sequences: int, tokens: int, sampling: str) -> float:
        """Time `tokens` tokens each, less the time of the prompts and the first token."""
        more = {"top_k": 40} if sampling == "top-k 40" else {}
        prompts = [{"prompt_token_ids": list(range(100 + s, 116 + s))} for s in range(sequences)]

        def seconds(count: int) -> float:
            parameters = self._parameters(
                temperature=0.8, seed=0, max_tokens=count, ignore_eos=True, **more
            )
            begun = time.perf_counter()
            self._model.generate(prompts, parameters, use_tqdm=False)
            return time.perf_counter() - begun

        first = seconds(1)
        return sequences * tokens / (seconds(tokens + 1) - first)


def main() -> None:
    chosen = tasks.arguments()
    tasks.serve(lambda: Peer(chosen.model, chosen.threads, chosen.context))


if __name__ == "__main__":
    main()
