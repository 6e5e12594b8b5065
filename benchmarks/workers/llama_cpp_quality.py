"""llama.cpp as the peer of quality: its quantizer with an importance matrix, and its own logits.

Each task is a process of its own, told by JSON on the command line; nothing else runs beside it.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import llama_cpp as llama
import numpy as np
from numpy.typing import NDArray

TYPES = {
    **{"Q4_0": 2, "Q4_1": 3, "Q8_0": 7, "Q5_0": 8, "Q5_1": 9, "Q2_K": 10, "Q3_K_S": 11},
    **{"Q3_K_M": 12, "Q3_K_L": 13, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_S": 16, "Q5_K_M": 17},
    **{"Q6_K": 18, "IQ4_NL": 25, "IQ4_XS": 30},
}
"""`llama_ftype` by the name that llama.cpp's quantizer has for it."""


def quantize(source: str, out: str, form: str, importance: str, threads: int) -> None:
    """Write `out` with the importance (npz of float32 by tensor name), as llama-quantize does."""
    parameters = llama.llama_model_quantize_default_params()
    parameters.nthread, parameters.ftype = threads, TYPES[form]
    data = dict(np.load(importance))
    entries = (llama.llama_model_imatrix_data * (len(data) + 1))()
    for entry, (name, values) in zip(entries, data.items(), strict=False):
        entry.name = name.encode()
        entry.data = values.ctypes.data_as(ctypes.POINTER(ctypes.c_float))
        entry.size = values.size
    parameters.imatrix = entries
    if llama.llama_model_quantize(source.encode(), out.encode(), ctypes.byref(parameters)):
        sys.exit(f"llama.cpp could not write {out}")


def divergences(source: str, candidate: str, folder: str, threads: int) -> None:
    """Write float64 [windows]: mean KL(source || candidate) over second halves.

    In the folder lie `windows.npz`, int32 [tokens] by name, and the source's logits by these names,
    each made if it is not there yet; `divergences.npy` is written there.
    """
    tokens = dict(np.load(Path(folder) / "windows.npz"))
    files = {name: Path(folder) / f"{name}.npy" for name in tokens}
    missing = [name for name, file in files.items() if not file.exists()]
    exact = _logits(source, [tokens[name] for name in missing], threads)
    for name, found in zip(missing, exact, strict=True):
        partial = files[name].with_suffix(".partial.npy")
        np.save(partial, found)
        partial.rename(files[name])
    others = _logits(candidate, list(tokens.values()), threads)
    pairs = zip(files.values(), others, strict=True)
    found = [_mean_kl(np.load(file), logits) for file, logits in pairs]
    np.save(Path(folder) / "divergences.npy", np.array(found, np.float64))


def _mean_kl(source: NDArray[np.float32], candidate: NDArray[np.float32]) -> float:
    a, b = (x.astype(np.float64) for x in (source, candidate))
    a -= a.max(-1, keepdims=True)
    b -= b.max(-1, keepdims=True)
    p = np.exp(a)
    z = p.sum(-1, keepdims=True)
    mean = (p / z * (a - b)).sum(-1)
    return float((mean - np.log(z[:, 0]) + np.log(np.exp(b).sum(-1))).mean())


def _logits(
    path: str, windows: Sequence[NDArray[np.int32]], threads: int
) -> Iterator[NDArray[np.float32]]:
    """Yield the logits of the second half of each window but its last position."""
    if not windows:
        return
    model = llama.llama_model_load_from_file(path.encode(), llama.llama_model_default_params())
    length = len(windows[0])
    parameters = llama.llama_context_default_params()
    parameters.n_ctx = parameters.n_batch = parameters.n_ubatch = length
    parameters.n_threads = parameters.n_threads_batch = threads
    parameters.flash_attn_type = llama.LLAMA_FLASH_ATTN_TYPE_DISABLED
    context = llama.llama_init_from_model(model, parameters)
    vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
    first = length // 2
    for window in windows:
        llama.llama_memory_clear(llama.llama_get_memory(context), True)
        batch = llama.llama_batch_init(length, 0, 1)
        batch.n_tokens = length
        for i, token in enumerate(window.tolist()):
            batch.token[i], batch.pos[i] = token, i
            batch.n_seq_id[i], batch.seq_id[i][0] = 1, 0
            batch.logits[i] = first <= i < length - 1
        if llama.llama_decode(context, batch):
            sys.exit(f"llama.cpp could not run {path}")
        rows = llama.llama_get_logits(context)
        shape = (length - 1 - first, vocabulary)
        yield np.ctypeslib.as_array(rows, shape).copy()
        llama.llama_batch_free(batch)
    llama.llama_free(context)
    llama.llama_model_free(model)


@llama.llama_log_callback
def _silent(_level: int, _text: bytes, _data: ctypes.c_void_p) -> None:
    """Print nothing."""


def main() -> None:
    llama.llama_log_set(_silent, ctypes.c_void_p(0))
    llama.llama_backend_init()
    task, arguments = sys.argv[1], json.loads(sys.argv[2])
    {"quantize": quantize, "divergences": divergences}[task](**arguments)


if __name__ == "__main__":
    main()
