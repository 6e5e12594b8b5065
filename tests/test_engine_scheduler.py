"""Who runs when: admission, sharing, the stall, preemption, cancelling in every state."""

import threading

import pytest
from engine_cases import GREEDY, PARAMS, PROMPT, VOCABULARY, engine, plain_tokens, run, said
from fakes import FakeDecoder, FakeExecutor, FixedDraft

from fewbit.engine.engine import Engine
from fewbit.engine.pace import LEAST_PROMPT_ROWS
from fewbit.engine.request import Request
from fewbit.engine.scheduler import Limits
from fewbit.engine.served import Served
from fewbit.engine.stop import StopCondition
from fewbit.errors import RequestError
from fewbit.records.generation import FinishReason
from fewbit.runtime.step import PAGE
from fewbit.sampling import SamplingParams
from fewbit.speculate.drafts import NgramDraft

LONG = tuple(i * i % 29 for i in range(200))
OTHER = tuple(i * i % 23 for i in range(200))


def asking(prompt, tokens=20, params=GREEDY, **fields):
    return Request(prompt, params, StopCondition(max_tokens=tokens), **fields)


def pool(running):
    return running._scheduler.pool


def steps_until(running, holds, most=200):
    outputs = []
    for _ in range(most):
        outputs += running.step()
        if holds():
            return outputs
    raise AssertionError(f"nothing of the kind within {most} steps")


# --- sharing ------------------------------------------------------------------------------------


def test_a_conversation_begins_with_all_its_whole_pages():
    running = engine(repeat=2.0)
    stop = StopCondition(max_tokens=70)
    tokens, *_ = run(running, [Request(PROMPT, GREEDY, stop)])[0]
    longer = (*PROMPT, *tokens, 4, 4)
    before = len(running._served.executor.steps)
    warm = run(running, [Request(longer, GREEDY, stop)])
    cold = run(engine(repeat=2.0), [Request(longer, GREEDY, stop)])
    assert said(warm) == said(cold)
    assert warm[0][3].cached_tokens == (len(longer) - 3) // PAGE * PAGE == PAGE
    assert cold[0][3].cached_tokens == 0
    assert len(running._served.executor.steps[before].tokens) == len(longer) - PAGE


def test_running_requests_share_pages_and_change_nothing():
    running = engine()
    first = running.add(asking(LONG, 60))
    steps_until(running, lambda: running._scheduler.find(first).generated > 3)
    held = pool(running).held
    second = running.add(asking((*LONG[:150], 1, 2, 3), 60))
    running.step()
    assert pool(running).held == held + 1
    assert running._scheduler.find(second).cached == 2 * PAGE
    outputs = []
    while running.busy:
        outputs += running.step()
    tokens = [t for o in outputs if o.request == second for t in o.tokens]
    alone = run(engine(), [asking((*LONG[:150], 1, 2, 3), 60)])[0][0]
    assert alone[-len(tokens) :] == tokens


def test_prompts_that_begin_alike_are_read_once():
    requests = [asking(LONG, 10, PARAMS["sampled"], sample=i) for i in range(16)]
    running = engine(limits=Limits(rows=64))
    together = run(running, requests)
    assert said(together) == said([run(engine(), [request])[0] for request in requests])
    rest = len(LONG) - 3 * PAGE
    read = sum(len(step.tokens) for step in running._served.executor.steps)
    assert read == len(LONG) + 15 * rest + 16 * 9
    assert sum(record.cached_tokens for *_, record in together) == 15 * 3 * PAGE


def test_drafted_tokens_that_were_rejected_are_not_shared():
    """A draft fills a page with tokens that the target rejects; others need that page then."""
    whole = [*LONG[:60], *run(engine(), [asking(LONG[:60], 30)])[0][0]]
    wrong = FixedDraft(lambda seen, length: [(whole[len(seen)] + 1) % VOCABULARY] * length)
    running = engine(wrong)
    first = run(running, [asking(LONG[:60], 25)])[0][0]
    assert first == whole[60:85]
    assert pool(running).idle == 1
    for text in (whole[:66], [*whole[:61], *[(whole[61] + 1) % VOCABULARY] * 9]):
        request = asking(tuple(text), 10)
        assert said(run(running, [request])) == said(run(engine(), [request]))


