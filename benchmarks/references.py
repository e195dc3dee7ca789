"""What one step costs by the reference its ratios are taken against, side by side.

Five recipes that differ in the reference alone: the engine's log-probs (bypass), the average of published weights
(EWMA), and exact old log-probs by snapshots, by a dedicated second process and by interrupting the engine. All else is
``sao``'s: a critic with K = 2, one actor update, the average that every policy keeps beside it.

One step a run and contestant, in turn, each from the same restored state, with the queue as it is in steady state:

- a batch is finished one step before it is trained. Its tokens come from four versions in equal parts, so every fourth
  token of the batch belongs to each, and the newest is the one before the current version
- with each step one version is new. Its weights are read once by the routes that hold weights
- the dedicated process sees the next batch in the queue when a step begins
- the interrupted engine is a real one with ``NUM_UNDER_WAY`` generations; as many tokens of its version wait in the
  queue as a batch holds, spread over batches that later versions will finish. The pause ends with a real swap

``*_fill_s`` is the part of the step that fills in old log-probs, ``*_bytes`` what a contestant holds besides actor and
critic, ``interruption_paused_s`` how long the engine stood still, training and swap included.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.metadata import version as version_of
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import load_file, save_file

from benchmarks.learner_batch import recorded_episodes, write_model
from benchmarks.live_interruption import LiveInterruption, live_interruption
from benchmarks.report import Report, describe_machine, medians
from online_agent.config.training import LearnerSettings
from online_agent.learner.old_logits.dedicated import DedicatedRoute
from online_agent.learner.old_logits.interruption import InterruptionRoute, Patience
from online_agent.learner.old_logits.protocol import OldLogits
from online_agent.learner.old_logits.scoring import Mask, Scorer
from online_agent.learner.old_logits.snapshot import SnapshotRoute, score_each_under_its_own
from online_agent.learner.old_logits.window import VersionWindow
from online_agent.learner.trainer import PolicyTrainer
from online_agent.recipes import Recipe
from online_agent.recipes.parts import EngineLogProbs, Ewma, ExactOld, MaskAndClip, Reference
from online_agent.types import Float32Array, Sampling, TrainingEpisode
from online_agent.weights.store import WeightStore

NUM_RUNS = 5
NUM_EPISODES = 48
WINDOW = 4
NUM_UNDER_WAY = 8
_TRAFFIC_S = 0.5
_AGREEMENT = 1e-5
_NOISE = 1e-4
_SETTINGS = LearnerSettings(critic_warmup_steps=0, actor_lr=1e-7, critic_lr=1e-7, num_threads=1)
_ROUTES = ("snapshot", "dedicated", "interruption")

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A trainer of its own, and the route that fills in old log-probs where it needs them."""

    trainer: PolicyTrainer
    route: OldLogits | None = None


