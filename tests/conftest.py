"""Fixtures that more than one folder of tests uses."""

from tests.plain_logs import log_plainly

pytest_plugins = (
    "tests.database_fixtures",
    "tests.engine_fixtures",
)

log_plainly()
