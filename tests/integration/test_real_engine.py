"""The real SGLang server in use: log-probs, swaps under traffic, bad directories, kill and restart."""

from __future__ import annotations

import asyncio
import os
import shutil
import signal
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import psutil
import pytest
import torch
from safetensors.numpy import load_file, save_file
from transformers import AutoModelForCausalLM

from online_agent.config.serving import EngineSettings
from online_agent.errors import EngineUnavailable, ForeignVersion, OnlineAgentError, SwapFailed
from online_agent.serving.client import EngineClient, new_rid
from online_agent.serving.launcher import EngineProcess
from online_agent.serving.readiness import verify_served, wait_ready
from online_agent.serving.swap import restore, swap
from online_agent.types import Generation, Sampling, VersionRun
from online_agent.weights.store import WeightStore
from online_agent.weights.version_dir import VersionDir
from tests.engine_fixtures import START_TIMEOUT_S, RealEngine, client_of, free_port
from tests.waiting import until

pytestmark = pytest.mark.engine

PROMPT = np.arange(20, 60, dtype=np.int32)
MAX_GAP = 1e-4
"""Float32 on both sides; seen: 1e-5. A token sampled by other weights is off by whole nats."""


@pytest.fixture
async def client(real_engine: RealEngine) -> AsyncIterator[EngineClient]:
    async with real_engine.client() as client:
        yield client


@pytest.fixture(scope="module")
def versions(model_dirs: dict[int, Path], tmp_path_factory: pytest.TempPathFactory) -> dict[int, VersionDir]:
    store = WeightStore(tmp_path_factory.mktemp("weights"))
    return {number: store.import_seed(directory, number) for number, directory in model_dirs.items()}


class Trainer:
    """Log-probs as the learner would compute them, per version."""

    def __init__(self, model_dirs: dict[int, Path]) -> None:
        self._models = {
            version: AutoModelForCausalLM.from_pretrained(directory, dtype=torch.float32)
            for version, directory in model_dirs.items()
        }

    def gap(self, prompt: np.ndarray, generation: Generation, temperature: float) -> float:  # type: ignore[type-arg]
        """The largest |trainer − engine| log-prob, each token judged by the weights that sampled it."""
        ids = torch.tensor(np.concatenate([prompt, generation.token_ids])[None], dtype=torch.long)
        worst = 0.0
        for run in generation.version_runs:
            with torch.no_grad():
                logits = self._models[run.version](ids).logits[0, len(prompt) - 1 : -1] / temperature
            logps = torch.log_softmax(logits, -1).gather(1, ids[0, len(prompt) :, None])[:, 0].numpy()
            difference = np.abs(logps - generation.logprobs)[run.start : run.end]
            worst = max(worst, float(difference.max()))
        return worst

    def greedy(self, version: int, prompt: np.ndarray, num_tokens: int) -> list[int]:  # type: ignore[type-arg]
        """What a server that started cold on this version says."""
        ids = prompt.tolist()
        for _ in range(num_tokens):
            with torch.no_grad():
                ids.append(int(self._models[version](torch.tensor([ids])).logits[0, -1].argmax()))
        return ids[len(prompt) :]


@pytest.fixture(scope="module")
def trainer(model_dirs: dict[int, Path]) -> Trainer:
    torch.set_num_threads(1)
    return Trainer(model_dirs)


@pytest.mark.parametrize("temperature", [0.5, 0.7, 1.0, 1.3])
async def test_c07_engine_and_trainer_agree_on_every_log_prob_at_the_temperature_of_the_request(
    client: EngineClient, trainer: Trainer, temperature: float
) -> None:
    generation = await client.generate(PROMPT, Sampling(temperature, 1.0, 64), [], new_rid())
    assert trainer.gap(PROMPT, generation, temperature) < MAX_GAP


async def test_a_second_turn_continues_the_first_with_the_same_log_probs(
    client: EngineClient, trainer: Trainer
) -> None:
    first = await client.generate(PROMPT, Sampling(1.0, 1.0, 20), [], new_rid())
    longer = np.concatenate([PROMPT, first.token_ids, np.arange(100, 110, dtype=np.int32)])
    second = await client.generate(longer, Sampling(1.0, 1.0, 20), [], new_rid())
    assert second.num_cached_tokens > len(PROMPT)
    assert trainer.gap(longer, second, 1.0) < MAX_GAP


