"""A judge behind HTTP: scripted answers, and what it was asked."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any


@dataclass
class ScriptedJudge:
    """``replies``: (status, content of the message), one by one; the last one stays. ``delay_s`` before each."""

    replies: list[tuple[int, Any]] = field(default_factory=lambda: [(200, verdict(1.0))])
    delay_s: float = 0.0
    url: str = ""
    bodies: list[dict[str, Any]] = field(default_factory=list)
    keys: list[str | None] = field(default_factory=list)

    def next_reply(self) -> tuple[int, Any]:
        return self.replies.pop(0) if len(self.replies) > 1 else self.replies[0]


def verdict(reward: Any, **more: Any) -> str:
    return json.dumps({"reward": reward, "reason": "as said", **more})


@contextmanager
def running_judge() -> Iterator[ScriptedJudge]:
    judge = ScriptedJudge()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            judge.bodies.append(json.loads(self.rfile.read(int(self.headers["content-length"]))))
            judge.keys.append(self.headers.get("authorization"))
            time.sleep(judge.delay_s)
            status, said = judge.next_reply()
            content = json.dumps({"choices": [{"message": {"role": "assistant", "content": said}}]}).encode()
            self.send_response(status)
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever)
        thread.start()
        judge.url = f"http://127.0.0.1:{server.server_address[1]}/v1"
        try:
            yield judge
        finally:
            server.shutdown()
            thread.join()
