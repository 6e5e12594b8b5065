"""The native core where a process is short of memory or threads, was forked, or lives long."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from native_cases import SMALL, bind_random, run_alone, track

import fewbit
from fewbit import _native
from fewbit.runtime.native import NativeExecutor, thread_pool
from fewbit.runtime.step import Span, StepInput

PRELUDE = """
import os, resource, threading
import numpy as np
from native_cases import SMALL, bind_random, run_alone, track
from fewbit import _native
from fewbit.errors import UsageError
from fewbit.runtime.native import NativeExecutor, thread_pool
from fewbit.runtime.step import Span, StepInput

def allow(extra):
    used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + extra, resource.RLIM_INFINITY))

def refusal(call):
    try:
        call()
    except UsageError as error:
        return str(error)
    raise SystemExit("nothing was refused")
"""


def in_process(code: str) -> str:
    """Run code in a Python of its own and return what it printed."""
    done = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", PRELUDE + code],
        cwd=Path(__file__).parent,
        env={**os.environ, "PYTHONPATH": str(Path(fewbit.__file__).parents[1])},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, (done.returncode, done.stderr)
    return done.stdout


# --- short of memory or threads -----------------------------------------------------------------


def test_threads_that_the_system_does_not_give_are_refused():
    said = in_process("""
allow(2 << 30)  # 1024 stacks of 8 MiB need more
print(refusal(lambda: thread_pool(1024)))
executor = NativeExecutor(bind_random(SMALL, ("q8_0",)), pages=4, threads=2)
assert np.isfinite(run_alone(executor, track(20, [0], seed=1), 20)).all()
""")
    assert said.startswith("the system cannot start 1024 threads"), said
    assert "ask for fewer" in said


def test_packing_goes_on_without_the_threads_that_the_system_does_not_give():
    in_process("""
stored = np.arange(4096 * 256, dtype=np.float32).reshape(4096, 256)
arena = _native.PackedArena()
take_block = _native.PackedMatrix("f32", 256, stored[:1].view(np.uint8), arena=arena)
allow(64 << 20)
packed = _native.PackedMatrix("f32", 256, stored.view(np.uint8), arena=arena, threads=200)
assert all((packed.decode_row(row) == stored[row]).all() for row in range(4096))
""")


def test_weights_and_stores_beyond_memory_are_refused():
    said = in_process("""
binding = bind_random(SMALL, ("q8_0",))
allow(32 << 20)
print(refusal(lambda: NativeExecutor(binding, pages=1, threads=1)))
allow(256 << 20)
print(refusal(lambda: NativeExecutor(binding, pages=1 << 20, threads=1)))
""")
    assert "no memory for the model's weights; quantize the model to fewer bits" in said
    assert "no memory for a KV store of 1048576 pages" in said


def test_a_step_beyond_memory_is_refused_and_the_next_one_runs():
    said = in_process("""
executor = NativeExecutor(
    bind_random(SMALL, ("q8_0",)), pages=4, threads=1, taps=frozenset({(0, "q")})
)
tokens, span = np.arange(5, dtype=np.int32), (Span(0, 5, 0, np.zeros(1, np.int32)),)
few = StepInput(tokens, span, np.arange(5, dtype=np.int32))
before = executor.step(few).copy()
unlimited = resource.getrlimit(resource.RLIMIT_AS)
allow(64 << 20)
print(refusal(lambda: executor.step(StepInput(tokens, span, np.zeros(1 << 20, np.int32)))))
resource.setrlimit(resource.RLIMIT_AS, unlimited)
assert executor.tap(0, "q").shape[0] == 0
assert (executor.step(few) == before).all()
""")
    assert "no memory for a step of 5 rows with the logits of 1048576" in said


def test_a_refused_block_leaves_the_arena_as_it_was():
    in_process("""
MIB = 1 << 20
def packed(rows):
    stored = np.zeros((rows, 1024), np.float32)
    stored[-1] = rows
    return _native.PackedMatrix("f32", 1024, stored.view(np.uint8), arena=arena)

arena = _native.PackedArena()
first = packed(16)
unlimited = resource.getrlimit(resource.RLIMIT_AS)
stored = np.zeros((512 * 256, 1024), np.float32)  # 512 MiB of untouched memory
allow(128 * MIB)
try:
    _native.PackedMatrix("f32", 1024, stored.view(np.uint8), arena=arena)
    raise SystemExit("there was memory")
except MemoryError:
    pass
resource.setrlimit(resource.RLIMIT_AS, unlimited)
second = packed(80 * 256)  # 80 MiB: more than what is left of the first block of 64
assert (second.decode_row(80 * 256 - 1) == 80 * 256).all()
assert (first.decode_row(15) == 16).all()
""")


# --- forked -------------------------------------------------------------------------------------


def test_the_child_of_a_fork_runs_the_same_bits_alone():
    in_process("""
