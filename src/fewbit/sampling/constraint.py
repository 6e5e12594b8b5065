"""What tokens may follow a text beyond what the model and the request make of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray


class Constraint(Protocol):
    """Follows one sequence and says which tokens may come next."""

    @property
    def problem(self) -> str:
        """Why nothing may come any more, complete or not; empty where all is well."""
        ...

    def masks(self, draft: Sequence[int]) -> NDArray[np.int32]:
        """Return which tokens may follow the text and each prefix of a draft.

        int32 [len(draft) + 1, words]: bit i % 32 of word i // 32 is set where id i may follow. Rows
        behind a drafted token that may not come there mean nothing. The text stays as it is.
        """
        ...

    def advance(self, tokens: Sequence[int]) -> None:
        """Add tokens to the text."""
        ...

    def fork(self) -> Constraint:
        """Return a copy that goes its own way."""
        ...
