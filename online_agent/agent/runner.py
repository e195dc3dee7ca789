"""Owns the episodes in flight in this process: admission, one task each, their end, and who listens.

Invariants
- An episode's row exists before ``start`` returns, and leaves ``open`` when its task ends, whatever ended it.
- At most ``max_episodes_in_flight`` run and ``max_episodes_queued`` wait; the next one is refused with Busy.
- Results (also the agent's own limits, also cancellation) are finished; outages are failed with the reason.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from envs.changes import ChangedEnvironment
from envs.errors import SandboxFailed
from envs.protocols import Environment
from envs.types import Artifact
from online_agent.agent.admission import Admission
from online_agent.agent.events import EventLog
from online_agent.agent.loop import AgentLoop
from online_agent.agent.opening import Opening
from online_agent.agent.policy import Engine, Policy
from online_agent.agent.recorder import Recorder
from online_agent.agent.requests import EpisodeEvent, EpisodeRequest
from online_agent.agent.secrets import Secrets
from online_agent.agent.verdicts import VerdictWatch
from online_agent.agent.world import World
from online_agent.config.serving import DEFAULT_MODEL_NAME, AgentSettings
from online_agent.errors import NotFound, OnlineAgentError
from online_agent.redaction import Redactor
from online_agent.rendering import ChatRenderer
from online_agent.store.records import ChangeRecord, EpisodeGroup, EpisodeRecord, TurnNew
from online_agent.store.session import Database
from online_agent.telemetry import tracing
from online_agent.telemetry.conventions import STOP_REASON
from online_agent.telemetry.model_calls import agent_span
from online_agent.types import StopReason

__all__ = ["EpisodeEvent", "EpisodeRequest", "EpisodeRunner"]

logger = logging.getLogger(__name__)

NUM_THREADS = 4
KEPT_LOGS = 512
"""Finished episodes whose events can still be read again; older ones are read from the store."""
GRADING_TIMEOUT_S = 600.0


@dataclass(eq=False, slots=True)
class _Flight:
    """One episode of this process, from admission to its end.

    ``may_move_on``: it waited for a slot alone, and starts under the changes that are active by then. Members of a
    group share one environment revision, whenever each of them starts.
    """

    episode_id: str
    request: EpisodeRequest
    log: EventLog
    may_move_on: bool
    task: asyncio.Task[None] | None = None


class EpisodeRunner:
    """``on_finished(episode_id)`` asks for grading; it must not raise.

    ``engine_of(episode_id)`` gives an episode an engine of its own in place of ``engine``.
    """

    def __init__(
        self,
        db: Database,
        engine: Engine,
        renderer: ChatRenderer,
        environments: Mapping[str, Environment],
        settings: AgentSettings,
        on_finished: Callable[[str], None],
        engine_of: Callable[[str], Engine] | None = None,
        model_name: str = DEFAULT_MODEL_NAME,
        redactor: Redactor | None = None,
    ) -> None:
        self._engine_of = engine_of or (lambda episode_id: engine)
        self._renderer = renderer
        self._on_finished, self._model_name = on_finished, model_name
        self._secrets = Secrets(redactor or Redactor.of(), renderer)
        self._threads = ThreadPoolExecutor(NUM_THREADS, thread_name_prefix="episodes")
        self._recorder = Recorder(db, self._threads)
        self._opening = Opening(environments, renderer, self._recorder)
        self._verdicts = VerdictWatch(self._recorder)
        self._admission = Admission(settings.max_episodes_in_flight + settings.max_episodes_queued)
        self._slots = asyncio.Semaphore(settings.max_episodes_in_flight)
        self._flights: dict[str, _Flight] = {}
        self._logs: OrderedDict[str, EventLog] = OrderedDict()

    @property
    def num_in_flight(self) -> int:
        """Episodes that run or wait for a slot."""
        return len(self._flights)

    async def start(self, tenant_id: str, key_id: str | None, request: EpisodeRequest) -> str:
        """The episode's row exists and its task runs or waits for a slot.

        Raises UnknownName for an environment or task that does not exist, Conflict when it is pinned to a version
        that does not serve, Busy when the queue is full or the server shuts down.
        """
        self._admission.take(1)
        # A caller that leaves half-way must not leave a row behind that no task will ever close.
        return await asyncio.shield(asyncio.ensure_future(self._open(tenant_id, key_id, request)))

    async def start_group(
        self, tenant_id: str, key_id: str | None, request: EpisodeRequest, group_size: int
    ) -> EpisodeGroup:
        """``group_size`` episodes of the same request run or wait for slots, under one environment revision.

        All are admitted or none. Raises what ``start`` raises, and BadInput for a size outside 2..64 or one that this
        server could never hold.
        """
        self._admission.take(group_size)
        return await asyncio.shield(asyncio.ensure_future(self._open_group(tenant_id, key_id, request, group_size)))

    async def wait(self, episode_id: str, timeout_s: float) -> EpisodeRecord:
        """The episode once it is graded or failed, or as it stands after ``timeout_s``. Raises NotFound."""
        try:
            async with asyncio.timeout(timeout_s):
                await self.landed(episode_id)
                await self._verdicts.settled(episode_id)
        except TimeoutError:
            pass
        return await self._get(episode_id)

    async def events(self, episode_id: str) -> AsyncIterator[EpisodeEvent]:
        """Everything that has happened, then what happens, then the verdict and ``done``. Raises NotFound."""
        async for event in self.told(episode_id):
            yield event
        record = await self.wait(episode_id, GRADING_TIMEOUT_S)
        if record.verdict is not None:
            verdict = record.verdict
            yield EpisodeEvent(
                "verdict",
                {"reward": verdict.reward, "is_success": verdict.is_success, "evidence": dict(verdict.evidence)},
            )
        yield EpisodeEvent(
            "done",
            {"status": record.status, "stop_reason": record.stop_reason, "failure_reason": record.failure_reason},
        )

    async def told(self, episode_id: str) -> AsyncIterator[EpisodeEvent]:
        """What the episode itself has told and tells until it ends; nothing about its verdict."""
        log = self._logs.get(episode_id)
        if log is None:
            for event in await self._recorder.past_events(episode_id):
                yield event
        else:
            async for event in log.read():
                yield event

    async def landed(self, episode_id: str) -> None:
        """The episode is no longer under way in this process."""
        flight = self._flights.get(episode_id)
        if flight is not None and flight.task is not None:
            await asyncio.wait([flight.task])

    async def cancel(self, episode_id: str) -> None:
        """The episode has ended as cancelled, with what it had sampled; nothing happens to one that is over."""
        flight = self._flights.get(episode_id)
        if flight is not None and flight.task is not None:
            flight.task.cancel()
            await self.landed(episode_id)

    async def drain(self, timeout_s: float) -> None:
        """No episode is under way: new ones are refused, those left after ``timeout_s`` are cancelled."""
        self._admission.close()
        tasks = [flight.task for flight in self._flights.values() if flight.task is not None]
        if tasks:
            _, late = await asyncio.wait(tasks, timeout=timeout_s)
            for task in late:
                task.cancel()
            await asyncio.gather(*late, return_exceptions=True)
        await self._verdicts.close()
        self._threads.shutdown()

    async def _open(self, tenant_id: str, key_id: str | None, request: EpisodeRequest) -> str:
        with self._admission.given_back_on_error(1):
            environment = await self._opening.environment(request.env)
            episode_id = await self._recorder.open(self._opening.episode(tenant_id, key_id, request, environment))
        self._launch(episode_id, request, environment, may_move_on=self._slots.locked())
        return episode_id

    async def _open_group(
        self, tenant_id: str, key_id: str | None, request: EpisodeRequest, group_size: int
    ) -> EpisodeGroup:
        with self._admission.given_back_on_error(group_size):
            environment = await self._opening.environment(request.env)
            new = self._opening.episode(tenant_id, key_id, request, environment)
            group = await self._recorder.open_group(new, group_size)
        for episode_id in group.episode_ids:
            self._launch(episode_id, request, environment, may_move_on=False)
        return group

    def _launch(
        self, episode_id: str, request: EpisodeRequest, environment: ChangedEnvironment, *, may_move_on: bool
    ) -> None:
        flight = _Flight(episode_id, request, EventLog(), may_move_on)
        self._flights[episode_id] = flight
        self._logs[episode_id] = flight.log
        while len(self._logs) > KEPT_LOGS + len(self._flights):
            self._logs.popitem(last=False)
        flight.task = asyncio.create_task(self._traced(flight, environment), name=f"episode {episode_id}")
        flight.task.add_done_callback(lambda _: self._land(flight))

    def _land(self, flight: _Flight) -> None:
        self._admission.give_back(1)
        del self._flights[flight.episode_id]
        flight.log.close()

    async def _traced(self, flight: _Flight, environment: ChangedEnvironment) -> None:
        request = flight.request
        with agent_span(self._model_name, flight.episode_id, request.env, request.task_id):
            await self._fly(flight, environment)

    async def _fly(self, flight: _Flight, environment: ChangedEnvironment) -> None:
        """The episode boundary: whatever happens inside, the row leaves ``open`` with a reason."""
        reason, artifact, failure = StopReason.CANCELLED, None, None
        try:
            reason, artifact = await self._act(flight, environment)
        except asyncio.CancelledError:
            pass
        except NotFound:
            logger.info("episode erased under way", extra={"episode_id": flight.episode_id})
            return
        except (OnlineAgentError, SandboxFailed) as error:
            failure = f"{type(error).__name__}: {error}"
        except Exception as error:
            logger.exception("episode failed", extra={"episode_id": flight.episode_id})
            failure = f"internal error: {type(error).__name__}"
        await self._end(flight, reason, artifact, failure)

    async def _act(self, flight: _Flight, environment: ChangedEnvironment) -> tuple[StopReason, Artifact]:
        async with self._slots:
            if flight.may_move_on:
                environment = await self._opening.environment(flight.request.env)
            engine = self._engine_of(flight.episode_id)
            policy = Policy(
                engine,
                self._renderer,
                flight.request.weight_version,
                name=self._model_name,
                episode_id=flight.episode_id,
            )
            world = await World.open(environment, flight.request.task_in(environment))
            try:
                return await self._run_loop(flight, policy, world), world.artifact()
            finally:
                await world.close()

    async def _run_loop(self, flight: _Flight, policy: Policy, world: World) -> StopReason:
        request = flight.request

        async def record(new: TurnNew, misalignment: str | None) -> list[ChangeRecord]:
            return list(await self._recorder.turn(flight.episode_id, request.env, new, misalignment))

        loop = AgentLoop(
            policy,
            world,
            request.sampling,
            request.limits,
            secrets=self._secrets,
            record=record,
            tell=flight.log.add,
        )
        try:
            async with asyncio.timeout(request.limits.timeout_s):
                return await loop.run()
        except TimeoutError:
            policy.raise_for_outage()
            return StopReason.TIMEOUT

    async def _end(self, flight: _Flight, reason: StopReason, artifact: Artifact | None, failure: str | None) -> None:
        episode_id = flight.episode_id
        tracing.set_on_current(STOP_REASON, reason if failure is None else StopReason.OUTAGE)
        try:
            if failure is not None:
                await self._recorder.fail(episode_id, failure)
            else:
                await self._recorder.finish(episode_id, flight.request.env, reason, artifact)
        except NotFound:
            return
        except OnlineAgentError:
            # The reaper fails episodes whose process could not say how they ended.
            logger.exception("episode could not be closed", extra={"episode_id": episode_id})
            return
        if failure is None:
            self._on_finished(episode_id)

    async def _get(self, episode_id: str) -> EpisodeRecord:
        known = (await self._recorder.progress([episode_id])).get(episode_id)
        if known is None:
            raise NotFound(f"no episode {episode_id!r}")
        return await self._recorder.get(known[0], episode_id)