pool = thread_pool(3)
executor = NativeExecutor(bind_random(SMALL, ("q8_0",)), pages=4, threads=pool)
expected = run_alone(executor, track(100, [0, 1], seed=1), 100)
child = os.fork()
if child == 0:
    same = (run_alone(executor, track(100, [0, 1], seed=1), 9) == expected).all()
    del executor, pool  # joins nobody
    again = NativeExecutor(bind_random(SMALL, ("q8_0",)), pages=4, threads=2)
    same &= (run_alone(again, track(100, [0, 1], seed=1), 100) == expected).all()
    os._exit(0 if same else 1)
assert os.waitpid(child, 0)[1] == 0
assert (run_alone(executor, track(100, [0, 1], seed=1), 100) == expected).all()
""")


def test_a_fork_during_a_step_of_another_thread_leaves_a_pool_that_works():
    in_process("""
pool = thread_pool(2)
binding = bind_random(SMALL, ("q8_0",))
busy, idle = (NativeExecutor(binding, pages=4, threads=pool) for _ in range(2))
expected = run_alone(idle, track(20, [0], seed=1), 20)
stop = threading.Event()

def work():
    while not stop.is_set():
        run_alone(busy, track(200, [0, 1, 2, 3], seed=2), 200)

thread = threading.Thread(target=work)
thread.start()
for _ in range(10):
    child = os.fork()
    if child == 0:
        same = (run_alone(idle, track(20, [0], seed=1), 20) == expected).all()
        os._exit(0 if same else 1)
    assert os.waitpid(child, 0)[1] == 0
stop.set()
thread.join()
""")


# --- long-lived ---------------------------------------------------------------------------------


def status(field: str) -> int:
    """Return a number of /proc/self/status: `Threads`, or `VmRSS` in KiB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith(field)).split()[1])


def test_executors_that_are_gone_leave_no_threads_and_no_memory():
    binding = bind_random(SMALL, ("q8_0", "f32"))

    def live_and_die(times: int) -> None:
        for _ in range(times):
            executor = NativeExecutor(binding, pages=64, threads=3)
            run_alone(executor, track(30, [0], seed=1), 30)

    live_and_die(20)
    threads, memory = status("Threads"), status("VmRSS")
    live_and_die(100)
    assert status("Threads") == threads
    # A leak of one packed model, store page or stack a cycle would be above 20 MiB.
    assert status("VmRSS") - memory < 8 << 10


def test_logits_outlive_the_buffer_that_a_larger_step_replaces():
    executor = NativeExecutor(bind_random(SMALL, ("q8_0",)), pages=4, threads=2)
    tokens, span = np.arange(5, dtype=np.int32), (Span(0, 5, 0, np.zeros(1, np.int32)),)
    logits = executor.step(StepInput(tokens, span, np.arange(5, dtype=np.int32)))
    values = logits.copy()
    executor.step(StepInput(tokens, span, np.zeros(5000, np.int32)))
    del executor
    fillers = [np.full(size, 7.0, np.float32) for size in range(900, 1100)]  # reuse freed memory
    assert (logits == values).all()
    assert len(fillers) == 200


# --- wide ---------------------------------------------------------------------------------------


def test_chains_of_elementwise_ops_may_be_wider_than_a_unit():
    """Two caps over 40,000 columns, without a layer that could cut them, against float64."""
    width, outputs = 40_000, 16
    random = np.random.default_rng(0)
    embed, head = random.standard_normal((2, outputs, width)).astype(np.float32)
    packed = [_native.PackedMatrix("f32", width, m.view(np.uint8)) for m in (embed, head)]
    program = _native.Program(layers=0, vocabulary=outputs, context=64, cache_type="f16")
    x, side, once, twice, chosen = (program.buffer(n, False) for n in (width, 16, *[width] * 3))
    program.logits = program.buffer(outputs, False)
    program.embed(x, packed[0], 1.0)
    program.linear(side, x, packed[1], None, "f32")  # reads all of x: what follows is another stage
    program.softcap(once, x, 2.0)
    program.softcap(twice, once, 1.0)
    program.select_rows(chosen, twice)
    program.linear(program.logits, chosen, packed[1], None, "f32")
    executor = _native.Executor(program, 1, thread_pool(2), _native.available_isas()[0])
    tokens = np.arange(5, dtype=np.int32)
    logits = executor.step(tokens, [(0, 5, 0, np.zeros(1, np.int32), -1)], tokens)
    with pytest.raises(ValueError, match="span 0 must have a start, count, position, pages and"):
        executor.step(tokens, [(0, 5, 0, np.zeros(1, np.int32))], tokens)
    capped = np.tanh(2 * np.tanh(embed[:5].astype(np.float64) / 2))
    # A dot's error is below the number of its terms times 2^-24 of the sum of their magnitudes, in
    # truth near its square root times that; a tanh is within 3 ulp.
    bound = 2 * (np.sqrt(width) + 8) * 2.0**-24 * (np.abs(capped) @ np.abs(head.T))
    assert (np.abs(logits - capped @ head.T) <= bound).all()
