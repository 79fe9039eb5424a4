"""An HTTP server with a test's answers in place of an API server (tests/extended/kubernetes has a real one)."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Request:
    method: str
    path: str
    headers: dict[str, str] = field(repr=False)
    body: Any = None


Answer = Callable[[Request], tuple[int, Any]]


@contextmanager
def answering(answer: Answer, kubeconfig: Path) -> Iterator[list[Request]]:
    """Serve the answers. Yield the list of requests received; the namespace of the context is `team`."""
    asked: list[Request] = []

    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            body = json.loads(data) if data else None
            found = Request(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            asked.append(found)
            status, said = answer(found)
            text = (said if isinstance(said, str) else json.dumps(said)).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)

        do_GET = do_POST = do_PATCH = do_DELETE = _answer

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(
        target=server.serve_forever, args=(0.01,), daemon=True
    ).start()  # 0.01: seconds between checks for the end
    cluster = {"name": "c", "cluster": {"server": f"http://127.0.0.1:{server.server_address[1]}"}}
    context = {"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "team"}}
    users = [{"name": "u", "user": {"token": "of-the-api-server"}}]
    config = {"current-context": "c", "clusters": [cluster], "contexts": [context], "users": users}
    kubeconfig.write_text(json.dumps(config))
    try:
        yield asked
    finally:
        server.shutdown()
        server.server_close()
