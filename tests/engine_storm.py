"""Random arrivals and cancellations on an engine short of pages, each compared with its own run."""

import random
from hashlib import blake2b

from engine_cases import GREEDY, VOCABULARY
from fakes import FakeDecoder, FakeExecutor

from fewbit.cache.pages import PagePool
from fewbit.cache.prefix import PrefixIndex
from fewbit.engine.engine import Engine
from fewbit.engine.request import Request, Speculation
from fewbit.engine.scheduler import Limits
from fewbit.engine.served import Served
from fewbit.engine.stop import StopCondition
from fewbit.errors import FewbitError
from fewbit.records.generation import FinishReason
from fewbit.runtime.step import PAGE
from fewbit.sampling import SamplingParams
from fewbit.speculate.controller import FixedLengths
from fewbit.speculate.drafts import NgramDraft

PARAMS = [
    GREEDY,
    GREEDY,
    SamplingParams(seed=1),
    SamplingParams(temperature=0.6, top_p=0.8, frequency_penalty=0.4, seed=2),
]


def requests(count, seed=0, vocabulary=VOCABULARY, longest=150):
    """Requests of which many begin alike, some along whole pages."""
    rng = random.Random(seed)
    texts = [[rng.randrange(vocabulary) for _ in range(longest)] for _ in range(3)]
    texts[1][PAGE : 2 * PAGE] = texts[0][PAGE : 2 * PAGE]  # equal pages after others that are not
    found = []
    for i in range(count):
        shared = rng.choice((0, 0, 0, PAGE, 2 * PAGE, rng.randrange(longest)))
        tail = [rng.randrange(vocabulary) for _ in range(rng.randrange(1, 20))]
        most = rng.randrange(90, 160) if i % 25 == 0 else rng.randrange(1, 11)
        stop = StopCondition(max_tokens=most, ids=frozenset([11] if most < 90 else []))
        prompt = (*rng.choice(texts)[:shared], *tail)
        found.append(Request(prompt, PARAMS[i % 4], stop, speculate=rng.random() < 0.6))
    return found


def short_digest(parent, tokens):
    """Two bits: collisions are the rule, so that comparing tokens has to sort pages out."""
    return bytes([blake2b(parent + tokens).digest()[0] & 3])


def fake_engine(pages=8, digest=short_digest, limits=None, draft=None):
    executor = FakeExecutor(VOCABULARY, pages=pages, repeat=3.0)
    served = Served(executor, VOCABULARY, 320, FakeDecoder)
    chosen = NgramDraft(longest=3, shortest=1) if draft is None else draft
    speculation = Speculation(chosen, 4, control=FixedLengths)
    running = Engine(served, speculation, limits=limits or Limits(rows=40, sequences=6))
    scheduler = running._scheduler
    scheduler.pool = PagePool(pages, PrefixIndex(digest))
    careful, dice = scheduler._has_room, random.Random(0)
    # Admission seldom has to set anybody back; here it is bold now and then.
    scheduler._has_room = lambda generation: dice.random() < 0.2 or careful(generation)
    return running


def alone(new_engine, asked):
    """Return each request's tokens and text when nothing else runs or ran."""
    found = []
    for request in asked:
        outputs = list(new_engine().generate([request]))
        found.append(([t for o in outputs for t in o.tokens], "".join(o.text for o in outputs)))
    return found


def sees(running, truth, asked, arrivals):
    """Whether a storm over an engine ends in an error, a wrong output or a page left."""
    try:
        storm = Storm(running, asked, truth).run(arrivals)
        storm.require_nothing_left()
    except (AssertionError, LookupError, ValueError, FewbitError):
        return True
    return bool(storm.wrong)


class Storm:
    """Drives an engine with random moves and collects what differs from the truth.

    Args:
        running: the engine.
        asked: requests, drawn from again and again.
        truth: what `alone` says of them.
        most: how many live at once; the rest come later.
    """

    def __init__(self, running, asked, truth, seed=0, most=14):
        self.running, self.asked, self.truth, self.most = running, asked, truth, most
        self.rng = random.Random(seed)
        self.live = {}
        self.cancelled = 0
        self.wrong = []

    def run(self, arrivals):
        steps = 20 * arrivals + 1000
        while arrivals or self.running.busy:
            steps -= 1
            assert steps, "it does not come to an end"
            for _ in range(self.rng.choice((0, 1, 1, 2, 6))):
                if arrivals and len(self.live) < self.most:
                    arrivals -= 1
                    self._add()
            if self.live and self.rng.random() < 0.07:
                self._cancel(self.rng.choice(list(self.live)))
            for output in self.running.step():
                self._take(output)
            assert len(self.wrong) < 100, "wrong from end to end"
        return self

    def _add(self):
        which = self.rng.randrange(len(self.asked))
        self.live[self.running.add(self.asked[which])] = (which, [], [])

    def _cancel(self, number):
        self.cancelled += 1
        if self.rng.random() < 0.5:
            self.running.cancel_soon(number)
        else:
            self._take(self.running.cancel(number))

    def _take(self, output):
        which, tokens, texts = self.live[output.request]
        tokens += output.tokens
        texts.append(output.text)
        if output.record is None:
            return
        del self.live[output.request]
        said, text = self.truth[which]
        if output.record.finish is FinishReason.CANCELLED:
            said, text = said[: len(tokens)], text[: len("".join(texts))]
        if (tokens, "".join(texts)) != (said, text):
            self.wrong.append(which)

    def require_nothing_left(self):
        pool = self.running._scheduler.pool
        assert not self.live
        assert pool.held == 0
        assert sorted([*pool._free, *pool._idle]) == list(range(pool.pages))
        assert set(pool._idle) == set(pool.index._digests)
        assert set(pool._holders) == {0}
