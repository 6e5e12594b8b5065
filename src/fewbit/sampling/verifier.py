"""How a drafted block is judged."""

from __future__ import annotations

from enum import Enum


class Verifier(Enum):
    """An exact rule that accepts a prefix of a proposal and corrects the token after it.

    None of them changes the target's distribution.
    """

    MATCH = "match"
    """The target draws from each row as it would without a draft; a drafted token is accepted when
    it equals that. The output is the plain output, bit for bit, whatever drafts. A draft that draws
    uses the same numbers for the same positions (`Purpose.TOKEN`), so that the two often agree."""

    TOKEN = "token"
    """Rejection token by token; the draft draws with `Purpose.DRAFT` and says from what. It judges
    several candidates for a position too, drawn without replacement."""

    BLOCK = "block"
    """Rejection of a whole block's ending, which accepts at least as much; drawn as for `TOKEN`."""

    @property
    def couples(self) -> bool:
        """Whether draft and target share the noise of a position."""
        return self is Verifier.MATCH
