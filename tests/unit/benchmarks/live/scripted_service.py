"""The routes of the service that a run uses, as a script: it trains a batch as soon as one is there."""

from __future__ import annotations

import json
from typing import Any

import httpx

from online_agent.demo.client import Api
from online_agent.demo.records import RequestLog

METRICS = {
    "actor/updates": 1.0,
    "actor/loss": 0.1,
    "actor/grad_norm": 0.2,
    "tokens/total": 100.0,
    "tokens/kept": 90.0,
    "tokens/masked_share": 0.1,
    "mismatch/mean_abs_logp": 0.02,
    "staleness/mean_versions": 3.0,
    "staleness/max_versions": 5.0,
    "seconds/total": 0.5,
}


class ScriptedService:
    """Odd tasks succeed. ``skips``: every step is skipped, and the learner pauses itself after three."""

    def __init__(self, batch_episodes: int, *, skips: bool = False, serves_every: int = 1) -> None:
        self.batch_episodes, self.skips, self.serves_every = batch_episodes, skips, serves_every
        self.bodies: list[dict[str, Any]] = []
        self.steps: list[dict[str, Any]] = []
        self.rows: list[dict[str, Any]] = []
        self.is_paused = False
        self.num_ready = 0

    @property
    def version(self) -> int:
        return sum(step["status"] == "committed" for step in self.steps)

    @property
    def serving_version(self) -> int:
        return self.version - self.version % self.serves_every

    def api(self) -> Api:
        http = httpx.AsyncClient(transport=httpx.MockTransport(self._answer), base_url="http://scripted")
        return Api(http, RequestLog())

    def _answer(self, request: httpx.Request) -> httpx.Response:
        routes = {
            ("GET", "/v1/training"): self._training,
            ("POST", "/v1/training/pause"): self._pause,
            ("GET", "/v1/training/steps"): lambda: {"data": self.steps[::-1], "next_cursor": None},
            ("GET", "/v1/events"): lambda: {"data": [{"kind": "ewma_reset", "data": {"cause": "tau"}}]},
            ("GET", "/v1/episodes"): lambda: {"data": self.rows[::-1], "next_cursor": None},
        }
        if (request.method, request.url.path) == ("POST", "/v1/episodes"):
            return self._episode(json.loads(request.content))
        return httpx.Response(200, json=routes[request.method, request.url.path]())

    def _training(self) -> dict[str, Any]:
        return {
            "state": "paused" if self.is_paused else "waiting",
            "is_paused": self.is_paused,
            "num_ready": self.num_ready,
            "num_ungraded": 0,
            "steps": self.steps[::-1][:20],
            "steps_committed": self.version,
            "current_version": self.version,
            "serving_version": self.serving_version,
        }

    def _pause(self) -> dict[str, Any]:
        self.is_paused = True
        return {}

    def _episode(self, body: dict[str, Any]) -> httpx.Response:
        self.bodies.append(body)
        split, number = body["task_id"].split("-")
        if "weight_version" in body and body["weight_version"] != self.serving_version:
            return httpx.Response(409, json={"error": "another version serves"})
        rows = [self._row(split, int(number)) for _ in range(body.get("group_size", 1))]
        self.rows += rows
        if split == "train":
            self.num_ready += len(rows)
            self._train()
        return httpx.Response(201, json=rows[0])

    def _row(self, split: str, number: int) -> dict[str, Any]:
        return {
            "id": f"e{len(self.rows)}",
            "status": "graded",
            "split": split,
            "verdict": {"is_success": number % 2 == 1},
            "finished_at": float(len(self.rows)),
            "drop_reason": None,
        }

    def _train(self) -> None:
        while self.num_ready >= self.batch_episodes and not self.is_paused:
            self.num_ready -= self.batch_episodes
            status = "skipped" if self.skips else "committed"
            reason = "all tokens masked" if self.skips else None
            self.steps.append({"step": len(self.steps) + 1, "status": status, "reason": reason, "metrics": METRICS})
            self.is_paused = self.skips and len(self.steps) >= 3
