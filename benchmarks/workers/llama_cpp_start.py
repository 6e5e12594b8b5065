"""llama.cpp from the start of a process to its first token, which it prints."""

from __future__ import annotations

import argparse
import ctypes
import sys

import llama_cpp as llama


@llama.llama_log_callback
def _silent(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    """Drop the library's log."""


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("model")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--prompt", required=True)
    chosen = parser.parse_args()
    llama.llama_log_set(_silent, ctypes.c_void_p(0))
    llama.llama_backend_init()
    parameters = llama.llama_model_default_params()
    model = llama.llama_model_load_from_file(chosen.model.encode(), parameters)
    context_parameters = llama.llama_context_default_params()
    context_parameters.n_threads = context_parameters.n_threads_batch = chosen.threads
    context = llama.llama_init_from_model(model, context_parameters)
    vocabulary = llama.llama_model_get_vocab(model)
    text = chosen.prompt.encode()
    tokens = (llama.llama_token * 512)()
    count = llama.llama_tokenize(vocabulary, text, len(text), tokens, 512, True, False)
    if llama.llama_decode(context, llama.llama_batch_get_one(tokens, count)):
        sys.exit("llama_decode failed")
    greedy = llama.llama_sampler_init_greedy()
    token = llama.llama_sampler_sample(greedy, context, -1)
    piece = ctypes.create_string_buffer(64)
    size = llama.llama_token_to_piece(vocabulary, token, piece, 64, 0, True)
    sys.stdout.buffer.write(piece.raw[:size])
    sys.stdout.flush()


if __name__ == "__main__":
    main()
