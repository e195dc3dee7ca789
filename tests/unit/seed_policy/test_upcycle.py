from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from transformers import AutoModelForCausalLM
from typer.testing import CliRunner

from online_agent.cli.main import app
from online_agent.errors import ConfigError
from online_agent.learner.models import load_causal_lm
from online_agent.rendering import ChatRenderer
from online_agent.seed_policy.build import CHECKPOINT_DIR
from online_agent.seed_policy.upcycle import Mixture, mixture_weights, upcycle
from tests.fakes.tiny_model import NUM_LAYERS, write_tiny_model

SMALL = Mixture(num_experts=3, experts_per_token=2, noise=0.2)


@pytest.fixture(scope="module")
def dense_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("dense") / "model")


def logits(model_dir: Path) -> torch.Tensor:
    ids = torch.arange(3, 43)[None]
    with torch.no_grad():
        return AutoModelForCausalLM.from_pretrained(model_dir, dtype=torch.float32)(input_ids=ids).logits


def test_without_noise_the_mixture_computes_what_the_dense_network_does(dense_dir: Path, tmp_path: Path) -> None:
    upcycle(dense_dir, tmp_path / "moe", replace(SMALL, noise=0.0))

    torch.testing.assert_close(logits(tmp_path / "moe"), logits(dense_dir), rtol=0, atol=1e-4)


def test_noise_is_each_experts_own_and_as_large_as_asked_for(dense_dir: Path) -> None:
    dense = load_file(dense_dir / "model.safetensors")
    mixed = mixture_weights(dense, NUM_LAYERS, SMALL)
    for projection in ("gate_proj", "up_proj", "down_proj"):
        matrix = dense[f"model.layers.1.mlp.{projection}.weight"]
        added = [mixed[f"model.layers.1.mlp.experts.{e}.{projection}.weight"] - matrix for e in range(3)]
        for one, other in ((0, 1), (1, 2), (0, 2)):
            assert abs(np.corrcoef(added[one].ravel(), added[other].ravel())[0, 1]) < 0.1
        assert np.std(added) == pytest.approx(0.2 * matrix.std(), rel=0.05)


def test_the_output_embedding_is_a_tensor_of_its_own_since_the_engine_ties_none(
    dense_dir: Path, tmp_path: Path
) -> None:
    upcycle(dense_dir, tmp_path / "moe", SMALL)
    weights = load_file(tmp_path / "moe" / "model.safetensors")

    assert json.loads((tmp_path / "moe" / "config.json").read_text())["tie_word_embeddings"] is False
    np.testing.assert_array_equal(weights["lm_head.weight"], weights["model.embed_tokens.weight"])


def test_equal_arguments_give_equal_bytes_and_another_seed_others(dense_dir: Path, tmp_path: Path) -> None:
    def digest(name: str, mixture: Mixture) -> str:
        upcycle(dense_dir, tmp_path / name, mixture)
        return hashlib.sha256((tmp_path / name / "model.safetensors").read_bytes()).hexdigest()

    assert digest("a", SMALL) == digest("b", SMALL) != digest("c", replace(SMALL, seed=1))


def test_tokenizer_and_template_are_those_of_the_dense_policy(dense_dir: Path, tmp_path: Path) -> None:
    upcycle(dense_dir, tmp_path / "moe", SMALL)
    ours, theirs = ChatRenderer.load(tmp_path / "moe"), ChatRenderer.load(dense_dir)

    assert ours.template_hash == theirs.template_hash
    assert (tmp_path / "moe" / "tokenizer.json").read_bytes() == (dense_dir / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    "changes",
    [{"num_experts": 1}, {"num_experts": 257}, {"experts_per_token": 0}, {"experts_per_token": 4}, {"noise": -0.1}],
    ids=str,
)
def test_what_makes_no_mixture_is_refused(dense_dir: Path, tmp_path: Path, changes: dict[str, int]) -> None:
    with pytest.raises(ConfigError):
        upcycle(dense_dir, tmp_path / "moe", replace(SMALL, **changes))
    assert not (tmp_path / "moe").exists()


def test_only_a_dense_qwen3_is_grown(dense_dir: Path, tmp_path: Path) -> None:
    upcycle(dense_dir, tmp_path / "moe", SMALL)
    with pytest.raises(ConfigError, match="'qwen3_moe' model: only a dense qwen3"):
        upcycle(tmp_path / "moe", tmp_path / "again", SMALL)
    with pytest.raises(ConfigError, match="cannot read the configuration"):
        upcycle(tmp_path / "nothing", tmp_path / "again", SMALL)


def test_the_command_grows_the_shipped_policy_which_stays_as_likely_to_say_what_it_says(tmp_path: Path) -> None:
    """Log-likelihood of 256 tokens that the dense policy itself finds most likely, one after the other."""
    result = CliRunner().invoke(app, ["seed-policy", str(tmp_path / "moe"), "--moe", "--experts", "4"])
    assert result.exit_code == 0, result.output
    dense, mixed = load_causal_lm(CHECKPOINT_DIR), load_causal_lm(tmp_path / "moe")
    assert (mixed.config.num_experts, mixed.config.num_experts_per_tok) == (4, 2)
    ids = torch.tensor([ChatRenderer.load(CHECKPOINT_DIR).encode_text("fix the test\n").tolist()])
    with torch.no_grad():
        said = dense.generate(ids, max_new_tokens=256, do_sample=False, use_cache=True, pad_token_id=0, eos_token_id=-1)
        gap = [
            torch.log_softmax(model(input_ids=said).logits[0, :-1], -1).gather(1, said[0, 1:, None]).mean()
            for model in (dense, mixed)
        ]
    assert float(gap[0] - gap[1]) == pytest.approx(0.0, abs=0.05)
