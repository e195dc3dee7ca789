"""The client of a server whose policy is a frozen base with one adapter per version.

The server holds several adapters at once, and its weight label says which of them serves: each request names that
one, and is answered by it to its end, whatever is switched meanwhile. So the version of a generation is known when it
is asked for, and the label that the server reports with its tokens (the one of that moment) is not what counts.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from online_agent.errors import EngineProtocolError, EngineRejected
from online_agent.serving.client import ADMIN_TIMEOUT_S, PROBE_TIMEOUT_S, EngineClient, new_rid
from online_agent.weights.adapter import adapter_name, version_of

SERVING_TTL_S = 0.25
"""How long what serves is taken for known. A request that starts later than this after a switch names the new one."""

MAX_READS = 5
"""A label that changes during each of so many readings is no label to trust."""


@dataclass(frozen=True, slots=True)
class ServingPolicy:
    """The version that serves, and the adapter to ask for it: None while the base itself serves."""

    version: int
    adapter: str | None


class AdapterClient(EngineClient):
    """As EngineClient; its base weights never change while the server lives."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self._serving: ServingPolicy | None = None
        self._read_at = 0.0
        self._reading = asyncio.Lock()

    async def load_adapter(self, version: int, path: Path, timeout_s: float = ADMIN_TIMEOUT_S) -> None:
        """The adapter is held beside those that are. Raises EngineRejected with the server's reason."""
        body = {"lora_name": adapter_name(version), "lora_path": str(path)}
        await self._post("/load_lora_adapter", body, timeout_s)

    async def unload_adapter(self, version: int, timeout_s: float = ADMIN_TIMEOUT_S) -> None:
        """The adapter is gone, once the requests that it answers have ended."""
        await self._post("/unload_lora_adapter", {"lora_name": adapter_name(version)}, timeout_s)

    async def adapters(self) -> dict[int, str]:
        """The path of each adapter that the server holds, by version."""
        answer = await self._get("/v1/models", PROBE_TIMEOUT_S)
        try:
            held = {version_of(str(model["id"])): str(model["root"]) for model in answer["data"] if model["parent"]}
        except (KeyError, TypeError) as error:
            raise EngineProtocolError(f"{self.base_url}: the answer lists no models: {answer}") from error
        return {version: path for version, path in held.items() if version is not None}

    async def set_version(self, version: int) -> None:
        """Requests that start from now on are answered by this version."""
        body = {"new_version": str(version), "abort_all_requests": False}
        answer = await self._post("/update_weight_version", body, ADMIN_TIMEOUT_S)
        if not isinstance(answer, dict) or answer.get("success") is not True:
            raise EngineRejected(f"{self.base_url} did not take the label {version}: {answer}")
        self._serving = None

    async def prompt_logprobs(
        self, token_ids: Sequence[int], version: int, timeout_s: float = ADMIN_TIMEOUT_S
    ) -> list[float | None]:
        """log pi(token | tokens before) of each id but the first, under the adapter of ``version``."""
        body = {
            "rid": new_rid(),
            "input_ids": list(token_ids),
            "sampling_params": {"temperature": 1.0, "max_new_tokens": 0},
            "return_logprob": True,
            "logprob_start_len": 0,
            "lora_path": adapter_name(version),
        }
        answer = await self._post("/generate", body, timeout_s)
        try:
            return [triple[0] for triple in answer["meta_info"]["input_token_logprobs"][1:]]
        except (KeyError, TypeError, IndexError) as error:
            raise EngineProtocolError(f"{self.base_url}: the answer holds no log-probs of the prompt") from error

    async def dtype(self) -> str:
        """The number format of the served weights, in torch's words."""
        answer = await self._get("/server_info", PROBE_TIMEOUT_S)
        return str(answer.get("dtype")) if isinstance(answer, dict) else "unknown"

    async def serving(self) -> ServingPolicy:
        """What serves, at most ``SERVING_TTL_S`` old."""
        async with self._reading:
            if self._serving is None or time.monotonic() - self._read_at > SERVING_TTL_S:
                self._serving, self._read_at = await self._read_serving(self._serving), time.monotonic()
            return self._serving

    async def _read_serving(self, known: ServingPolicy | None) -> ServingPolicy:
        version = await self._label()
        for _ in range(MAX_READS):
            if known is not None and known.version == version:
                return known
            # An adapter is held as long as it serves. If the label is the same after the list was read as before, one
            # that is not in the list does not exist: this version is the base.
            held = await self.adapters()
            read_again = await self._label()
            if read_again == version:
                return ServingPolicy(version, adapter_name(version) if version in held else None)
            version = read_again
        raise EngineProtocolError(f"{self.base_url}: its version label does not stand still")

    async def _label(self) -> int:
        version = (await self.model_info()).weight_version
        if version is None:
            raise EngineProtocolError(f"{self.base_url} names no version that serves")
        return version

    async def _addressed(self, body: dict[str, Any]) -> tuple[dict[str, Any], int | None]:
        policy = await self.serving()
        if policy.adapter is None:
            return body, policy.version
        return {**body, "lora_path": policy.adapter}, policy.version
