"""One trace leads from a client's call to the step that trained on it, over real processes and the wire."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import numpy as np
import pytest

from tests.fakes.api_process import NO_BROKER, prepare, running_api
from tests.fakes.engine import Reply, ScriptedEngine
from tests.fakes.tiny_model import VOCAB_SIZE
from tests.fakes.tracing import Collector
from tests.waiting import until

CLIENTS_TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
HEADERS = {"traceparent": f"00-{CLIENTS_TRACE}-00f067aa0ba902b7-01", "X-Episode-Id": "task"}
LEARN = "from online_agent.processes.learn import main; main()"
SAMPLED = [300, 301, 302]
# About what a model with small weights gives any token, so that no ratio leaves its band.
LIKELY = [-float(np.log(VOCAB_SIZE))] * len(SAMPLED)


@asynccontextmanager
async def running_learner(data_dir: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    environment = {
        **os.environ,
        "ONLINE_AGENT_DATA_DIR": str(data_dir),
        "ONLINE_AGENT_BROKER__URL": NO_BROKER,
        "ONLINE_AGENT_LEARNER__BATCH_EPISODES": "1",
        "ONLINE_AGENT_WEIGHTS__MIN_FREE_BYTES": "1",
        "OMP_NUM_THREADS": "1",
        "DS_ACCELERATOR": "cpu",
    }
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", LEARN, env=environment)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.wait()


@pytest.mark.slow
@pytest.mark.timeout(300)
async def test_a_call_and_the_step_that_trained_on_it_are_one_trace(
    tmp_path: Path, unused_tcp_port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    secret = await asyncio.to_thread(prepare, tmp_path, 0.05)
    scripted = ScriptedEngine(tmp_path / "model", version=1, vocab_size=VOCAB_SIZE)
    scripted.replies.append(Reply(SAMPLED, LIKELY))
    with Collector().running() as collector:
        monkeypatch.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", collector.url)
        # What the api has to tell arrives when it ends, or never.
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "600000")
        async with scripted.running() as engine, running_api(tmp_path, engine, unused_tcp_port, secret) as api:
            body = {"model": "online-agent", "messages": [{"role": "user", "content": "fix it"}]}
            answer = await api.client.post("/v1/chat/completions", json=body, headers=HEADERS)
            assert answer.headers["x-trace-id"] == CLIENTS_TRACE
            (await api.client.post("/v1/episodes/task/close", json={"reward": 1.0})).raise_for_status()
            api.process.terminate()
            await api.process.wait()
        monkeypatch.setenv("OTEL_BSP_SCHEDULE_DELAY", "100")
        async with running_learner(tmp_path) as learner:
            await until(
                lambda: bool(collector.named("train step 1", CLIENTS_TRACE)) or learner.returncode is not None, 250
            )
    [_] = collector.named("chat online-agent", CLIENTS_TRACE)
    [(api_service, request)] = collector.named("POST /v1/chat/completions", CLIENTS_TRACE)
    [(learner_service, step)] = collector.named("train step 1", CLIENTS_TRACE)
    assert (api_service, learner_service) == ("online-agent-api", "online-agent-learner")
    assert step.parent_span_id == request.span_id
    told = {attribute.key: attribute.value for attribute in step.attributes}
    assert told["online_agent.step.outcome"].string_value == "committed"
    assert told["online_agent.weight_version"].int_value == 2
    [own] = [span for _, span in collector.received if span.span_id == step.links[0].span_id]
    assert [link.trace_id.hex() for link in own.links] == [CLIENTS_TRACE]
