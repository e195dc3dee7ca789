"""Every setting, its default and its unit. Defaults are a vetted run of the seed policy on two CPU cores.

Sources, strongest first: keyword arguments, environment (``ONLINE_AGENT_LEARNER__BATCH_EPISODES=32``),
the TOML file given, defaults. Unknown keys are errors.
"""

from __future__ import annotations

import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from online_agent.errors import ConfigError, UnknownName
from online_agent.recipes import RECIPES, Recipe, RecipeTable, choose_recipe
from online_agent.redaction import Redactor
from online_agent.redaction.patterns import DEFAULT_KINDS, SecretKind

DEFAULT_MODEL_NAME = "online-agent"
"""What clients call the served policy, whatever version of it serves."""

PositiveFloat = Annotated[float, Field(gt=0)]
PositiveInt = Annotated[int, Field(ge=1)]


class Section(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class DatabaseSettings(Section):
    """Where episodes live. ``url`` empty means SQLite at ``<data_dir>/online_agent.db``."""

    url: str = ""
    busy_timeout_s: PositiveFloat = 30.0


class BrokerSettings(Section):
    """Redis for Celery. ``url`` empty means the supervisor starts the packaged redis-server on a free port."""

    url: str = ""
    visibility_timeout_s: PositiveInt = 300


class EngineSettings(Section):
    """The SGLang server. ``url`` empty means the supervisor starts one on this machine.

    ``return_routed_experts``: whether it returns the experts that it used, so that they can be replayed in training;
    ``auto`` does for models that have some. ``grammar_backend``: what holds answers to a format that a client asks for
    (``response_format``); with one the server loads its own tokenizer and writes texts that nobody reads.
    """

    url: str = ""
    api_key: SecretStr = SecretStr("")
    device: Literal["cpu", "cuda"] = "cpu"
    dtype: Literal["float32", "bfloat16"] = "float32"
    context_length: PositiveInt = 1024
    max_total_tokens: PositiveInt = 65536
    max_running_requests: PositiveInt = 64
    start_timeout_s: PositiveFloat = 180.0
    request_timeout_s: PositiveFloat = 120.0
    swap_timeout_s: PositiveFloat = 60.0
    num_threads: PositiveInt = 1
    return_routed_experts: Literal["auto", "on", "off"] = "auto"
    grammar_backend: Literal["none", "xgrammar"] = "none"
    extra_args: tuple[str, ...] = ()


class AgentSettings(Section):
    """The loop: how an episode is sampled and when it is cut short.

    ``group_size``: how many episodes a request without one of its own runs of its task, so that a recipe which compares
    the rollouts of a group learns from every client. Only of the train split, unpinned, with trainable sampling and not
    streamed; held-out tasks never.
    """

    temperature: Annotated[float, Field(gt=0, le=2)] = 1.0
    top_p: Annotated[float, Field(gt=0, le=1)] = 1.0
    max_new_tokens: PositiveInt = 64
    max_turns: PositiveInt = 6
    max_tokens: PositiveInt = 512
    timeout_s: PositiveFloat = 120.0
    max_episodes_in_flight: PositiveInt = 64
    max_episodes_queued: PositiveInt = 256
    group_size: Annotated[int, Field(ge=2, le=64)] | None = None


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


class JobsSettings(Section):
    """The Celery worker: how it grades, and how often the sweeps find what a lost message left behind."""

    num_processes: PositiveInt = 2
    grading_batch: PositiveInt = 16
    grading_lease_s: PositiveFloat = 30.0
    max_grading_attempts: PositiveInt = 3
    swap_lease_s: PositiveFloat = 120.0
    soft_time_limit_s: PositiveInt = 180
    hard_time_limit_s: PositiveInt = 240
    grade_sweep_s: PositiveFloat = 3.0
    publish_sweep_s: PositiveFloat = 3.0
    engine_check_s: PositiveFloat = 3.0
    reap_s: PositiveFloat = 30.0
    retention_s: PositiveFloat = 60.0


class SandboxSettings(Section):
    kind: Literal["nsjail"] = "nsjail"
    max_jobs: PositiveInt = 8
    timeout_s: PositiveFloat = 5.0
    memory_mb: PositiveInt = 512
    max_output_bytes: PositiveInt = 65_536
    first_uid: PositiveInt = 20_001


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


class ApiSettings(Section):
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8700
    max_body_bytes: PositiveInt = 16_000_000
    drain_timeout_s: PositiveFloat = 30.0
    held_timeout_s: PositiveFloat = 60.0


ToolCallFamily = Literal[
    "hermes", "llama3", "mistral", "pythonic", "deepseekv3", "deepseekv31", "kimi_k2", "qwen3_coder", "glm45"
]


class GatewaySettings(Section):
    """Clients' own agents, served through the OpenAI and Anthropic protocols.

    An episode without a call for ``idle_timeout_s`` is over; one that nobody rewards within ``reward_wait_s`` of its
    end is dropped. An engine that is away is asked again for ``engine_wait_s``. ``tool_call_family``: how the served
    model writes tool calls; all but Hermes (Qwen 2.5 and 3, and the seed policy) is read by SGLang's own parsers.
    """

    tool_call_family: ToolCallFamily = "hermes"
    model_name: Annotated[str, Field(min_length=1, max_length=100)] = DEFAULT_MODEL_NAME
    max_new_tokens: PositiveInt = 1024
    max_choices: PositiveInt = 8
    max_messages: PositiveInt = 4096
    max_tools: PositiveInt = 256
    max_calls_in_flight: PositiveInt = 1024
    engine_wait_s: PositiveFloat = 10.0
    idle_timeout_s: PositiveFloat = 1800.0
    reward_wait_s: PositiveFloat = 604_800.0
    sweep_s: PositiveFloat = 15.0


class FeedbackSettings(Section):
    """How feedback becomes a reward, and what of it waits for an operator.

    ``rule`` combines verdict and sources. ``weights`` by name of the source, 1 where it is not named; a piece keeps the
    weight it came in with. ``max_per_minute`` and ``max_per_day`` are for one person of one source. A minute in which a
    source as a whole gave more than ``burst_floor``, and far more than its day before lets expect, is a burst. A reward
    whose modified z-score in what its source or person gave before is above ``outlier_threshold``, and as far as at
    most ``outlier_share`` of it, waits too; None lets all through.
    """

    rule: Literal["mean_with_verdict", "feedback_first", "verdict_only"] = "mean_with_verdict"
    weights: dict[str, Annotated[float, Field(ge=0, le=1000)]] = {}
    max_per_minute: PositiveInt = 600
    max_per_day: PositiveInt = 10_000
    burst_floor: PositiveInt | None = 600
    outlier_threshold: PositiveFloat | None = 3.5
    outlier_share: Annotated[float, Field(ge=0, le=0.2)] = 0.01
    outlier_min_history: Annotated[int, Field(ge=10)] = 30
    outlier_window: Annotated[int, Field(ge=10, le=10_000)] = 200

    def weight_of(self, source: str) -> float:
        return self.weights.get(source, 1.0)


class TelemetrySettings(Section):
    """OpenTelemetry traces over OTLP/HTTP; none without a collector.

    ``otlp_endpoint`` is its base URL (``http://127.0.0.1:4318``). The standard ``OTEL_*`` variables mean what they
    always mean and come first. ``sample_ratio`` of the traces that begin here are kept; a trace that a client began is
    kept or not as its client decided.
    """

    otlp_endpoint: str = ""
    service_name: Annotated[str, Field(min_length=1, max_length=100)] = "online-agent"
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0


class JudgeSettings(Section):
    """Who judges an answer by what followed it. ``kind`` empty: nobody; ``openai``: the model ``model`` behind an
    OpenAI-compatible ``url``; ``package.module:factory``: what ``factory(settings)`` gives.

    The verdicts are feedback of the source ``judge`` with ``weight``. ``timeout_s`` is for one case with its retries;
    the last ``max_chars`` of each text are read. Every ``interval_s`` up to ``batch`` answers, ``num_at_once``.
    """

    kind: Annotated[str, Field(pattern=r"^$|^openai$|^[A-Za-z_][\w.]*:[A-Za-z_]\w*$")] = ""
    url: str = ""
    model: str = ""
    api_key: SecretStr = SecretStr("")
    weight: Annotated[float, Field(ge=0, le=1000)] = 0.5
    timeout_s: PositiveFloat = 30.0
    attempts: PositiveInt = 3
    max_chars: PositiveInt = 8000
    interval_s: PositiveFloat = 5.0
    batch: Annotated[int, Field(ge=1, le=1000)] = 32
    num_at_once: PositiveInt = 4


class RedactionSettings(Section):
    """Which secrets are taken out of text before it is tokenised, stored or logged: known kinds, and own patterns
    (name to regular expression), which see one text at a time."""

    kinds: tuple[SecretKind, ...] = DEFAULT_KINDS
    patterns: dict[Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]{0,31}$")], str] = {}

    @model_validator(mode="after")
    def _patterns_can_be_used(self) -> Self:
        self.redactor()
        return self

    def redactor(self, tell: Callable[[str], None] = lambda name: None) -> Redactor:
        """``tell`` hears the name of the pattern of each secret that is replaced."""
        return Redactor.of(self.kinds, self.patterns, tell)


class TenantSettings(Section):
    """``retention_days``: episodes are erased so long after their end; None keeps them."""

    retention_days: PositiveFloat | None = None


class Settings(BaseSettings):
    """The whole configuration. ``data_dir`` holds the database, weights, logs and keys."""

    model_config = SettingsConfigDict(
        env_prefix="ONLINE_AGENT_", env_nested_delimiter="__", frozen=True, extra="forbid"
    )

    data_dir: Path = Path("var/online_agent")
    log_level: Literal["debug", "info", "warning", "error"] = "info"
    database: DatabaseSettings = DatabaseSettings()
    broker: BrokerSettings = BrokerSettings()
    engine: EngineSettings = EngineSettings()
    agent: AgentSettings = AgentSettings()
    learner: LearnerSettings = LearnerSettings()
    recipes: dict[str, RecipeTable] = {}
    old_logits: OldLogitsSettings = OldLogitsSettings()
    weights: WeightsSettings = WeightsSettings()
    jobs: JobsSettings = JobsSettings()
    sandbox: SandboxSettings = SandboxSettings()
    drift: DriftSettings = DriftSettings()
    api: ApiSettings = ApiSettings()
    gateway: GatewaySettings = GatewaySettings()
    feedback: FeedbackSettings = FeedbackSettings()
    telemetry: TelemetrySettings = TelemetrySettings()
    judge: JudgeSettings = JudgeSettings()
    redaction: RedactionSettings = RedactionSettings()
    tenants: dict[str, TenantSettings] = {}

    @model_validator(mode="after")
    def _recipes_fit(self) -> Self:
        taken = sorted(set(self.recipes) & set(RECIPES))
        if taken:
            raise ValueError(f"recipes.{taken[0]}: the name belongs to a recipe that exists; choose another")
        try:
            choose_recipe(self.learner.recipe, self.recipes)
        except UnknownName as error:
            raise ValueError(f"learner.recipe: {error.message}") from error
        return self

    @property
    def recipe(self) -> Recipe:
        """What the learner computes."""
        return choose_recipe(self.learner.recipe, self.recipes)

    @property
    def database_url(self) -> str:
        return self.database.url or f"sqlite:///{self.data_dir.resolve() / 'online_agent.db'}"

    @property
    def weights_dir(self) -> Path:
        return self.data_dir / "weights"

    @property
    def logs_dir(self) -> Path:
        return self.data_dir / "logs"

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        # The TOML file arrives as keyword arguments; the environment must win over it.
        return env_settings, init_settings


def load_settings(toml_file: Path | None = None, **overrides: Any) -> Settings:
    """The settings of this process. Raises ConfigError naming each bad key and value."""
    values: dict[str, Any] = {}
    if toml_file is not None:
        try:
            values = tomllib.loads(toml_file.read_text())
        except (OSError, tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
            raise ConfigError(f"cannot read {toml_file}: {error}") from error
    values.update(overrides)
    try:
        return Settings(**values)
    except ValidationError as error:
        raise ConfigError("; ".join(_line(e) for e in error.errors())) from error


def _line(error: ErrorDetails) -> str:
    """Key, what is wrong and the value given; the whole configuration is not a value worth printing."""
    place = ".".join(map(str, error["loc"]))
    wrong = error["msg"].removeprefix("Value error, ")
    return f"{place}: {wrong} (got {error['input']!r})" if place else wrong
