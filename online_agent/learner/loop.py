"""The learner's life: reserve a batch, train, write a version, commit, announce; each episode is trained once.

Invariants
- The trainer holds exactly version ``self.version``, unless a step is between *trained* and *committed*. Whatever ends
  a step there (fenced, full disk, a failed update) puts the trainer back to the version the database names.
- A step has happened when its transaction committed, not before. A kill before that leaves a reservation that the next
  start gives back, and at most a directory whose number no row names and no other version will get.
- Every committed step publishes a version, critic warm-up steps too: the critic then survives a kill like everything
  else. Warm-up versions serve the same tensors as their parent.
- Two marks in the control row say that the world moved on without this learner: the fence (a rollback) and the current
  version. Both are compared before every step, and the fence again by the commit itself.
"""

from __future__ import annotations

import os
import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Protocol

from online_agent.config.settings import Settings
from online_agent.errors import BrokerUnavailable, ConfigError, Fenced, StorageFull
from online_agent.learner.old_logits.protocol import OldLogits
from online_agent.learner.old_logits.step import filled, settled, with_cost
from online_agent.learner.report import ReferenceReset, StepReport, headline
from online_agent.learner.reservation import PROCESS_NAME, reserve_batch
from online_agent.learner.stages import Stage
from online_agent.learner.tracing import TracedStep, traced_step
from online_agent.store.records import Control, ResetRequest, VersionNew
from online_agent.store.session import Database, Transaction
from online_agent.telemetry.logging import get_logger
from online_agent.types import TrainingEpisode, VersionOrigin
from online_agent.weights.experts import read_expert_shape
from online_agent.weights.store import WeightStore

POLL_S = 0.2
BEAT_S = 2.0
STORAGE_RETRY_S = 5.0

_log = get_logger(__name__)


class Trainer(Protocol):
    """What the loop needs of ``PolicyTrainer``, or of the ``Team`` that leads several."""

    @property
    def is_warming_up(self) -> bool: ...
    def step(self, episodes: Sequence[TrainingEpisode], *, version: int, is_warmup: bool) -> StepReport: ...
    def reset_reference(self, cause: str) -> ReferenceReset: ...
    def export(self, directory: Path) -> None: ...
    def restore(self, directory: Path) -> None: ...