def test_a_draft_is_cut_to_the_pages_that_are_there_whatever_its_length():
    """A draft that is over early fits where a longer one does not.

    Were the longer one left out, the tokens that end a draft would be verified and the others drawn
    afresh: without a seed that draws the former too often.
    """
    longest = 6
    nothing_fits = FixedDraft(lambda seen, length: [seen[-1]] * length)
    running = engine(nothing_fits, pages=4, longest=longest)
    run(running, [asking(LONG[:50], 90), asking(OTHER[:50], 90)])
    at_the_end = [
        (span.position, span.count)
        for step in running._served.executor.steps
        for span in step.spans
        if 2 * PAGE - longest <= span.position < 2 * PAGE
        and not set(range(4)) - {p for other in step.spans for p in other.pages.tolist()}
    ]
    assert len(at_the_end) >= 4
    assert all(count == 2 * PAGE - position for position, count in at_the_end)


# --- admission and preemption -------------------------------------------------------------------


def test_a_request_waits_until_what_all_claim_is_free():
    """6 pages: the first claims 4 of text and 1 to grow in, so the second's 2 are not there."""
    running = engine(pages=6, limits=Limits(rows=64))
    running.add(asking(LONG, 100))
    second = running.add(asking(OTHER[:70], 5))
    third = running.add(asking((1,), 5))
    running.step()
    waiting = running._scheduler.find(second)
    assert waiting.meter.started is None
    outputs = steps_until(running, lambda: not running.busy)
    starts = {o.request: o.record.times.queue for o in outputs if o.record}
    assert starts[0] < starts[second]
    assert starts[0] < starts[third]
    assert running.record.preemptions == 0


def test_the_latest_is_set_back_and_found_again_cheaply():
    running = engine(pages=6)
    requests = [asking(LONG[:60], 150), asking(OTHER[:60], 150), asking(LONG[:50], 150)]
    together = run(running, requests)
    assert said(together) == said([run(engine(), [request])[0] for request in requests])
    counts = [record.preemptions for *_, record in together]
    assert counts[0] == 0 < counts[1]
    assert sum(counts) == running.record.preemptions
    assert all(record.cached_tokens == 0 for *_, record in together)
    least = sum(len(r.prompt) + 149 for r in requests)
    assert least < running.record.rows < least + 64 * 3 * sum(counts)


@pytest.mark.parametrize("pages", [4, 5, 6, 7])
def test_everything_ends_where_pages_are_as_few_as_can_be(pages):
    """Each step brings the first arrival on, so steps are bounded by rows of one after another."""
    running = engine(NgramDraft(), pages=pages, limits=Limits(rows=8, sequences=8), repeat=3.0)
    requests = [asking(text[:n], 240 - n) for n in (1, 60, 130, 180) for text in (LONG, OTHER)]
    found = run(running, requests)
    assert said(found) == said([run(engine(repeat=3.0), [request])[0] for request in requests])
    assert running.record.steps <= 8 * 240
    assert pool(running).held == 0


def test_a_prompt_beyond_the_store_is_refused_with_numbers():
    words = r"prompt has 128 tokens and the context holds 128 .*model's 400.*2 pages of 64"
    with pytest.raises(RequestError, match=words):
        engine(pages=2).add(asking(LONG[:128]))


# --- the stall ----------------------------------------------------------------------------------


class TimedExecutor(FakeExecutor):
    """Takes a known time for each step, on a clock of its own."""

    now = 0.0
    base, row = 0.010, 0.001

    def step(self, step):
        self.now += self.base + self.row * len(step.tokens)
        return super().step(step)


