"""The demo's view of the HTTP API: nothing here that a user's own script could not do."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import httpx

from online_agent.demo.records import RequestLog

BUSY_STATUSES = (429, 503)  # "come back later", with Retry-After: not a failure
MAX_TRIES = 20


class ApiFailure(Exception):
    """The API refused or failed; the message names the route, the status and the reason."""


class Api:
    """Authenticated calls, each logged with its start and end."""

    def __init__(self, http: httpx.AsyncClient, log: RequestLog) -> None:
        self._http = http
        self._log = log

    async def get(self, path: str, **params: Any) -> Any:
        return await self._call("GET", path, params=params)

    async def post(self, path: str, body: Mapping[str, Any] | None = None, **params: Any) -> Any:
        return await self._call("POST", path, params=params, json=dict(body or {}))

    async def delete(self, path: str) -> Any:
        return await self._call("DELETE", path)

    async def pages(self, path: str, **params: Any) -> AsyncIterator[Mapping[str, Any]]:
        """Every row of a paged list, oldest page last."""
        cursor: str | None = None
        while True:
            query = params | ({"cursor": cursor} if cursor else {})
            page = await self.get(path, **query)
            for row in page["data"]:
                yield row
            cursor = page.get("next_cursor")
            if not cursor:
                return

    async def _call(self, method: str, path: str, **kwargs: Any) -> Any:
        for _ in range(MAX_TRIES):
            started = time.time()
            try:
                answer = await self._http.request(method, path, **kwargs)
            except httpx.HTTPError as error:
                self._log.failures.append(f"{method} {path}: {error!r}")
                raise ApiFailure(f"{method} {path}: {error!r}") from error
            finally:
                self._log.spans.append((started, time.time()))
            if answer.status_code in BUSY_STATUSES and "retry-after" in answer.headers:
                self._log.num_retried += 1
                await asyncio.sleep(float(answer.headers["retry-after"]))
                continue
            if answer.is_error:
                self._log.failures.append(f"{method} {path}: {answer.status_code} {answer.text[:300]}")
                raise ApiFailure(self._log.failures[-1])
            return answer.json() if answer.content else None
        self._log.failures.append(f"{method} {path}: still busy after {MAX_TRIES} tries")
        raise ApiFailure(self._log.failures[-1])


@asynccontextmanager
async def connect(url: str, key: str, log: RequestLog, timeout_s: float = 180.0) -> AsyncIterator[Api]:
    headers = {"Authorization": f"Bearer {key}"}
    limits = httpx.Limits(max_connections=128, max_keepalive_connections=128)
    async with httpx.AsyncClient(base_url=url, headers=headers, timeout=timeout_s, limits=limits) as http:
        yield Api(http, log)
