"""Talking to an OpenAI-compatible server: where it is, how long to wait, and what went wrong."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import urlsplit

import httpx2

from fewbit.errors import RequestError, UsageError

CONNECTING_SECONDS = 10.0
SILENCE_SECONDS = 300.0
"""How long a server may say nothing: a prompt may wait in a queue and then be read."""

_CONNECTIONS_TRIED = 4
_BUSY = frozenset({429, 503})
_REFUSING = frozenset({400, 422})
_BUSY_TRIES = 8
_LONGEST_WAIT = 30.0


@dataclass(frozen=True)
class Address:
    """Where a server is. The key is never shown.

    Raises:
        UsageError: the URL is none of HTTP.
    """

    url: str
    """With `/v1` or without; user and password become the connection's."""
    model: str | None = None
    """What to ask for, where the server has several; None for its first."""
    key: str = field(default="", repr=False)

    def __post_init__(self) -> None:
        try:
            parts = urlsplit(self.url)
            fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        except ValueError:  # a port that is no number or too large, a bracket that is not closed
            fits = False
        if not fits:
            where = self.url.rpartition("@")[2].partition("?")[0]
            raise UsageError(f"{where!a} is no address of a server; write it as http://host:8080.")

    @property
    def shown(self) -> str:
        """The URL without what may be secret in it, and without `/v1`."""
        parts = urlsplit(self.url)
        host = parts.hostname or ""
        named = f"[{host}]" if ":" in host else host  # the brackets of an IPv6 address
        port = f":{parts.port}" if parts.port else ""
        path = parts.path.rstrip("/").removesuffix("/v1")
        return f"{parts.scheme}://{named}{port}{path}"


class RefusedError(RequestError):
    """A server understood what it was asked, and does not do it."""


@dataclass(frozen=True)
class Streamed:
    """What a server sends event by event."""

    asked: float
    """When the request was sent that it answers, by `time.perf_counter`."""
    events: Iterator[Any]
    """As JSON, up to its `[DONE]`."""


class Client:
    """A connection to one server; threads may share it."""

    def __init__(self, address: Address, transport: httpx2.BaseTransport | None = None) -> None:
        """Make it; nothing is sent yet.

        Args:
            address: where the server is.
            transport: what carries requests; None for the network. Tests give a mock.
        """
        parts = urlsplit(address.url)
        login = (parts.username, parts.password or "") if parts.username else None
        self.address = address
        self._client = httpx2.Client(
            base_url=address.shown,
            auth=login,
            headers={"Authorization": f"Bearer {address.key}"} if address.key else {},
            timeout=httpx2.Timeout(SILENCE_SECONDS, connect=CONNECTING_SECONDS),
            transport=transport or _network(secure=parts.scheme == "https"),
        )

    def close(self) -> None:
        """Close all connections."""
        self._client.close()

    def get(self, path: str) -> Any:
        """Return what the server answers, None where it has nothing there.

        Raises:
            RequestError: it cannot be reached, or answers with an error or no JSON.
        """
        return self._asked("GET", path, None)

    def post(self, path: str, body: Mapping[str, Any]) -> Any:
        """Return what the server answers to JSON, None where it has nothing there; as `get`."""
        return self._asked("POST", path, body)

    @contextmanager
    def events(self, path: str, body: Mapping[str, Any]) -> Iterator[Streamed]:
        """Yield what the server sends event by event, and since when it was asked.

        Raises:
            RequestError: as `get`.
        """
        with self._naming(path), self._streamed(path, body) as (asked, source):
            self._require(source.response, path)
            told = (event.json() for event in source if event.data.strip() != "[DONE]")
            yield Streamed(asked, told)

    @contextmanager
    def _streamed(
        self, path: str, body: Mapping[str, Any]
    ) -> Iterator[tuple[float, httpx2.EventSource]]:
        """Open a stream; a server that is busy is asked again, the last time whatever it says.

        The time is taken before anything is sent: llama-server answers with its first line only
        when it has the first token.
        """
        for waited in range(_BUSY_TRIES):
            asked = time.perf_counter()
            with self._client.sse(path, method="POST", json=dict(body)) as source:
                busy = source.response.status_code in _BUSY
                if not busy or waited == _BUSY_TRIES - 1:
                    yield asked, source
                    return
            time.sleep(_pause(source.response, waited))

    def _asked(self, method: str, path: str, body: Mapping[str, Any] | None) -> Any:
        with self._naming(path):
            for waited in range(_BUSY_TRIES):
                response = self._client.request(method, path, json=body)
                if response.status_code not in _BUSY:
                    break
                time.sleep(_pause(response, waited))
            if response.status_code in (404, 405, 501):
                return None
            self._require(response, path)
            return response.json()

    def _require(self, response: httpx2.Response, path: str) -> None:
        if response.is_success:
            return
        response.read()
        raise (RefusedError if response.status_code in _REFUSING else RequestError)(
            f"{self.address.shown}{path} answers {response.status_code}: {_reason(response)}."
        )

    @contextmanager
    def _naming(self, path: str) -> Iterator[None]:
        """Turn the library's errors, and JSON that is none, into ours."""
        try:
            yield
        except httpx2.TimeoutException as error:
            raise RequestError(
                f"{self.address.shown}{path} did not answer in time ({type(error).__name__}); is "
                "the server up, and its queue short?"
            ) from error
        except httpx2.HTTPError as error:
            raise RequestError(
                f"{self.address.shown}{path} cannot be reached ({error or type(error).__name__}); "
                "check the address, and that the server is up."
            ) from error
        except (ValueError, RecursionError) as error:
            raise RequestError(
                f"{self.address.shown}{path} answers with what is no JSON ({error}); is it an "
                "OpenAI-compatible server?"
            ) from error


def _network(*, secure: bool) -> httpx2.HTTPTransport:
    """Return what carries requests; certificates, slow to load, are loaded where they are used.

    Every request has a connection of its own: a server that closes an idle one just when the next
    request is sent on it (llama-server does, after 5 s) would fail that request.
    """
    alone = httpx2.Limits(max_keepalive_connections=0)
    return httpx2.HTTPTransport(verify=secure, retries=_CONNECTIONS_TRIED - 1, limits=alone)


def _pause(response: httpx2.Response, waited: int) -> float:
    """Return how long to wait for a busy server: what it asks for, or ever longer."""
    asked = response.headers.get("Retry-After", "")
    return min(float(asked) if asked.isdigit() else 0.5 * 2**waited, _LONGEST_WAIT)


def _reason(response: httpx2.Response) -> str:
    """Return what a server says of an error, in one line."""
    try:
        error = response.json().get("error", {})
        text = error.get("message") if isinstance(error, dict) else error
    except (ValueError, AttributeError):
        text = None
    return " ".join(str(text or response.text or response.reason_phrase).split())[:300].rstrip(".")
