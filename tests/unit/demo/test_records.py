from online_agent.demo.records import RequestLog, episodes_to_recover


def test_recovery_is_the_first_full_window_at_the_target() -> None:
    outcomes = [True] * 4 + [False, False, True, True, True, True]
    assert episodes_to_recover(outcomes, change_at=4, target_rate=0.75, window=4) == 5


def test_recovery_before_the_window_is_full_does_not_count() -> None:
    assert episodes_to_recover([True, True, True], change_at=0, target_rate=0.5, window=4) is None


def test_a_window_right_after_the_change_may_already_pass() -> None:
    assert episodes_to_recover([False, True, True], change_at=1, target_rate=1.0, window=2) == 2


def test_never_recovered_is_none_not_a_number() -> None:
    assert episodes_to_recover([True] + [False] * 20, change_at=1, target_rate=0.5, window=4) is None


def test_requests_during_swaps_counts_each_overlapping_request_once() -> None:
    log = RequestLog(spans=[(0.0, 1.0), (1.5, 2.0), (0.9, 3.0), (5.0, 6.0)])
    assert log.during([(0.95, 1.05), (1.6, 1.7)]) == 3
