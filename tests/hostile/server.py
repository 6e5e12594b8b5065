"""A web server on this machine that cuts, stalls and lies as a test asks."""

from __future__ import annotations

import contextlib
import re
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar


@dataclass
class Behaviour:
    """What is served, and how badly; `ranges` collects the Range header of each request."""

    content: bytes
    understands_ranges: bool = True
    cut_after: int | None = None
    status: int = 200
    ranges: list[str | None] = field(default_factory=list)


class _Handler(BaseHTTPRequestHandler):
    behaviour: ClassVar[Behaviour]

    def do_GET(self) -> None:
        asked, behaviour = self.headers.get("Range"), self.behaviour
        behaviour.ranges.append(asked)
        if behaviour.status != 200:
            self.send_error(behaviour.status)
            return
        match = re.fullmatch(r"bytes=(\d+)-", asked or "")
        start = int(match[1]) if match and behaviour.understands_ranges else 0
        size = len(behaviour.content)
        self.send_response(206 if start else 200)
        self.send_header("Content-Length", str(size - start))
        if start:
            self.send_header("Content-Range", f"bytes {start}-{size - 1}/{size}")
        self.end_headers()
        end = size if behaviour.cut_after is None else start + behaviour.cut_after
        with contextlib.suppress(ConnectionError):
            self.wfile.write(behaviour.content[start:end])
        self.close_connection = True

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@contextlib.contextmanager
def serving(behaviour: Behaviour) -> Iterator[str]:
    """Yield the address of a file served as `behaviour` says."""
    handler = type("Handler", (_Handler,), {"behaviour": behaviour})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, args=(0.02,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}/files/model.whl"
        finally:
            server.shutdown()
            thread.join()
