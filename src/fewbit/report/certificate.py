"""A certificate on a terminal."""

from __future__ import annotations

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from fewbit.records.certificate import Acceptance, Certificate, SamplingCheck, Standing

_COLOURS = {
    Standing.CERTIFIED: "green",
    Standing.NOT_CERTIFIED: "red",
    Standing.INCONCLUSIVE: "yellow",
}


def print_certificate(certificate: Certificate, console: Console) -> None:
    """Print every check, whose distribution is preserved, and the standing last."""
    console.print(
        f"[bold]{escape(certificate.draft)}[/] drafting for "
        f"[bold]{escape(certificate.target.name)}[/]",
        highlight=False,
    )
    for table in (_equality(certificate), _enumerations(certificate), _controls(certificate)):
        console.print(table)
    for line in (
        *_cache_lines(certificate),
        _sampling(certificate.sampling),
        _conditions(certificate),
    ):
        console.print(escape(line), style="dim", highlight=False)
    console.print(f"Preserved: {escape(certificate.preserved)}", highlight=False)
    colour = _COLOURS[certificate.standing]
    console.print(f"[bold {colour}]{certificate.standing.value}[/]", highlight=False)
    for reason in certificate.reasons:
        console.print(f"  {escape(reason)}", highlight=False)


def _equality(certificate: Certificate) -> Table:
    table = _table("bit for bit as plain", "drafted at once", "together", "tokens", "accepted")
    for case in certificate.equality.cases:
        table.add_row(
            case.draft,
            f"{case.longest} + {case.branches}" if case.branches else str(case.longest),
            str(case.together),
            f"{case.tokens:,}",
            accepted_of(case.acceptance),
            _passed(not case.difference),
        )
    return table


def _enumerations(certificate: Certificate) -> Table:
    table = _table("whole distribution", "rule", "outputs", "paths", "largest difference")
    for case in certificate.enumerations:
        table.add_row(
            f"{case.draft}, {case.params}",
            case.rule,
            str(case.outputs),
            f"{case.paths:,}",
            f"{case.distance:.1e}",
            _passed(case.equal),
        )
    return table


def _controls(certificate: Certificate) -> Table:
    table = _table("planted bug", "largest difference", "without it")
    for control in certificate.controls:
        table.add_row(
            control.bug,
            f"{control.distance:.4f}",
            f"{control.without:.1e}",
            "caught" if control.caught else "[red]missed[/]",
        )
    return table


def _table(first: str, *others: str) -> Table:
    table = Table(first, box=None, header_style="dim", pad_edge=False)
    for heading in others:
        table.add_column(heading, justify="right")
    table.add_column("", no_wrap=True)
    return table


def accepted_of(acceptance: Acceptance) -> str:
    """Return accepted over judged."""
    return f"{acceptance.accepted:,}/{acceptance.tested:,}"


def _passed(holds: bool) -> str:  # noqa: FBT001
    return "equal" if holds else "[red]differs[/]"


def _cache_lines(certificate: Certificate) -> list[str]:
    return [
        f"KV cache after {case.draft}, {case.params}: {case.pages} pages ({case.bytes:,} bytes), "
        f"{case.written_over} rows written over, "
        + (f"pages {case.differing} differ" if case.differing else "equal to a fresh run")
        for case in (*certificate.caches, *certificate.draft_caches)
    ]


def _sampling(sampling: SamplingCheck | None) -> str:
    if sampling is None:
        return "Sampling on the model itself: not run; --long does."
    return (
        f"Sampling on the model itself: {sampling.tokens:,} tokens, {sampling.drafted:,} of them "
        f"drafted; {sampling.partition} {sampling.bias:+.4f}, z {sampling.z:.2f} of at most "
        f"{sampling.critical:.2f}; a bias of {sampling.detectable:.4f} is noticed with a power of "
        f"{sampling.power:.0%}"
    )


def _conditions(certificate: Certificate) -> str:
    c = certificate.conditions
    return (
        f"{c.cpu}, {c.isa}, activations {c.activations}, {c.threads} threads; {c.system}, fewbit "
        f"{c.fewbit}; {certificate.seconds:.0f} s."
    )
