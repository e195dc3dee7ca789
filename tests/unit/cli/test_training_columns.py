from online_agent.cli import training
from online_agent.learner.report import METRIC_KEYS


def test_each_metric_shown_is_one_that_the_learner_writes() -> None:
    assert set(training._SHOWN_METRICS.values()) <= set(METRIC_KEYS)


def test_a_metric_that_was_not_measured_is_an_empty_cell() -> None:
    columns = dict(training._COLUMNS)
    assert columns["success"]({"metrics": {"batch/success_share": 0.70833333}}) == "0.7083"
    assert columns["success"]({"metrics": {"batch/success_share": None}}) == ""
    assert columns["success"]({}) == ""
