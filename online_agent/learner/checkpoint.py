"""A trainer on disk, by parameter name and without pickle, and back, bit for bit.

``serving/``  a complete Hugging Face directory; ``model.safetensors`` holds the actor's fp32 masters, each tied
              weight once. Where an adapter learns, it stands in their place, and the moments and the average are its
``learner/``  actor_optimizer.safetensors, ewma.safetensors, rng.safetensors, state.json, and for a recipe with a critic
              critic.safetensors, critic_optimizer.safetensors

Names do not depend on the ZeRO stage or the number of ranks, so a checkpoint restores under another of either. It also
restores under another recipe: a critic that is not there starts fresh from the actor, one that is not needed is left.
The caller hands in a directory that is flushed and renamed when complete.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from online_agent.errors import CorruptVersion
from online_agent.learner.expert_layout import fuse_experts, split_experts
from online_agent.learner.lora import measure_probe
from online_agent.weights.adapter import ADAPTER_FILES, is_adapter

if TYPE_CHECKING:
    from online_agent.learner.trainer import PolicyTrainer
    from online_agent.learner.zero_engine import ZeroEngine

MODEL_FILE = "model.safetensors"
STATE_FILE = "state.json"
CRITIC_FILE = "critic.safetensors"
CRITIC_MOMENTS_FILE = "critic_optimizer.safetensors"
STATE_FORMAT = 2
# Written by 0.1.0, which knew one recipe.
_FIRST_FORMAT = 1
_ACTOR_PREFIX = "causal_lm."
# Weights of the parent in any format, and the index of a sharded one: replaced by MODEL_FILE.
_WEIGHT_PATTERNS = ("*.safetensors", "*.index.json", "*.bin", "*.pt", "*.pth", "*.gguf", "*.h5", "*.msgpack")


def export(trainer: PolicyTrainer, directory: Path) -> None:
    """Write the trainer under ``directory``. A collective; rank 0 writes."""
    actor, actor_moments = trainer.actor.parameters(), trainer.actor.moments()
    critic, adapter = _critic_tensors(trainer), trainer.networks.adapter
    probe = None if adapter is None else measure_probe(trainer.actor.network, trainer.networks.vocab_size)
    if not trainer.ranks.is_first:
        return
    serving, learner = directory / "serving", directory / "learner"
    _write_model_files(trainer.model_files, serving)
    learner.mkdir(parents=True, exist_ok=True)
    if adapter is None or probe is None:
        _save(serving / MODEL_FILE, _checkpoint_weights(actor))
    else:
        adapter.write(serving, actor, probe)
    _save(learner / "actor_optimizer.safetensors", actor_moments)
    for name, tensors in critic.items():
        _save(learner / name, tensors)
    _save(learner / "ewma.safetensors", trainer.reference.tensors())
    _save(learner / "rng.safetensors", _rng_state(trainer.ranks.device))
    (learner / STATE_FILE).write_text(json.dumps(_state(trainer), indent=1, sort_keys=True))


def restore(trainer: PolicyTrainer, directory: Path) -> None:
    """Load what ``export`` wrote. Raises CorruptVersion naming the directory when it cannot be used.

    A version without ``learner/state.json`` is a seed or a copy of one: learning begins anew from its weights. So does
    that of an adapter from the version that is its base. Raises ForeignVersion for an adapter of other weights.
    """
    try:
        has_learned = (directory / "learner" / STATE_FILE).is_file()
        if has_learned and (trainer.networks.adapter is None or is_adapter(directory / "serving")):
            _restore_all(trainer, directory / "serving", directory / "learner")
        else:
            _begin_from(trainer, directory / "serving")
        trainer.model_files = read_model_files(directory / "serving")
    except (OSError, SafetensorError, KeyError, ValueError) as error:
        raise CorruptVersion(f"cannot restore the learner from {directory}: {error!r}") from error


def _restore_all(trainer: PolicyTrainer, serving: Path, learner: Path) -> None:
    state = json.loads((learner / STATE_FILE).read_text())
    if state["format"] not in (_FIRST_FORMAT, STATE_FORMAT):
        raise ValueError(f"{STATE_FILE} has format {state['format']}, wanted {STATE_FORMAT}")
    ewma, rng = load_file(learner / "ewma.safetensors"), load_file(learner / "rng.safetensors")
    actor, actor_moments = _policy_of(trainer, serving), load_file(learner / "actor_optimizer.safetensors")
    critic = None
    if trainer.critic is not None and state["critic_lr"] is not None:
        critic = load_file(learner / CRITIC_FILE), load_file(learner / CRITIC_MOMENTS_FILE)
    trainer.actor.load(actor, actor_moments, lr=state["actor_lr"], updates=state["actor_updates"])
    if trainer.critic is not None and critic is not None:
        trainer.critic.load(*critic, lr=state["critic_lr"], updates=state["critic_updates"])
        trainer.num_critic_steps = state.get("num_critic_steps", state["num_steps"])
    else:
        _begin_critic(trainer, actor)
    trainer.running.load(state.get("running_rewards"))
    trainer.reference.load(ewma, state["reference"])
    _set_rng_state(rng, trainer.ranks.device)
    trainer.num_steps = state["num_steps"]


def _begin_from(trainer: PolicyTrainer, serving: Path) -> None:
    actor = _policy_of(trainer, serving)
    settings = trainer.settings
    trainer.actor.load(actor, _zero_moments(trainer.actor), lr=settings.actor_lr, updates=0)
    _begin_critic(trainer, actor)
    trainer.running.begin()
    trainer.reference.begin(trainer.actor.parameters())
    torch.manual_seed(settings.seed)
    trainer.num_steps = 0


def _begin_critic(trainer: PolicyTrainer, actor: Mapping[str, Tensor]) -> None:
    """A recipe's critic as new: it has its warm-up ahead of it."""
    trainer.num_critic_steps = 0
    if trainer.critic is not None:
        fresh = trainer.networks.fresh_critic(actor)
        trainer.critic.load(fresh, _zero_moments(trainer.critic), lr=trainer.settings.critic_lr, updates=0)


