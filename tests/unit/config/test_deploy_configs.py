"""Every configuration file that ships loads, and its values fit together."""

from __future__ import annotations

from pathlib import Path

import pytest

from online_agent.config.settings import Settings, load_settings
from online_agent.errors import ConfigError
from online_agent.jobs.app import make_app

CONFIGS = sorted((Path(__file__).parents[3] / "deploy" / "config").glob("*.toml"))


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    import os

    for name in list(os.environ):
        if name.startswith("ONLINE_AGENT_"):
            monkeypatch.delenv(name)


def test_there_are_configurations() -> None:
    assert [path.stem for path in CONFIGS] == ["containers", "demo", "gpu"]


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_it_loads_and_its_limits_fit_together(path: Path) -> None:
    settings = load_settings(path)
    make_app(settings, "redis://127.0.0.1:1/0")  # raises for time limits that contradict
    assert settings.jobs.swap_lease_s > 2 * settings.engine.swap_timeout_s - 1
    assert settings.agent.max_tokens <= settings.engine.context_length
    assert settings.agent.max_new_tokens < settings.engine.context_length
    assert settings.jobs.hard_time_limit_s > 2 * settings.engine.swap_timeout_s


def test_the_demo_configuration_is_the_defaults_spelled_out() -> None:
    path = next(path for path in CONFIGS if path.stem == "demo")
    assert load_settings(path) == Settings()


def test_an_unknown_key_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text("[learner]\nbatch_size = 3\n")
    with pytest.raises(ConfigError, match=rf"learner\.batch_size: .* \(got 3, in {path}\)"):
        load_settings(path)


def test_a_bad_value_of_a_list_is_named_by_its_place_and_file(tmp_path: Path) -> None:
    path = tmp_path / "bad.toml"
    path.write_text('[engine]\nextra_args = ["--x", 3]\n')
    with pytest.raises(ConfigError, match=rf"engine\.extra_args\.1: .* \(got 3, in {path}\)"):
        load_settings(path)


def test_a_bad_value_of_the_environment_is_not_said_to_be_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "good.toml"
    path.write_text('log_level = "info"\n')
    monkeypatch.setenv("ONLINE_AGENT_LOG_LEVEL", "loud")
    with pytest.raises(ConfigError, match=r"log_level: .* \(got 'loud'\)"):
        load_settings(path)
