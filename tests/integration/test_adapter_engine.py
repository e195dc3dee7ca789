"""Adapters on the real SGLang server: log-probs, switches under traffic, what is refused, and the way back."""

from __future__ import annotations

import asyncio
import json
import shutil
from collections.abc import AsyncIterator
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from online_agent.errors import CorruptVersion, ForeignVersion, SwapFailed
from online_agent.serving.adapter_client import AdapterClient, ServingPolicy
from online_agent.serving.client import EngineClient, new_rid
from online_agent.serving.readiness import verify_served
from online_agent.serving.swap import restore, swap
from online_agent.types import Generation, Sampling, VersionRun
from online_agent.weights import VersionDir
from online_agent.weights.adapter import Base
from tests.adapter_engine_fixtures import AdapterEngine, Policies
from tests.waiting import until

pytestmark = pytest.mark.engine

PROMPT = np.arange(20, 60, dtype=np.int32)

TO_THE_END = {"ignore_eos": True}
"""SGLang on a CPU stops at the end token of the configuration, asked or not."""

MAX_GAP = 1e-4
"""Float32 on both sides; seen: 1e-5. A token sampled by another adapter is off by whole nats."""


@pytest.fixture
async def client(adapter_engine: AdapterEngine) -> AsyncIterator[AdapterClient]:
    """Whatever the test before left, version 1 serves."""
    async with adapter_engine.client() as client:
        await restore(client, adapter_engine.policies.weights.open(1), timeout_s=20)
        yield client


@pytest.fixture
def policies(adapter_engine: AdapterEngine) -> Policies:
    return adapter_engine.policies


@pytest.fixture
def first(policies: Policies) -> VersionDir:
    return policies.weights.open(1)


def next_version(policies: Policies) -> int:
    return max(policies.weights.versions()) + 1


async def ask(client: AdapterClient, num_tokens: int = 48, prompt: np.ndarray = PROMPT) -> Generation:  # type: ignore[type-arg]
    return await client.generate(prompt, Sampling(1.0, 1.0, num_tokens), [], new_rid(), more=TO_THE_END)


def versions_of(generation: Generation) -> list[int]:
    return [run.version for run in generation.version_runs]


@pytest.mark.parametrize("temperature", [0.7, 1.0])
async def test_engine_and_learner_agree_on_every_log_prob_of_an_adapter(
    client: AdapterClient, policies: Policies, temperature: float
) -> None:
    generation = await client.generate(PROMPT, Sampling(temperature, 1.0, 64), [], new_rid(), more=TO_THE_END)
    assert generation.version_runs == (VersionRun(1, 0, 64),)
    assert policies.gap(PROMPT, generation, temperature) < MAX_GAP
    as_if_base = replace(generation, version_runs=(VersionRun(0, 0, 64),))
    assert policies.gap(PROMPT, as_if_base, temperature) > 0.5, "the base would show"


async def test_each_version_answers_under_its_own_number_and_a_rollback_brings_the_first_one_back(
    client: AdapterClient, policies: Policies, first: VersionDir
) -> None:
    second = policies.publish(next_version(policies))
    report = await swap(client, second, last_good=first, timeout_s=20)
    assert (report.version, report.previous_version) == (second.manifest.version, 1)
    by_second = await ask(client)
    assert versions_of(by_second) == [second.manifest.version]
    assert policies.gap(PROMPT, by_second) < MAX_GAP

    number = next_version(policies)
    back = policies.weights.copy_as(1, number)
    assert back.manifest.content_hash == first.manifest.content_hash
    policies.factors[number] = policies.factors[1]
    await swap(client, back, last_good=second, timeout_s=20)
    by_back = await ask(client)
    assert versions_of(by_back) == [number]
    assert policies.gap(PROMPT, by_back) < MAX_GAP
    assert sorted(await client.adapters()) == [second.manifest.version, number], "the one before stays, older ones go"
    await verify_served(client, back.serving_dir, number)


async def test_a_switch_under_traffic_pauses_nothing_and_every_token_is_by_the_version_that_it_names(
    client: AdapterClient, policies: Policies, first: VersionDir
) -> None:
    generations: list[tuple[np.ndarray, Generation]] = []  # type: ignore[type-arg]
    is_over = asyncio.Event()

    async def traffic(offset: int) -> None:
        while not is_over.is_set():
            generations.append((PROMPT + offset, await ask(client, 60, PROMPT + offset)))

    def has_answered(version: VersionDir) -> bool:
        return any(version.manifest.version in versions_of(g) for _, g in generations)

    targets = [policies.publish(next_version(policies)) for _ in range(3)]
    tasks = [asyncio.create_task(traffic(offset)) for offset in range(6)]
    await until(lambda: has_answered(first), timeout_s=60)
    for serving, target in pairwise([first, *targets]):
        report = await swap(client, target, last_good=serving, timeout_s=20)
        assert report.paused_s < 0.01
        await until(partial(has_answered, target), timeout_s=60)
    is_over.set()
    await asyncio.gather(*tasks)  # no request failed
    assert all(len(g.version_runs) == 1 and g.num_retractions == 0 for _, g in generations)
    assert max(policies.gap(prompt, g) for prompt, g in generations) < MAX_GAP


