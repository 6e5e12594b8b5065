"""llama.cpp as a worker that generates greedily, alone or with a draft model.

The speculative loop is that of llama.cpp's own example: the draft proposes K tokens one by one, the
target scores them in one batch, and the longest prefix that the target would have said stands. A
setting is `plain`, or `draft=K`.
"""

from __future__ import annotations

import argparse
import ctypes
import sys
import time
from collections.abc import Mapping
from typing import Any

import llama_cpp as llama
import tasks


class Sequence:
    """A model with one sequence, and what its cache holds of it."""

    def __init__(self, path: str, threads: int, context: int) -> None:
        model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
        if not model:
            sys.exit(f"llama.cpp cannot load {path}")
        parameters = llama.llama_context_default_params()
        parameters.n_ctx = parameters.n_batch = context
        parameters.n_threads = parameters.n_threads_batch = threads
        parameters.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
        self._context = llama.llama_init_from_model(model, parameters)
        self._memory = llama.llama_get_memory(self._context)
        self._vocabulary = llama.llama_model_get_vocab(model)
        self._greedy = llama.llama_sampler_init_greedy()
        self._batch = llama.llama_batch_init(context, 0, 1)
        self._held: list[int] = []

    def likeliest(self, tokens: list[int], first: int) -> list[int]:
        """Run what the cache lacks of the tokens; return the likeliest token after each from first.

        The cache is cut back to what it has in common with them.
        """
        same = 0
        while same < min(len(self._held), first, len(tokens)) and self._held[same] == tokens[same]:
            same += 1
        llama.llama_memory_seq_rm(self._memory, 0, same, -1)
        self._batch.n_tokens = len(tokens) - same
        for i, token in enumerate(tokens[same:]):
            self._batch.token[i], self._batch.pos[i] = token, same + i
            self._batch.n_seq_id[i], self._batch.seq_id[i][0] = 1, 0
            self._batch.logits[i] = same + i >= first
        if llama.llama_decode(self._context, self._batch):
            sys.exit("llama_decode failed")
        self._held = list(tokens)
        rows = range(first - same, len(tokens) - same)
        return [llama.llama_sampler_sample(self._greedy, self._context, row) for row in rows]

    def forget(self) -> None:
        self._held = []

    def is_end(self, token: int) -> bool:
        return bool(llama.llama_vocab_is_eog(self._vocabulary, token))


class Peer:
    """A target and perhaps a draft."""

    def __init__(self, chosen: argparse.Namespace) -> None:
        llama.llama_log_set(_silent, ctypes.c_void_p(0))
        llama.llama_backend_init()
        self._target = Sequence(chosen.model, chosen.threads, chosen.context)
        self._draft = (
            Sequence(chosen.draft, chosen.threads, chosen.context) if chosen.draft else None
        )
        self._drafted = 0

    def tasks(self) -> Mapping[str, tasks.Task]:
        return {"facts": self.facts, "generate": self.generate}

    def use(self, setting: str) -> None:
        self._drafted = int(setting.partition("=")[2] or 0)

    def facts(self) -> dict[str, Any]:
        return {"system": llama.llama_print_system_info().decode().strip()}

    def generate(self, prompt: list[int], tokens: int) -> dict[str, Any]:
        """Return tokens per second after the first, the tokens, and how drafts fared."""
        self._target.forget()
        text = list(prompt)
        text += self._target.likeliest(text, len(text) - 1)
        begun, proposed, accepted = time.perf_counter(), 0, 0
        if self._draft and self._drafted:
            self._draft.forget()
        while len(text) - len(prompt) < tokens and not self._target.is_end(text[-1]):
            draft = self._propose(text)
            found = self._target.likeliest(text + draft, len(text) - 1)
            kept = 0
            while kept < len(draft) and draft[kept] == found[kept]:
                kept += 1
            proposed, accepted = proposed + len(draft), accepted + kept
            text += self._to_the_end(found[: kept + 1])
        seconds = time.perf_counter() - begun
        said = text[len(prompt) :][:tokens]
        rate = max(len(said) - 1, 0) / seconds if seconds else 0.0
        return {"rate": rate, "tokens": said, "proposed": proposed, "accepted": accepted}

    def _propose(self, text: list[int]) -> list[int]:
        draft: list[int] = []
        if self._draft:
            for _ in range(self._drafted):
                so_far = text + draft
                draft += self._draft.likeliest(so_far, len(so_far) - 1)
        return draft

    def _to_the_end(self, tokens: list[int]) -> list[int]:
        for i, token in enumerate(tokens):
            if self._target.is_end(token):
                return tokens[: i + 1]
        return tokens


@llama.llama_log_callback
def _silent(level: int, text: bytes, data: ctypes.c_void_p) -> None:
    """Print nothing."""


def main() -> None:
    parser = tasks.parser()
    parser.add_argument("--draft", default="")
    chosen = parser.parse_args()
    tasks.serve(lambda: Peer(chosen))


if __name__ == "__main__":
    main()
