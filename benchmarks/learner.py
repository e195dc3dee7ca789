"""One full update of the learner (recipe ``sao``: actor, critic K = 2, optimisers) against two others on one batch.

- a plain torch loop that adds up the same sums (``benchmarks.plain_torch``); losses and gradient norms must agree
- TRL's PPO, the trainer of TRL that updates a policy and a value network (``benchmarks.trl_ppo``), with one epoch: one
  policy and one value update, so one value update less than the others. Left out where TRL is not installed.

Tokens per second count the same tokens for all: of each episode those before its last action token, no padding. Each
contestant has its own copy of the weights and the same episodes; learning rates are so low that every update sees the
same ratios. One thread, contestants in turn.
"""

from __future__ import annotations

import importlib.util
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import asdict
from importlib.metadata import version
from pathlib import Path

import torch

from benchmarks.learner_batch import ModelSize, num_real_tokens, recorded_episodes, write_model
from benchmarks.plain_torch import PlainTorch, Update
from benchmarks.report import Report, describe_machine, interleaved_seconds, medians
from online_agent.config.training import LearnerSettings
from online_agent.learner.report import Metric, StepReport
from online_agent.learner.trainer import PolicyTrainer
from online_agent.recipes import find_recipe
from online_agent.types import TrainingEpisode

NUM_RUNS = 5
LARGER = ModelSize(hidden=256, num_layers=6)
NUM_EPISODES, NUM_EPISODES_LARGER = 48, 16
_SETTINGS = LearnerSettings(critic_warmup_steps=0, actor_lr=1e-7, critic_lr=1e-7, num_threads=1)
_AGREEMENT = 1e-4
_TRL_EPOCHS = 1


def has_trl() -> bool:
    """Whether the packages of ``deploy/requirements/bench.lock`` are there."""
    return importlib.util.find_spec("trl") is not None


def measure(
    num_runs: int = NUM_RUNS, *, num_episodes: int = NUM_EPISODES, num_episodes_larger: int = NUM_EPISODES_LARGER
) -> Report:
    """The report; entries that end in ``_256x6`` are of the larger model. RuntimeError when the losses differ."""
    torch.set_num_threads(1)
    ratios: dict[str, float] = {}
    figures: dict[str, float] = {}
    runs: dict[str, list[float]] = {}
    sizes: tuple[tuple[str, ModelSize | None, int], ...] = (
        ("", None, num_episodes),
        (f"_{LARGER.hidden}x{LARGER.num_layers}", LARGER, num_episodes_larger),
    )
    for suffix, size, num in sizes:
        with tempfile.TemporaryDirectory() as work_dir:
            one = _measure_size(Path(work_dir), size, num, num_runs)
        ratios |= {name + suffix: value for name, value in one.ratios.items()}
        figures |= {name + suffix: value for name, value in one.figures.items()}
        runs |= {name + suffix: values for name, values in one.runs.items()}
    trl = version("trl") if has_trl() else "not installed"
    machine = describe_machine(
        torch=torch.__version__, deepspeed=version("deepspeed"), transformers=version("transformers"), trl=trl
    )
    return Report("learner", ratios, figures, runs, machine | {"num_threads": "1"})


def _measure_size(work_dir: Path, size: ModelSize | None, num_episodes: int, num_runs: int) -> Report:
    model_dir = write_model(work_dir / "model", size)
    episodes = recorded_episodes(model_dir, num_episodes)
    ours = PolicyTrainer(model_dir, _SETTINGS, find_recipe("sao"))
    plain = PlainTorch(model_dir, _SETTINGS)
    gap, first = check_agreement(ours, plain, episodes)
    contestants: dict[str, Callable[[], object]] = {
        "learner_s": lambda: ours.step(episodes, version=0, is_warmup=False),
        "plain_torch_s": lambda: plain.update(episodes),
    }
    if has_trl():
        from benchmarks.trl_ppo import TrlPpo

        contestants["trl_s"] = TrlPpo(model_dir, _SETTINGS, episodes, work_dir / "trl", _TRL_EPOCHS).update
    runs = interleaved_seconds(contestants, num_runs)
    seconds = medians(runs)
    num_tokens = num_real_tokens(episodes)
    figures = {
        **seconds,
        **{f"{name.removesuffix('_s')}_tokens_per_s": num_tokens / s for name, s in seconds.items()},
        **_batch_figures(episodes),
        "non_pad_share": _number(first.metrics["batch/non_pad_share"]),
        "max_difference": gap,
    }
    ratios = {f"vs_{name.removesuffix('_s')}": s / seconds["learner_s"] for name, s in seconds.items()}
    del ratios["vs_learner"]
    return Report("learner", ratios, figures, runs, {})


def _number(metric: Metric) -> float:
    assert isinstance(metric, float), metric
    return metric


def check_agreement(
    ours: PolicyTrainer, plain: PlainTorch, episodes: Sequence[TrainingEpisode]
) -> tuple[float, StepReport]:
    """The largest relative difference of a loss or gradient norm in one update of each, and the learner's report.

    Raises RuntimeError where they do not add up the same sums.
    """
    report = ours.step(episodes, version=0, is_warmup=False)
    if report.skip_reason is not None:
        raise RuntimeError(f"the learner skips the batch: {report.skip_reason}")
    metrics = report.metrics
    theirs = plain.update(episodes)
    mine = Update(
        actor_loss=_number(metrics["actor/loss"]),
        critic_loss=_number(metrics["critic/loss"]),
        critic_loss_last=_number(metrics["critic/loss_last"]),
        actor_grad_norm=_number(metrics["actor/grad_norm"]),
    )
    gaps = {name: abs(value - asdict(mine)[name]) / abs(value) for name, value in asdict(theirs).items()}
    if max(gaps.values()) > _AGREEMENT:
        raise RuntimeError(f"learner {mine} and plain torch {theirs} differ: {gaps}")
    return max(gaps.values()), report


def _batch_figures(episodes: Sequence[TrainingEpisode]) -> dict[str, float]:
    lengths = sorted(len(episode.token_ids) for episode in episodes)
    return {
        "num_episodes": float(len(episodes)),
        "num_real_tokens": float(num_real_tokens(episodes)),
        "shortest_episode_tokens": float(lengths[0]),
        "median_episode_tokens": float(lengths[len(lengths) // 2]),
        "longest_episode_tokens": float(lengths[-1]),
        "action_share": sum(episode.num_action_tokens for episode in episodes) / sum(lengths),
    }
