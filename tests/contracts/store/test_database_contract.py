"""Transactions, reading and migrations, on SQLite and on PostgreSQL."""

from __future__ import annotations

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError, IntegrityError

from envs.types import Verdict
from online_agent.errors import ConfigError, NotFound
from online_agent.store import migrate
from online_agent.store.engines import database_url, write_engine
from online_agent.store.models import Base
from online_agent.store.records import FeedbackNew
from online_agent.store.session import Database
from online_agent.types import EpisodeStatus, StopReason
from tests.fakes.episodes import TENANT, make_turn, open_episode, reserve_step, seed_version
from tests.fakes.tenants import opt_in

FIRST, HEAD = "20261129_initial", "20261130_client_old_logprobs"


def test_a_transaction_that_raises_leaves_nothing(db: Database) -> None:
    with pytest.raises(NotFound), db.transaction() as tx:
        tx.weights.get(99 + tx.events.add("swap", {}))
    with db.reading() as tx:
        assert tx.events.list() == []


def test_reading_refuses_to_write(db: Database) -> None:
    with pytest.raises(DBAPIError, match=r"readonly|read-only"), db.reading() as tx:
        tx.events.add("swap", {})


def test_connections_are_held_by_work_under_way_alone(db: Database) -> None:
    assert db.num_connections_in_use == 0
    with db.reading(), db.transaction():
        assert db.num_connections_in_use == 2
    assert db.num_connections_in_use == 0


def test_a_reader_that_dawdles_sees_what_is_committed_meanwhile(db: Database) -> None:
    with db.reading() as slow:
        assert slow.events.list() == []
        with db.transaction() as tx:
            tx.events.add("swap", {})
        assert len(slow.events.list()) == 1


def test_migrating_twice_changes_nothing(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    database.migrate()
    seed_version(database)
    database.migrate()
    with database.reading() as tx:
        assert len(tx.weights.list()) == 1
        assert migrate.current_revision(tx.connection) == HEAD
    database.close()


def test_the_migrated_schema_is_the_schema_of_the_models(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    database.migrate()
    database.close()
    engine = write_engine(database_url(empty_database_url), 5.0)
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"compare_type": True, "compare_server_default": True})
        differences = compare_metadata(context, Base.metadata)
    engine.dispose()
    assert differences == []


def _counts(database: Database) -> list[int]:
    with database.reading() as tx:
        tables = ("episodes", "turns", "feedback")
        return [tx.connection.execute(text(f"SELECT count(*) FROM {table}")).scalar_one() for table in tables]


def test_a_database_with_rows_goes_up_down_and_up_again(empty_database_url: str) -> None:
    """C26: 1 episode, 3 turns and 2 feedback rows stay, foreign keys stay enforced, the episode stays trainable."""
    database, url = Database(empty_database_url), database_url(empty_database_url)
    database.migrate()
    seed_version(database)
    opt_in(database)
    episode_id = open_episode(database)
    with database.transaction() as tx:
        for number in range(3):
            tx.episodes.add_turn(episode_id, make_turn(number))
        tx.episodes.finish(episode_id, StopReason.SUBMITTED, None)
        tx.episodes.grade(episode_id, Verdict(1.0, True))
        tx.feedback.add(TENANT, episode_id, FeedbackNew("alice", 1.0))
        tx.feedback.add(TENANT, episode_id, FeedbackNew("bob", text="good"))
    for move, revision in ((migrate.downgrade, FIRST), (migrate.upgrade, HEAD)):
        database.close()
        move(url, revision, 5.0)
        assert _counts(database) == [1, 3, 2]
        with pytest.raises(IntegrityError), database.transaction() as tx:
            tx.connection.execute(text("UPDATE turns SET episode_id = 'ep_none'"))
    with pytest.raises(IntegrityError), database.transaction() as tx:
        tx.connection.execute(text("UPDATE episodes SET reward = 2"))
    assert reserve_step(database, 1) == 1
    with database.transaction() as tx:
        assert tx.episodes.get(TENANT, episode_id).status is EpisodeStatus.RESERVED
        tx.steps.release_own("learner")
        tx.episodes.erase(TENANT, episode_id)
    assert _counts(database) == [0, 0, 0]
    database.close()


def test_the_way_down_ends_in_an_empty_database(empty_database_url: str) -> None:
    database = Database(empty_database_url)
    database.migrate()
    database.close()
    migrate.downgrade(database_url(empty_database_url), "base", 5.0)
    with database.reading() as tx:
        assert migrate.current_revision(tx.connection) is None
        assert tx.connection.dialect.has_table(tx.connection, "episodes") is False
    database.close()


@pytest.mark.parametrize("url", ["sqlite://", "sqlite:///:memory:", "mysql://h/d", "nonsense"])
def test_a_database_url_that_cannot_work_is_refused(url: str) -> None:
    with pytest.raises(ConfigError, match="database url"):
        Database(url)