async def test_a_request_under_way_ends_on_the_adapter_it_began_with(
    client: AdapterClient, policies: Policies, first: VersionDir
) -> None:
    long = asyncio.create_task(ask(client, 250))
    await asyncio.sleep(0.3)
    second = policies.publish(next_version(policies))
    await swap(client, second, last_good=first, timeout_s=20)
    short = await ask(client, 8)
    assert not long.done(), "the switch did not wait for it"
    assert versions_of(short) == [second.manifest.version]
    generation = await long
    assert generation.version_runs == (VersionRun(1, 0, 250),)
    assert policies.gap(PROMPT, generation) < MAX_GAP


async def test_cached_prefixes_of_one_adapter_are_not_those_of_another(
    client: AdapterClient, policies: Policies, first: VersionDir
) -> None:
    before = [await ask(client, 8) for _ in range(2)]
    assert before[1].num_cached_tokens > 30
    second = policies.publish(next_version(policies))
    await swap(client, second, last_good=first, timeout_s=20)
    after = await ask(client, 48)
    assert after.num_cached_tokens == 0
    assert policies.gap(PROMPT, after) < MAX_GAP


async def test_another_client_learns_of_a_switch_by_itself(
    adapter_engine: AdapterEngine, client: AdapterClient, policies: Policies, first: VersionDir
) -> None:
    async with adapter_engine.client() as other:
        assert versions_of(await ask(other, 4)) == [1]
        second = policies.publish(next_version(policies))
        await swap(client, second, last_good=first, timeout_s=20)
        await asyncio.sleep(0.3)
        assert versions_of(await ask(other, 4)) == [second.manifest.version]


async def test_the_base_itself_serves_again_after_a_rollback_to_it(
    client: AdapterClient, policies: Policies, first: VersionDir
) -> None:
    number = next_version(policies)
    base = policies.weights.copy_as(0, number)
    await swap(client, base, last_good=first, timeout_s=20)
    assert await client.serving() == ServingPolicy(number, None)
    policies.factors[number] = policies.factors[0]
    generation = await ask(client)
    assert versions_of(generation) == [number]
    assert policies.gap(PROMPT, generation) < MAX_GAP
    await verify_served(client, base.serving_dir, number)


def damaged(version: VersionDir, tmp_path: Path, damage: str) -> VersionDir:
    """A version directory that was damaged after the store looked at it."""
    path = shutil.copytree(version.path, tmp_path / version.path.name)
    (tmp_path / "v000000").symlink_to(version.path.parent / "v000000")
    file, config = path / "serving" / "adapter_model.safetensors", path / "serving" / "adapter_config.json"
    for name in (file, config):
        name.chmod(0o644)
    if damage == "truncated":
        file.write_bytes(file.read_bytes()[:-100])
    elif damage == "louder":
        config.write_text(json.dumps(json.loads(config.read_text()) | {"lora_alpha": 7.0}))
    elif damage == "other factors":
        save_file({name: tensor + 0.01 for name, tensor in load_file(file).items()}, file)
    elif damage == "larger than the server has room for":
        config.write_text(json.dumps(json.loads(config.read_text()) | {"r": 8}))
        save_file({name: np.repeat(t, 2, 0 if "lora_A" in name else 1) for name, t in load_file(file).items()}, file)
    return replace(version, path=path)


@pytest.mark.parametrize(
    ("damage", "error", "reason"),
    [
        ("truncated", CorruptVersion, "no readable safetensors"),
        ("louder", SwapFailed, "the probe of version .* is off by"),
        ("other factors", SwapFailed, "the probe of version .* is off by"),
        ("larger than the server has room for", SwapFailed, "incompatible with the current"),
    ],
)
async def test_an_adapter_that_is_not_what_it_should_be_is_refused_and_the_old_one_serves_on(
    client: AdapterClient,
    policies: Policies,
    first: VersionDir,
    tmp_path: Path,
    damage: str,
    error: type[Exception],
    reason: str,
) -> None:
    bad = damaged(policies.publish(next_version(policies)), tmp_path, damage)
    under_way = asyncio.create_task(ask(client, 150))
    with pytest.raises(error, match=reason):
        await swap(client, bad, last_good=first, timeout_s=20)
    assert bad.manifest.version not in await client.adapters()
    for generation in (await under_way, await ask(client)):
        assert versions_of(generation) == [1]
        assert policies.gap(PROMPT, generation) < MAX_GAP


async def test_an_adapter_of_another_base_does_not_reach_the_engine(
    client: AdapterClient, policies: Policies, first: VersionDir
) -> None:
    foreign = policies.publish(next_version(policies), base=Base(0, "f" * 64))
    with pytest.raises(ForeignVersion, match="belongs to the weights of version 0"):
        await swap(client, foreign, last_good=first, timeout_s=20)
    assert foreign.manifest.version not in await client.adapters()


async def test_a_client_that_knows_no_adapters_refuses_one(adapter_engine: AdapterEngine, first: VersionDir) -> None:
    async with adapter_engine.client() as client:
        await restore(client, first, timeout_s=20)
    async with EngineClient(adapter_engine.process.url) as plain:
        with pytest.raises(SwapFailed, match="version 1 is an adapter"):
            await verify_served(plain, first.serving_dir, 1)
