from pathlib import Path

import pytest

from online_agent.config.training import LearnerSettings
from online_agent.learner.old_logits.scoring import Scorer
from online_agent.weights.store import WeightStore
from tests.fakes.policy_versions import VERSIONS, write_versions


@pytest.fixture(scope="session")
def versions_root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("versions")


@pytest.fixture(scope="session")
def store(versions_root: Path) -> WeightStore:
    """Versions 3, 4 and 5; not to be changed."""
    return write_versions(versions_root, VERSIONS)


@pytest.fixture(scope="session")
def scorer(store: WeightStore) -> Scorer:
    return Scorer(store.open(VERSIONS[0]).serving_dir, LearnerSettings(micro_batch_tokens=128))
