"""A scripted HTTP API on a real port, and the command line pointed at it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from click.testing import Result
from typer.testing import CliRunner

from online_agent.cli.main import app

KEY = "test-key"


@dataclass
class ScriptedApi:
    """``answers`` by "METHOD path": (status, body). ``calls``: what was asked: (method, path, query, body)."""

    answers: dict[str, tuple[int, Any]] = field(default_factory=dict)
    calls: list[tuple[str, str, dict[str, list[str]], Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)
    url: str = ""


def _handler(api: ScriptedApi) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def _answer(self) -> None:
            parts = urlsplit(self.path)
            length = int(self.headers.get("content-length") or 0)
            body = json.loads(self.rfile.read(length)) if length else None
            api.calls.append((self.command, parts.path, parse_qs(parts.query), body))
            api.keys.append(self.headers.get("authorization"))
            missing = (404, {"error": {"message": f"no route {parts.path}", "param": None}})
            status, answer = api.answers.get(f"{self.command} {parts.path}", missing)
            content = b"" if answer is None else json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do_DELETE = _answer

        def log_message(self, format: str, *args: object) -> None:
            pass

    return Handler


@pytest.fixture
def api(monkeypatch: pytest.MonkeyPatch) -> Iterator[ScriptedApi]:
    scripted = ScriptedApi()
    with ThreadingHTTPServer(("127.0.0.1", 0), _handler(scripted)) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever)
        thread.start()
        scripted.url = f"http://127.0.0.1:{server.server_address[1]}"
        monkeypatch.setenv("ONLINE_AGENT_URL", scripted.url)
        monkeypatch.setenv("ONLINE_AGENT_KEY", KEY)
        yield scripted
        server.shutdown()
        thread.join()


@pytest.fixture
def run() -> Callable[..., Result]:
    def invoke(*arguments: str) -> Result:
        return CliRunner().invoke(app, list(arguments), env={"COLUMNS": "200", "NO_COLOR": "1"})

    return invoke
