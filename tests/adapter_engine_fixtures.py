"""A weight store with a base and trained adapters of it, and the real SGLang server started on that base for them."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
import torch

from online_agent.config.serving import EngineSettings
from online_agent.config.training import LoraSettings
from online_agent.learner import lora
from online_agent.learner.models import Actor, load_causal_lm
from online_agent.serving.adapter_client import AdapterClient
from online_agent.serving.launcher import EngineProcess
from online_agent.serving.readiness import wait_ready
from online_agent.types import Generation
from online_agent.weights import VersionDir, WeightStore
from online_agent.weights.adapter import Base
from tests.engine_fixtures import START_TIMEOUT_S, free_port
from tests.fakes.tiny_model import CONTEXT_LENGTH, VOCAB_SIZE, write_tiny_model
from tests.unit.weights.conftest import write_learner

LORA = LoraSettings(rank=4, alpha=6.0)


class Policies:
    """Version 0 and adapters of it, as the learner would publish them, and their log-probs."""

    def __init__(self, root: Path) -> None:
        self.model_dir = write_tiny_model(root / "base", seed=1)
        self.weights = WeightStore(root / "weights")
        self.base = self.weights.import_seed(self.model_dir)
        self._actor = Actor(load_causal_lm(self.base.serving_dir)).eval()
        lora.attach_adapter(self._actor, LORA, seed=0)
        self.factors = {0: lora.initial_factors(self._actor, seed=0)}

    def publish(self, version: int, *, base: Base | None = None, scale: float = 0.2) -> VersionDir:
        """An adapter with factors drawn from its number: another policy than any other's by whole nats."""
        generator = torch.Generator().manual_seed(version)
        self.factors[version] = {
            name: scale * torch.randn(t.shape, generator=generator) for name, t in self.factors[0].items()
        }
        self._load(version)
        with self.weights.writer(version, parent=0, step=version) as directory:
            serving = directory / "serving"
            for name in ("config.json", "tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
                (serving / name).write_bytes((self.base.serving_dir / name).read_bytes())
            belongs_to = base or lora.base_of(self.base.serving_dir)
            probe = lora.measure_probe(self._actor, VOCAB_SIZE)
            lora.write_adapter(serving, dict(self._actor.named_parameters()), LORA, belongs_to, probe)
            write_learner(directory / "learner")
        return self.weights.open(version)

    def gap(self, prompt: np.ndarray, generation: Generation, temperature: float = 1.0) -> float:  # type: ignore[type-arg]
        """The largest |trainer − engine| log-prob, each token judged by the version it is said to come from."""
        ids = torch.tensor(np.concatenate([prompt, generation.token_ids])[None], dtype=torch.long)
        positions = torch.arange(len(prompt) - 1, ids.shape[1] - 1)
        worst = 0.0
        for run in generation.version_runs:
            self._load(run.version)
            with torch.no_grad():
                logps = self._actor(ids, positions, ids[0, len(prompt) :], torch.full((len(positions),), temperature))
            difference = np.abs(logps.numpy() - generation.logprobs)[run.start : run.end]
            worst = max(worst, float(difference.max()))
        return worst

    @torch.no_grad()
    def _load(self, version: int) -> None:
        for name, parameter in self._actor.named_parameters():
            if lora.is_factor(name):
                parameter.copy_(self.factors[version][name])


@dataclass(frozen=True)
class AdapterEngine:
    """A running server on the base of ``policies``."""

    settings: EngineSettings
    policies: Policies
    process: EngineProcess

    def client(self) -> AdapterClient:
        key = self.settings.api_key.get_secret_value()
        return AdapterClient(
            self.process.url, key, 60.0, vocab_size=VOCAB_SIZE, context_length=self.settings.context_length
        )


@pytest.fixture(scope="session")
def adapter_engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AdapterEngine]:
    """Started on version 1, an adapter: base and adapter are there from the start."""
    root = tmp_path_factory.mktemp("adapters")
    policies = Policies(root)
    first = policies.publish(1)
    # With a grammar, which tests of formats use: a server of its own would cost half a minute.
    settings = EngineSettings(max_total_tokens=16384, context_length=CONTEXT_LENGTH, grammar_backend="xgrammar")
    process = EngineProcess(settings, first.serving_dir, 1, port=free_port(), run_dir=root / "engine", lora=LORA)
    engine = AdapterEngine(settings, policies, process)
    process.start()
    try:
        asyncio.run(_wait(engine, first))
        yield engine
    finally:
        process.stop()


async def _wait(engine: AdapterEngine, version: VersionDir) -> None:
    async with engine.client() as client:
        await wait_ready(client, engine.process, version.serving_dir, START_TIMEOUT_S)
