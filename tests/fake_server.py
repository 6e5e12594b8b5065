"""A server on this machine that answers as a test says, over real sockets."""

import json
import sys
import threading
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class _Server(ThreadingHTTPServer):
    def handle_error(self, *given):
        if not isinstance(sys.exception(), ConnectionError):  # who asked may have gone
            super().handle_error(*given)


@contextmanager
def serving(routes):
    """Yield a server's URL and what it was asked: (path, headers, body).

    `routes` maps paths to functions of the body that return (status, headers, text), or anything
    else as JSON with status 200; other paths are not found.
    """
    asked = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self):
            self._answer(None)

        def do_POST(self):
            length = int(self.headers.get("Content-Length", 0))
            self._answer(json.loads(self.rfile.read(length)))

        def _answer(self, body):
            asked.append((self.path, dict(self.headers), body))
            route = routes.get(self.path)
            found = (404, {}, "{}") if route is None else route(body)
            if not isinstance(found, tuple):
                found = (200, {"Content-Type": "application/json"}, json.dumps(found))
            status, headers, text = found
            self.send_response(status)
            for name, value in {"Content-Length": str(len(text.encode())), **headers}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text.encode())

        def log_message(self, *_):
            """Say nothing."""

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def events(*chunks, done=True):
    """Return chunks as a stream of server-sent events."""
    lines = [f"data: {json.dumps(chunk)}\n\n" for chunk in chunks]
    text = "".join(lines) + "data: [DONE]\n\n" * done
    return 200, {"Content-Type": "text/event-stream"}, text


def delta(finish=None, logprobs=None, **given):
    """Return a chunk of a chat completion."""
    choice = {"index": 0, "delta": given, "finish_reason": finish}
    if logprobs is not None:
        choice["logprobs"] = {"content": logprobs}
    return {"choices": [choice]}


def scored(text, logprob, top=()):
    """Return a token's log-probability as servers give it; `top` are (bytes, logprob)."""

    def one(data, value):
        return {"token": data.decode("utf-8", "replace"), "bytes": list(data), "logprob": value}

    return {**one(text, logprob), "top_logprobs": [one(*pair) for pair in top]}
