"""One rank of a learner, for tests that start several: trains some steps and says what came out.

``python -m tests.fakes.learner_rank <model_dir> <out_dir>`` under the variables a launcher sets.
"""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

from online_agent.config.settings import LearnerSettings
from online_agent.learner.team import Team, follow
from online_agent.learner.trainer import PolicyTrainer
from online_agent.recipes import find_recipe
from online_agent.recipes.parts import SkipObservationGae
from tests.fakes.tiny_model import VOCAB_SIZE
from tests.fakes.training_episodes import random_episodes

NUM_STEPS = 3
# An odd number of episodes: two ranks get unequal shares, and one of them a filler micro-batch.
NUM_EPISODES = 7
COMPARED = ("actor/loss", "actor/grad_norm", "critic/loss", "critic/grad_norm", "critic/loss_last", "ewma/weight")


def main(model_dir: Path, out_dir: Path) -> None:
    """Rank 0 leaves ``metrics.json`` and an exported checkpoint in ``out_dir``; the others follow it."""
    settings = LearnerSettings(critic_warmup_steps=0, micro_batch_tokens=70)
    recipe = replace(find_recipe("sao"), advantage=SkipObservationGae(is_whitened=True))
    trainer = PolicyTrainer(model_dir, settings, recipe)
    if not trainer.ranks.is_first:
        follow(trainer)
        return
    team, seen = Team(trainer), []
    for n in range(NUM_STEPS):
        report = team.step(random_episodes(NUM_EPISODES, VOCAB_SIZE, seed=n), version=n, is_warmup=False)
        seen.append({key: report.metrics[key] for key in COMPARED})
    team.export(out_dir)
    team.restore(out_dir)
    team.dismiss()
    (out_dir / "metrics.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
