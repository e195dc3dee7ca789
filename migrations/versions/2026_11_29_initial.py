"""The tables of episodes, steps, weights, changes, keys and processes.

Revision ID: 20261129_initial
Revises:
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "20261129_initial"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    op.create_table(
        "api_keys",
        sa.Column("id", sa.String(length=255), nullable=False),
        sa.Column("tenant_id", sa.String(length=255), nullable=False),
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("prefix", sa.String(length=32), nullable=False),
        sa.Column("secret_hash", sa.String(length=64), nullable=False),
        sa.Column("scopes", sa.JSON(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("revoked_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_api_keys"),
    )
    op.create_index("ix_api_keys_tenant_id", "api_keys", ["tenant_id"], unique=False)
    op.create_index("uq_api_keys_prefix", "api_keys", ["prefix"], unique=True)
    op.create_table(
        "detector_states",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("state", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("updated_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_detector_states"),
    )
    op.create_table(
        "env_changes",
        sa.Column("id", sa.String(length=255), nullable=False),
        sa.Column("tenant_id", sa.String(length=255), nullable=False),
        sa.Column("env", sa.String(length=255), nullable=False),
        sa.Column("kind", sa.String(length=255), nullable=False),
        sa.Column("params", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("visibility", sa.String(length=32), nullable=False),
        sa.Column("is_mid_episode", sa.Boolean(), nullable=False),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("starts_at_count", sa.Integer(), nullable=False),
        sa.Column("ends_at_count", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("activated_at", sa.Double(), nullable=True),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("id", name="pk_env_changes"),
    )
    op.create_index("ix_env_changes_env_state", "env_changes", ["env", "state"], unique=False)
    op.create_table(
        "events",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("kind", sa.String(length=255), nullable=False),
        sa.Column("data", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_events"),
    )
    op.create_index("ix_events_kind_id", "events", ["kind", "id"], unique=False)
    op.create_table(
        "idempotency_keys",
        sa.Column("tenant_id", sa.String(length=255), nullable=False),
        sa.Column("key", sa.String(length=255), nullable=False),
        sa.Column("route", sa.String(length=255), nullable=False),
        sa.Column("body_hash", sa.String(length=255), nullable=False),
        sa.Column("status", sa.Integer(), nullable=True),
        sa.Column("body", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("tenant_id", "key", name="pk_idempotency_keys"),
    )
    op.create_table(
        "learner_control",
        sa.Column("id", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("is_paused", sa.Boolean(), nullable=False),
        sa.Column("current_version", sa.Integer(), nullable=True),
        sa.Column("next_version", sa.Integer(), nullable=False),
        sa.Column("next_step", sa.Integer(), nullable=False),
        sa.Column("reset_cause", sa.Text(), nullable=True),
        sa.Column("reset_requested_at", sa.Double(), nullable=True),
        sa.CheckConstraint("id = 1", name="ck_learner_control_one_row"),
        sa.PrimaryKeyConstraint("id", name="pk_learner_control"),
    )
    op.create_table(
        "leases",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("owner", sa.String(length=255), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_leases"),
    )
    op.create_table(
        "processes",
        sa.Column("name", sa.String(length=255), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("incarnation", sa.String(length=255), nullable=False),
        sa.Column("info", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("at", sa.Double(), nullable=False),
        sa.PrimaryKeyConstraint("name", name="pk_processes"),
    )
    op.create_table(
        "steps",
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("identity", sa.String(length=255), nullable=False),
        sa.Column("recipe", sa.String(length=255), nullable=False),
        sa.Column("seed", sa.Integer(), nullable=False),
        sa.Column("parent_version", sa.Integer(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=True),
        sa.Column("fence", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(length=255), nullable=False),
        sa.Column("num_episodes", sa.Integer(), nullable=False),
        sa.Column("reason", sa.Text(), nullable=True),
        sa.Column("metrics", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("reserved_at", sa.Double(), nullable=False),
        sa.Column("expires_at", sa.Double(), nullable=False),
        sa.Column("ended_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("step", name="pk_steps"),
    )
    op.create_index(
        "uq_steps_reserved",
        "steps",
        ["status"],
        unique=True,
        sqlite_where=sa.text("status = 'reserved'"),
        postgresql_where=sa.text("status = 'reserved'"),
    )
    op.create_table(
        "weight_versions",
        sa.Column("version", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("origin", sa.String(length=32), nullable=False),
        sa.Column("parent", sa.Integer(), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("state", sa.String(length=32), nullable=False),
        sa.Column("state_reason", sa.Text(), nullable=True),
        sa.Column("content_hash", sa.String(length=255), nullable=False),
        sa.Column("config_hash", sa.String(length=255), nullable=False),
        sa.Column("recipe", sa.String(length=255), nullable=False),
        sa.Column("metrics", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("is_pinned", sa.Boolean(), nullable=False),
        sa.Column("is_rolled_back", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("moved_at", sa.Double(), nullable=False),
        sa.Column("served_at", sa.Double(), nullable=True),
        sa.PrimaryKeyConstraint("version", name="pk_weight_versions"),
    )
    op.create_index("ix_weight_versions_step", "weight_versions", ["step"], unique=False)
    op.create_index(
        "uq_weight_versions_serving",
        "weight_versions",
        ["state"],
        unique=True,
        sqlite_where=sa.text("state = 'serving'"),
        postgresql_where=sa.text("state = 'serving'"),
    )
    op.create_table(
        "episodes",
        sa.Column("id", sa.String(length=255), nullable=False),
        sa.Column("tenant_id", sa.String(length=255), nullable=False),
        sa.Column("key_id", sa.String(length=255), nullable=True),
        sa.Column("env", sa.String(length=255), nullable=False),
        sa.Column("task_id", sa.String(length=255), nullable=False),
        sa.Column("split", sa.String(length=32), nullable=False),
        sa.Column("status", sa.String(length=32), nullable=False),
        sa.Column("env_revision", sa.String(length=255), nullable=False),
        sa.Column("temperature", sa.Double(), nullable=False),
        sa.Column("top_p", sa.Double(), nullable=False),
        sa.Column("max_new_tokens", sa.Integer(), nullable=False),
        sa.Column("limits", sa.JSON(), nullable=False),
        sa.Column("template_hash", sa.String(length=255), nullable=False),
        sa.Column("tools_hash", sa.String(length=255), nullable=False),
        sa.Column("weight_version", sa.Integer(), nullable=True),
        sa.Column("task", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("tags", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("artifact", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("stop_reason", sa.String(length=32), nullable=True),
        sa.Column("failure_reason", sa.Text(), nullable=True),
        sa.Column("drop_reason", sa.Text(), nullable=True),
        sa.Column("untrainable_reason", sa.Text(), nullable=True),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.Column("is_success", sa.Boolean(), nullable=True),
        sa.Column("evidence", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("num_turns", sa.Integer(), nullable=False),
        sa.Column("num_action_tokens", sa.Integer(), nullable=False),
        sa.Column("oldest_version", sa.Integer(), nullable=True),
        sa.Column("newest_version", sa.Integer(), nullable=True),
        sa.Column("grader", sa.String(length=255), nullable=True),
        sa.Column("grading_expires_at", sa.Double(), nullable=True),
        sa.Column("num_grading_attempts", sa.Integer(), server_default="0", nullable=False),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.Column("finished_at", sa.Double(), nullable=True),
        sa.Column("graded_at", sa.Double(), nullable=True),
        sa.Column("trained_at", sa.Double(), nullable=True),
        sa.ForeignKeyConstraint(
            ["step"], ["steps.step"], name="fk_episodes_step_steps", initially="DEFERRED", deferrable=True
        ),
        sa.PrimaryKeyConstraint("id", name="pk_episodes"),
    )
    op.create_index("ix_episodes_env_finished_at", "episodes", ["env", "finished_at"], unique=False)
    op.create_index("ix_episodes_status_finished_at", "episodes", ["status", "finished_at"], unique=False)
    op.create_index(
        "ix_episodes_step",
        "episodes",
        ["step"],
        unique=False,
        sqlite_where=sa.text("step IS NOT NULL"),
        postgresql_where=sa.text("step IS NOT NULL"),
    )
    op.create_index("ix_episodes_tenant_id_id", "episodes", ["tenant_id", "id"], unique=False)
    op.create_table(
        "step_episodes",
        sa.Column("step", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("position", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("episode_id", sa.String(length=255), nullable=False),
        sa.Column("tenant_id", sa.String(length=255), nullable=False),
        sa.Column("reward", sa.Double(), nullable=False),
        sa.Column("is_committed", sa.Boolean(), nullable=False),
        sa.ForeignKeyConstraint(
            ["step"], ["steps.step"], name="fk_step_episodes_step_steps", initially="DEFERRED", deferrable=True
        ),
        sa.PrimaryKeyConstraint("step", "position", name="pk_step_episodes"),
    )
    op.create_index(
        "uq_step_episodes_trained",
        "step_episodes",
        ["episode_id"],
        unique=True,
        sqlite_where=sa.text("is_committed"),
        postgresql_where=sa.text("is_committed"),
    )
    op.create_table(
        "feedback",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), autoincrement=True, nullable=False),
        sa.Column("tenant_id", sa.String(length=255), nullable=False),
        sa.Column("episode_id", sa.String(length=255), nullable=False),
        sa.Column("source", sa.String(length=255), nullable=False),
        sa.Column("reward", sa.Double(), nullable=True),
        sa.Column("text", sa.JSON(none_as_null=True), nullable=True),
        sa.Column("turns", sa.JSON(), nullable=False),
        sa.Column("fate", sa.String(length=32), nullable=False),
        sa.Column("fate_reason", sa.String(length=255), nullable=True),
        sa.Column("step", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.CheckConstraint("reward IS NULL OR (reward >= -1 AND reward <= 1)", name="ck_feedback_reward_range"),
        sa.ForeignKeyConstraint(
            ["episode_id"], ["episodes.id"], name="fk_feedback_episode_id_episodes", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("id", name="pk_feedback"),
    )
    op.create_index("ix_feedback_episode_id", "feedback", ["episode_id"], unique=False)
    op.create_table(
        "turns",
        sa.Column("episode_id", sa.String(length=255), nullable=False),
        sa.Column("number", sa.Integer(), autoincrement=False, nullable=False),
        sa.Column("tenant_id", sa.String(length=255), nullable=False),
        sa.Column("env_revision", sa.String(length=255), nullable=False),
        sa.Column("content", sa.JSON(none_as_null=True), nullable=False),
        sa.Column("finish_reason", sa.String(length=32), nullable=False),
        sa.Column("span_index", sa.JSON(), nullable=False),
        sa.Column("token_ids", sa.LargeBinary(), nullable=False),
        sa.Column("logprobs", sa.LargeBinary(), nullable=False),
        sa.Column("num_prompt_tokens", sa.Integer(), nullable=False),
        sa.Column("num_cached_tokens", sa.Integer(), nullable=False),
        sa.Column("num_retractions", sa.Integer(), nullable=False),
        sa.Column("latency_s", sa.Double(), nullable=False),
        sa.Column("created_at", sa.Double(), nullable=False),
        sa.ForeignKeyConstraint(
            ["episode_id"], ["episodes.id"], name="fk_turns_episode_id_episodes", ondelete="CASCADE"
        ),
        sa.PrimaryKeyConstraint("episode_id", "number", name="pk_turns"),
    )
    op.execute("INSERT INTO learner_control (id, fence, is_paused, next_version, next_step) VALUES (1, 0, false, 0, 1)")


def downgrade() -> None:
    op.drop_table("turns")
    op.drop_index("ix_feedback_episode_id", table_name="feedback")
    op.drop_table("feedback")
    op.drop_index(
        "uq_step_episodes_trained",
        table_name="step_episodes",
        sqlite_where=sa.text("is_committed"),
        postgresql_where=sa.text("is_committed"),
    )
    op.drop_table("step_episodes")
    op.drop_index("ix_episodes_tenant_id_id", table_name="episodes")
    op.drop_index(
        "ix_episodes_step",
        table_name="episodes",
        sqlite_where=sa.text("step IS NOT NULL"),
        postgresql_where=sa.text("step IS NOT NULL"),
    )
    op.drop_index("ix_episodes_status_finished_at", table_name="episodes")
    op.drop_index("ix_episodes_env_finished_at", table_name="episodes")
    op.drop_table("episodes")
    op.drop_index(
        "uq_weight_versions_serving",
        table_name="weight_versions",
        sqlite_where=sa.text("state = 'serving'"),
        postgresql_where=sa.text("state = 'serving'"),
    )
    op.drop_index("ix_weight_versions_step", table_name="weight_versions")
    op.drop_table("weight_versions")
    op.drop_index(
        "uq_steps_reserved",
        table_name="steps",
        sqlite_where=sa.text("status = 'reserved'"),
        postgresql_where=sa.text("status = 'reserved'"),
    )
    op.drop_table("steps")
    op.drop_table("processes")
    op.drop_table("leases")
    op.drop_table("learner_control")
    op.drop_table("idempotency_keys")
    op.drop_index("ix_events_kind_id", table_name="events")
    op.drop_table("events")
    op.drop_index("ix_env_changes_env_state", table_name="env_changes")
    op.drop_table("env_changes")
    op.drop_table("detector_states")
    op.drop_index("uq_api_keys_prefix", table_name="api_keys")
    op.drop_index("ix_api_keys_tenant_id", table_name="api_keys")
    op.drop_table("api_keys")
