"""Draft lengths over a run: what is known of costs and acceptance, turned into each step's lengths.

The engine asks before each step, and tells what became of it; no clock is read here.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from fewbit.errors import UsageError
from fewbit.records.costs import CostTable
from fewbit.speculate.costs import CostModel, Shape
from fewbit.speculate.ledger import EXPLORATION_STEPS, Account, Ledger
from fewbit.speculate.length import (
    LEAST_GAIN,
    STAY,
    Choice,
    DraftPrices,
    Prices,
    best_choice,
    describe_choice,
    describe_hopeless,
    least_loss,
    promise,
)
from fewbit.speculate.planned import Ask, LengthChange, Plan, SequenceLength
from fewbit.speculate.survival import Acceptance, SequenceSurvival
from fewbit.speculate.tree_shape import SiblingAcceptance, TreeShape, best_tree, spread

_KEEP_OWN, _KEEP_POOL = 0.95, 0.98
_CHOOSING, _CHOOSING_SHARE = 25e-6, 0.005
"""Choosing takes about so many seconds a sequence. Where no draft pays it rests for as many steps
as make that this share of the time."""
_LONGEST_REST = 64
_GOOD = 0.9
"""Acceptance of a draft that is very good; where such a one would not pay, none is tried."""
_HEARING = 6
"""Blocks that are verified before a draft that seems poor is left alone."""
_FIRST_CHECK, _CHECK_STEPS = 16, 64
"""So many steps with drafts are followed by one without: what a plain step takes may change."""
_LINDY, _USUAL = 64, 256
"""A text is expected to go on for as many tokens as it has and the first number, or for half of
those that it may have, up to the second."""


class LengthController:
    """Chooses the draft lengths of an engine's sequences, step by step, within the bound on cost.

    Args:
        longest: the most tokens ever drafted at once for a sequence.
        table: measured costs; None to learn them from the run's own steps.
        parts: names of the drafts that are asked by themselves: of a combined one its parts. Costs
            and acceptance of each are kept apart, so that one that does not pay is not asked.

    Raises:
        UsageError: `longest` is below 1, or the table is of other parts.
    """

    predicts = True
    """Whether lengths are chosen by what they promise, so that it can be held against what came."""

    def __init__(
        self, longest: int, table: CostTable | None = None, parts: Sequence[str] = ("",)
    ) -> None:
        if longest < 1:
            raise UsageError(f"the longest draft is {longest} tokens; it must be at least 1.")
        self.longest = longest
        self.costs = CostModel(table, len(parts))
        self._parts = parts
        self._ledger = Ledger()
        self._pools = [Acceptance(longest, _KEEP_POOL) for _ in parts]
        self._rest = self._since_plain = self._tried = 0
        self._budgeted = self._read_granted = False
        self._age = -1
        self._chosen_for: list[tuple[SequenceLength, int]] = []
        self._shapes: tuple[TreeShape, ...] = ()
        self._siblings: dict[int, SiblingAcceptance] = {}

    @property
    def account(self) -> Account:
        """What speculation cost and gained so far."""
        return self._ledger.account

    def sequence(self) -> SequenceLength:
        """Return what is to be kept of a new sequence; it inherits what others have shown."""
        self._rest = 0
        own = [Acceptance(self.longest, _KEEP_OWN) for _ in self._pools]
        survivals = tuple(map(SequenceSurvival, self._pools, own))
        return SequenceLength(survivals, [0] * len(own))

    def rests(self) -> bool:
        """Whether nothing is to be drafted in this step, which then need not be asked about."""
        if not self.costs.known:
            return True
        self._rest -= 1
        longest = _CHECK_STEPS if self.costs.checked else _FIRST_CHECK
        return self._rest >= 0 or self._since_plain >= longest

    def choose(self, options: Sequence[Ask]) -> Ask:
        """Return which part to ask for a sequence.

        Args:
            options: one for each part that may be asked for it, the cheapest first. That one is
                taken where no other is known to promise more.
        """
        known = [ask for ask in options if self.costs.knows(ask.part)]
        if len(known) < 2 or known[0] is not options[0]:
            return options[0]
        return max(known, key=self._promised)

    def _promised(self, ask: Ask) -> float:
        """Return the gain that drafts for this sequence promise, as if it were served alone."""
        curves = [ask.survival.curve(ask.longest)]
        prices = self._prices([ask], curves, Shape(1, ask.position, ask.position))
        return best_choice(curves, prices, decoding=1).gain

    def plan(self, asks: Sequence[Ask], plain: Shape, decoding: int) -> Plan:
        """Return how many tokens to draft for each sequence.

        Args:
            asks: sequences that may have a draft, each with the part that would be asked.
            plain: the step without drafts.
            decoding: sequences that decode in it.
        """
        if plain.rows == decoding and self._stands(asks):
            self._age += 1
            lengths = tuple(min(ask.state.lengths[ask.part], ask.longest) for ask in asks)
            return Plan(lengths, shapes=self._shapes)
        self._shapes = ()
        self._set_budget(plain._replace(rows=decoding))
        known = [self.costs.knows(ask.part) for ask in asks]
        if not all(known):
            first = self._first_call(asks, known)
            if any(first.lengths) or not any(known):
                return first
            asks = [
                ask if k else replace(ask, longest=0) for ask, k in zip(asks, known, strict=True)
            ]
        if plain.rows > decoding:
            asks = [self._awake(ask) for ask in asks]
        curves = [ask.survival.curve(ask.longest) for ask in asks]
        prices = self._prices(asks, curves, plain)
        before = [ask.state.lengths[ask.part] for ask in asks]
        wanted = best_choice(curves, prices, decoding=decoding, before=before)
        self._grant_first_reading(wanted.lengths, asks)
        lengths = self._affordable(wanted.lengths, asks, prices)
        choice = promise(lengths, curves, prices, decoding)
        choice = self._with_branches(choice, asks, curves, prices, plain)
        if choice.gain < LEAST_GAIN:
            self._shapes = ()  # an earlier choice may stand again, for other sequences
            self._note(asks, promise([0] * len(asks), curves, prices, decoding), prices)
            return self._trial(asks, curves, prices, decoding)
        self._note(asks, choice, prices)
        self._age, self._chosen_for = 0, [(ask.state, ask.part) for ask in asks]
        return Plan(choice.lengths, shapes=self._shapes)

    def siblings(self, part: int) -> SiblingAcceptance:
        """Return how the branches of a part of the draft fared."""
        return self._siblings.setdefault(part, SiblingAcceptance())

    def _with_branches(
        self,
        chain: Choice,
        asks: Sequence[Ask],
        curves: Sequence[Sequence[float]],
        prices: Prices,
        plain: Shape,
    ) -> Choice:
        """Return a choice of a tree where that promises more than the chain, or the chain's.

        Beside other sequences rows are dear, and a chain's own are worth more than a branch's.
        """
        if plain.rows > 1 or not (asks[0].branches and asks[0].reach and curves[0]):
            return chain
        (ask,), (curve,) = asks, curves
        rows = len(curve) + ask.branches * ask.reach
        prices = replace(prices, step=self.costs.steps(plain, rows))
        tree = best_tree(
            curve, self.siblings(ask.part).rates(ask.branches), prices, ask.branches, ask.reach
        )
        gain = tree.tokens / tree.seconds * prices.step[0]
        worst = self._worst((tree.length,), asks, prices)
        worst += prices.step[tree.length + tree.shape.rows] - prices.step[tree.length]
        if gain < STAY * chain.gain or not tree.shape.rows or not self._ledger.allows(worst):
            return chain
        self._shapes = (tree.shape,)
        return Choice((tree.length,), tree.tokens, tree.seconds, gain)

    def _stands(self, asks: Sequence[Ask]) -> bool:
        """Whether the last choice stands: nothing was verified since, for the same sequences.

        A draft that looks tokens up has none for many steps in a row; they are not worth a choice.
        Asking in vain costs a little too, for which there must be room within the bound.
        """
        return (
            0 <= self._age < _LONGEST_REST
            and self._ledger.allows(0.0)
            and [(ask.state, ask.part) for ask in asks] == self._chosen_for
            and not any(self._sleeps(ask) for ask in asks)
        )

    def settle(self, *, spent: float, worth: float, trial: bool) -> None:
        """Add a step with drafts to the account; arguments as `Ledger.add`."""
        self._since_plain += 1
        self._age = -1
        self._ledger.add(spent, worth, trial=trial)

    def settle_plain(self, seconds: float, *, wasted: float) -> None:
        """Add a step without drafts to the account, and what asking for drafts in vain took."""
        self._since_plain = 0
        self._ledger.add(seconds + wasted, seconds, trial=False)

    def _set_budget(self, plain: Shape) -> None:
        if not self._budgeted:
            self._ledger.grant(EXPLORATION_STEPS * self.costs.plain(plain))
            self._budgeted = True

    def _first_call(self, asks: Sequence[Ask], known: Sequence[bool]) -> Plan:
        """Have one token drafted by a part whose costs are not known, to see them.

        For the sequence with the least to read.
        """
        new = [i for i, k in enumerate(known) if not k]
        chosen = min(new, key=lambda i: asks[i].unread)
        ask = asks[chosen]
        if self._ledger.allows(self.costs.drafting((1,), ask.unread, ask.part)):
            return Plan(tuple(int(i == chosen) for i in range(len(asks))), trial=True)
        return Plan((0,) * len(asks))

    def _sleeps(self, ask: Ask) -> bool:
        """Whether the draft does not follow this sequence, so that it has a text to read first."""
        return ask.unread > self.longest + 1

    def _awake(self, ask: Ask) -> Ask:
        """Return an ask for no draft where a text would have to be read first.

        While the target reads prompts, a step is so long that a draft's reading seems cheap.
        """
        return replace(ask, longest=0) if self._sleeps(ask) else ask

    def _prices(
        self, asks: Sequence[Ask], curves: Sequence[Sequence[float]], plain: Shape
    ) -> Prices:
        costs = self.costs
        return Prices(
            step=costs.steps(plain, sum(map(len, curves))),
            row=[costs.looking_back(ask.position) for ask in asks],
            start=[
                costs.reading(ask.unread, ask.part) / self._steps_to_come(ask, curve)
                for ask, curve in zip(asks, curves, strict=True)
            ],
            part=[ask.part for ask in asks],
            drafts=[self._draft_prices(part, len(asks)) for part in range(len(self._parts))],
        )

    def _draft_prices(self, part: int, most: int) -> DraftPrices:
        costs = self.costs
        empty = costs.drafting((0,), 0, part)
        drafting = (costs.drafting((n + 1,), 0, part) - empty for n in range(most))
        return DraftPrices(empty, [0.0, *drafting])

    def _steps_to_come(self, ask: Ask, curve: Sequence[float]) -> float:
        """Return over how many steps the reading of a sequence's tokens is spread.

        A draft that follows its sequence reads a few tokens for every step. One that has yet to
        read the prompt does so once, for all the steps that are still expected.
        """
        if not self._sleeps(ask):
            return 1.0
        expected = max(ask.generated + _LINDY, min(ask.left / 2, _USUAL))
        return max(min(ask.left, expected) / (1.0 + sum(curve)), 1.0)

    def _affordable(
        self, lengths: Sequence[int], asks: Sequence[Ask], prices: Prices
    ) -> tuple[int, ...]:
        """Return the lengths without those that could break the bound on what drafting may cost."""
        kept = list(lengths)
        unread = [ask.unread if self._sleeps(ask) else 0 for ask in asks]
        while any(kept):
            if self._ledger.allows(self._worst(kept, asks, prices)):
                break
            dearest = max((i for i, n in enumerate(kept) if n), key=lambda i: unread[i])
            if not unread[dearest]:
                kept = [0] * len(kept)
            kept[dearest] = 0
        return tuple(kept)

    def _worst(self, lengths: Sequence[int], asks: Sequence[Ask], prices: Prices) -> float:
        """Return the seconds beyond a plain step that drafts take, all reading at once."""
        sleeping = [i for i, n in enumerate(lengths) if n and self._sleeps(asks[i])]
        reading = sum(self.costs.reading(asks[i].unread, asks[i].part) for i in sleeping)
        spread = sum(prices.start[i] for i in sleeping)
        return prices.of(lengths) - prices.step[0] + reading - spread

    def _grant_first_reading(self, lengths: Sequence[int], asks: Sequence[Ask]) -> None:
        """Let the budget cover one prompt: without reading one nothing is ever known of a draft."""
        asked = [ask for ask, n in zip(asks, lengths, strict=True) if n]
        waiting = [self.costs.reading(ask.unread, ask.part) for ask in asked if self._sleeps(ask)]
        if waiting and not self._read_granted:
            self._ledger.grant(min(waiting))
            self._read_granted = True

    def _trial(
        self,
        asks: Sequence[Ask],
        curves: Sequence[Sequence[float]],
        prices: Prices,
        decoding: int,
    ) -> Plan:
        """Try the least bad draft, if it is time for that; rest otherwise.

        A draft has a fair hearing at the budget's cost: a few blocks tell little about it. But
        where even a very good one would not pay there is nothing to find out.
        """
        good = [[_GOOD**j for j in range(1, len(curve) + 1)] for curve in curves]
        self._tried += 1
        open_to = self._followed(asks, curves)
        least = least_loss(open_to, prices, decoding=decoding, turn=self._tried)
        if not any(best_choice(good, prices, decoding=decoding).lengths):
            self._note_hopeless(asks, prices)
        elif least is not None:
            kept = self._affordable(least.lengths, asks, prices)
            part = next(a.part for a, n in zip(asks, least.lengths, strict=True) if n)
            heard = self._pools[part].blocks >= _HEARING
            worst = self._worst(kept, asks, prices)
            if any(kept) and (not heard or self._ledger.allows_trial(worst)):
                return Plan(kept, trial=True)
        choosing = _CHOOSING * (1 + len(asks))
        rest = math.ceil(choosing / (_CHOOSING_SHARE * prices.step[0]))
        self._rest = min(rest, _LONGEST_REST)
        return Plan((0,) * len(asks))

    def _followed(
        self, asks: Sequence[Ask], curves: Sequence[Sequence[float]]
    ) -> Sequence[Sequence[float]]:
        """Return the curves with none for sequences that the draft would have to begin to read.

        Where it follows no sequence yet, all of them: one text is read for a trial, not another
        one for each.
        """
        awake = [
            () if self._sleeps(ask) else curve for ask, curve in zip(asks, curves, strict=True)
        ]
        return awake if any(awake) else curves

    def _note_hopeless(self, asks: Sequence[Ask], prices: Prices) -> None:
        """Say once for a sequence why it has no draft though none was tried."""
        for ask in asks:
            if ask.longest and not ask.state.changes:
                reason = self._named(ask, describe_hopeless(prices))
                ask.state.changes.append(LengthChange(ask.generated, 0, reason))

    def _note(self, asks: Sequence[Ask], choice: Choice, prices: Prices) -> None:
        """Keep each sequence's length, and the reason where it is a new one."""
        for ask, length in zip(asks, choice.lengths, strict=True):
            before = ask.state.lengths[ask.part]
            # Near the end of a text, or of the draft's context, there is no room for a decision.
            if length == before or ask.longest < before:
                continue
            reason = self._named(ask, describe_choice(ask.survival.rates(), length, choice, prices))
            ask.state.changes.append(LengthChange(ask.generated, length, reason))
            ask.state.lengths[ask.part] = length

    def _named(self, ask: Ask, reason: str) -> str:
        """Return a reason with the name of the part where there are several."""
        return reason if len(self._parts) == 1 else f"{self._parts[ask.part]}: {reason}"


class FixedLengths(LengthController):
    """Drafts as many tokens and branches as can be of use, always; for tests and certificates."""

    predicts = False

    def choose(self, options: Sequence[Ask]) -> Ask:
        """Return the first."""
        return options[0]

    def rests(self) -> bool:
        """Return False."""
        return False

    def plan(self, asks: Sequence[Ask], plain: Shape, decoding: int) -> Plan:
        """Return the longest draft for each sequence."""
        return Plan(
            tuple(ask.longest for ask in asks),
            shapes=tuple(spread(ask.branches, ask.longest, ask.reach) for ask in asks),
        )