class Bench:
    """The contestants around one weights directory; ``step`` runs one of them once."""

    def __init__(self, weights: WeightStore, template: Sequence[TrainingEpisode], live: LiveInterruption) -> None:
        self._weights, self._template, self._live = weights, template, live
        self._upcoming: list[TrainingEpisode] = []
        self.max_difference = 0.0
        serving_dir = weights.open(weights.versions()[0]).serving_dir
        self._scorer = Scorer(serving_dir, _SETTINGS)
        self._window = VersionWindow(weights, 10**9)

        def trainer(name: str, reference: Reference) -> PolicyTrainer:
            recipe = Recipe(name=name, reference=reference, trust_region=MaskAndClip())
            return PolicyTrainer(serving_dir, _SETTINGS, recipe)

        exact = {name: trainer(name, ExactOld()) for name in _ROUTES}
        snapshot = SnapshotRoute(Scorer(serving_dir, _SETTINGS), VersionWindow(weights, 10**9))
        dedicated = DedicatedRoute(
            weights, _SETTINGS, max_held_bytes=10**9, answer_timeout_s=300.0, upcoming=lambda: self._upcoming
        )
        interruption = InterruptionRoute(live.db, exact["interruption"].log_probs, Patience(60.0, 60.0))
        self.contestants = {
            "bypass": Contestant(trainer("bypass", EngineLogProbs())),
            "ewma": Contestant(trainer("ewma", Ewma())),
            "snapshot": Contestant(exact["snapshot"], snapshot),
            "dedicated": Contestant(exact["dedicated"], dedicated),
            "interruption": Contestant(exact["interruption"], interruption),
        }

    def batch(self, number: int) -> list[TrainingEpisode]:
        """Batch ``number`` was sampled by the ``WINDOW`` versions up to that number."""
        return [dealt_to(e, range(number - WINDOW + 1, number + 1), f"b{number}") for e in self._template]

    def step(self, name: str, version: int) -> tuple[dict[str, float], list[TrainingEpisode]]:
        """One step at ``version``: its figures by name, and the batch as it was trained."""
        contestant, batch = self.contestants[name], self.batch(version - 1)
        contestant.trainer.restore(self._weights.open(version).path)
        self._upcoming = self.batch(version)
        if name == "interruption":
            with self._steady_queue(version, batch) as batch:
                return self._timed(name, contestant, batch, version)
        return self._timed(name, contestant, batch, version)

    def compare(self, batches: Sequence[Sequence[TrainingEpisode]]) -> None:
        """Note the largest difference between the old log-probs that the routes gave one batch."""
        for first, *others in zip(*batches, strict=True):
            for other in others:
                gap = _gap(first.old_logprobs, other.old_logprobs, first.action_mask)
                self.max_difference = max(self.max_difference, gap)

    def close(self) -> None:
        for contestant in self.contestants.values():
            if contestant.route is not None:
                contestant.route.close()

    def _timed(
        self, name: str, contestant: Contestant, batch: list[TrainingEpisode], version: int
    ) -> tuple[dict[str, float], list[TrainingEpisode]]:
        started = time.perf_counter()
        if contestant.route is not None:
            batch = contestant.route.fill(batch, version=version)
        filled = time.perf_counter()
        report = contestant.trainer.step(batch, version=version, is_warmup=False)
        seconds = time.perf_counter() - started
        if report.skip_reason is not None:
            raise RuntimeError(f"{name}: {report.skip_reason}")
        average = sum(t.numel() * t.element_size() for t in contestant.trainer.reference.tensors().values())
        held = average if contestant.route is None else average + contestant.route.cost().bytes
        figures = {f"{name}_s": seconds, f"{name}_fill_s": filled - started, f"{name}_bytes": float(held)}
        if name == "interruption":
            figures[f"{name}_paused_s"] = self._end_pause(contestant.route, version)
        elif contestant.route is not None:
            contestant.route.settle(version + 1)
        return figures, batch

    def _end_pause(self, route: OldLogits | None, version: int) -> float:
        """The swap to the next version; how long the engine had stood still."""
        assert route is not None
        self._live.publish(version + 1)
        route.settle(version + 1)
        return self._live.last_pause_s()

    @contextmanager
    def _steady_queue(self, version: int, batch: Sequence[TrainingEpisode]) -> Iterator[list[TrainingEpisode]]:
        """The batch and what later steps will train, as far as it is sampled, are stored; earlier versions' tokens are
        scored, as they were at earlier interruptions; generations are under way."""
        later = [as_of(e, version) for number in range(version, version + WINDOW) for e in self.batch(number)]
        waiting = [episode for episode in later if episode.action_mask.any()]
        stored = self._live.store([*batch, *waiting])
        for older in range(version - WINDOW, version):
            self._live.put_scores(stored, older, self._scores_under(stored, older))
        self._live.start_traffic([e.token_ids[:40] for e in batch[:NUM_UNDER_WAY]], Sampling(1.0, 1.0, 800))
        time.sleep(_TRAFFIC_S)
        try:
            yield stored[: len(batch)]
            self._check_current(stored, version)
        finally:
            self._live.stop_traffic()
            self._live.erase([episode.id for episode in stored])

    def _check_current(self, episodes: Sequence[TrainingEpisode], version: int) -> None:
        """What the interruption has stored for the tokens of ``version`` is what a snapshot gives."""
        stored = self._live.filled(episodes)
        for episode, expected in zip(stored, self._scores_under(episodes, version), strict=True):
            mine = episode.action_mask & (episode.versions == version)
            self.max_difference = max(self.max_difference, _gap(episode.old_logprobs, expected, mine))

    def _scores_under(self, episodes: Sequence[TrainingEpisode], version: int) -> list[Float32Array]:
        masks = [episode.action_mask & (episode.versions == version) for episode in episodes]
        one = [replace(episode, action_mask=mask) for episode, mask in zip(episodes, masks, strict=True)]
        return list(score_each_under_its_own(self._scorer, self._window, one))


