"""The actor's LoRA adapter: W + alpha / rank * B A over frozen weights W (Hu et al. 2021, arXiv 2106.09685).

The layers are peft's, put into the causal language model in place, so that everything else sees the same network. In
its parameter names ``q_proj.weight`` becomes ``q_proj.base_layer.weight``, beside ``q_proj.lora_A.default.weight``
(rank, in) and ``q_proj.lora_B.default.weight`` (out, rank). B starts as zero: a new adapter changes no log-prob.

There is no dropout. The log-probs that are trained have to be those of the policy that acted, and dropout would make
each forward pass another policy.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from online_agent.config.training import LoraSettings
from online_agent.errors import ConfigError, CorruptVersion, WeightsError
from online_agent.learner.models import Actor
from online_agent.weights.adapter import (
    CONFIG_FILE,
    MODULE_PREFIX,
    TENSORS_FILE,
    Base,
    Probe,
    adapted_weights,
    base_serving_dir,
    check_belongs,
    is_adapter,
    read_base,
    write_base,
    write_probe,
)
from online_agent.weights.manifest import MANIFEST_NAME, read_manifest

NUM_PROBE_TOKENS = 32
_ACTOR_PREFIX = "causal_lm."
_NAMED = ".default."
"""The name that peft gives to an adapter in the network, and leaves out on disk."""


@dataclass(frozen=True, slots=True)
class TrainedAdapter:
    """What of the policy a trainer trains: an adapter of this shape, for the weights of ``base`` alone."""

    settings: LoraSettings
    base: Base
    seed: int

    def factors_of(self, serving_dir: Path, actor: nn.Module) -> dict[str, Tensor]:
        """The adapter of a version, by the actor's names; a new one for the version that is the base.

        Raises ForeignVersion for a version of other weights, CorruptVersion, OSError and SafetensorError.
        """
        version_dir = serving_dir.parent
        version = read_manifest(version_dir / MANIFEST_NAME).version
        check_belongs(version, base_of(serving_dir), self.base)
        return read_factors(serving_dir) if is_adapter(serving_dir) else initial_factors(actor, seed=self.seed)

    def write(self, serving_dir: Path, parameters: Mapping[str, Tensor], probe: Probe) -> None:
        """``serving_dir`` holds the adapter that the actor's ``parameters`` contain."""
        write_adapter(serving_dir, parameters, self.settings, self.base, probe)


def attach_adapter(actor: Actor, settings: LoraSettings, *, seed: int) -> None:
    """The named layers carry a new adapter, and it alone learns. Raises ConfigError where the policy has none."""
    found = {name.rpartition(".")[2] for name, module in actor.named_modules() if isinstance(module, nn.Linear)}
    missing = sorted(set(settings.target_modules) - found)
    if missing:
        raise ConfigError(f"learner.lora.target_modules: the policy has no linear layer {', '.join(missing)}")
    from peft import inject_adapter_in_model

    device = next(actor.parameters()).device
    inject_adapter_in_model(_config(settings), actor.causal_lm)
    actor.requires_grad_(False)
    fresh = initial_factors(actor, seed=seed)
    with torch.no_grad():
        for name, parameter in actor.named_parameters():
            if is_factor(name):
                parameter.copy_(fresh[name])
                parameter.requires_grad_(True)
    actor.to(device)


def is_factor(name: str) -> bool:
    """Whether a parameter of the actor belongs to its adapter."""
    return ".lora_A." in name or ".lora_B." in name


def initial_factors(actor: nn.Module, *, seed: int) -> dict[str, Tensor]:
    """What a new adapter starts from: A uniform in ±1 / sqrt(in), B zero; always the same for a seed."""
    generator = torch.Generator().manual_seed(seed)
    factors = {}
    for name, parameter in actor.named_parameters():
        shape = tuple(getattr(parameter, "ds_shape", parameter.shape))
        if ".lora_A." in name:
            factors[name] = (2 * torch.rand(shape, generator=generator) - 1) / math.sqrt(shape[1])
        elif ".lora_B." in name:
            factors[name] = torch.zeros(shape)
    return factors


