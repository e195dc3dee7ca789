"""Settings of what learns: learner, adapter, old log-probs, versions and the watch over change."""

from __future__ import annotations

from typing import Annotated, Literal, get_args

from pydantic import Field, model_validator

from online_agent.config.section import PositiveFloat, PositiveInt, Section

LoraModule = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
"""Every projection of a dense decoder layer: what the engine can put an adapter on."""


class LoraSettings(Section):
    """The adapter of ``learner.actor = "lora"``: W + alpha / rank * B A for each module named (arXiv 2106.09685).

    The engine reserves room for exactly this rank and these modules when it starts. There is no dropout: the policy
    that is trained has to be the one that acted.
    """

    rank: PositiveInt = 16
    alpha: PositiveFloat = 32.0
    target_modules: Annotated[tuple[LoraModule, ...], Field(min_length=1)] = get_args(LoraModule)

    @model_validator(mode="after")
    def _served_together(self) -> LoraSettings:
        """The engine serves query, key and value as one module, gate and up as another."""
        for group in ({"q_proj", "k_proj", "v_proj"}, {"gate_proj", "up_proj"}):
            missing = group - set(self.target_modules)
            if missing and missing != group:
                raise ValueError(
                    f"{', '.join(sorted(group))} are served together: {', '.join(sorted(missing))} is not named"
                )
        return self


class LearnerSettings(Section):
    """One optimiser step per ``batch_episodes`` episodes, each used once.

    ``recipe`` names what is computed: one of ``online_agent.recipes`` or a table under ``recipes``. The numbers of the
    method belong to the recipe, those of the optimiser and the machine stand here. ``actor`` says what of the policy
    learns: all its weights, or a LoRA adapter over frozen ones; the critic is a full network in both.
    """

    recipe: str = "sao"
    actor: Literal["full", "lora"] = "full"
    lora: LoraSettings = LoraSettings()
    batch_episodes: PositiveInt = 48
    max_staleness_versions: PositiveInt = 8
    critic_warmup_steps: Annotated[int, Field(ge=0)] = 2
    actor_lr: PositiveFloat = 4e-4
    critic_lr: PositiveFloat = 1e-3
    critic_bias_init: float = 0.5  # the head starts as weight 0 and this bias: the middle of rewards in {0, 1}
    critic_freeze_pattern: str = r"\b(self_attn|self_attention|attention|attn)\.(?!\w*norm)"
    actor_clip_norm: PositiveFloat = 1.0
    critic_clip_norm: PositiveFloat = 100.0
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    micro_batch_tokens: PositiveInt = 4096
    batching: Literal["buckets", "packed"] = "buckets"  # rows of like length padded, or rows end to end (flash-attn)
    zero_stage: Literal[1, 2, 3] = 2
    dtype: Literal["float32", "bfloat16"] = "float32"
    device: Literal["cpu", "cuda"] = "cpu"
    num_threads: PositiveInt = 1
    max_masked_share: Annotated[float, Field(gt=0, le=1)] = 0.5
    max_skipped_in_a_row: PositiveInt = 5
    lease_s: PositiveFloat = 600.0
    seed: int = 0

    @property
    def adapter(self) -> LoraSettings | None:
        """The adapter that learns, or None where all weights do."""
        return self.lora if self.actor == "lora" else None


class OldLogitsSettings(Section):
    """The routes to exact old log-probs: memory they may hold, how long a step waits, how long the engine may.

    ``max_held_bytes`` bounds the weights of past versions in memory (snapshot and dedicated); ``answer_timeout_s`` one
    request to the dedicated process; ``serving_wait_s`` and ``pause_wait_s`` what the interruption of a step may take
    before it goes on without; ``max_pause_s`` a pause of the engine that no swap ends.
    """

    max_held_bytes: PositiveInt = 4_000_000_000
    answer_timeout_s: PositiveFloat = 120.0
    serving_wait_s: PositiveFloat = 15.0
    pause_wait_s: PositiveFloat = 15.0
    max_pause_s: PositiveFloat = 30.0


class WeightsSettings(Section):
    """Version directories: how many stay on disk besides the serving, pinned and rollback-target ones.

    ``publish_every_versions``: the engine is given every so many-th version of the learner.
    """

    seed_model: str = ""
    publish_every_versions: PositiveInt = 1
    keep_versions: Annotated[int, Field(ge=2)] = 8
    min_free_bytes: PositiveInt = 200_000_000


class DriftSettings(Section):
    """What counts as a change of the world or of the policy.

    Answers to clients of a version alarm against the version before when their share of idle, refusing or unreadable
    ones rose by ``answer_min_rise`` or more, with a probability below ``answer_alpha``; both need ``answer_min_count``.
    """

    scan_interval_s: PositiveFloat = 2.0
    min_episodes: PositiveInt = 40
    cooldown_episodes: PositiveInt = 128
    adwin_delta: Annotated[float, Field(gt=0, lt=1)] = 0.002
    answer_min_count: Annotated[int, Field(ge=10)] = 50
    answer_alpha: Annotated[float, Field(gt=0, lt=0.1)] = 0.001
    answer_min_rise: Annotated[float, Field(ge=0, lt=1)] = 0.05
