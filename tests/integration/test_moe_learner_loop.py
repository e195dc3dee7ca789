"""A recipe that replays routing meets episodes without experts: dropped with a mixture, trained with a dense policy."""

from __future__ import annotations

from pathlib import Path

import pytest

from online_agent.config.training import LearnerSettings
from tests.fakes.deepspeed_warnings import SILENCED
from tests.fakes.episodes import graded_group
from tests.fakes.learner import Workplace, new_workplace
from tests.fakes.tiny_model import write_tiny_model
from tests.fakes.tiny_moe import write_tiny_moe

pytestmark = SILENCED
SIZE = 4


@pytest.fixture(scope="module", params=["mixture", "dense"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    write = write_tiny_moe if request.param == "mixture" else write_tiny_model
    return request.param, write(tmp_path_factory.mktemp("seed") / "model", scale=0.05)


def drops(place: Workplace) -> dict[str, int]:
    with place.db.reading() as tx:
        return dict(tx.episodes.drops_by_reason())


def test_episodes_without_experts_are_dropped_where_there_is_routing_to_replay(
    model: tuple[str, Path], tmp_path: Path
) -> None:
    kind, model_dir = model
    learner = LearnerSettings(recipe="sat-gspo-r3", batch_episodes=SIZE, max_masked_share=1.0)
    place = new_workplace(tmp_path, model_dir, learner)
    loop = place.loop()
    loop.start()
    graded_group(place.db, SIZE)

    has_stepped = loop.run_once()

    if kind == "mixture":
        assert (has_stepped, drops(place)) == (False, {"no_experts": SIZE})
    else:
        assert (has_stepped, drops(place).get("no_experts")) == (True, None)
    place.db.close()
