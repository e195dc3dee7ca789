"""The gateway benchmark sends what it says, counts what goes wrong, and compares the right figures."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import replace

import orjson
import pytest

from benchmarks.gateway import is_kept, ratios
from benchmarks.proxies import sides
from benchmarks.proxies.engine import Script
from benchmarks.proxies.load import NUM_TURNS, Plan, Trial, requests, run

PLAN = Plan("http://unused", {}, "m", "yes", "t", rate=10.0, seconds=8.0, warm_up_s=0.5)
SCRIPT = Script([5, 6, 2], ["ye", "s", ""], delay_s=0.02)


@pytest.fixture(scope="module")
def engine() -> Iterator[sides.Side]:
    with sides.scripted_engine(SCRIPT) as running:
        yield running


def test_requests_come_at_even_times_and_the_first_ones_do_not_count() -> None:
    sent = list(requests(PLAN))
    assert [round(request.at_s, 6) for request in sent] == [number / 10 for number in range(85)]
    assert [request.counts for request in sent[:7]] == [False] * 5 + [True] * 2


def test_an_episode_sends_its_history_turn_by_turn_a_second_apart() -> None:
    mine = [request for request in requests(PLAN) if request.episode == "t-3"]
    assert [request.at_s for request in mine] == pytest.approx([0.3, 1.3, 2.3, 3.3])
    histories = [orjson.loads(request.body)["messages"] for request in mine]
    assert [len(history) for history in histories] == [2 * turn + 2 for turn in range(NUM_TURNS)]
    for earlier, later in itertools.pairwise(histories):
        assert later[: len(earlier)] == earlier
        assert later[len(earlier)] == {"role": "assistant", "content": "yes"}


def test_no_two_trials_share_an_episode() -> None:
    names = {request.episode for request in requests(PLAN)}
    others = {request.episode for request in requests(replace(PLAN, name="u"))}
    assert names.isdisjoint(others)


async def test_an_answer_takes_at_least_what_the_engine_waits(engine: sides.Side) -> None:
    trial = await run(replace(PLAN, url=engine.chat_url, rate=20.0, seconds=0.5, warm_up_s=0.1))
    assert trial.num_errors == 0
    assert len(trial.latencies_s) == 10
    assert min(trial.latencies_s) >= SCRIPT.delay_s


async def test_an_answer_with_another_text_is_an_error(engine: sides.Side) -> None:
    trial = await run(replace(PLAN, url=engine.chat_url, expected="no", seconds=0.3, warm_up_s=0.0))
    assert trial.errors == {"another text: 'yes'": 3}
    assert not trial.latencies_s


async def test_a_side_that_is_not_there_is_an_error() -> None:
    url = f"http://127.0.0.1:{sides.free_port()}/v1/chat/completions"
    trial = await run(replace(PLAN, url=url, seconds=0.2, warm_up_s=0.0))
    assert trial.errors == {"ClientConnectorError": 2}


def test_the_script_is_how_the_tokenizer_writes_the_answer() -> None:
    script = sides.make_script(text="a + b")
    assert script.text == "a + b"
    assert script.pieces[-1] != ""
    assert len(script.token_ids) == len(script.pieces) + 1


@pytest.mark.parametrize(
    ("latencies", "errors", "kept"),
    [
        ([0.1] * 99 + [9.0], {}, False),
        ([0.1] * 200 + [9.0], {}, True),
        ([0.1], {"status 500": 1}, False),
        ([], {}, False),
    ],
)
def test_a_rate_is_kept_without_errors_and_with_99_of_100_in_time(
    latencies: list[float], errors: dict[str, int], kept: bool
) -> None:
    assert is_kept(Trial(latencies, errors)) is kept


@pytest.mark.parametrize("overload", [{"x_errors_at_200": 3.0}, {"ours_added_p99_ms_at_200": 501.0}])
def test_the_ratio_is_the_worst_over_the_rates_that_both_keep(overload: dict[str, float]) -> None:
    figures = {
        **{f"{side}_errors_at_{rate}": 0.0 for side in ("ours", "x") for rate in (50, 100, 200)},
        **{f"{side}_added_{share}_ms_at_200": 100.0 for side in ("ours", "x") for share in ("p50", "p99")},
        **overload,
        **{"ours_added_p50_ms_at_50": 2.0, "x_added_p50_ms_at_50": 8.0},
        **{"ours_added_p50_ms_at_100": 3.0, "x_added_p50_ms_at_100": 10.0},
        **{"ours_added_p99_ms_at_50": 4.0, "x_added_p99_ms_at_50": 10.0},
        **{"ours_added_p99_ms_at_100": 4.0, "x_added_p99_ms_at_100": 16.0},
        **{"ours_max_rate": 300.0, "x_max_rate": 120.0},
    }
    found = ratios(figures, (50, 100, 200), ["x"])
    assert found == pytest.approx({"overhead_p50_vs_x": 0.3, "overhead_p99_vs_x": 0.4, "max_rate_vs_x": 2.5})


def test_where_no_rate_is_kept_by_both_the_ratio_is_that_of_the_lowest() -> None:
    figures = {
        **{f"{side}_errors_at_{rate}": 0.0 for side in ("ours", "x") for rate in (50, 100)},
        **{f"x_added_p99_ms_at_{rate}": 1000.0 for rate in (50, 100)},
        **{f"x_added_p50_ms_at_{rate}": 800.0 for rate in (50, 100)},
        **{"ours_added_p50_ms_at_50": 8.0, "ours_added_p99_ms_at_50": 20.0},
        **{"ours_added_p50_ms_at_100": 9.0, "ours_added_p99_ms_at_100": 30.0},
        **{"ours_max_rate": 150.0, "x_max_rate": 0.0},
    }
    assert ratios(figures, (50, 100), ["x"]) == pytest.approx({"overhead_p50_vs_x": 0.01, "overhead_p99_vs_x": 0.02})
    nothing = {"x_added_p50_ms_at_50": float("inf"), "x_added_p99_ms_at_50": float("inf")}
    assert ratios(figures | nothing, (50, 100), ["x"]) == {}
