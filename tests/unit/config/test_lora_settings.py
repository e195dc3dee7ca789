"""What may be adapted: the engine serves some layers as one module."""

from __future__ import annotations

from pathlib import Path

import pytest

from online_agent.config.settings import load_settings
from online_agent.config.training import LoraSettings
from online_agent.errors import ConfigError
from online_agent.serving.adapter_client import AdapterClient
from online_agent.serving.client import EngineClient
from online_agent.serving.connect import connect


def load(tmp_path: Path, learner: str) -> LoraSettings | None:
    file = tmp_path / "settings.toml"
    file.write_text(f"[learner]\n{learner}")
    return load_settings(file).learner.adapter


def test_all_weights_learn_unless_an_adapter_is_chosen(tmp_path: Path) -> None:
    assert load(tmp_path, "") is None
    chosen = load(tmp_path, 'actor = "lora"\n[learner.lora]\nrank = 4\nalpha = 6.0\ntarget_modules = ["o_proj"]')
    assert chosen == LoraSettings(rank=4, alpha=6.0, target_modules=("o_proj",))


@pytest.mark.parametrize(
    ("modules", "reason"),
    [
        ('["q_proj", "v_proj"]', "k_proj, q_proj, v_proj are served together: k_proj is not named"),
        ('["up_proj"]', "gate_proj, up_proj are served together: gate_proj is not named"),
        ('["embed_tokens"]', "target_modules"),
        ("[]", "target_modules"),
    ],
)
def test_modules_that_the_engine_could_not_serve_are_refused_by_name(tmp_path: Path, modules: str, reason: str) -> None:
    with pytest.raises(ConfigError, match=reason):
        load(tmp_path, f'actor = "lora"\n[learner.lora]\ntarget_modules = {modules}')


def test_the_client_names_adapters_where_an_adapter_learns() -> None:
    assert type(connect(load_settings())) is EngineClient
    assert type(connect(load_settings(learner={"actor": "lora"}))) is AdapterClient
