"""llama.cpp as a worker: one mapped model, and a context for each setting that is asked for.

A setting is words with spaces between them: `flash` or `plain` attention, `ubatch=N`, `unified`
(one store for all sequences) and `sequences=N`. Prompts and decoding have as many threads.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Collection, Mapping
from typing import Any

import llama_cpp as llama
import tasks

FLASH = {
    "flash": llama.LLAMA_FLASH_ATTN_TYPE_ENABLED,
    "plain": llama.LLAMA_FLASH_ATTN_TYPE_DISABLED,
}
CACHE_TYPES = {"f16": llama.GGML_TYPE_F16, "int8": llama.GGML_TYPE_Q8_0}
PROMPT = 16


class Peer:
    """A model of llama.cpp and the context in use."""

    def __init__(self, path: str, threads: int, context: int, kv: str) -> None:
        llama.llama_log_set(_silent, ctypes.c_void_p(0))
        llama.llama_backend_init()
        parameters = llama.llama_model_default_params()
        self._model = llama.llama_model_load_from_file(path.encode(), parameters)
        if not self._model:
            sys.exit(f"llama.cpp cannot load {path}")
        self._threads, self._length, self._kv = threads, context, CACHE_TYPES[kv]
        self._contexts: dict[str, Any] = {}

    def tasks(self) -> Mapping[str, tasks.Task]:
        return {**tasks.step_tasks(self), "facts": self.facts, "concurrent": self.concurrent}

    def use(self, setting: str) -> None:
        if setting == "default":  # quantized values need flash attention
            setting = "plain" if self._kv == llama.GGML_TYPE_F16 else "flash"
        if setting not in self._contexts:
            self._contexts[setting] = self._new_context(setting)
        self._context = self._contexts[setting]
        self._memory = llama.llama_get_memory(self._context)

    def _new_context(self, setting: str) -> Any:
        words = dict(word.partition("=")[::2] for word in setting.split())
        sequences = int(words.get("sequences", 1))
        parameters = llama.llama_context_default_params()
        parameters.n_ctx = self._length * sequences
        parameters.n_batch = max(512, self._length)
        parameters.n_ubatch = int(words.get("ubatch", 512))
        parameters.n_seq_max = sequences
        parameters.kv_unified = "unified" in words
        parameters.n_threads = parameters.n_threads_batch = self._threads
        parameters.flash_attn_type = FLASH["flash" if "flash" in words else "plain"]
        parameters.type_k = parameters.type_v = self._kv
        context = llama.llama_init_from_model(self._model, parameters)
        if not context:
            sys.exit(f"llama.cpp has no context for '{setting}'")
        return context

    def forget(self, position: int) -> None:
        llama.llama_memory_seq_rm(self._memory, 0, position, -1)

    def run(self, tokens: list[int], position: int, *, every_logit: bool) -> None:
        rows = [(token, position + i, 0) for i, token in enumerate(tokens)]
        self._decode(rows, range(len(rows)) if every_logit else [len(rows) - 1])
        llama.llama_get_logits_ith(self._context, len(rows) - 1)

    def _decode(self, rows: list[tuple[int, int, int]], wanted: Collection[int]) -> None:
        """Run rows of (token, position, sequence)."""
        batch = llama.llama_batch_init(len(rows), 0, 1)
        batch.n_tokens = len(rows)
        for i, (token, position, sequence) in enumerate(rows):
            batch.token[i], batch.pos[i] = token, position
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, sequence
            batch.logits[i] = i in wanted
        if llama.llama_decode(self._context, batch):
            sys.exit("llama_decode failed")
        llama.llama_batch_free(batch)

    def facts(self) -> dict[str, Any]:
        return {"system": llama.llama_print_system_info().decode().strip()}

    def concurrent(self, sequences: int, tokens: int, sampling: str) -> float:
        """Decode one token of every sequence a step, each drawn by a sampler chain of its own."""
        llama.llama_memory_clear(self._memory, False)
        chains = [_chain(sampling, seed) for seed in range(sequences)]
        last = [0] * sequences
        for s, chain in enumerate(chains):
            self._decode([(100 + s + i, i, s) for i in range(PROMPT)], [PROMPT - 1])
            last[s] = llama.llama_sampler_sample(chain, self._context, -1)
        begun = time.perf_counter()
        for step in range(tokens):
            rows = [(last[s], PROMPT + step, s) for s in range(sequences)]
            self._decode(rows, range(sequences))
            for s, chain in enumerate(chains):
                last[s] = llama.llama_sampler_sample(chain, self._context, s)
        rate = sequences * tokens / (time.perf_counter() - begun)
        for chain in chains:
            llama.llama_sampler_free(chain)
        return rate


def _chain(sampling: str, seed: int) -> Any:
    """Return llama.cpp's own samplers, in its own order: top-k, temperature, draw."""
    parts = [llama.llama_sampler_init_temp(0.8), llama.llama_sampler_init_dist(seed)]
    if sampling == "top-k 40":
        parts.insert(0, llama.llama_sampler_init_top_k(40))
    chain = llama.llama_sampler_chain_init(llama.llama_sampler_chain_default_params())
    for part in parts:
        llama.llama_sampler_chain_add(chain, part)
    return chain


@llama.llama_log_callback
def _silent(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    """Drop the library's log."""


def main() -> None:
    chosen = tasks.arguments()
    tasks.serve(lambda: Peer(chosen.model, chosen.threads, chosen.context, chosen.kv))


if __name__ == "__main__":
    main()
