"""Alembic's entry: runs inside the transaction that online_agent.store.migrate opens."""

from alembic import context

from online_agent.errors import ConfigError
from online_agent.store.models import Base

connection = context.config.attributes.get("connection")
if connection is None:
    raise ConfigError("migrations run through Database.migrate(), which opens the transaction")
context.configure(
    connection=connection,
    target_metadata=Base.metadata,
    render_as_batch=connection.dialect.name == "sqlite",
    compare_type=True,
)
context.run_migrations()
