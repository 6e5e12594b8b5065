"""Measure llama.cpp on one GGUF file, in a process of its own; print one JSON object.

Settings are its best on a CPU: the file mapped, one sequence, a batch that takes the whole prompt,
as many threads for prompts as for decoding, flash attention as named by the caller.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import sys

import llama_cpp as llama
import timing


class Model:
    """A model and a context of llama.cpp, with the two calls that the measurement needs."""

    def __init__(self, path: str, threads: int, context: int) -> None:
        llama.llama_log_set(_silent, ctypes.c_void_p(0))
        llama.llama_backend_init()
        self.model = llama.llama_model_load_from_file(
            path.encode(), llama.llama_model_default_params()
        )
        parameters = llama.llama_context_default_params()
        parameters.n_ctx = parameters.n_batch = context
        parameters.n_ubatch = 512
        parameters.n_threads = parameters.n_threads_batch = threads
        self.context = llama.llama_init_from_model(self.model, parameters)
        self.memory = llama.llama_get_memory(self.context)

    def forget(self, position: int) -> None:
        """Drop everything from `position` on."""
        llama.llama_memory_seq_rm(self.memory, 0, position, -1)

    def run(self, tokens: list[int], position: int, *, every_logit: bool) -> None:
        """Run `tokens` from `position`; the logits of all, or of the last, are computed."""
        batch = llama.llama_batch_init(len(tokens), 0, 1)
        batch.n_tokens = len(tokens)
        for i, token in enumerate(tokens):
            batch.token[i], batch.pos[i] = token, position + i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = every_logit or i == len(tokens) - 1
        if llama.llama_decode(self.context, batch):
            sys.exit("llama_decode failed")
        llama.llama_get_logits_ith(self.context, len(tokens) - 1)
        llama.llama_batch_free(batch)


@llama.llama_log_callback
def _silent(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    """Drop the library's log."""


def main() -> None:
    parser = argparse.ArgumentParser()
    timing.add_arguments(parser)
    arguments = parser.parse_args()
    model = Model(arguments.model, arguments.threads, arguments.context)
    info = llama.llama_print_system_info().decode()
    print(json.dumps({"system": info, **timing.measure(model, arguments)}))


if __name__ == "__main__":
    main()
