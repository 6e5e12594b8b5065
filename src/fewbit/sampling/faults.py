"""Why no token can be drawn from a row."""

from __future__ import annotations

from fewbit.errors import FewbitError, NumericalError, RequestError


def drawing_fault(kind: str, token: int, value: float, problem: str = "") -> FewbitError:
    """Return the error for a row of logits.

    Args:
        kind: `not_finite` or `all_masked`.
        token: where.
        value: the logit there.
        problem: of the request's constraint, which then allowed no token.
    """
    if kind == "not_finite":
        return NumericalError(
            f"the logit of token {token} is {value}; check the model's weights with "
            "'fewbit inspect'."
        )
    if problem:
        return RequestError(problem)
    return NumericalError(
        "every token is banned, so none can be drawn; allow at least one of those that the grammar "
        "allows, if there is one, in logit_bias."
    )
