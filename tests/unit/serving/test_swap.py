"""The swap against a scripted engine: every way it can go wrong ends with a known version serving, or EngineLost."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from online_agent.errors import CorruptVersion, EngineLost, ForeignVersion, SwapFailed
from online_agent.serving.client import EngineClient, new_rid
from online_agent.serving.swap import FLUSH_RETRY_S, restore, swap
from online_agent.types import Sampling, VersionOrigin
from online_agent.weights.store import WeightStore
from online_agent.weights.version_dir import VersionDir
from tests.fakes.engine import ScriptedEngine
from tests.fakes.tiny_model import VOCAB_SIZE
from tests.waiting import until

PROMPT = np.arange(20, 40, dtype=np.int32)


@pytest.fixture
def versions(model_dirs: dict[int, Path], tmp_path: Path) -> dict[int, VersionDir]:
    store = WeightStore(tmp_path / "weights")
    return {number: store.import_seed(model_dirs[number], number) for number in (1, 2)}


@pytest.fixture
async def engine(versions: dict[int, VersionDir]) -> AsyncIterator[ScriptedEngine]:
    async with ScriptedEngine(versions[1].serving_dir, 1, vocab_size=VOCAB_SIZE).running() as engine:
        yield engine


@pytest.fixture
async def client(engine: ScriptedEngine) -> AsyncIterator[EngineClient]:
    async with EngineClient(engine.url, request_timeout_s=10, vocab_size=VOCAB_SIZE, context_length=1024) as client:
        yield client


async def serves(client: EngineClient) -> int | None:
    """The version that a request of now is answered with."""
    generation = await client.generate(PROMPT, Sampling(1.0, 1.0, 3), [], new_rid())
    [run] = generation.version_runs
    return run.version


async def test_a_swap_under_traffic_loses_no_request_and_reports_what_it_met(
    engine: ScriptedEngine, client: EngineClient, versions: dict[int, VersionDir]
) -> None:
    engine.token_delay_s = 0.002
    tasks = [asyncio.create_task(client.generate(PROMPT + i, Sampling(1.0, 1.0, 200), [], new_rid())) for i in range(8)]
    await until(lambda: engine.num_running == 8)
    report = await swap(client, versions[2], last_good=versions[1], timeout_s=5)
    generations = await asyncio.gather(*tasks)
    assert (report.version, report.previous_version, report.num_running_at_pause) == (2, 1, 8)
    assert 0 < report.paused_s <= report.seconds < 5
    for generation in generations:
        assert [run.version for run in generation.version_runs] == [1, 2]
        assert (len(generation.token_ids), generation.num_retractions) == (200, 1)
    assert await serves(client) == 2


@pytest.mark.parametrize("fault", ["refuse_load", "corrupt_load"])
async def test_a_load_that_is_refused_or_gives_other_values_puts_the_last_good_version_back(
    engine: ScriptedEngine, client: EngineClient, versions: dict[int, VersionDir], fault: str
) -> None:
    engine.faults.append(fault)
    with pytest.raises(SwapFailed, match=r"version 2 was not taken .* version 1 serves") as raised:
        await swap(client, versions[2], last_good=versions[1], timeout_s=5)
    assert not isinstance(raised.value, EngineLost)
    assert await serves(client) == 1
    assert Path(engine.model_path) == versions[1].serving_dir


async def test_no_token_is_sampled_by_weights_that_did_not_verify(
    engine: ScriptedEngine, client: EngineClient, versions: dict[int, VersionDir]
) -> None:
    engine.faults.append("corrupt_load")
    engine.token_delay_s = 0.001
    under_way = asyncio.create_task(client.generate(PROMPT, Sampling(1.0, 1.0, 300), [], new_rid()))
    await until(lambda: engine.num_running == 1)
    with pytest.raises(SwapFailed):
        await swap(client, versions[2], last_good=versions[1], timeout_s=5)
    assert {run.version for run in (await under_way).version_runs} == {1}


async def test_when_the_cache_was_kept_it_is_flushed_and_the_version_loaded_again(
    engine: ScriptedEngine, client: EngineClient, versions: dict[int, VersionDir]
) -> None:
    engine.faults.append("keep_cache")
    report = await swap(client, versions[2], last_good=versions[1], timeout_s=5)
    assert report.version == 2
    assert len(engine.bodies("/flush_cache")) == 1
    assert len(engine.bodies("/update_weights_from_disk")) == 2
    assert (await client.model_info()).weight_version == 2


async def test_c12_a_refused_flush_is_asked_for_again_before_the_version_is_announced(
    engine: ScriptedEngine, client: EngineClient, versions: dict[int, VersionDir]
) -> None:
    engine.faults.extend(["keep_cache", "refuse_flush", "refuse_flush"])
    started_at = time.monotonic()
    await swap(client, versions[2], last_good=versions[1], timeout_s=5)
    assert time.monotonic() - started_at >= 2 * FLUSH_RETRY_S
    asked = [path for path, _ in engine.requests]
    assert asked.count("/flush_cache") == 3
    assert asked.count("/continue_generation") == 1
    assert asked.index("/continue_generation") > max(i for i, path in enumerate(asked) if path == "/flush_cache")


async def test_a_load_that_hangs_past_the_deadline_puts_the_last_good_version_back(
    engine: ScriptedEngine, client: EngineClient, versions: dict[int, VersionDir]
) -> None:
    engine.faults.append("hang_load")
    with pytest.raises(SwapFailed, match="version 1 serves"):
        await swap(client, versions[2], last_good=versions[1], timeout_s=0.5)
    assert await serves(client) == 1


async def test_a_cancelled_swap_does_not_leave_the_engine_paused(
    engine: ScriptedEngine, client: EngineClient, versions: dict[int, VersionDir]
) -> None:
    engine.faults.append("hang_load")
    task = asyncio.create_task(swap(client, versions[2], last_good=versions[1], timeout_s=30))
    await until(lambda: bool(engine.bodies("/update_weights_from_disk")))
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert await serves(client) == 1


async def test_an_engine_that_cannot_be_put_back_stays_paused_and_is_reported_lost(
    engine: ScriptedEngine, client: EngineClient, versions: dict[int, VersionDir]
) -> None:
    engine.faults.extend(["corrupt_load", "refuse_load"])
    with pytest.raises(EngineLost, match="version 1 could not be restored"):
        await swap(client, versions[2], last_good=versions[1], timeout_s=5)
    held = asyncio.create_task(serves(client))
    done, _ = await asyncio.wait([held], timeout=0.3)
    assert not done
    await restore(client, versions[1], timeout_s=5)
    assert await held == 1


async def test_an_engine_that_dies_while_loading_is_lost(
    engine: ScriptedEngine, client: EngineClient, versions: dict[int, VersionDir]
) -> None:
    engine.faults.append("die_on_load")
    with pytest.raises(EngineLost):
        await swap(client, versions[2], last_good=versions[1], timeout_s=5)


async def test_restore_brings_an_engine_left_paused_by_a_kill_to_the_wanted_version(
    client: EngineClient, versions: dict[int, VersionDir]
) -> None:
    await client.pause()
    await restore(client, versions[2], timeout_s=5)
    assert await serves(client) == 2


def rewrite(version: VersionDir, change: str) -> VersionDir:
    """A copy of the version whose weight file was spoiled after it was published."""
    path = version.path.with_name(f"{version.path.name}-{change}")
    shutil.copytree(version.path, path)
    file = path / "serving" / "model.safetensors"
    file.chmod(0o600)
    tensors = load_file(file)
    if change == "truncated":
        file.write_bytes(file.read_bytes()[:-1000])
        return VersionDir(path, version.manifest)
    if change == "missing":
        del tensors["model.layers.1.mlp.down_proj.weight"]
    elif change == "misshapen":
        tensors["model.layers.1.mlp.down_proj.weight"] = np.zeros((64, 64), np.float32)
    elif change == "foreign":
        tensors = {f"other.{name}": tensor for name, tensor in tensors.items()}
    elif change == "nan":
        tensors["model.norm.weight"][3] = np.nan
    save_file(tensors, file)
    return VersionDir(path, version.manifest)


@pytest.mark.parametrize(
    ("change", "error"),
    [
        ("truncated", CorruptVersion),
        ("nan", CorruptVersion),
        ("missing", ForeignVersion),
        ("misshapen", ForeignVersion),
        ("foreign", ForeignVersion),
    ],
)
async def test_c14_c32_a_directory_that_does_not_fit_is_refused_before_the_engine_hears_of_it(
    engine: ScriptedEngine, client: EngineClient, versions: dict[int, VersionDir], change: str, error: type[Exception]
) -> None:
    spoiled = rewrite(versions[2], change)
    with pytest.raises(error):
        await swap(client, spoiled, last_good=versions[1], timeout_s=5)
    assert engine.requests == []
    assert await serves(client) == 1


async def test_a_rollback_version_with_equal_content_swaps_to_its_new_number(
    client: EngineClient, versions: dict[int, VersionDir]
) -> None:
    again = WeightStore(versions[1].path.parent).copy_as(1, 3, origin=VersionOrigin.ROLLBACK)
    await swap(client, versions[2], last_good=versions[1], timeout_s=5)
    await swap(client, again, last_good=versions[2], timeout_s=5)
    assert await serves(client) == 3
