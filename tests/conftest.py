"""Fixtures that more than one folder of tests uses."""

pytest_plugins = (
    "tests.database_fixtures",
    "tests.engine_fixtures",
)
