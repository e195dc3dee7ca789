"""Every setting, its default and its unit. Defaults are a vetted run of the seed policy on two CPU cores.

Sources, strongest first: keyword arguments, environment (``ONLINE_AGENT_LEARNER__BATCH_EPISODES=32``),
the TOML file given, defaults. Unknown keys are errors.
"""

from __future__ import annotations

import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, PydanticBaseSettingsSource, SettingsConfigDict

from online_agent.config.section import PositiveFloat, PositiveInt, Section
from online_agent.config.serving import AgentSettings, ApiSettings, EngineSettings, GatewaySettings, SandboxSettings
from online_agent.config.signal import FeedbackSettings, JudgeSettings, RedactionSettings, TenantSettings
from online_agent.config.training import DriftSettings, LearnerSettings, OldLogitsSettings, WeightsSettings
from online_agent.errors import ConfigError, UnknownName
from online_agent.recipes import RECIPES, Recipe, RecipeTable, choose_recipe


class DatabaseSettings(Section):
    """Where episodes live. ``url`` empty means SQLite at ``<data_dir>/online_agent.db``."""

    url: str = ""
    busy_timeout_s: PositiveFloat = 30.0


class BrokerSettings(Section):
    """Redis for Celery. ``url`` empty means the supervisor starts the packaged redis-server on a free port."""

    url: str = ""
    visibility_timeout_s: PositiveInt = 300


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


class TelemetrySettings(Section):
    """OpenTelemetry traces over OTLP/HTTP; none without a collector.

    ``otlp_endpoint`` is its base URL (``http://127.0.0.1:4318``). The standard ``OTEL_*`` variables mean what they
    always mean and come first. ``sample_ratio`` of the traces that begin here are kept; a trace that a client began is
    kept or not as its client decided.
    """

    otlp_endpoint: str = ""
    service_name: Annotated[str, Field(min_length=1, max_length=100)] = "online-agent"
    sample_ratio: Annotated[float, Field(ge=0, le=1)] = 1.0


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
        of_file = {key: value for key, value in values.items() if key not in overrides}
        lines = [_line(e, toml_file if _is_from(of_file, e) else None) for e in error.errors()]
        raise ConfigError("; ".join(lines)) from error


def _is_from(values: Any, error: ErrorDetails) -> bool:
    """Whether the bad value stands in ``values``, and is not the environment's. Names of variants are no keys of it."""
    for part in error["loc"]:
        is_there = part in values if isinstance(values, dict) else isinstance(values, list) and isinstance(part, int)
        if is_there:
            values = values[part]
    return bool(error["loc"]) and (values is error["input"] or values == error["input"])  # a NaN equals nothing


def _line(error: ErrorDetails, file: Path | None) -> str:
    """Key, what is wrong, the value given and where; the whole configuration is not a value worth printing."""
    place = ".".join(map(str, error["loc"]))
    wrong = error["msg"].removeprefix("Value error, ")
    where = "" if file is None else f", in {file}"
    return f"{place}: {wrong} (got {error['input']!r}{where})" if place else wrong