class LearnerLoop:
    """Call ``start`` once, then ``run``."""

    def __init__(
        self,
        db: Database,
        weights: WeightStore,
        trainer: Trainer,
        settings: Settings,
        on_committed: Callable[[int], None],
        on_stage: Callable[[Stage], None] = lambda stage: None,
        old_logits: OldLogits | None = None,
    ) -> None:
        self._db = db
        self._weights = weights
        self._trainer = trainer
        self._settings = settings
        self._group_size = settings.recipe.group_size
        self._on_committed = on_committed
        self._on_stage = on_stage
        self._old_logits = old_logits
        self._incarnation = secrets.token_hex(8)
        self._fence = 0
        self._needs_experts = False
        self._skipped_in_a_row = 0
        self._is_storage_full = False
        self._beaten_at = 0.0
        self._reset_done: ResetRequest | None = None
        self.version = -1

    def start(self) -> None:
        """The last life's reservation is given back, half-written directories are gone, the trainer is restored.

        Raises ConfigError when there is no version to continue from, CorruptVersion when it cannot be loaded.
        """
        for line in self._weights.clean():
            _log.warning("weights directory cleaned", what=line)
        with self._db.transaction() as tx:
            released = tx.steps.release_own(PROCESS_NAME)
            control = tx.control.get()
        for step in released:
            _log.warning("own reservation released", step=step)
        self._restore(control)
        self._needs_experts = self._settings.recipe.replays_routing and self._has_experts()
        self._beat()

    def run(self, stop: threading.Event) -> None:
        """Train until ``stop`` is set; a step under way is finished first."""
        while not stop.is_set():
            if not self.run_once():
                stop.wait(STORAGE_RETRY_S if self._is_storage_full else POLL_S)

    def run_once(self) -> bool:
        """One step if one is due. False when there was nothing to do and the caller should wait."""
        self._beat()
        with self._db.reading() as tx:
            control, queue = tx.control.get(), tx.episodes.queue(self._group_size)
        if self._has_moved(control):
            self._follow(control)
        if control.is_paused or queue.num_ready < self._settings.learner.batch_episodes:
            return False
        try:
            self._weights.require_free(self._settings.weights.min_free_bytes)
            with settled(self._old_logits, lambda: self.version):
                return self._step(control)
        except StorageFull as error:
            self._wait_for_storage(error)
            return False
        except Fenced as error:
            _log.warning("step fenced out", reason=error.message)
            with self._db.reading() as tx:
                self._follow(tx.control.get())
            return True

    def _step(self, control: Control) -> bool:
        reserved = reserve_batch(
            self._db, self._settings, version=self.version, fence=self._fence, needs_experts=self._needs_experts
        )
        if reserved is None:
            return False
        step, episodes = reserved
        self._on_stage(Stage.RESERVED)
        with traced_step(self._db, step, self.version, len({episode.episode_id for episode in episodes})) as traced:
            self._train(step, episodes, control, traced)
        return True

    def _train(self, step: int, episodes: list[TrainingEpisode], control: Control, traced: TracedStep) -> None:
        started = time.perf_counter()
        resets = self._apply_reset_request(control.reset_request)
        episodes = filled(self._old_logits, episodes, self.version)
        report = self._trainer.step(episodes, version=self.version, is_warmup=self._trainer.is_warming_up)
        report = with_cost(report, self._old_logits)
        self._on_stage(Stage.TRAINED)
        if report.skip_reason is not None:
            traced.skipped(report.skip_reason)
            self._skip(step, report)
            return
        try:
            version = self._publish(step, report, (*resets, *report.resets))
        except StorageFull:
            self._give_back()
            raise
        traced.committed(version)
        self._skipped_in_a_row = 0
        _log.info(
            "step committed",
            step=step,
            version=version,
            is_warmup=report.is_warmup,
            seconds=round(time.perf_counter() - started, 3),
            **headline(report.metrics),
        )
        self._announce(version)

    def _has_experts(self) -> bool:
        """Whether the policy is a mixture of experts; a dense one has no routing to replay."""
        has_experts = read_expert_shape(self._weights.open(self.version).serving_dir) is not None
        if not has_experts:
            _log.info("routing is not replayed: the policy has no experts", recipe=self._settings.learner.recipe)
        return has_experts

    def _publish(self, step: int, report: StepReport, resets: Sequence[ReferenceReset]) -> int:
        """Write, rename, commit. Raises Fenced or StorageFull; the step has not happened then."""
        parent = self.version
        with self._db.transaction() as tx:
            tx.steps.renew(step, self._fence, self._settings.learner.lease_s)
            version = tx.weights.next_version()
        with self._weights.writer(
            version, parent=parent, step=step, origin=VersionOrigin.STEP, recipe=self._settings.learner.recipe
        ) as directory:
            self._trainer.export(directory)
            self._on_stage(Stage.WRITTEN)
        self._on_stage(Stage.RENAMED)
        manifest = self._weights.open(version).manifest
        with self._db.transaction() as tx:
            new = VersionNew(
                version=version,
                origin=VersionOrigin.STEP,
                parent=parent,
                step=step,
                content_hash=manifest.content_hash,
                config_hash=manifest.config_hash,
                recipe=self._settings.learner.recipe,
            )
            tx.steps.commit(step, new, report.metrics, self._fence)
            self._record_resets(tx, resets, version, step)
        self.version = version
        self._on_stage(Stage.COMMITTED)
        return version

    def _announce(self, version: int) -> None:
        try:
            self._on_committed(version)
        except BrokerUnavailable as error:
            _log.warning("announcement lost, the sweep will find the version", version=version, reason=error.message)
        self._on_stage(Stage.ANNOUNCED)
        if self._is_storage_full:
            self._is_storage_full = False
            self._event("publishing_resumed", {}, version)

    def _skip(self, step: int, report: StepReport) -> None:
        assert report.skip_reason is not None
        self._skipped_in_a_row += 1
        is_too_many = self._skipped_in_a_row >= self._settings.learner.max_skipped_in_a_row
        with self._db.transaction() as tx:
            tx.steps.skip(step, report.skip_reason, report.metrics, self._fence)
            tx.events.add("step_skipped", {"reason": report.skip_reason}, version=self.version, step=step)
            for reset in report.resets:
                tx.events.add("ewma_reset", asdict(reset), version=self.version, step=step)
            if is_too_many:
                tx.control.pause()
                tx.events.add(
                    "learner_paused", {"cause": f"{self._skipped_in_a_row} steps skipped in a row"}, step=step
                )
            control = tx.control.get()
        _log.warning("step skipped", step=step, reason=report.skip_reason, is_paused=is_too_many)
        if report.needs_restore:
            self._restore(control)

    def _apply_reset_request(self, request: ResetRequest | None) -> tuple[ReferenceReset, ...]:
        """The reset asked for, done in memory; the request is taken by the commit that makes it durable."""
        self._reset_done = request
        return () if request is None else (self._trainer.reset_reference(request.cause),)

    def _record_resets(self, tx: Transaction, resets: Sequence[ReferenceReset], version: int, step: int) -> None:
        for reset in resets:
            tx.events.add("ewma_reset", asdict(reset), version=version, step=step)
        if self._reset_done is not None and tx.control.get().reset_request == self._reset_done:
            tx.control.take_reset_request()

    def _wait_for_storage(self, error: StorageFull) -> None:
        if not self._is_storage_full:
            self._event("publishing_paused", {"reason": error.message}, self.version)
        self._is_storage_full = True
        _log.error("no space for the next version", reason=error.message, retry_s=STORAGE_RETRY_S)

    def _give_back(self) -> None:
        """A step that was trained and found no space: its episodes wait again, the trainer is put back."""
        with self._db.transaction() as tx:
            tx.steps.release_own(PROCESS_NAME)
            control = tx.control.get()
        self._restore(control)

    def _has_moved(self, control: Control) -> bool:
        return control.fence != self._fence or control.current_version != self.version

    def _follow(self, control: Control) -> None:
        """The database names another version to continue from. After a rollback the reference starts anew too."""
        is_rollback = control.fence != self._fence
        self._restore(control)
        if is_rollback:
            reset = self._trainer.reset_reference("rollback")
            self._event("ewma_reset", asdict(reset), self.version)

    def _restore(self, control: Control) -> None:
        if control.current_version is None:
            raise ConfigError("there is no weight version to learn from: import a seed model first")
        self._trainer.restore(self._weights.open(control.current_version).path)
        self.version, self._fence = control.current_version, control.fence
        self._event("learner_restored", {"fence": control.fence}, self.version)
        _log.info("learner restored", version=self.version, fence=self._fence)

    def _event(self, kind: str, data: Mapping[str, object], version: int) -> None:
        with self._db.transaction() as tx:
            tx.events.add(kind, data, version=version)

    def _beat(self) -> None:
        now = time.monotonic()
        if now - self._beaten_at < BEAT_S:
            return
        self._beaten_at = now
        with self._db.transaction() as tx:
            tx.processes.beat(PROCESS_NAME, os.getpid(), self._incarnation, {"version": self.version})
