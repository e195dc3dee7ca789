"""A scripted stand-in for the SGLang server: same routes, same answers, no weights and no waiting.

It passes the contract suite that the real server passes. Tests script what it says (``replies``), how fast
(``token_delay_s``) and what goes wrong (``faults``), and read what it was asked (``requests``).
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import socket
import threading
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import orjson
import uvicorn
from safetensors.numpy import load_file
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from online_agent.weights.experts import ExpertShape

_PER_TOKEN = ("output_token_logprobs", "output_top_logprobs")

Handler = Callable[[Request], Awaitable[Response]]


@dataclass
class Reply:
    """What one generation says. ``logprobs`` default to -0.5 each; None stands for JSON null.

    ``raw`` is merged over the finished answer's ``meta_info``: for answers that do not line up. A stream of it breaks
    off after ``breaks_after`` tokens, without its end.
    """

    token_ids: Sequence[int]
    logprobs: Sequence[float | None] | None = None
    finish_reason: str = ""
    delay_s: float = 0.0
    raw: dict[str, Any] = field(default_factory=dict)
    breaks_after: int | None = None


@dataclass
class _Running:
    rid: str
    versions: list[int | str] = field(default_factory=list)
    num_retractions: int = 0
    is_aborted: bool = False


class ScriptedEngine:
    """Generates scripted replies in order, then a fixed function of the prompt and the weights.

    Faults, each taken once, in order: ``refuse_load``, ``corrupt_load`` (loads other bytes), ``keep_cache`` (the
    refusal after which the weights are new all the same), ``die_on_load``, ``error_500`` (next generate),
    ``parser_500`` (next parse), ``hang_load``, ``refuse_flush``.
    """

    def __init__(
        self, model_dir: Path | None = None, version: int = 1, *, api_key: str = "", vocab_size: int = 500
    ) -> None:
        self.api_key, self.vocab_size, self.context_length = api_key, vocab_size, 1024
        self.replies: deque[Reply] = deque()
        self.faults: deque[str] = deque()
        self.requests: list[tuple[str, dict[str, Any]]] = []
        self.token_delay_s = 0.0
        self.cumulative_streams = False
        self.experts: ExpertShape | None = None
        self.model_path, self.version_label = str(model_dir or ""), str(version)
        self._parameters = _served_parameters(model_dir) if model_dir else {}
        self._running: dict[str, _Running] = {}
        self._cache: list[list[int]] = []
        self._is_open, self._is_idle, self._admits = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._is_open.set()
        self._is_idle.set()
        self._admits.set()
        self._server: _QuietServer | None = None
        self.url = ""

    @property
    def num_running(self) -> int:
        return len(self._running)

    def bodies(self, path: str) -> list[dict[str, Any]]:
        return [body for asked, body in self.requests if asked == path]

    @contextlib.asynccontextmanager
    async def running(self, port: int = 0) -> AsyncIterator[ScriptedEngine]:
        """Served on a real port of this machine."""
        listener = _listen(port)
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._server = _QuietServer(self.app())
        task = asyncio.create_task(self._server.serve(sockets=[listener]))
        try:
            await self._server.is_up.wait()
            yield self
        finally:
            self.die()
            await task
            listener.close()

    @contextlib.contextmanager
    def running_in_thread(self, port: int = 0) -> Iterator[ScriptedEngine]:
        """The same for tests that are not async."""
        is_up, is_over, loop = threading.Event(), asyncio.Event(), asyncio.new_event_loop()

        async def serve() -> None:
            async with self.running(port):
                is_up.set()
                await is_over.wait()

        thread = threading.Thread(target=lambda: loop.run_until_complete(serve()))
        thread.start()
        try:
            assert is_up.wait(10)
            yield self
        finally:
            loop.call_soon_threadsafe(is_over.set)
            thread.join()
            loop.close()

    def die(self) -> None:
        """Connections drop and the port closes, as after kill -9."""
        self._admits.set()
        self._is_open.set()
        for running in self._running.values():
            running.is_aborted = True
        if self._server is not None:
            self._server.should_exit = self._server.force_exit = True

    def app(self) -> Starlette:
        routes: list[tuple[str, Callable[[dict[str, Any]], Awaitable[Response]]]] = [
            ("/generate", self._generate),
            ("/parse_function_call", self._parse_calls),
            ("/abort_request", self._abort),
            ("/pause_generation", self._pause),
            ("/continue_generation", self._continue),
            ("/flush_cache", self._flush),
            ("/update_weights_from_disk", self._update),
            ("/weights_checker", self._checksums),
            ("/model_info", self._model_info),
            ("/v1/loads", self._loads),
            ("/health", self._health),
        ]
        return Starlette(routes=[Route(p, self._guarded(p, h), methods=["GET", "POST"]) for p, h in routes])

    def _guarded(self, path: str, handler: Callable[[dict[str, Any]], Awaitable[Response]]) -> Handler:
        async def endpoint(request: Request) -> Response:
            wants = f"Bearer {self.api_key}"
            if self.api_key and path != "/health" and request.headers.get("authorization") != wants:
                return _json({"error": "Unauthorized"}, 401)
            body = orjson.loads(await request.body() or b"{}")
            self.requests.append((path, body))
            return await handler(body)

        return endpoint

    def _take_fault(self, *names: str) -> str:
        return self.faults.popleft() if self.faults and self.faults[0] in names else ""

    async def _generate(self, body: dict[str, Any]) -> Response:
        input_ids = body["input_ids"]
        if self._take_fault("error_500"):
            return _json({"error": {"message": "scheduler trouble"}}, 500)
        if max(input_ids) >= self.vocab_size:
            self.die()
        if len(input_ids) >= self.context_length:
            message = f"The input ({len(input_ids)} tokens) is longer than the model's context length"
            return _json({"error": {"message": message}}, 400)
        if body["rid"] in self._running:
            return _json({"error": {"message": f"Duplicate request ID detected: {body['rid']}"}}, 400)
        await self._admits.wait()
        reply = self.replies.popleft() if self.replies else Reply(self._own_words(input_ids, body["sampling_params"]))
        if body.get("stream"):
            return StreamingResponse(self._events(reply, body), media_type="text/event-stream")
        return _json(await self._run(reply, body))

    async def _run(
        self, reply: Reply, body: dict[str, Any], tell: Callable[[int], None] = lambda token_id: None
    ) -> dict[str, Any]:
        run = self._running[body["rid"]] = _Running(body["rid"])
        self._is_idle.clear()
        try:
            return await self._play(run, reply, body, tell)
        finally:
            del self._running[run.rid]
            if not self._running:
                self._is_idle.set()

    async def _events(self, reply: Reply, body: dict[str, Any]) -> AsyncIterator[bytes]:
        """Each event holds what is new in it, or everything up to then (``cumulative_streams``)."""
        told: asyncio.Queue[int | None] = asyncio.Queue()
        work = asyncio.create_task(self._run(reply, body, told.put_nowait))
        work.add_done_callback(lambda _: told.put_nowait(None))
        ids: list[int] = []
        logprobs = [-0.5] * len(reply.token_ids) if reply.logprobs is None else list(reply.logprobs)
        try:
            while (token_id := await told.get()) is not None:
                ids.append(token_id)
                triples = [[p, i, None] for p, i in zip(logprobs, ids, strict=False)]
                start = 0 if self.cumulative_streams else len(ids) - 1
                meta: dict[str, Any] = {"id": body["rid"], "finish_reason": None, "completion_tokens": len(ids)}
                meta |= {"weight_version": self.version_label, "output_token_logprobs": triples[start:]}
                if num := body.get("top_logprobs_num"):
                    meta["output_top_logprobs"] = [self._top(p, i, num) for p, i, _ in triples[start:]]
                yield _event({"output_ids": ids[start:], "meta_info": meta})
                if len(ids) == reply.breaks_after:
                    return
            final = await work
            if not self.cumulative_streams:
                final["output_ids"] = []
                final["meta_info"] |= {key: [] for key in _PER_TOKEN if key in final["meta_info"]}
            yield _event(final)
            yield b"data: [DONE]\n\n"
        finally:
            work.cancel()

    def _top(self, logprob: float | None, token_id: int, num: int) -> list[list[Any]]:
        """The sampled token, then others, each less likely than the one before."""
        return [[logprob, token_id, None]] + [[-3.0 - n, (token_id + n) % self.vocab_size, None] for n in range(1, num)]

    async def _play(
        self, run: _Running, reply: Reply, body: dict[str, Any], tell: Callable[[int], None]
    ) -> dict[str, Any]:
        input_ids, params = body["input_ids"], body["sampling_params"]
        await asyncio.sleep(reply.delay_s)
        cached = max((_common_prefix(input_ids, entry) for entry in self._cache), default=0)
        sampled: list[int] = []
        limit, stops = int(params["max_new_tokens"]), set(params.get("stop_token_ids") or [])
        finish: dict[str, Any] = {"type": "length", "length": limit}
        for token_id in reply.token_ids[:limit]:
            if self.token_delay_s:
                await asyncio.sleep(self.token_delay_s)
            await self._is_open.wait()
            if run.is_aborted:
                break
            sampled.append(token_id)
            run.versions.append(self.version_label)
            tell(token_id)
            if token_id in stops:
                finish = {"type": "stop", "matched": token_id}
                break
        await self._is_open.wait()
        if run.is_aborted:
            finish = {"type": "abort", "message": "Aborted", "status_code": None, "err_type": None}
        if reply.finish_reason:
            finish = {"type": reply.finish_reason}
        self._cache = [*self._cache[-63:], input_ids + sampled[:-1]]
        logprobs = reply.logprobs if reply.logprobs is not None else [-0.5] * len(sampled)
        meta = {
            "id": run.rid,
            "finish_reason": finish,
            "prompt_tokens": len(input_ids),
            "completion_tokens": len(sampled),
            "cached_tokens": min(cached, len(input_ids) - 1),
            "num_retractions": run.num_retractions,
            "weight_version": self.version_label,
            "weight_versions": _spans(run.versions),
            "output_token_logprobs": [[p, i, None] for p, i in zip(logprobs, sampled, strict=False)],
        }
        if num := body.get("top_logprobs_num"):
            meta["output_top_logprobs"] = [self._top(p, i, num) for p, i in zip(logprobs, sampled, strict=False)]
        if self.experts is not None and body.get("return_routed_experts"):
            rows = experts_of(input_ids + sampled, self.experts)[body.get("routed_experts_start_len", 0) : -1]
            meta["routed_experts"] = base64.b64encode(rows.astype("<i4").tobytes()).decode()
        return {"output_ids": sampled, "meta_info": meta | reply.raw}

    def _own_words(self, input_ids: list[int], params: dict[str, Any]) -> list[int]:
        weights = hashlib.sha256("".join(self._parameters.values()).encode()).digest()
        seed = hashlib.sha256(weights + np.asarray(input_ids, "<i4").tobytes()).digest()
        rng = np.random.default_rng(list(seed))
        return [int(i) for i in rng.integers(3, self.vocab_size, int(params["max_new_tokens"]))]

    async def _parse_calls(self, body: dict[str, Any]) -> Response:
        """Llama's form alone, one object after the other, as the server's parser of that name reads it."""
        if self._take_fault("parser_500"):
            return _json({"error": {"message": "parser"}}, 500)
        assert body["tool_call_parser"] == "llama3"
        objects = body["text"].partition("<|python_tag|>")[2].split(";")
        calls = [orjson.loads(text) for text in objects]
        items = [
            {"tool_index": 0, "name": call["name"], "parameters": orjson.dumps(call["parameters"]).decode()}
            for call in calls
        ]
        return _json({"normal_text": "", "calls": items})

    async def _abort(self, body: dict[str, Any]) -> Response:
        for run in self._running.values():
            if body.get("abort_all") or run.rid.startswith(body.get("rid") or "\0"):
                run.is_aborted = True
        return Response(status_code=200)

    async def _pause(self, body: dict[str, Any]) -> Response:
        if body.get("mode", "abort") == "abort":
            # The scheduler goes on, without anything to do: what runs is ended, what comes waits at the door.
            self._admits.clear()
            for run in self._running.values():
                run.is_aborted = True
            await self._is_idle.wait()
        else:
            self._is_open.clear()
        for run in self._running.values():
            run.num_retractions += body.get("mode") == "retract"
        return _json({"message": "Generation paused successfully.", "status": "ok"})

    async def _continue(self, body: dict[str, Any]) -> Response:
        self._admits.set()
        self._is_open.set()
        return _json({"message": "Generation continued successfully.", "status": "ok"})

    async def _flush(self, body: dict[str, Any]) -> Response:
        if self._take_fault("refuse_flush") or (self._running and self._is_open.is_set()):
            return Response("Flush cache failed.\n", 400)
        self._cache.clear()
        return Response("Cache flushed.\n")

    async def _update(self, body: dict[str, Any]) -> Response:
        fault = self._take_fault("refuse_load", "corrupt_load", "keep_cache", "die_on_load", "hang_load")
        if fault == "hang_load":
            await asyncio.sleep(3600)
        if fault == "die_on_load":
            self.die()
            return Response(status_code=500)
        path = Path(body["model_path"])
        parameters = _served_parameters(path)
        if fault == "refuse_load" or not parameters:
            return _json({"success": False, "message": f"Failed to get weights iterator: {path}"}, 400)
        if self._is_open.is_set():
            await self._is_idle.wait()
        self._parameters = parameters
        self.version_label = str(body["weight_version"])
        if fault == "corrupt_load":
            self._parameters = dict.fromkeys(self._parameters, "0" * 16)
        if fault == "keep_cache":
            message = (
                "Weights were updated, but the cache was not flushed because requests are still running or queued."
            )
            return _json({"success": False, "message": message}, 400)
        self.model_path = str(path)
        self._cache.clear()
        return _json({"success": True, "message": "Succeeded to update model weights.", "num_paused_requests": 0})

    async def _checksums(self, body: dict[str, Any]) -> Response:
        return _json({"success": True, "message": "Success", "ranks": [{"checksums": self._parameters}]})

    async def _model_info(self, body: dict[str, Any]) -> Response:
        return _json({"model_path": self.model_path, "weight_version": self.version_label, "is_generation": True})

    async def _loads(self, body: dict[str, Any]) -> Response:
        is_open = self._is_open.is_set()
        running, waiting = (len(self._running), 0) if is_open else (0, len(self._running))
        return _json({"loads": [{"num_running_reqs": running, "num_waiting_reqs": waiting}]})

    async def _health(self, body: dict[str, Any]) -> Response:
        return Response(status_code=200 if self._is_open.is_set() and self._admits.is_set() else 503)


def experts_of(token_ids: Sequence[int], shape: ExpertShape) -> npt.NDArray[np.uint8]:
    """(T, L, K) the experts that the scripted engine uses: a fixed function of token, position and layer."""
    at_T = np.asarray(token_ids, np.int64) + np.arange(len(token_ids))
    first_TL = at_T[:, None] + 3 * np.arange(shape.num_layers)
    return ((first_TL[..., None] + np.arange(shape.num_chosen)) % shape.num_experts).astype(np.uint8)


class _QuietServer(uvicorn.Server):
    def __init__(self, app: Starlette) -> None:
        super().__init__(uvicorn.Config(app, log_level="critical", lifespan="off", timeout_graceful_shutdown=0))
        self.is_up = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.is_up.set()


def _listen(port: int) -> socket.socket:
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", port))
    return listener


def _served_parameters(model_dir: Path) -> dict[str, str]:
    """The checksums SGLang shows for a dense Qwen/Llama checkpoint in float32 on a CPU; none for a foreign path."""
    files = list(model_dir.glob("*.safetensors"))
    tensors = load_file(files[0]) if files else {}
    parameters: dict[str, str] = {}
    for name, tensor in tensors.items():
        if ".k_proj." in name or ".v_proj." in name or ".up_proj." in name:
            continue
        rows = [tensor]
        served = name
        if ".q_proj." in name:
            served = name.replace(".q_proj.", ".qkv_proj.")
            rows += [tensors[name.replace(".q_proj.", f".{part}_proj.")] for part in "kv"]
        if ".gate_proj." in name:
            served = name.replace(".gate_proj.", ".gate_up_proj.")
            rows.append(tensors[name.replace(".gate_proj.", ".up_proj.")])
        if name.endswith("embed_tokens.weight"):
            rows.append(np.zeros((-len(tensor) % 64, tensor.shape[1]), tensor.dtype))
        parameters[served] = hashlib.sha256(np.concatenate(rows).tobytes()).hexdigest()[:16]
    return parameters


def _event(content: Any) -> bytes:
    return b"data: " + orjson.dumps(content) + b"\n\n"


def _spans(versions: Sequence[int | str]) -> list[dict[str, Any]]:
    spans: list[dict[str, Any]] = []
    for position, version in enumerate(versions):
        if spans and spans[-1]["version"] == version:
            spans[-1]["end"] = position + 1
        else:
            spans.append({"version": version, "start": position, "end": position + 1})
    return spans


def _common_prefix(a: list[int], b: list[int]) -> int:
    count = 0
    for left, right in zip(a, b, strict=False):
        if left != right:
            break
        count += 1
    return count


def _json(content: Any, status: int = 200) -> Response:
    return Response(orjson.dumps(content), status, media_type="application/json")
