"""Which exact rule judges a proposal: a matter of the request and of what the draft returned."""

from __future__ import annotations

from enum import Enum

from fewbit.sampling import SamplingParams


class Verifier(Enum):
    """An exact rule that accepts a prefix of a proposal and corrects the token after it.

    None of them changes the target's distribution.
    """

    MATCH = "match"
    """The target draws from each row as it would without a draft; a drafted token is accepted when
    it equals that. The output is the plain output, bit for bit, whatever drafts. A draft that draws
    uses the same numbers for the same positions (`Purpose.TOKEN`), so that the two often agree."""

    TOKEN = "token"
    """Rejection token by token; the draft draws with `Purpose.DRAFT` and says from what."""

    BLOCK = "block"
    """Rejection of a whole block's ending, which accepts at least as much; drawn as for `TOKEN`."""

    @property
    def couples(self) -> bool:
        """Whether draft and target share the noise of a position."""
        return self is Verifier.MATCH


def verifier_for(params: SamplingParams) -> Verifier:
    """Return how a request's proposals are to be drawn and judged.

    A seed asks for the same output with any draft or none, and a greedy request has no other
    output; without either, rejection accepts more of what a draft draws.
    """
    return Verifier.MATCH if params.greedy or params.seed is not None else Verifier.BLOCK
