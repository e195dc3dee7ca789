"""Calls of clients' agents, answered whole or as a stream of events. A client that leaves stops its engine request."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

from fastapi import Request
from fastapi.responses import Response
from starlette.types import Receive, Scope, Send

from api.errors import ShuttingDown
from api.gateway.caller import EPISODE_HEADER, GatewayCaller
from api.gateway.contents import check_counts
from api.runtime import Runtime
from online_agent.errors import OnlineAgentError
from online_agent.gateway.calls import CallAnswer, ChatCall
from online_agent.gateway.exchange import Exchange
from online_agent.gateway.gateway import Gateway

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
    return check_counts(
        call, max_messages=limits.max_messages, max_tools=limits.max_tools, max_choices=limits.max_choices
    )


async def begin(runtime: Runtime, caller: GatewayCaller, call: ChatCall) -> Exchange:
    """The call is under way. Raises what ``Gateway.begin`` raises, and ShuttingDown."""
    if runtime.is_draining:
        raise ShuttingDown("the server is shutting down", retry_after_s=5)
    return await gateway_of(runtime).begin(caller.caller, call)


async def whole(request: Request, runtime: Runtime, exchange: Exchange) -> CallAnswer | None:
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


def receipt_headers(exchange: Exchange, answer: CallAnswer | None = None) -> dict[str, str]:
    """Where the answer is stored; a stream's turn and version are known only at its end, and stand there."""
    if exchange.episode_name is None:
        return {}
    headers = {EPISODE_HEADER: exchange.episode_name, RECEIPT_HEADER: exchange.completion_id}
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
        exchange: Exchange,
        chunks: AsyncIterator[bytes],
        on_error: Callable[[OnlineAgentError], bytes],
        headers: Mapping[str, str],
    ) -> None:
        super().__init__(headers={**headers, "Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._runtime, self._exchange, self._chunks, self._on_error = runtime, exchange, chunks, on_error

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._runtime.waiting():
            pump = asyncio.create_task(self._pump(send))
            watch = asyncio.create_task(_until_gone(receive))
            try:
                await asyncio.wait({pump, watch}, return_when=asyncio.FIRST_COMPLETED)
                if pump.done():
                    pump.result()
            except OSError:
                pass  # the client left while it was being written to
            finally:
                watch.cancel()
                if not pump.done() or pump.cancelled() or pump.exception() is not None:
                    pump.cancel()
                    self._runtime.keep(asyncio.create_task(self._exchange.leave()))

    async def _pump(self, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        try:
            async for chunk in self._chunks:
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except OnlineAgentError as error:
            await send({"type": "http.response.body", "body": self._on_error(error), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _heard(answer: asyncio.Future[CallAnswer]) -> None:
    if not answer.cancelled():
        answer.exception()  # the client has gone: nobody else needs to hear of it


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
