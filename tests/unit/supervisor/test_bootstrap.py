"""A first start makes schema, seed version and key; later starts change nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from online_agent.config.settings import Settings, load_settings
from online_agent.config.training import WeightsSettings
from online_agent.errors import ConfigError, WeightsError
from online_agent.store.session import Database
from online_agent.supervisor.bootstrap import prepare
from online_agent.types import Scope, VersionState
from online_agent.weights.store import WeightStore
from tests.fakes.tiny_model import write_tiny_model


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("seed") / "model")


def settings_in(data_dir: Path, model: Path | str) -> Settings:
    return load_settings(data_dir=data_dir, weights=WeightsSettings(seed_model=str(model)))


def test_the_seed_serves_as_version_0_and_the_key_opens_everything(tmp_path: Path, model: Path) -> None:
    settings = settings_in(tmp_path, model)
    key_file = prepare(settings)
    db = Database(settings.database_url)
    with db.reading() as tx:
        serving = tx.weights.serving()
        key = tx.keys.authenticate(key_file.read_text().strip())
        assert tx.control.get().current_version == 0
        assert tx.tenants.get("default").trains_shared_weights
    db.close()
    assert serving is not None
    assert (serving.version, serving.state, serving.is_pinned) == (0, VersionState.SERVING, True)
    assert key is not None
    assert key.scopes == frozenset(Scope)
    assert key_file.stat().st_mode & 0o777 == 0o600


def test_a_second_start_keeps_key_and_versions(tmp_path: Path, model: Path) -> None:
    settings = settings_in(tmp_path, model)
    first = prepare(settings).read_text()
    assert prepare(settings).read_text() == first
    assert WeightStore(settings.weights_dir).versions() == [0]


def test_a_start_that_was_killed_between_files_and_row_is_finished(tmp_path: Path, model: Path) -> None:
    settings = settings_in(tmp_path, model)
    WeightStore(settings.weights_dir).import_seed(model, 0)
    prepare(settings)
    db = Database(settings.database_url)
    with db.reading() as tx:
        assert tx.weights.serving() is not None
    db.close()


def test_a_key_that_this_database_does_not_know_is_replaced(tmp_path: Path, model: Path) -> None:
    settings = settings_in(tmp_path, model)
    key_file = prepare(settings)
    key_file.write_text("oa_of_another_database\n")
    prepare(settings)
    db = Database(settings.database_url)
    with db.reading() as tx:
        assert tx.keys.authenticate(key_file.read_text().strip()) is not None
    db.close()


def test_a_seed_model_that_is_not_there_is_a_configuration_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"weights\.seed_model.*nowhere"):
        prepare(settings_in(tmp_path, "/nowhere"))


def test_a_seed_model_without_weights_is_refused_by_what_it_lacks(tmp_path: Path) -> None:
    empty = tmp_path / "model"
    empty.mkdir()
    with pytest.raises(WeightsError, match=r"config\.json"):
        prepare(settings_in(tmp_path / "data", empty))
