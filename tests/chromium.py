"""A headless Chromium that tests drive: the DevTools protocol over two pipes, and nothing else.

Chromium reads commands from its descriptor 3 and writes answers to its descriptor 4, JSON that ends
with a zero byte (`--remote-debugging-pipe`). So a browser's library, with a runtime of its own in
190 MB, is not needed for six commands.
"""

from __future__ import annotations

import base64
import fcntl
import json
import os
import shutil
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
_FLAGS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
)


def found() -> str | None:
    """Return the path of a Chromium, None where there is none."""
    return next((path for name in NAMES if (path := shutil.which(name))), None)


@dataclass
class Page:
    """One open page, and all that it asked for and complained of."""

    _to: int
    _from: int
    _session: str = ""
    _sent: int = 0
    _rest: bytes = b""
    requests: list[str] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)

    def call(self, method: str, **params: object) -> dict:
        """Send a command and return its result; events that come meanwhile are noted."""
        self._sent += 1
        message = {"id": self._sent, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._sent:
                assert "error" not in answer, answer
                return answer["result"]

    def open(self, path: Path, *, width: int, height: int = 900, dark: bool = False) -> None:
        """Load a file in a window of so many pixels and wait until it is drawn."""
        self.requests.clear()
        self.complaints.clear()
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=width < 600,
        )
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        drawn = "new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))"
        loaded = "new Promise(r => document.readyState === 'complete' ? r() : onload = r)"
        self.value(f"{loaded}.then(() => {drawn}).then(() => 1)")

    def value(self, expression: str) -> object:
        """Return what an expression in the page gives, or its promise does."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def screenshot(self, *, height: int | None = None) -> bytes:
        """Return the page from its top as PNG, all of it or so many pixels."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"]}
        shot = self.call(
            "Page.captureScreenshot", clip=clip | {"scale": 1}, captureBeyondViewport=True
        )
        return base64.b64decode(shot["data"])

    def pdf(self) -> bytes:
        """Return the page as it is printed, on A4."""
        printed = self.call(
            "Page.printToPDF", paperWidth=8.27, paperHeight=11.69, printBackground=True
        )
        return base64.b64decode(printed["data"])

    def _next(self) -> dict:
        while b"\0" not in self._rest:
            more = os.read(self._from, 1 << 16)
            assert more, "Chromium has gone"
            self._rest += more
        message, _, self._rest = self._rest.partition(b"\0")
        answer = json.loads(message)
        self._note(answer.get("method", ""), answer.get("params", {}))
        return answer

    def _note(self, method: str, params: dict) -> None:
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(params["exceptionDetails"]["text"])
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled":
            self.complaints.append(str(params["args"]))


@contextmanager
def browser(path: str, profile: Path) -> Iterator[Page]:
    """Run a Chromium for as long as the block, with one page in it."""
    to_child, ours = (_high(end) for end in os.pipe())
    theirs, from_child = (_high(end) for end in os.pipe())
    process = os.posix_spawn(
        path,
        [path, *_FLAGS, f"--user-data-dir={profile}", "about:blank"],
        os.environ | {"HOME": str(profile)},
        file_actions=[
            (os.POSIX_SPAWN_DUP2, to_child, 3),
            (os.POSIX_SPAWN_DUP2, from_child, 4),
            (os.POSIX_SPAWN_OPEN, 2, os.devnull, os.O_WRONLY, 0),
        ],
        setpgroup=0,
    )
    os.close(to_child)
    os.close(from_child)
    try:
        yield _attached(Page(ours, theirs))
    finally:
        os.killpg(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(ours)
        os.close(theirs)


def _attached(page: Page) -> Page:
    """Attach to the first tab and have it tell what it does."""
    target = page.call("Target.createTarget", url="about:blank")["targetId"]
    session = page.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
    page._session = session
    for domain in ("Page", "Runtime", "Network", "Log"):
        page.call(f"{domain}.enable")
    return page


def _high(end: int) -> int:
    """Move a descriptor away from those that the child's are moved to."""
    moved = fcntl.fcntl(end, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(end)
    return moved
