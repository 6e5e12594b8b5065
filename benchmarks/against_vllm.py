"""Against vLLM on the CPU, where a Python that has it and a model that both read are named."""

from __future__ import annotations

from collections.abc import Iterator

from bench import Bench, take_turns
from processes import Worker
from table import Row, compared, not_run

SEQUENCES = (1, 16)


def vllm(bench: Bench) -> Iterator[Row]:
    """A bf16 model, one sequence and sixteen; nothing is asked of the ratio."""
    if bench.vllm_python is None or bench.vllm_model is None:
        yield not_run("against vLLM, bf16", "", "give --vllm-python and --vllm-model")
        return
    model, count = bench.vllm_model, bench.sizes.generated
    peer_flags = {"threads": bench.threads, "context": 2048}
    with (
        bench.ours(model) as ours,
        Worker(bench.vllm_python, "vllm_peer.py", model, **peer_flags) as peer,
    ):
        bench.note(peer.ask("facts")["system"])
        for sequences in SEQUENCES:

            def measure(worker: Worker, setting: str, sequences: int = sequences) -> float:
                rate: float = worker.ask(
                    "concurrent",
                    setting,
                    sequences=sequences,
                    tokens=count,
                    sampling="temperature",
                )
                return rate

            pairs = take_turns(ours, peer, "default", measure, bench.rounds)
            yield compared(f"{model.name} bf16, {sequences} at once", pairs, 0, "vLLM")
