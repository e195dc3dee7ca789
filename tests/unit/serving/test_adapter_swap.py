"""The switch of adapters against a scripted engine: whatever goes wrong, a known version serves, or EngineLost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import numpy as np
import pytest

from online_agent.errors import EngineLost, EngineProtocolError, ForeignVersion, SwapFailed
from online_agent.serving.adapter_client import SERVING_TTL_S, AdapterClient, ServingPolicy
from online_agent.serving.client import EngineClient, new_rid
from online_agent.serving.readiness import verify_served
from online_agent.serving.swap import restore, swap
from online_agent.types import Generation, Sampling, VersionRun
from online_agent.weights import VersionDir, WeightStore
from tests.fakes.adapter_engine import ScriptedAdapterEngine
from tests.fakes.adapters import publish_adapter
from tests.fakes.tiny_model import VOCAB_SIZE
from tests.waiting import until

PROMPT = np.arange(20, 40, dtype=np.int32)


@pytest.fixture
def store(model_dirs: dict[int, Path], tmp_path: Path) -> WeightStore:
    """Version 0 is whole, 1 to 3 are adapters of it."""
    weights = WeightStore(tmp_path / "weights")
    weights.import_seed(model_dirs[1], 0)
    for version in (1, 2, 3):
        publish_adapter(weights, version)
    return weights


@pytest.fixture
def versions(store: WeightStore) -> dict[int, VersionDir]:
    return {version: store.open(version) for version in store.versions()}


@pytest.fixture
async def engine(versions: dict[int, VersionDir]) -> AsyncIterator[ScriptedAdapterEngine]:
    async with ScriptedAdapterEngine(versions[0].serving_dir, vocab_size=VOCAB_SIZE).running() as engine:
        yield engine


@pytest.fixture
async def client(engine: ScriptedAdapterEngine, versions: dict[int, VersionDir]) -> AsyncIterator[AdapterClient]:
    async with AdapterClient(engine.url, request_timeout_s=10, vocab_size=VOCAB_SIZE, context_length=1024) as client:
        await restore(client, versions[1], timeout_s=5)
        yield client


async def ask(client: EngineClient, num_tokens: int = 3) -> Generation:
    return await client.generate(PROMPT, Sampling(1.0, 1.0, num_tokens), [], new_rid())


async def test_requests_name_the_adapter_that_serves_and_carry_its_version(
    engine: ScriptedAdapterEngine, client: AdapterClient, versions: dict[int, VersionDir]
) -> None:
    first = await ask(client)
    report = await swap(client, versions[2], last_good=versions[1], timeout_s=5)
    second = await ask(client)
    assert (first.version_runs, second.version_runs) == ((VersionRun(1, 0, 3),), (VersionRun(2, 0, 3),))
    assert engine.answered_by == ["v000001", "v000002"]
    assert (report.version, report.previous_version) == (2, 1)
    assert not engine.bodies("/pause_generation")
    assert not engine.bodies("/update_weights_from_disk")


async def test_a_request_under_way_carries_its_own_version_though_the_label_changed(
    engine: ScriptedAdapterEngine, client: AdapterClient, versions: dict[int, VersionDir]
) -> None:
    engine.token_delay_s = 0.005
    under_way = asyncio.create_task(ask(client, 100))
    await until(lambda: engine.num_running == 1)
    await swap(client, versions[2], last_good=versions[1], timeout_s=5)
    assert (await under_way).version_runs == (VersionRun(1, 0, 100),)


async def test_a_stream_carries_the_version_that_it_began_with(
    engine: ScriptedAdapterEngine, client: AdapterClient, versions: dict[int, VersionDir]
) -> None:
    engine.token_delay_s = 0.005
    parts = client.generate_stream(PROMPT, Sampling(1.0, 1.0, 60), [], new_rid())
    await anext(parts)
    await swap(client, versions[2], last_good=versions[1], timeout_s=5)
    *_, last = [part async for part in parts]
    assert last.generation is not None
    assert last.generation.version_runs == (VersionRun(1, 0, 60),)


async def test_the_adapter_before_stays_and_older_ones_are_unloaded(
    engine: ScriptedAdapterEngine, client: AdapterClient, versions: dict[int, VersionDir]
) -> None:
    await swap(client, versions[2], last_good=versions[1], timeout_s=5)
    assert sorted(engine.adapters) == ["v000001", "v000002"]
    await swap(client, versions[3], last_good=versions[2], timeout_s=5)
    assert sorted(engine.adapters) == ["v000002", "v000003"]


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        ("refuse_adapter", "incompatible with the memory pool"),
        ("louder_adapter", r"the probe of version 2 is off by 0\.5 nats"),
        ("refuse_label", "answered 400: busy"),
        ("lose_label_answer", "answered 400: no answer"),
    ],
)
async def test_after_any_refusal_the_old_adapter_serves_and_the_new_one_is_gone(
    engine: ScriptedAdapterEngine, client: AdapterClient, versions: dict[int, VersionDir], fault: str, reason: str
) -> None:
    engine.faults.append(fault)
    with pytest.raises(SwapFailed, match=reason):
        await swap(client, versions[2], last_good=versions[1], timeout_s=5)
    assert sorted(engine.adapters) == ["v000001"]
    assert engine.version_label == "1"
    assert (await ask(client)).version_runs == (VersionRun(1, 0, 3),)


async def test_an_engine_that_dies_on_an_adapter_is_lost(
    engine: ScriptedAdapterEngine, client: AdapterClient, versions: dict[int, VersionDir]
) -> None:
    engine.faults.append("die_on_adapter")
    with pytest.raises(EngineLost, match="lost while it loaded adapter 2"):
        await swap(client, versions[2], last_good=versions[1], timeout_s=5)


async def test_the_base_serves_without_an_adapter_after_a_rollback_to_it(
    engine: ScriptedAdapterEngine, client: AdapterClient, store: WeightStore, versions: dict[int, VersionDir]
) -> None:
    await swap(client, store.copy_as(0, 4), last_good=versions[1], timeout_s=5)
    assert await client.serving() == ServingPolicy(4, None)
    assert (await ask(client)).version_runs == (VersionRun(4, 0, 3),)
    assert engine.answered_by == [None]


async def test_a_restore_loads_what_is_missing_and_ends_a_pause(
    engine: ScriptedAdapterEngine, client: AdapterClient, versions: dict[int, VersionDir]
) -> None:
    engine.adapters.clear()
    engine.version_label = "2"
    await client.pause()
    await restore(client, versions[1], timeout_s=5)
    assert (await ask(client)).version_runs == (VersionRun(1, 0, 3),)
    await verify_served(client, versions[1].serving_dir, 1)


async def test_a_version_is_not_verified_by_its_label_alone(
    engine: ScriptedAdapterEngine, client: AdapterClient, versions: dict[int, VersionDir]
) -> None:
    engine.version_label = "2"
    with pytest.raises(SwapFailed, match="holds no adapter as version 2"):
        await verify_served(client, versions[2].serving_dir, 2)
    engine.adapters["v000002"] = str(versions[1].serving_dir)
    with pytest.raises(SwapFailed, match="as version 2"):
        await verify_served(client, versions[2].serving_dir, 2)


async def test_another_client_names_the_new_version_once_its_knowledge_is_old(
    engine: ScriptedAdapterEngine, client: AdapterClient, versions: dict[int, VersionDir]
) -> None:
    async with AdapterClient(engine.url, vocab_size=VOCAB_SIZE, context_length=1024) as other:
        await ask(other)
        await swap(client, versions[2], last_good=versions[1], timeout_s=5)
        await asyncio.sleep(SERVING_TTL_S + 0.05)
        assert (await ask(other)).version_runs == (VersionRun(2, 0, 3),)


async def test_many_requests_ask_once_what_serves(engine: ScriptedAdapterEngine, client: AdapterClient) -> None:
    await asyncio.sleep(SERVING_TTL_S + 0.05)
    await asyncio.gather(*(ask(client) for _ in range(40)))
    assert len(engine.answered_by) == 40
    assert len(engine.bodies("/model_info")) < 20


async def test_a_server_without_a_version_label_is_not_asked_to_generate(
    engine: ScriptedAdapterEngine, client: AdapterClient
) -> None:
    engine.version_label = "default"
    await asyncio.sleep(SERVING_TTL_S + 0.05)
    with pytest.raises(EngineProtocolError, match="names no version that serves"):
        await ask(client)
    assert not engine.answered_by


async def test_a_client_of_whole_weights_refuses_an_adapter_before_the_engine_hears_of_it(
    engine: ScriptedAdapterEngine, versions: dict[int, VersionDir]
) -> None:
    async with EngineClient(engine.url) as plain:
        with pytest.raises(ForeignVersion, match=r"version 1 is an adapter: learner\.actor is not 'lora'"):
            await swap(plain, versions[1], last_good=versions[0], timeout_s=5)
    assert not engine.requests
