"""Calls of clients' agents, answered whole or as a stream of events. A client that leaves stops its engine request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import suppress
from typing import Any

from fastapi import Request
from fastapi.responses import Response
from pydantic import BaseModel
from starlette.types import Receive, Scope, Send

from api.errors import DEFECT, ShuttingDown
from api.gateway.caller import EPISODE_HEADER, AnsweredClient
from api.gateway.contents import check_counts, check_format
from api.idempotency import REPLAY_HEADER, Claim, Outcome, body_hash, once
from api.runtime import Runtime
from online_agent.errors import OnlineAgentError
from online_agent.gateway.calls import CallAnswer, ChatCall
from online_agent.gateway.exchange import Exchange
from online_agent.gateway.gateway import Gateway
from online_agent.gateway.recall import RecalledExchange
from online_agent.telemetry.logging import get_logger

log = get_logger(__name__)

Told = Exchange | RecalledExchange
"""What an answer is read from: the exchange that gives it, or what is stored of one that gave it before."""

RECEIPT_HEADER = "X-Receipt"
TURN_HEADER = "X-Turn"
VERSION_HEADER = "X-Weight-Version"
PING_S = 15.0
CLIENT_CLOSED_REQUEST = 499
"""Nobody reads this status: the client has gone."""


def gateway_of(runtime: Runtime) -> Gateway:
    assert runtime.gateway is not None, "this runtime was opened without a gateway"
    return runtime.gateway


def checked(runtime: Runtime, call: ChatCall) -> ChatCall:
    """The call, within the limits of the configuration; BadInput names the one it is over."""
    limits = runtime.settings.gateway
    check_format(call, runtime.settings.engine.grammar_backend)
    return check_counts(
        call, max_messages=limits.max_messages, max_tools=limits.max_tools, max_choices=limits.max_choices
    )


async def begin(
    request: Request, runtime: Runtime, caller: AnsweredClient, call: ChatCall, body: BaseModel
) -> Exchange | RecalledExchange:
    """The call is under way, or was answered before under its Idempotency-Key.

    Under a key the answer is brought to its end also when the client leaves, so that its next try gets it. Raises what
    ``Gateway.begin`` raises, ShuttingDown, and Conflict for a key that was used with another body.
    """
    if runtime.is_draining:
        raise ShuttingDown("the server is shutting down", retry_after_s=5)
    gateway = gateway_of(runtime)
    if caller.idempotency_key is None or not call.is_recorded:
        return await gateway.begin(caller.caller, call)
    route = f"{request.method} {request.url.path}"
    claim = Claim(caller.caller.tenant_id, caller.idempotency_key, route, body_hash(body))
    begun: asyncio.Future[Exchange] = asyncio.get_running_loop().create_future()

    async def effect() -> Outcome:
        exchange = await gateway.begin(caller.caller, call)
        exchange.outlives_client = True
        begun.set_result(exchange)
        await exchange.answer()
        return Outcome(200, {"completion_id": exchange.completion_id})

    work = asyncio.create_task(once(runtime, claim, effect))
    runtime.keep(work)
    either: set[asyncio.Future[Any]] = {work, begun}
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if begun.done():
        return begun.result()
    begun.cancel()
    return await gateway.recall(caller.caller.tenant_id, call, work.result().body["completion_id"])


async def whole(request: Request, runtime: Runtime, exchange: Told) -> CallAnswer | None:
    """The answer, stored; None when the client left before. Raises EngineError, or what the store raises."""
    watch = asyncio.ensure_future(_until_gone(request.receive))
    answer = asyncio.ensure_future(exchange.answer())
    with runtime.waiting():
        try:
            await asyncio.wait({watch, answer}, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            answer.add_done_callback(_heard)
            await exchange.leave()
            return None
        except asyncio.CancelledError:
            answer.add_done_callback(_heard)
            runtime.keep(asyncio.create_task(exchange.leave()))
            raise
        finally:
            watch.cancel()


def receipt_headers(exchange: Told, answer: CallAnswer | None = None) -> dict[str, str]:
    """Where the answer is stored; a stream's turn and version are known only at its end, and stand there."""
    if exchange.episode_name is None:
        return {}
    replay = {REPLAY_HEADER: "true"} if isinstance(exchange, RecalledExchange) else {}
    headers = {**replay, EPISODE_HEADER: exchange.episode_name, RECEIPT_HEADER: exchange.completion_id}
    if answer is not None:
        headers[TURN_HEADER] = str(answer.receipt.turn)
        if answer.receipt.weight_version is not None:
            headers[VERSION_HEADER] = str(answer.receipt.weight_version)
    return headers


def gone() -> Response:
    return Response(status_code=CLIENT_CLOSED_REQUEST)


class EventStream(Response):
    """Server-sent events of one exchange.

    ``chunks`` reads the exchange; ``on_error`` says in the client's protocol what went wrong, as the last event.
    """

    media_type = "text/event-stream"

    def __init__(
        self,
        runtime: Runtime,
        exchange: Told,
        chunks: AsyncIterator[bytes],
        on_error: Callable[[OnlineAgentError], bytes],
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(headers={**headers, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._runtime, self._exchange, self._chunks, self._on_error = runtime, exchange, chunks, on_error
        self._sent_at = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._runtime.waiting():
            pump, ping = asyncio.create_task(self._pump(send)), asyncio.create_task(self._ping(send))
            watch = asyncio.create_task(_until_gone(receive))
            try:
                await asyncio.wait({pump, watch}, return_when=asyncio.FIRST_COMPLETED)
                if pump.done():
                    pump.result()
            except OSError:
                pass  # the client left while it was being written to
            finally:
                watch.cancel()
                ping.cancel()
                if not pump.done() or pump.cancelled() or pump.exception() is not None:
                    pump.cancel()
                    self._runtime.keep(asyncio.create_task(self._exchange.leave()))

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        last = b""
        try:
            async for chunk in self._chunks:
                self._sent_at = time.monotonic()
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except OnlineAgentError as error:
            last = self._on_error(error)
        except OSError:
            raise  # the client left
        except Exception as defect:
            log.error("a defect", completion_id=self._exchange.completion_id, exc_info=defect)
            self._runtime.keep(asyncio.create_task(self._exchange.leave()))  # nobody reads what it would go on to say
            last = self._on_error(OnlineAgentError(DEFECT))
        await send({"type": "http.response.body", "body": last, "more_body": False})

    async def _ping(self, send: Send) -> None:
        """A comment now and then, so that nothing between us and a waiting client takes the stream for dead."""
        while True:
            await asyncio.sleep(PING_S)
            if self._sent_at and time.monotonic() - self._sent_at >= PING_S:
                with suppress(OSError):
                    await send({"type": "http.response.body", "body": b": ping\n\n", "more_body": True})


def _heard(answer: asyncio.Future[CallAnswer]) -> None:
    if not answer.cancelled():
        answer.exception()  # the client has gone: nobody else needs to hear of it


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
