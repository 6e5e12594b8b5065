"""A candidate that is a URL: which model there, by which key, and how it is measured."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from fewbit.errors import MissingError, UsageError

if TYPE_CHECKING:
    from fewbit.cli.measuring import AxesOptions, MeasuringOptions
    from fewbit.evaluate.endpoint.client import Address

_SCHEMES = ("http://", "https://")


@Parameter(name="*")
@dataclass(frozen=True, kw_only=True)
class EndpointOptions:
    """What is asked for at a URL."""

    served_model: Annotated[
        str | None,
        Parameter(help="Of a candidate behind a URL: which model; the server's first by default."),
    ] = None
    key_env: Annotated[
        str | None,
        Parameter(help="Of a candidate behind a URL: the environment variable that has its key."),
    ] = None

    def address(self, candidate: str) -> Address | None:
        """Return where the candidate is, None where it is no URL.

        Raises:
            UsageError: the URL is none, or options of one were given without one.
            MissingError: there is no such environment variable.
        """
        from fewbit.evaluate.endpoint.client import Address

        if not candidate.startswith(_SCHEMES):
            if self != ENDPOINT:
                raise UsageError(
                    "--served-model and --key-env are about a candidate behind a URL; give one, or "
                    "leave them out."
                )
            return None
        return Address(candidate, self.served_model, self._key())

    def _key(self) -> str:
        if self.key_env is None:
            return ""
        key = os.environ.get(self.key_env, "")
        if not key:
            raise MissingError(
                f"The environment has no {self.key_env}, which --key-env names; set it to the key."
            )
        return key


ENDPOINT = EndpointOptions()


def require_served(axes: AxesOptions, measuring: MeasuringOptions) -> None:
    """Refuse options of a candidate on disk, which would change nothing of one behind a URL.

    Raises:
        UsageError: names those that were given.
    """
    from fewbit.cli.measuring import MEASURING, ON_AXES

    of_files = {
        "--activations": measuring.activations != MEASURING.activations,
        "--kv": measuring.kv != MEASURING.kv,
        "--rotate-keys": measuring.rotate_keys != MEASURING.rotate_keys,
        "--text": axes.text != ON_AXES.text,
        "--windows": axes.windows != ON_AXES.windows,
    }
    given = [name for name, is_given in of_files.items() if is_given]
    if given:
        raise UsageError(
            f"{' and '.join(given)} would change nothing of a candidate behind a URL: the server "
            "decides how it runs, and no axis reads it a text; leave that out."
        )
