import pytest
import torch

from online_agent.learner.expert_layout import fuse_experts, split_experts

LAYER = "model.layers.0.mlp.experts"


def test_gate_up_and_down_of_each_expert_get_a_name_of_their_own():
    gate_up = torch.arange(2 * 4 * 3.0).reshape(2, 4, 3)
    down = torch.arange(2 * 3 * 2.0).reshape(2, 3, 2)
    other = torch.ones(3)

    split = split_experts({f"{LAYER}.gate_up_proj": gate_up, f"{LAYER}.down_proj": down, "model.norm.weight": other})

    assert set(split) == {"model.norm.weight"} | {
        f"{LAYER}.{e}.{p}_proj.weight" for e in (0, 1) for p in ("gate", "up", "down")
    }
    assert split[f"{LAYER}.1.gate_proj.weight"].tolist() == [[12, 13, 14], [15, 16, 17]]
    assert split[f"{LAYER}.1.up_proj.weight"].tolist() == [[18, 19, 20], [21, 22, 23]]
    assert split[f"{LAYER}.1.down_proj.weight"].tolist() == [[6, 7], [8, 9], [10, 11]]


def test_fusing_what_was_split_gives_it_back_also_beyond_nine_experts():
    tensors = {
        f"{LAYER}.gate_up_proj": torch.randn(11, 4, 3),
        f"{LAYER}.down_proj": torch.randn(11, 3, 2),
        "model.layers.0.mlp.gate.weight": torch.randn(11, 3),
        "model.layers.1.mlp.down_proj.weight": torch.randn(3, 2),
    }

    fused = fuse_experts(split_experts(tensors))

    assert set(fused) == set(tensors)
    for name, tensor in tensors.items():
        assert torch.equal(fused[name], tensor)


def test_a_missing_projection_of_an_expert_is_named():
    split = split_experts({f"{LAYER}.gate_up_proj": torch.randn(3, 4, 3), f"{LAYER}.down_proj": torch.randn(3, 3, 2)})
    del split[f"{LAYER}.1.up_proj.weight"]

    with pytest.raises(KeyError, match=r"experts\.1\.up_proj\.weight"):
        fuse_experts(split)
