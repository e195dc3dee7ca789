"""The command line's view of the HTTP API. Where it is and which key to use, strongest first: the environment
(``ONLINE_AGENT_URL``, ``ONLINE_AGENT_KEY``), then ``<data_dir>/run/api.json`` as ``online-agent up`` wrote it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Self

import httpx

from online_agent.cli.failures import ApiError, Unreachable
from online_agent.errors import NotAuthenticated

_TIMEOUT_S = 30.0
_JSON = {"Content-Type": "application/json"}
Row = Mapping[str, Any]


class Api:
    """Authenticated calls that return the decoded answer. Raises Unreachable, ApiError, NotAuthenticated."""

    def __init__(self, url: str, key: str, timeout_s: float = _TIMEOUT_S) -> None:
        self.url = url.rstrip("/")
        self._http = httpx.Client(
            base_url=self.url, headers={"Authorization": f"Bearer {key}"}, timeout=timeout_s, trust_env=False
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._http.close()

    def get(self, path: str, **query: Any) -> Any:
        return self._call("GET", path, query, None)

    def post(self, path: str, body: Mapping[str, Any] | None = None, **query: Any) -> Any:
        return self._call("POST", path, query, dict(body or {}))

    def put(self, path: str, body: Mapping[str, Any]) -> Any:
        return self._call("PUT", path, {}, dict(body))

    def delete(self, path: str) -> Any:
        return self._call("DELETE", path, {}, None)

    def post_json(self, path: str, content: bytes) -> Any:
        """Like ``post``, of a body that is JSON already."""
        return self._answered(lambda: self._http.post(path, content=content, headers=_JSON))

    def download(self, path: str, **query: Any) -> Iterator[bytes]:
        """The body as it arrives. Raises Unreachable also when it breaks off."""
        params = {name: value for name, value in query.items() if value is not None}
        try:
            with self._http.stream("GET", path, params=params) as answer:
                if answer.is_error:
                    answer.read()
                    raise _api_error(answer)
                yield from answer.iter_bytes()
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error

    def rows(self, path: str, limit: int, **query: Any) -> Iterator[Row]:
        """Up to ``limit`` rows of a paged list."""
        cursor: str | None = None
        while limit > 0:
            page = self.get(path, limit=min(limit, 200), cursor=cursor, **query)
            yield from page["data"][:limit]
            limit -= len(page["data"])
            cursor = page.get("next_cursor")
            if cursor is None:
                return

    def _call(self, method: str, path: str, query: Mapping[str, Any], body: Any) -> Any:
        params = {name: value for name, value in query.items() if value is not None}
        return self._answered(lambda: self._http.request(method, path, params=params, json=body))

    def _answered(self, call: Callable[[], httpx.Response]) -> Any:
        try:
            answer = call()
        except httpx.HTTPError as error:
            raise self._unreachable(error) from error
        if answer.is_error:
            raise _api_error(answer)
        return answer.json() if answer.content else None

    def _unreachable(self, error: httpx.HTTPError) -> Unreachable:
        return Unreachable(f"no answer from {self.url}: {error or type(error).__name__}")


def connect(timeout_s: float = _TIMEOUT_S) -> Api:
    """The API that the environment or the data directory names. Raises Unreachable or NotAuthenticated."""
    data_dir = Path(os.environ.get("ONLINE_AGENT_DATA_DIR", "") or _default_data_dir())
    facts = _facts(data_dir)
    url = os.environ.get("ONLINE_AGENT_URL") or facts.get("url")
    if not url:
        raise Unreachable(
            f"nothing runs in {data_dir} (no run/api.json): start `online-agent up` or set ONLINE_AGENT_URL"
        )
    key = os.environ.get("ONLINE_AGENT_KEY")
    if not key:
        key_file = Path(facts.get("key_file", ""))
        if not key_file.is_file():
            raise NotAuthenticated("no key: set ONLINE_AGENT_KEY")
        key = key_file.read_text().strip()
    return Api(url, key, timeout_s)


def _facts(data_dir: Path) -> dict[str, str]:
    try:
        facts: dict[str, str] = json.loads((data_dir / "run" / "api.json").read_text())
    except (OSError, ValueError):
        return {}
    return facts


def _default_data_dir() -> Path:
    from online_agent.config.environment import settings_of_environment

    return settings_of_environment().data_dir


def _api_error(answer: httpx.Response) -> ApiError:
    try:
        error = answer.json()["error"]
        message, param = str(error["message"]), error.get("param")
    except (ValueError, KeyError, TypeError):
        message, param = answer.text[:200] or answer.reason_phrase, None
    where = f" ({param})" if param and not message.startswith(f"{param}: ") else ""
    return ApiError(f"{message}{where}", status=answer.status_code, param=param)
