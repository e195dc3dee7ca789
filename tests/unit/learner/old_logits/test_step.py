"""What the loop does with a route around a step, and which route a recipe gets."""

import pytest

from online_agent.config.settings import Settings
from online_agent.errors import ConfigError, Fenced
from online_agent.learner.old_logits.dedicated import DedicatedRoute
from online_agent.learner.old_logits.interruption import InterruptionRoute
from online_agent.learner.old_logits.protocol import OldLogitsCost
from online_agent.learner.old_logits.routes import open_route
from online_agent.learner.old_logits.snapshot import SnapshotRoute
from online_agent.learner.old_logits.step import filled, settled, with_cost
from online_agent.learner.report import METRIC_KEYS, StepReport
from online_agent.promotion.retention import scored_versions
from online_agent.store.session import Database
from tests.fakes.policy_versions import VERSIONS, mixed_episodes


class RecordingRoute:
    def __init__(self):
        self.settled_at = []

    def fill(self, episodes, *, version):
        return [f"{e}@{version}" for e in episodes]

    def settle(self, version):
        self.settled_at.append(version)

    def cost(self):
        return OldLogitsCost(1.5, 2048, 0.25, 3)

    def close(self):
        pass


def settings_of(route, **more):
    reference = {"kind": "exact_old", "route": route}
    recipe = {"base": "decoupled-exact", "reference": reference} | more
    return Settings(learner={"recipe": "mine"}, recipes={"mine": recipe})


def test_the_trainer_gets_the_filled_episodes_and_the_report_their_cost():
    route = RecordingRoute()
    assert filled(route, ["a", "b"], 7) == ["a@7", "b@7"]
    metrics = with_cost(StepReport(False, dict.fromkeys(METRIC_KEYS)), route).metrics
    assert set(metrics) == set(METRIC_KEYS)
    assert {key: value for key, value in metrics.items() if value is not None} == {
        "old_logits/seconds": 1.5,
        "old_logits/bytes": 2048.0,
        "old_logits/paused_seconds": 0.25,
        "old_logits/missing_tokens": 3.0,
    }


def test_without_a_route_nothing_changes():
    episodes, report = mixed_episodes(2, VERSIONS), StepReport(False, {})
    assert filled(None, episodes, 1) == episodes
    assert with_cost(report, None) is report
    with settled(None, lambda: 1):
        pass


def test_the_route_hears_of_the_end_of_a_step_that_was_fenced_out():
    route = RecordingRoute()
    with pytest.raises(Fenced), settled(route, lambda: 5):
        raise Fenced("a rollback")
    assert route.settled_at == [5]


@pytest.mark.parametrize(
    ("route", "kind", "num_kept"),
    [("snapshot", SnapshotRoute, 10), ("dedicated", DedicatedRoute, 10), ("interruption", InterruptionRoute, 0)],
)
def test_a_recipe_gets_the_route_it_names_and_retention_keeps_what_it_reads(sqlite_url, store, route, kind, num_kept):
    settings, db = settings_of(route), Database(sqlite_url)
    opened = open_route(settings, db, store, store.open(3).serving_dir, lambda episodes, chosen: [])
    assert isinstance(opened, kind)
    opened.close()
    db.close()
    assert scored_versions(settings) == num_kept  # 8 versions of staleness, the current one, the one in the making


def test_a_recipe_without_exact_old_log_probs_gets_none(sqlite_url, store):
    db = Database(sqlite_url)
    assert open_route(Settings(), db, store, store.open(3).serving_dir, lambda episodes, chosen: []) is None
    assert scored_versions(Settings()) == 0
    db.close()


def test_interruption_refuses_a_recipe_that_replays_routing(sqlite_url, store):
    db = Database(sqlite_url)
    settings = settings_of("interruption", replays_routing=True)
    with pytest.raises(ConfigError, match="cannot replay routing"):
        open_route(settings, db, store, store.open(3).serving_dir, lambda episodes, chosen: [])
    db.close()
