"""One rank of a learner, for tests that start several: trains some steps of each run and says what came out.

``python -m tests.fakes.learner_rank <model_dir> <out_dir>`` under the variables a launcher sets.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from online_agent.config.training import LearnerSettings
from online_agent.learner.team import Team, follow
from online_agent.learner.trainer import PolicyTrainer
from online_agent.recipes import Recipe, find_recipe
from online_agent.recipes.parts import SkipObservationGae
from online_agent.types import TrainingEpisode
from tests.fakes.tiny_model import VOCAB_SIZE
from tests.fakes.training_episodes import random_episodes

NUM_STEPS = 2
# An odd number of episodes: two ranks get unequal shares, and one of them a filler micro-batch.
NUM_EPISODES = 7
GROUP_SIZE = 4
COMPARED = (
    "actor/loss",
    "actor/grad_norm",
    "critic/loss",
    "critic/grad_norm",
    "critic/loss_last",
    "tokens/kept",
    "sat/threshold",
    "ewma/weight",
    "ewma/active_share",
)


@dataclass(frozen=True)
class Run:
    recipe: Recipe
    zero_stage: int = 2

    @property
    def settings(self) -> LearnerSettings:
        """Two micro-batches or more a rank."""
        return LearnerSettings(critic_warmup_steps=0, micro_batch_tokens=70, zero_stage=self.zero_stage)


SAO = replace(find_recipe("sao"), advantage=SkipObservationGae(is_whitened=True))
ORIGIN = "sao"
STAGES = {1: "sao-zero1", 2: ORIGIN, 3: "sao-zero3"}
RUNS = {
    ORIGIN: Run(SAO),
    **{name: Run(SAO, zero_stage=stage) for stage, name in STAGES.items()},
    "sao-kept": Run(replace(find_recipe("sao"), aggregation="kept_token_mean")),
    "sao-ewma": Run(find_recipe("sao-ewma")),
    "sat-grpo": Run(find_recipe("sat-grpo")),
    "sat-gspo": Run(find_recipe("sat-gspo")),
}


def main(model_dir: Path, out_dir: Path) -> None:
    """Rank 0 leaves, for each run, ``metrics.json`` and what it exported after the first and after the last step.

    In the end each run of ``SAO`` restores what ``ORIGIN`` exported last, and exports it again as ``again``.
    """
    for name, run in RUNS.items():
        trainer = PolicyTrainer(model_dir, run.settings, run.recipe)
        if trainer.ranks.is_first:
            lead(Team(trainer), out_dir / name)
        else:
            follow(trainer)


def lead(team: Team, out_dir: Path) -> None:
    out_dir.mkdir(parents=True)
    seen = []
    for n in range(NUM_STEPS):
        report = team.step(step_episodes(n), version=n, is_warmup=False)
        seen.append({key: report.metrics[key] for key in COMPARED})
        if n == 0:
            team.export(out_dir / "first")
    team.export(out_dir / "last")
    if RUNS[out_dir.name].recipe == SAO:
        team.restore(out_dir.parent / ORIGIN / "last")
        team.export(out_dir / "again")
    team.dismiss()
    (out_dir / "metrics.json").write_text(json.dumps(seen))


def step_episodes(n: int) -> Sequence[TrainingEpisode]:
    """Two groups, each with successes and failures."""
    episodes = random_episodes(NUM_EPISODES, VOCAB_SIZE, seed=n)
    return [replace(episode, group_id=f"g{i // GROUP_SIZE}", reward=float(i % 2)) for i, episode in enumerate(episodes)]


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
