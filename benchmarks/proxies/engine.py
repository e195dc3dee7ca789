"""A scripted engine as a process of its own: ``python -m benchmarks.proxies.engine``, its script as JSON on stdin.

One fixed answer, in the two ways in which it is asked for: SGLang's ``/generate``, with token ids, log-probs and weight
versions, and OpenAI's chat completions. Whole answers come after ``delay_s``; streams send a token every
``token_delay_s``. It prints its URL once it takes requests.
"""

from __future__ import annotations

import asyncio
import os
import socket
import sys
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import orjson
import uvicorn
from starlette.types import Receive, Scope, Send

LOGPROB = -0.5
_JSON = [(b"content-type", b"application/json")]
_EVENTS = [(b"content-type", b"text/event-stream")]


@dataclass(frozen=True, slots=True)
class Script:
    """``token_ids`` is how the engine says ``text``, one of ``pieces`` each, its end-of-turn token last."""

    token_ids: list[int]
    pieces: list[str]
    delay_s: float = 0.0
    token_delay_s: float = 0.0

    @property
    def text(self) -> str:
        return "".join(self.pieces)


class Engine:
    """The ASGI application."""

    def __init__(self, script: Script) -> None:
        self._script = script

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        body = orjson.loads(await _read(receive) or b"{}")
        if scope["path"] == "/generate":
            parts = self._generated_parts(body) if body.get("stream") else None
            whole = self._generated
        elif scope["path"].endswith("/chat/completions"):
            parts = self._chat_parts(body) if body.get("stream") else None
            whole = self._chat
        else:
            await _answer(send, {"data": [], "status": "ok"})
            return
        if parts is not None:
            await _stream(send, parts)
            return
        await asyncio.sleep(self._script.delay_s)
        await _answer(send, whole(body))

    def _generated(self, body: dict[str, Any]) -> dict[str, Any]:
        ids = self._script.token_ids
        return {"output_ids": ids, "meta_info": {**self._meta(body, len(ids)), "finish_reason": {"type": "stop"}}}

    def _meta(self, body: dict[str, Any], num_tokens: int) -> dict[str, Any]:
        return {
            "id": body["rid"],
            "prompt_tokens": len(body["input_ids"]),
            "completion_tokens": num_tokens,
            "cached_tokens": 0,
            "weight_version": "0",
            "weight_versions": [{"version": "0", "start": 0, "end": num_tokens}],
            "output_token_logprobs": [[LOGPROB, token, None] for token in self._script.token_ids],
        }

    async def _generated_parts(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        for count, token in enumerate(self._script.token_ids, 1):
            await asyncio.sleep(self._script.token_delay_s)
            meta = {**self._meta(body, count), "finish_reason": None, "output_token_logprobs": [[LOGPROB, token, None]]}
            yield _event({"output_ids": [token], "meta_info": meta})
        meta = {**self._meta(body, count), "finish_reason": {"type": "stop"}, "output_token_logprobs": []}
        yield _event({"output_ids": [], "meta_info": meta})
        yield b"data: [DONE]\n\n"

    def _chat(self, body: dict[str, Any]) -> dict[str, Any]:
        message = {"role": "assistant", "content": self._script.text}
        return {
            **_head(body, "chat.completion"),
            "choices": [{"index": 0, "message": message, "finish_reason": "stop", "logprobs": None}],
            "usage": self._usage(),
        }

    async def _chat_parts(self, body: dict[str, Any]) -> AsyncIterator[bytes]:
        head = _head(body, "chat.completion.chunk")
        for piece in self._script.pieces:
            await asyncio.sleep(self._script.token_delay_s)
            delta = {"role": "assistant", "content": piece}
            yield _event({**head, "choices": [{"index": 0, "delta": delta, "finish_reason": None}]})
        yield _event({**head, "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]})
        yield b"data: [DONE]\n\n"

    def _usage(self) -> dict[str, int]:
        num = len(self._script.token_ids)
        return {"prompt_tokens": num, "completion_tokens": num, "total_tokens": 2 * num}


def _head(body: dict[str, Any], kind: str) -> dict[str, Any]:
    return {"id": "chatcmpl-scripted", "object": kind, "created": 0, "model": body.get("model", "")}


def _event(content: dict[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(content) + b"\n\n"


async def _read(receive: Receive) -> bytes:
    content, more = b"", True
    while more:
        message = await receive()
        content += message.get("body", b"")
        more = message.get("more_body", False)
    return content


async def _answer(send: Send, content: dict[str, Any]) -> None:
    body = orjson.dumps(content)
    headers = [*_JSON, (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _stream(send: Send, parts: AsyncIterator[bytes]) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": _EVENTS})
    async for part in parts:
        await send({"type": "http.response.body", "body": part, "more_body": True})
    await send({"type": "http.response.body", "body": b""})


def stay_on_last_core() -> None:
    """So that what sends and what replies leave the other cores to what is measured."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})


def main() -> None:
    """Serve on a free port of this machine until it is killed."""
    stay_on_last_core()
    script = Script(**orjson.loads(sys.stdin.buffer.read()))
    listener = socket.create_server(("127.0.0.1", 0), backlog=4096)
    print(f"http://127.0.0.1:{listener.getsockname()[1]}", flush=True)  # noqa: T201
    config = uvicorn.Config(
        Engine(script), lifespan="off", access_log=False, log_level="warning", timeout_keep_alive=120, backlog=4096
    )
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main()