async def test_swaps_under_traffic_lose_nothing_and_every_token_is_labelled_with_the_weights_that_sampled_it(
    client: EngineClient, trainer: Trainer, versions: dict[int, VersionDir]
) -> None:
    generations: list[tuple[np.ndarray, Generation]] = []  # type: ignore[type-arg]
    is_over = asyncio.Event()

    async def traffic(offset: int) -> None:
        while not is_over.is_set():
            prompt = PROMPT + offset
            generations.append((prompt, await client.generate(prompt, Sampling(1.0, 1.0, 150), [], new_rid())))

    tasks = [asyncio.create_task(traffic(offset)) for offset in range(8)]
    reports = []
    for serving, target in [(1, 2), (2, 3), (3, 1), (1, 2)]:
        await asyncio.sleep(0.4)
        reports.append(await swap(client, versions[target], last_good=versions[serving], timeout_s=20))
    is_over.set()
    await asyncio.gather(*tasks)  # no request failed
    assert max(report.paused_s for report in reports) < 5.0
    assert any(report.num_running_at_pause for report in reports)
    mixed = [g for _, g in generations if len(g.version_runs) > 1]
    assert mixed
    assert all(g.num_retractions >= 1 for g in mixed)
    assert max(trainer.gap(prompt, g, 1.0) for prompt, g in generations) < MAX_GAP


async def test_c12_after_a_swap_answers_are_those_of_an_engine_that_started_on_the_new_weights(
    client: EngineClient, trainer: Trainer, versions: dict[int, VersionDir]
) -> None:
    prompt = (np.arange(800, dtype=np.int32) * 7) % 400 + 70
    greedy = Sampling(0.0, 1.0, 8)
    before = [await client.generate(prompt, greedy, [], new_rid()) for _ in range(2)]
    assert before[1].num_cached_tokens > 700
    await swap(client, versions[2], last_good=versions[1], timeout_s=20)
    generation = await client.generate(prompt, greedy, [], new_rid())
    assert generation.num_cached_tokens == 0
    assert generation.token_ids.tolist() == trainer.greedy(2, prompt, 8) != before[0].token_ids.tolist()
    sampled = await client.generate(prompt, Sampling(1.0, 1.0, 8), [], new_rid())
    assert trainer.gap(prompt, sampled, 1.0) < MAX_GAP


@pytest.mark.parametrize("rows", [slice(None), slice(None, None, 2)], ids=["every row", "every other row"])
async def test_c14_a_tied_head_follows_the_embedding(
    client: EngineClient, model_dirs: dict[int, Path], versions: dict[int, VersionDir], tmp_path: Path, rows: slice
) -> None:
    """1.0 on every row moves all logits alike, which a softmax does not show; on every other row it does."""
    model = shutil.copytree(model_dirs[1], tmp_path / "model")
    tensors = load_file(model / "model.safetensors")
    assert "lm_head.weight" not in tensors
    tensors["model.embed_tokens.weight"][rows] += 1.0
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    target = WeightStore(tmp_path / "weights").import_seed(model, 4)
    await swap(client, target, last_good=versions[1], timeout_s=20)
    generation = await client.generate(PROMPT, Sampling(1.0, 1.0, 64), [], new_rid())
    assert [run.version for run in generation.version_runs] == [4]
    assert Trainer({4: model}).gap(PROMPT, generation, 1.0) < MAX_GAP
    assert Trainer({4: model_dirs[1]}).gap(PROMPT, generation, 1.0) > 0.05, "a missed sync would show"


async def test_c14_a_directory_whose_names_match_nothing_is_an_error_and_changes_no_version(
    client: EngineClient, model_dirs: dict[int, Path], versions: dict[int, VersionDir], tmp_path: Path
) -> None:
    model = shutil.copytree(model_dirs[2], tmp_path / "model")
    tensors = {f"other.{name}": tensor for name, tensor in load_file(model / "model.safetensors").items()}
    save_file(tensors, model / "model.safetensors", metadata={"format": "pt"})
    target = WeightStore(tmp_path / "weights").import_seed(model, 4)
    with pytest.raises(ForeignVersion, match=f"none of its {len(tensors)} tensors is known"):
        await swap(client, target, last_good=versions[1], timeout_s=20)
    assert (await client.model_info()).weight_version == 1


