"""Builds what the handlers reach from the settings, and takes it down again."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

from api.feedback.trust import trust_of
from api.metrics import ApiMetrics
from api.runtime import Runtime
from envs.registry import build_environments
from envs.sandbox.nsjail import NsjailSandbox
from online_agent.agent.interruption import Interrupter, PauseLimits
from online_agent.agent.runner import EpisodeRunner
from online_agent.config.serving import SandboxSettings
from online_agent.config.settings import Settings
from online_agent.errors import ConfigError
from online_agent.gateway.gateway import Gateway
from online_agent.gateway.idle_sweep import IdleSweep
from online_agent.jobs.enqueue import JobQueue, tolerant
from online_agent.judge.protocol import load_judge
from online_agent.judge.sweep import JudgeSweep
from online_agent.rendering.renderer import ChatRenderer
from online_agent.serving.connect import connect
from online_agent.serving.experts import recorded_experts
from online_agent.serving.launcher import context_length
from online_agent.store.session import Database
from online_agent.weights.store import WeightStore

NUM_THREADS = 4  # SQLite has one writer; more threads would only queue in the database


@asynccontextmanager
async def open_runtime(settings: Settings) -> AsyncIterator[Runtime]:
    """Everything a handler reaches, open inside the block.

    Raises ConfigError when no engine or broker is named or there are no weights to serve, NoSandbox when this machine
    cannot run untrusted code safely.
    """
    if not settings.engine.url:
        raise ConfigError("engine.url is empty: give the address of an engine, or start all with 'online-agent up'")
    async with AsyncExitStack() as stack:
        threads = stack.enter_context(ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="api"))
        db = Database(settings.database_url, settings.database.busy_timeout_s)
        stack.callback(db.close)
        await asyncio.to_thread(db.migrate)
        weights = WeightStore(settings.weights_dir)
        model_dir = await asyncio.to_thread(_model_dir, weights)
        renderer = await asyncio.to_thread(ChatRenderer.load, model_dir)
        engine = connect(
            settings,
            vocab_size=renderer.vocab_size,
            context_length=context_length(settings.engine, model_dir),
            experts=recorded_experts(settings.engine, model_dir),
        )
        stack.push_async_callback(engine.aclose)
        sandbox = _sandbox(settings.sandbox)
        await sandbox.probe()
        stack.push_async_callback(sandbox.close)
        environments = build_environments(sandbox)
        metrics = ApiMetrics()
        redactor = settings.redaction.redactor(metrics.redacted)
        jobs = JobQueue(settings)
        stack.callback(jobs.close)
        wake_grader = tolerant(jobs.grade)

        def on_finished(episode_id: str) -> None:
            threads.submit(wake_grader, episode_id)

        interrupter = Interrupter(db, engine, threads, PauseLimits(max_pause_s=settings.old_logits.max_pause_s))
        is_interrupted = settings.recipe.old_logits_route == "interruption"
        runner = EpisodeRunner(
            db,
            engine,
            renderer,
            environments,
            settings.agent,
            on_finished,
            interrupter.engine_of if is_interrupted else None,
            settings.gateway.model_name,
            redactor,
        )
        stack.push_async_callback(runner.drain, settings.api.drain_timeout_s)
        if is_interrupted:
            await stack.enter_async_context(interrupter.serving())
        gateway = Gateway(
            db,
            engine,
            renderer,
            settings.gateway,
            settings.agent,
            threads,
            redactor,
            interrupter if is_interrupted else None,
            tell_calls=metrics.called,
        )
        sweep = IdleSweep(db, settings.gateway, threads)
        sweep.start()
        stack.push_async_callback(sweep.close)
        judge = load_judge(settings.judge)
        if judge is not None:
            judging = JudgeSweep(
                db,
                renderer,
                judge,
                settings.judge,
                trust_of(settings.feedback),
                redactor,
                threads,
                metrics.judged,
            )
            judging.start()
            stack.push_async_callback(judging.close)
        yield Runtime(
            settings,
            db,
            threads,
            weights,
            engine,
            environments,
            runner,
            jobs,
            metrics,
            redactor=redactor,
            gateway=gateway,
            renderer=renderer,
        )


def _model_dir(weights: WeightStore) -> Path:
    """The tokenizer and template are the same in every version, so any stable one will do."""
    version = weights.latest_stable()
    if version is None:
        raise ConfigError(
            f"{weights.root} holds no weights yet; start with 'online-agent up', which puts the seed there"
        )
    return weights.open(version).serving_dir


def _sandbox(settings: SandboxSettings) -> NsjailSandbox:
    return NsjailSandbox(
        max_jobs=settings.max_jobs,
        memory_mb=settings.memory_mb,
        max_output_bytes=settings.max_output_bytes,
        first_uid=settings.first_uid,
    )
