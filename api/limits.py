"""What a request body may be: JSON of bounded size and depth, in UTF-8, without NaN, infinities or NUL characters.

``StrictRoute`` reads the body once, under these limits, before anything else looks at it.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from typing import Any

import orjson
from fastapi import Request
from fastapi.responses import Response
from fastapi.routing import APIRoute

from api.errors import quoted
from online_agent.errors import BadInput, TooLarge

MAX_DEPTH = 32  # deeper than any tool schema we have seen; keeps every later walk cheap
_QUOTE_CHARS = 20
_NESTING = frozenset({str, dict, list})


class StrictRequest(Request):
    """A request whose ``json()`` raises BadInput or TooLarge, naming the place and what stands there."""

    _content: bytes | None = None
    _parsed: Any = None

    async def body(self) -> bytes:
        if self._content is None:
            self._content = await self._read(self.app.state.settings.api.max_body_bytes)
        return self._content

    async def json(self) -> Any:
        if self._parsed is None:
            self._parsed = parse_json(await self.body())
        return self._parsed

    async def _read(self, max_bytes: int) -> bytes:
        declared = self.headers.get("content-length", "0")
        if declared.isdecimal() and int(declared) > max_bytes:
            raise TooLarge(f"the body has {declared} bytes, the limit is {max_bytes} (api.max_body_bytes)")
        content = bytearray()
        async for chunk in self.stream():
            content += chunk
            if len(content) > max_bytes:
                raise TooLarge(f"the body is longer than {max_bytes} bytes (api.max_body_bytes)")
        return bytes(content)


class StrictRoute(APIRoute):
    """A route that refuses an unusable body before validation, so that no parser error can become a 500."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        handler = super().get_route_handler()
        needs_body = self.body_field is not None

        async def handle(request: Request) -> Response:
            refuse_nul(request)
            strict = StrictRequest(request.scope, request.receive)
            if needs_body and await strict.body():
                refuse_other_media(strict)
                await strict.json()
            return await handler(strict)

        return handle


def parse_json(content: bytes) -> Any:
    """The parsed body. Raises BadInput for anything that is not plain JSON within the limits."""
    try:
        parsed = orjson.loads(content)
    except orjson.JSONDecodeError as error:
        near = content.decode("utf-8", "replace")[max(0, error.pos - _QUOTE_CHARS) : error.pos + _QUOTE_CHARS]
        raise BadInput(
            f"the body is not valid JSON: {error.msg} at character {error.pos}, in {quoted(near)}"
        ) from error
    _check_tree(parsed)
    return parsed


def _check_tree(root: Any) -> None:
    level = [root]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for node in level:
            if isinstance(node, str):
                if "\x00" in node:
                    raise BadInput(f"the body holds a NUL character in the string {quoted(node)}")
            elif isinstance(node, dict):
                below.extend(node.keys())
                below.extend(node.values())
            elif isinstance(node, list) and not _NESTING.isdisjoint(map(type, node)):
                below.extend(node)  # a list of numbers has nothing to find; token ids come by the ten thousand
        if not below:
            return
        level = below
    raise BadInput(f"the body is nested deeper than {MAX_DEPTH} levels")


def refuse_nul(request: Request) -> None:
    """Neither database takes NUL in a text; refuse it where it enters."""
    if "\x00" in request.url.path or b"%00" in request.scope["query_string"] or "\x00" in request.scope["path"]:
        raise BadInput("the address holds a NUL character")


def refuse_other_media(request: Request) -> None:
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json" and not media.endswith("+json"):
        raise BadInput(f"Content-Type must be application/json (got {quoted(media)})", param="Content-Type")