def measure(
    num_runs: int = NUM_RUNS, *, num_episodes: int = NUM_EPISODES, progress: Progress = lambda line: None
) -> Report:
    """The report. Raises RuntimeError when the exact routes differ by more than 1e-5 or leave a token unscored."""
    torch.set_num_threads(1)
    runs: dict[str, list[float]] = {}
    first = 2 * WINDOW
    with tempfile.TemporaryDirectory() as directory:
        weights, template = _prepare(Path(directory), num_episodes, first + num_runs + WINDOW + 2)
        progress("starting the engine")
        with live_interruption(Path(directory), weights, first) as live:
            bench = Bench(weights, template, live)
            try:
                for run in range(-1, num_runs):
                    trained = {}
                    for name in bench.contestants:
                        figures, trained[name] = bench.step(name, first + 1 + run)
                        progress(f"run {run + 1} of {num_runs}: {name} {figures[f'{name}_s']:.2f} s")
                        if run >= 0:
                            for key, value in figures.items():
                                runs.setdefault(key, []).append(value)
                    bench.compare([trained[name] for name in _ROUTES])
            finally:
                bench.close()
            if not bench.max_difference < _AGREEMENT:
                raise RuntimeError(f"the exact routes differ by {bench.max_difference}")
    figures = medians(runs)
    names = ("ewma", *_ROUTES)
    ratios = {f"{name}_vs_bypass": figures[f"{name}_s"] / figures["bypass_s"] for name in names}
    ratios |= {f"{name}_vs_ewma": figures[f"{name}_s"] / figures["ewma_s"] for name in _ROUTES}
    machine = describe_machine(
        torch=torch.__version__, deepspeed=version_of("deepspeed"), sglang=version_of("sglang"), num_threads="1"
    )
    return Report("references", ratios, figures | {"max_difference": bench.max_difference}, runs, machine)


def _prepare(directory: Path, num_episodes: int, num_versions: int) -> tuple[WeightStore, list[TrainingEpisode]]:
    """Versions of the seed policy that differ by a little noise, and the episodes whose tokens all batches have."""
    model_dir = write_model(directory / "model", None)
    episodes = recorded_episodes(model_dir, num_episodes)
    weights, seed = WeightStore(directory / "weights"), load_file(model_dir / "model.safetensors")
    for version in range(1, num_versions + 1):
        rng = np.random.default_rng(version)
        noisy = {name: t + (_NOISE * rng.standard_normal(t.shape)).astype(t.dtype) for name, t in seed.items()}
        save_file(noisy, model_dir / "model.safetensors", metadata={"format": "pt"})
        weights.import_seed(model_dir, version)
    return weights, episodes


def dealt_to(episode: TrainingEpisode, versions: Sequence[int], name: str) -> TrainingEpisode:
    """The episode's actions in as many equal parts as there are versions."""
    number_T = np.cumsum(episode.action_mask) - 1
    part_T = number_T * len(versions) // max(episode.num_action_tokens, 1)
    sampled = np.where(episode.action_mask, np.asarray(versions)[np.clip(part_T, 0, len(versions) - 1)], -1)
    return replace(episode, id=f"{name}-{episode.id}", versions=sampled.astype(np.int32))


def as_of(episode: TrainingEpisode, version: int) -> TrainingEpisode:
    """The episode as it stands when ``version`` serves: cut behind the last token sampled so far."""
    so_far = np.flatnonzero(episode.action_mask & (episode.versions <= version))
    end = int(so_far[-1]) + 1 if len(so_far) else 0
    return replace(
        episode,
        token_ids=episode.token_ids[:end],
        action_mask=episode.action_mask[:end],
        logprobs=episode.logprobs[:end],
        versions=episode.versions[:end],
    )


def _gap(one: Float32Array | None, other: Float32Array | None, mask: Mask) -> float:
    """The largest difference at the tokens of ``mask``; infinite where one of them is missing."""
    if one is None or other is None:
        return float("inf")
    difference = np.abs(one - other)[mask]
    return float("inf") if np.isnan(difference).any() else float(difference.max(initial=0.0))
