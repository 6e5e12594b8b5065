"""One finished sequence kept in the store, for a next request that begins like it."""

from __future__ import annotations

from collections.abc import Sequence

from fewbit.cache.pages import PageTable


class KeptPrefix:
    """Holds the pages of the sequence that finished last, as a conversation needs them.

    Only verified positions are kept, so a prefix from here equals one computed anew (row
    invariance: a row's bits do not depend on how its predecessors came to be in the store).
    """

    def __init__(self) -> None:
        self._tokens: list[int] = []
        self._table: PageTable | None = None

    def keep(self, tokens: Sequence[int], table: PageTable) -> None:
        """Take over the pages of `tokens`, whose keys and values all lie in the store."""
        self.drop()
        table.roll_back(len(tokens))
        self._tokens, self._table = list(tokens), table

    def take(self, prompt: Sequence[int]) -> tuple[int, PageTable] | None:
        """Hand over the pages of the common beginning, at most all of `prompt` but its last token.

        Returns:
            The number of positions already computed, and the table that now belongs to the caller;
            None where nothing is kept or nothing is shared.
        """
        shared = _common(self._tokens, prompt[:-1])
        if self._table is None or shared == 0:
            return None
        table, self._table, self._tokens = self._table, None, []
        table.roll_back(shared)
        return shared, table

    def drop(self) -> bool:
        """Give the pages back; return whether there were any."""
        if self._table is None:
            return False
        self._table.roll_back(0)
        self._table, self._tokens = None, []
        return True


def _common(first: Sequence[int], second: Sequence[int]) -> int:
    for i, (a, b) in enumerate(zip(first, second, strict=False)):
        if a != b:
            return i
    return min(len(first), len(second))
