"""The HTTP application on a port, in front of the real SGLang: what other people's agents meet in production."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
from openai import OpenAI

from online_agent.agent.interruption import Interrupter, PauseLimits
from online_agent.config.serving import GatewaySettings
from online_agent.gateway.gateway import Gateway
from online_agent.rendering import ChatRenderer
from online_agent.serving.client import EngineClient
from online_agent.types import TrainingEpisode
from tests.engine_fixtures import RealEngine
from tests.fakes.api import TENANT, World, on_a_port, open_world


@dataclass
class Site:
    world: World
    engine: EngineClient
    real: RealEngine
    renderer: ChatRenderer
    url: str

    @property
    def key(self) -> str:
        return self.world.secrets["agent"]

    def rows(self, name: str) -> list[TrainingEpisode]:
        with self.world.db.reading() as tx:
            found = tx.clients.find(TENANT, name)
            assert found is not None
            return tx.clients.training_rows(found.id, 1.0)

    def openai(self, episode: str) -> OpenAI:
        headers = {"X-Episode-Id": episode}
        http = httpx.Client(trust_env=False)
        return OpenAI(base_url=f"{self.url}/v1", api_key=self.key, http_client=http, default_headers=headers)

    async def scored(self, row: TrainingEpisode) -> np.ndarray[Any, Any]:
        """The engine's own log-prob of every token of the row, NaN for the first."""
        key = self.real.settings.api_key.get_secret_value()
        body = {
            "input_ids": row.token_ids.tolist(),
            "sampling_params": {"temperature": 1.0, "max_new_tokens": 1},
            "return_logprob": True,
            "logprob_start_len": 0,
        }
        async with httpx.AsyncClient(trust_env=False, timeout=60) as client:
            answer = await client.post(
                f"{self.real.url}/generate", json=body, headers={"Authorization": f"Bearer {key}"}
            )
        triples = answer.json()["meta_info"]["input_token_logprobs"]
        return np.asarray([np.nan if triple[0] is None else triple[0] for triple in triples])


@asynccontextmanager
async def open_site(data_dir: Path, real_engine: RealEngine, *, is_interrupted: bool = False) -> AsyncIterator[Site]:
    """``is_interrupted``: the learner may pause the engine."""
    settings = GatewaySettings()
    async with real_engine.client() as engine, open_world(data_dir, gateway=settings) as world:
        renderer = ChatRenderer.load(real_engine.model_dirs[1])
        runtime = world.runtime
        interrupter = Interrupter(world.db, engine, runtime.threads, PauseLimits(max_pause_s=60.0))
        runtime.gateway = Gateway(
            world.db,
            engine,
            renderer,
            settings,
            runtime.settings.agent,
            runtime.threads,
            interrupter=interrupter if is_interrupted else None,
        )
        async with interrupter.serving() if is_interrupted else nullcontext(), on_a_port(world) as client:
            yield Site(world, engine, real_engine, renderer, str(client.base_url))