def timed(stall, **costs):
    executor = TimedExecutor(VOCABULARY, pages=200)
    executor.__dict__.update(costs)
    served = Served(executor, VOCABULARY, 4000, FakeDecoder)
    return Engine(served, limits=Limits(stall=stall), clock=lambda: executor.now)


def test_decoding_never_waits_longer_than_the_stall_for_prompts():
    running = timed(0.1)
    list(running.generate([asking(LONG, 2)]))  # it learns what rows cost
    decoding = running.add(asking(PROMPT, 300))
    steps_until(running, lambda: running._scheduler.find(decoding).generated > 2)
    numbers = [running.add(asking(tuple(i % p for i in range(2000)), 2)) for p in (29, 23)]
    record = None
    mixed = []
    while record is None:
        before = running._clock()
        outputs = running.step()
        mixed.append(running._clock() - before)
        assert decoding in {o.request for o in outputs}
        record = next((o.record for o in outputs if o.request == decoding), None)
    assert all(running._scheduler.find(number) is None for number in numbers)
    assert max(mixed) <= 0.1 + 1e-9  # the clock's sums are rounded
    assert max(record.times.gaps) <= 0.1 + 1e-9
    assert sorted(mixed)[-20] > 0.08  # and the room is used


def test_prompts_get_on_although_decoding_alone_exceeds_the_stall():
    running = timed(0.005)
    running.add(asking(PROMPT, 60))
    running.step()
    running.add(asking(LONG, 5))
    steps_until(running, lambda: len(running._scheduler.decoding()) == 2, 40)
    rows = [len(step.tokens) for step in running._served.executor.steps[1:]]
    assert max(rows) == 1 + LEAST_PROMPT_ROWS


@pytest.mark.parametrize("stall", [1e-9, 0.03, 1000.0])
def test_the_stall_changes_no_output(stall):
    requests = [asking(LONG[:n], 30, PARAMS["penalties"]) for n in (5, 170, 66, 199)]
    assert said(run(timed(stall), requests)) == said(run(timed(0.1), requests))


# --- cancelling ---------------------------------------------------------------------------------


def states():
    """Engines with a request in a state, and its number."""
    queued = engine(pages=6, limits=Limits(rows=64))
    queued.add(asking(LONG, 100))
    number = queued.add(asking(OTHER, 5))
    queued.step()
    assert queued._scheduler.find(number).meter.started is None
    yield "queued", queued, number
    prompt = engine(limits=Limits(rows=64))
    number = prompt.add(asking(LONG))
    prompt.step()
    assert 0 < prompt._scheduler.find(number).computed < len(LONG)
    yield "prompt", prompt, number
    decode = engine(NgramDraft(shortest=1), repeat=6.0)
    number = decode.add(asking(PROMPT, 100))
    steps_until(decode, lambda: decode._scheduler.find(number).meter.blocks > 1)
    yield "decode", decode, number
    back = engine(pages=6)
    back.add(asking(LONG[:60], 200))
    number = back.add(asking(OTHER[:60], 200))
    generation = back._scheduler.find(number)
    steps_until(back, lambda: generation.meter.preemptions == 1 and len(generation.table) == 0)
    yield "set back", back, number


@pytest.mark.parametrize("soon", [False, True])
@pytest.mark.parametrize("state", ["queued", "prompt", "decode", "set back"])
def test_cancelling_frees_pages_within_a_step_in_every_state(state, soon):
    running, number = next((e, n) for name, e, n in states() if name == state)
    own = set(running._scheduler.find(number).table.array)
    if soon:
        running.cancel_soon(number)
        last = next(o for o in running.step() if o.request == number)
    else:
        last = running.cancel(number)
    assert last.record.finish is FinishReason.CANCELLED
    assert own <= {*pool(running)._free, *pool(running)._idle}
    assert running.cancel(number) is None
    for neighbour in list(running._scheduler._everyone):
        running.cancel(neighbour)
    assert not running.busy
    assert pool(running).held == 0


