"""A small server of the page for tests: its files, and snapshots from memory in place of jobs. All is under a prefix, as
behind a proxy, and with the headers of the real server."""

from __future__ import annotations

import json
import mimetypes
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

STATIC = Path(__file__).resolve().parents[2] / "src/tailrace/ui/static"
CSP = "default-src 'self'; base-uri 'none'; frame-ancestors 'none'; form-action 'self'"
TOKEN = "a-token"


class PageServer(ThreadingHTTPServer):
    """The server. `shown`: job id -> the snapshot that it has; `show` sends another one to all readers of events."""

    daemon_threads = True

    def __init__(self, prefix: str) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.prefix = prefix
        self.shown: dict[str, dict[str, Any]] = {}
        self.orders: list[tuple[str, str]] = []
        self.requests: list[str] = []
        self.events = True
        self.changed = threading.Condition()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}{self.prefix}/"

    def show(self, *snapshots: dict[str, Any]) -> None:
        with self.changed:
            self.shown = {one["job"]["id"]: one for one in snapshots}
            self.changed.notify_all()

    def link(self, snapshot: dict[str, Any], token: bool = True) -> str:
        return f"{self.url}#job={snapshot['job']['id']}" + (f"&token={TOKEN}" if token else "")


class _Handler(BaseHTTPRequestHandler):
    server: PageServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        self.server.requests.append(self.path)
        path = url.path.removeprefix(self.server.prefix)
        if not url.path.startswith(self.server.prefix):
            self.answer(404, b"not under the prefix")
        elif path == "/":
            self.answer(200, (STATIC / "index.html").read_bytes(), "text/html; charset=utf-8")
        elif path.startswith("/static/"):
            file = STATIC / path.removeprefix("/static/")
            self.answer(200, file.read_bytes(), mimetypes.guess_type(file.name)[0] or "text/plain")
        elif path == "/api/jobs":
            self.json(200, [_listed(one) for one in self.server.shown.values()])
        elif path.endswith("/events"):
            self.send_events(path.split("/")[-2])
        else:
            snapshot = self.server.shown.get(path.rpartition("/")[2])
            if snapshot is None:
                self.json(404, {"error": "there is no such job"})
            else:
                whole = parse_qs(url.query).get("subtasks") == ["1"]
                self.json(200, snapshot if whole else {**snapshot, "subtasks": None})

    def do_POST(self) -> None:
        _, _, job, verb = self.path.removeprefix(self.server.prefix).rsplit("/", 3)
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        if self.headers.get("X-Tailrace-Token") != TOKEN:
            self.json(403, {"error": "the token is wrong"})
        else:
            self.server.orders.append((job, verb))
            self.json(200, {"path": f"/data/{verb}/1"})

    def send_events(self, job: str) -> None:
        if not self.server.events:
            self.json(404, {"error": "no events here"})
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        try:
            while job in self.server.shown:
                data = json.dumps({**self.server.shown[job], "subtasks": None})
                self.wfile.write(f"data: {data}\n\n".encode())
                self.wfile.flush()
                with self.server.changed:
                    self.server.changed.wait(60)
        except OSError:
            return  # the page is gone

    def json(self, status: int, value: Any) -> None:
        self.answer(status, json.dumps(value).encode(), "application/json")

    def answer(self, status: int, body: bytes, kind: str = "text/plain") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Content-Security-Policy", CSP)
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        with suppress(OSError):  # the page may be gone
            self.wfile.write(body)


def _listed(snapshot: dict[str, Any]) -> dict[str, Any]:
    job = snapshot["job"]
    return {key: job[key] for key in ("id", "name", "status", "since", "restarts")} | {"link": f"#job={job['id']}"}


@contextmanager
def page_server(prefix: str = "/proxy/4040") -> Iterator[PageServer]:
    """A server of the page at a free port."""
    server = PageServer(prefix)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.show()
        server.shutdown()
        server.server_close()
        thread.join()
