"""The scripted engine with adapters: it holds them by name, and answers as the one that a request names.

Further faults, each taken once, in order: ``refuse_adapter``, ``louder_adapter`` (the probe is off),
``die_on_adapter``, ``lose_label_answer`` (the label is new, but the answer is an error), ``refuse_label``.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.responses import Response
from starlette.routing import Route

from online_agent.weights.adapter import read_probe
from tests.fakes.engine import ScriptedEngine, _json


class ScriptedAdapterEngine(ScriptedEngine):
    """Its probe answers are those that the adapter's directory says, plus what a fault adds."""

    def __init__(self, model_dir: Path, version: int = 0, **options: Any) -> None:
        super().__init__(model_dir, version, **options)
        self.adapters: dict[str, str] = {}
        self.answered_by: list[str | None] = []
        self._probe_offset: dict[str, float] = {}

    def hold(self, name: str, serving_dir: Path, *, probe_offset: float = 1e-6) -> None:
        """The adapter is loaded; its probe answers are off by ``probe_offset``."""
        self.adapters[name] = str(serving_dir)
        self._probe_offset[name] = probe_offset

    def app(self) -> Starlette:
        routes: list[tuple[str, Callable[[dict[str, Any]], Awaitable[Response]]]] = [
            ("/load_lora_adapter", self._load_adapter),
            ("/unload_lora_adapter", self._unload_adapter),
            ("/update_weight_version", self._set_version),
            ("/v1/models", self._models),
            ("/server_info", self._server_info),
        ]
        app = super().app()
        app.router.routes += [Route(p, self._guarded(p, h), methods=["GET", "POST"]) for p, h in routes]
        return app

    async def _generate(self, body: dict[str, Any]) -> Response:
        name = body.get("lora_path")
        if name is not None and name not in self.adapters:
            return _json({"error": {"message": f"Got LoRA adapter that has never been loaded: {name}"}}, 400)
        if body.get("logprob_start_len") == 0:
            return self._answer_probe(name)
        self.answered_by.append(name)
        return await super()._generate(body)

    def _answer_probe(self, name: str) -> Response:
        probe = read_probe(Path(self.adapters[name]))
        logprobs = [None, *(value + self._probe_offset[name] for value in probe.logprobs)]
        triples = [[value, token_id, None] for value, token_id in zip(logprobs, probe.token_ids, strict=True)]
        return _json({"output_ids": [], "meta_info": {"input_token_logprobs": triples}})

    async def _load_adapter(self, body: dict[str, Any]) -> Response:
        fault = self._take_fault("refuse_adapter", "louder_adapter", "die_on_adapter")
        if fault == "die_on_adapter":
            self.die()
            return Response(status_code=500)
        name, path = body["lora_name"], body["lora_path"]
        if fault == "refuse_adapter" or name in self.adapters:
            return _json({"success": False, "error_message": "is incompatible with the memory pool"}, 400)
        json.loads((Path(path) / "adapter_config.json").read_text())
        self.hold(name, Path(path), probe_offset=0.5 if fault == "louder_adapter" else 1e-6)
        return _json({"success": True, "error_message": "", "loaded_adapters": self.adapters})

    async def _unload_adapter(self, body: dict[str, Any]) -> Response:
        if self.adapters.pop(body["lora_name"], None) is None:
            return _json({"success": False, "error_message": "does not exist"}, 400)
        return _json({"success": True, "error_message": "", "loaded_adapters": self.adapters})

    async def _set_version(self, body: dict[str, Any]) -> Response:
        fault = self._take_fault("lose_label_answer", "refuse_label")
        if fault == "refuse_label":
            return _json({"success": False, "message": "busy"}, 400)
        self.version_label = body["new_version"]
        if fault == "lose_label_answer":
            return _json({"success": False, "message": "no answer"}, 400)
        return _json({"success": True, "message": "", "new_version": self.version_label})

    async def _models(self, body: dict[str, Any]) -> Response:
        base = {"id": self.model_path, "root": self.model_path, "parent": None}
        held = [{"id": name, "root": path, "parent": self.model_path} for name, path in self.adapters.items()]
        return _json({"object": "list", "data": [base, *held]})

    async def _server_info(self, body: dict[str, Any]) -> Response:
        return _json({"dtype": "float32"})