def test_another_thread_may_add_and_cancel_while_a_step_runs():
    class Inviting(FakeExecutor):
        visit = None

        def step(self, step):
            if self.visit is not None:
                visitor = threading.Thread(target=self.visit)
                self.visit = None
                visitor.start()
                visitor.join()
            return super().step(step)

    executor = Inviting(VOCABULARY)
    running = Engine(Served(executor, VOCABULARY, 400, FakeDecoder))
    first, second = running.add(asking(PROMPT, 40)), running.add(asking(PROMPT, 40))
    added = []

    def visit():
        running.cancel_soon(first)
        added.append(running.add(asking(PROMPT, 40)))

    running.step()
    executor.visit = visit
    said_of_first = running.step()
    assert first in {o.request for o in said_of_first}
    after = running.step()
    assert next(o for o in after if o.request == first).record.finish is FinishReason.CANCELLED
    rest = [*after]
    while running.busy:
        rest += running.step()
    for number in (second, added[0]):
        tokens = [t for o in rest if o.request == number for t in o.tokens]
        assert tokens == plain_tokens(40)[-len(tokens) :]
    assert pool(running).held == 0


def test_cancelling_keeps_what_was_generated():
    running = engine(NgramDraft())
    number = running.add(Request(PROMPT, GREEDY))
    seen = []
    for _ in range(10):
        for output in running.step():
            seen += output.tokens
    last = running.cancel(number)
    assert last.record.finish is FinishReason.CANCELLED
    assert last.record.generated_tokens == len(seen) > 5
    assert not running.busy
    assert running.cancel(number) is None
    assert pool(running).free == 64


@pytest.mark.parametrize("stage", ["_measure", "_postprocess", "_accept"])
def test_what_is_interrupted_after_its_draw_says_nothing_that_was_not_drawn(stage, monkeypatch):
    """Ctrl-C on one stream: samplers remember tokens that nobody took, penalties count them."""
    params = SamplingParams(temperature=0, frequency_penalty=2.0)
    asked = [Request(PROMPT, params, StopCondition(40), sample=i) for i in range(2)]
    plain = run(engine(), asked[:1])[0][0]
    running = engine()
    numbers, found = [running.add(request) for request in asked], {}
    for _ in range(6):
        keep(running.step(), found)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(running, stage, interrupted)
        with pytest.raises(KeyboardInterrupt):
            running.step()
    while running.busy:
        keep(running.step(), found)
    for number in numbers:
        tokens, record = found[number]
        assert tokens == plain[: len(tokens)]
        assert record.finish is FinishReason.CANCELLED
    assert pool(running).held == 0


def keep(outputs, found):
    """Add what a step brought to tokens and record by number."""
    for output in outputs:
        tokens, _ = found.get(output.request, ([], None))
        found[output.request] = ([*tokens, *output.tokens], output.record)


def test_leaving_the_loop_frees_everything():
    running = engine(FixedDraft(lambda seen, length: [1] * length))
    for output in running.generate([Request(PROMPT, GREEDY), Request(PROMPT, GREEDY)]):
        if output.tokens:
            break
    assert not running.busy
    assert pool(running).free == 64


# --- totals -------------------------------------------------------------------------------------


def test_an_engine_counts_what_it_did():
    running = engine(pages=10)
    run(running, [asking(LONG, 10)])
    run(running, [asking(LONG, 10)])
    record = running.record
    assert (record.requests, record.prompt_tokens, record.cached_tokens) == (2, 400, 3 * PAGE)
    assert record.steps == 20
    assert record.rows == 200 + 9 + 8 + 9
    assert (record.pages, record.pages_held, record.pages_peak, record.pages_idle) == (10, 0, 4, 3)
    assert record.evictions == record.preemptions == 0
