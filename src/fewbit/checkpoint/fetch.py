"""One file over HTTP: resumed where it stopped, never longer than announced."""

from __future__ import annotations

import hashlib
import http.client
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any, BinaryIO
from urllib.parse import urlsplit

from fewbit.errors import DownloadError
from fewbit.progress import Fetching

_TIMEOUT_SECONDS = 30.0
_CHUNK = 1 << 18
_SCHEMES = ("https", "http", "file")
_TRIES_WITHOUT_GAIN = 3


def fetch(url: str, part: Path, size: int, sha256: str, progress: Fetching) -> None:
    """Bring `part` to the whole file at `url`.

    What `part` already holds is kept and only the rest asked for, so a killed download goes on
    where it stopped. A lost connection is tried again as long as each try brings bytes.

    Raises:
        DownloadError: the server cannot be reached or refuses, or the content is not the one
            expected; in the last case `part` is removed.
    """
    if urlsplit(url).scheme not in _SCHEMES:
        raise DownloadError(f"{url!a} is no web address; check the package index.")
    resumed = _size(part) > 0
    _complete(url, part, size, progress)
    if file_sha256(part) == sha256:
        return
    part.unlink()
    if not resumed:
        raise DownloadError(
            f"{_shown(url)} does not have the SHA-256 {sha256}; the file was changed on its way "
            "or at its source, so nothing was kept."
        )
    fetch(url, part, size, sha256, progress)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _complete(url: str, part: Path, size: int, progress: Fetching) -> None:
    failures = 0
    while (had := _size(part)) < size:
        try:
            _fetch_rest(url, part, size, progress)
        except urllib.error.HTTPError as error:
            error.close()
            raise DownloadError(
                f"{_shown(url)} answers {error.code} {error.reason}; try again later."
            ) from error
        except (OSError, http.client.HTTPException) as error:
            failures = failures + 1 if _size(part) <= had else 0
            if failures >= _TRIES_WITHOUT_GAIN:
                raise _unreachable(url, error) from error
            time.sleep(0.2 * failures)
    if _size(part) > size:
        part.unlink()
        raise DownloadError(f"{_shown(url)} has more than the {size} bytes expected; not kept.")


def _fetch_rest(url: str, part: Path, size: int, progress: Fetching) -> None:
    have = _size(part)
    request = urllib.request.Request(url, headers={"User-Agent": "fewbit"})
    if have:
        request.add_header("Range", f"bytes={have}-")
    with urllib.request.urlopen(request, timeout=_TIMEOUT_SECONDS) as response:
        start = have if _continues(response, have) else 0
        with part.open("r+b" if part.exists() else "wb") as file:
            file.truncate(start)
            file.seek(start)
            _copy(response, file, start, size, progress)
    if _size(part) < size:
        raise http.client.IncompleteRead(b"", size - _size(part))


def _continues(response: Any, have: int) -> bool:
    """Whether the answer begins where we stopped; a server without ranges begins at 0."""
    content_range = str(response.headers.get("Content-Range", ""))
    return bool(response.status == 206 and content_range.startswith(f"bytes {have}-"))


def _copy(source: Any, file: BinaryIO, have: int, size: int, progress: Fetching) -> None:
    while have <= size and (chunk := source.read(_CHUNK)):
        file.write(chunk)
        have += len(chunk)
        progress(min(have, size), size)


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _shown(url: str) -> str:
    """Return a URL without what may be secret in it."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.hostname or ''}{parts.path}"


def _unreachable(url: str, error: Exception) -> DownloadError:
    reason = getattr(error, "reason", None) or error
    return DownloadError(
        f"{_shown(url)} could not be fetched ({reason}); check the network and run the same "
        "command again, it goes on where it stopped."
    )