@pytest.mark.parametrize("damage", ["truncated", "absent", "foreign"])
async def test_a_bad_directory_is_refused_and_the_server_goes_on(
    client: EngineClient, versions: dict[int, VersionDir], tmp_path: Path, damage: str
) -> None:
    path = tmp_path / "v000002"
    shutil.copytree(versions[2].path, path)
    file = path / "serving" / "model.safetensors"
    file.chmod(0o600)
    if damage == "absent":
        file.unlink()
    elif damage == "truncated":
        file.write_bytes(file.read_bytes()[:-5000])
    else:
        file.write_bytes(file.read_bytes().replace(b"down_proj", b"downpproj"))
    with pytest.raises(OnlineAgentError) as raised:
        await swap(client, VersionDir(path, versions[2].manifest), last_good=versions[1], timeout_s=20)
    assert not isinstance(raised.value, EngineUnavailable)
    generation = await client.generate(PROMPT, Sampling(1.0, 1.0, 4), [], new_rid())
    assert [run.version for run in generation.version_runs] == [1]


async def test_weights_that_differ_from_their_directory_are_found_out(
    client: EngineClient, versions: dict[int, VersionDir]
) -> None:
    await verify_served(client, versions[1].serving_dir, 1)
    with pytest.raises(SwapFailed, match="has other values than the directory"):
        await verify_served(client, versions[2].serving_dir, 1)
    with pytest.raises(SwapFailed, match="serves version 1, not 2"):
        await verify_served(client, versions[1].serving_dir, 2)


async def test_an_engine_left_paused_by_a_killed_swapper_is_restored(
    client: EngineClient, trainer: Trainer, versions: dict[int, VersionDir]
) -> None:
    await client.pause()
    await client.update_weights(versions[3].serving_dir, 3)
    await restore(client, versions[2], timeout_s=20)
    generation = await client.generate(PROMPT, Sampling(1.0, 1.0, 16), [], new_rid())
    assert [run.version for run in generation.version_runs] == [2]
    assert trainer.gap(PROMPT, generation, 1.0) < MAX_GAP


@pytest.mark.slow
@pytest.mark.timeout(2 * START_TIMEOUT_S + 120)
async def test_c15_a_killed_engine_is_unavailable_and_its_successor_starts_on_the_current_version(
    engine_settings: EngineSettings, versions: dict[int, VersionDir], trainer: Trainer, tmp_path: Path
) -> None:
    doomed = EngineProcess(engine_settings, versions[1].serving_dir, 1, port=free_port(), run_dir=tmp_path / "doomed")
    doomed.start()
    try:
        await _kill_under_traffic(doomed, engine_settings, versions[1].serving_dir)
    finally:
        doomed.stop()

    successor = EngineProcess(
        engine_settings, versions[3].serving_dir, 12, port=free_port(), run_dir=tmp_path / "successor"
    )
    successor.start()
    try:
        async with client_of(successor.url, engine_settings) as client:
            await wait_ready(client, successor, versions[3].serving_dir, START_TIMEOUT_S)
            generation = await client.generate(PROMPT, Sampling(1.0, 1.0, 16), [], new_rid())
            assert [run.version for run in generation.version_runs] == [12]
            as_written = replace(generation, version_runs=(VersionRun(3, 0, 16),))
            assert trainer.gap(PROMPT, as_written, 1.0) < MAX_GAP
    finally:
        successor.stop()
    log = successor.log_file.read_text()
    assert engine_settings.api_key.get_secret_value() not in log
    assert successor.log_file.stat().st_mode & 0o077 == 0


async def _kill_under_traffic(doomed: EngineProcess, settings: EngineSettings, serving_dir: Path) -> None:
    async with client_of(doomed.url, settings) as client:
        await wait_ready(client, doomed, serving_dir, START_TIMEOUT_S)
        under_way = asyncio.create_task(client.generate(PROMPT, Sampling(1.0, 1.0, 900), [], new_rid()))

        async def is_running() -> bool:
            return (await client.loads()).num_running == 1

        await until(is_running)
        assert doomed.pid is not None
        family = psutil.Process(doomed.pid).children(recursive=True)
        os.kill(doomed.pid, signal.SIGKILL)
        with pytest.raises(EngineUnavailable):
            await under_way
        with pytest.raises(EngineUnavailable):
            await client.generate(PROMPT, Sampling(1.0, 1.0, 4), [], new_rid())
    await until(lambda: not [p for p in family if p.is_running() and p.status() != psutil.STATUS_ZOMBIE], 60)