def _critic_tensors(trainer: PolicyTrainer) -> dict[str, dict[str, Tensor]]:
    """By file name; empty without a critic."""
    if trainer.critic is None:
        return {}
    return {CRITIC_FILE: trainer.critic.parameters(), CRITIC_MOMENTS_FILE: trainer.critic.moments()}


def _policy_of(trainer: PolicyTrainer, serving: Path) -> dict[str, Tensor]:
    """The actor's parameters in a version: all of them, or its adapter's beside the weights that stay as they are."""
    adapter = trainer.networks.adapter
    if adapter is None:
        return _load_actor(serving)
    return {**trainer.actor.parameters(), **adapter.factors_of(serving, trainer.actor.network)}


def _load_actor(serving: Path) -> dict[str, Tensor]:
    """The weights of a Hugging Face directory, sharded or not, under the actor's names."""
    tensors: dict[str, Tensor] = {}
    for shard in sorted(serving.glob("*.safetensors")):
        tensors.update(load_file(shard))
    return {_ACTOR_PREFIX + name: tensor.float() for name, tensor in fuse_experts(tensors).items()}


def _zero_moments(engine: ZeroEngine) -> dict[str, Tensor]:
    return {name: torch.zeros_like(tensor) for name, tensor in engine.moments().items()}


def read_model_files(model_dir: Path) -> dict[str, bytes]:
    """Configuration, tokenizer and template of a Hugging Face directory, by relative path; no weights.

    Held in memory, because retention deletes the directory of the version they came from while the learner lives on.
    """
    paths = [path.relative_to(model_dir) for path in model_dir.rglob("*") if path.is_file()]
    return {str(path): (model_dir / path).read_bytes() for path in paths if not _is_left_out(path)}


def _is_left_out(path: Path) -> bool:
    is_hidden = any(part.startswith(".") for part in path.parts)
    return is_hidden or path.name in ADAPTER_FILES or any(fnmatch(path.name, pattern) for pattern in _WEIGHT_PATTERNS)


def _write_model_files(files: Mapping[str, bytes], target: Path) -> None:
    for path, content in files.items():
        (target / path).parent.mkdir(parents=True, exist_ok=True)
        (target / path).write_bytes(content)


def _checkpoint_weights(actor: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Under the names of the Hugging Face model: parameters, each tied one once."""
    return split_experts({name.removeprefix(_ACTOR_PREFIX): tensor for name, tensor in actor.items()})


def _state(trainer: PolicyTrainer) -> dict[str, Any]:
    critic = trainer.critic
    return {
        "format": STATE_FORMAT,
        "num_steps": trainer.num_steps,
        "actor_lr": trainer.actor.lr,
        "actor_updates": trainer.actor.num_updates,
        "critic_lr": None if critic is None else critic.lr,
        "critic_updates": None if critic is None else critic.num_updates,
        "num_critic_steps": trainer.num_critic_steps,
        "recipe": trainer.recipe.name,
        "running_rewards": trainer.running.state(),
        "reference": trainer.reference.counters(),
        "seed": trainer.settings.seed,
    }


def _rng_state(device: torch.device) -> dict[str, Tensor]:
    state = {"torch": torch.get_rng_state()}
    if device.type == "cuda":
        state["cuda"] = torch.cuda.get_rng_state(device)
    return state


def _set_rng_state(state: Mapping[str, Tensor], device: torch.device) -> None:
    torch.set_rng_state(state["torch"])
    if device.type == "cuda" and "cuda" in state:
        torch.cuda.set_rng_state(state["cuda"], device)


def _save(path: Path, tensors: Mapping[str, Tensor]) -> None:
    save_file({name: t.detach().cpu().contiguous() for name, t in tensors.items()}, path, metadata={"format": "pt"})