def plain_names(parameters: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The actor's weights without its adapter, by the names they have where there is none."""
    return {name.replace(".base_layer.", "."): t for name, t in parameters.items() if not is_factor(name)}


def base_of(model_dir: Path) -> Base:
    """The version whose weights an adapter trained from ``model_dir`` belongs to.

    Raises ConfigError for a directory that is not the served part of a version.
    """
    try:
        if is_adapter(model_dir):
            return read_base(model_dir)
        manifest = read_manifest(model_dir.parent / MANIFEST_NAME)
    except WeightsError as error:
        raise ConfigError(f"{model_dir.parent.name} is no version that an adapter could belong to: {error}") from error
    return Base(manifest.version, manifest.content_hash)


def write_adapter(
    serving_dir: Path, parameters: Mapping[str, Tensor], settings: LoraSettings, base: Base, probe: Probe
) -> None:
    """The adapter in ``parameters`` (the actor's, by its names) lies in ``serving_dir`` in the layout of peft."""
    factors = {_file_name(name): t.detach().cpu().contiguous() for name, t in parameters.items() if is_factor(name)}
    save_file(factors, serving_dir / TENSORS_FILE, metadata={"format": "pt"})
    values = _config(settings).to_dict()
    values |= {"target_modules": sorted(settings.target_modules), "inference_mode": True}
    (serving_dir / CONFIG_FILE).write_text(json.dumps(values, indent=1, sort_keys=True))
    write_base(serving_dir, base)
    write_probe(serving_dir, probe)


def read_factors(serving_dir: Path) -> dict[str, Tensor]:
    """What ``write_adapter`` wrote, under the actor's names. Raises OSError and SafetensorError."""
    tensors = load_file(serving_dir / TENSORS_FILE)
    return {_parameter_name(name): tensor for name, tensor in tensors.items()}


def merged_weights(serving_dir: Path) -> dict[str, Tensor]:
    """The policy of a version with an adapter as whole weights, named as in the checkpoint of its base.

    Raises CorruptVersion for files that cannot be read or do not fit each other.
    """
    try:
        weights = {}
        for shard in sorted(base_serving_dir(serving_dir).glob("*.safetensors")):
            weights.update(load_file(shard))
        factors = load_file(serving_dir / TENSORS_FILE)
        config = json.loads((serving_dir / CONFIG_FILE).read_text())
        scale = config["lora_alpha"] / config["r"]
        for weight, pair in adapted_weights(factors).items():
            weights[weight] = weights[weight].float() + scale * (factors[pair["B"]] @ factors[pair["A"]])
    except (OSError, SafetensorError, ValueError, KeyError, RuntimeError) as error:
        raise CorruptVersion(f"cannot merge the adapter in {serving_dir.parent.name}: {error!r}") from error
    return weights


@torch.no_grad()
def measure_probe(actor: nn.Module, vocab_size: int) -> Probe:
    """Log-probs of a fixed prompt under the policy as it is, in float32. At ZeRO stage 3 a collective."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(vocab_size, (NUM_PROBE_TOKENS,), generator=generator)
    device = next(actor.parameters()).device
    positions_N = torch.arange(NUM_PROBE_TOKENS - 1, device=device)
    temperature_N = torch.ones(NUM_PROBE_TOKENS - 1, device=device)
    logp_N = actor(ids[None].to(device), positions_N, ids[1:].to(device), temperature_N)
    return Probe(tuple(ids.tolist()), tuple(logp_N.tolist()))


def _config(settings: LoraSettings) -> Any:
    from peft import LoraConfig

    return LoraConfig(
        r=settings.rank,
        lora_alpha=settings.alpha,  # type: ignore[arg-type]  # an int by annotation, divided by the rank all the same
        target_modules=list(settings.target_modules),
        lora_dropout=0.0,
        bias="none",
        task_type="CAUSAL_LM",
    )


def _file_name(name: str) -> str:
    return MODULE_PREFIX + name.removeprefix(_ACTOR_PREFIX).replace(_NAMED, ".")


def _parameter_name(name: str) -> str:
    module = name.removeprefix(MODULE_PREFIX).removesuffix(".weight")
    return f"{_ACTOR_PREFIX}{module}{_NAMED}weight"
