"""`fewbit pair`: whether a draft fits a target, before anything is run."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from fewbit.cli.output import JsonOption


def pair(
    target: Annotated[str, Parameter(name="TARGET")],
    draft: Annotated[str, Parameter(name="DRAFT")],
    /,
    *,
    json: JsonOption = None,
) -> int:
    """Say whether a draft model fits a target, and name every difference.

    Exit code 0 is usable, as it is or with mapped tokens, 3 not usable.

    Args:
        target: The model whose output is wanted: a name, a GGUF file or a folder.
        draft: The model that is to guess, as it is or prepared (`fewbit draft prepare`).
        json: Write the record to this file; - prints it on stdout instead of the table.
    """
    from fewbit.cli.output import deliver
    from fewbit.cli.pull import locate
    from fewbit.model.weights import open_draft_model, open_model
    from fewbit.report.pair import print_pair
    from fewbit.speculate.pair import check_pair
    from fewbit.speculate.pair_member import member_of

    with open_model(locate(target)) as ours, open_draft_model(locate(draft)) as theirs:
        report = check_pair(member_of(ours), member_of(theirs))
    deliver(report, json, print_pair)
    return report.verdict.exit_code
