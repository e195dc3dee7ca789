import xml.etree.ElementTree as ElementTree

from online_agent.demo.figures import running_rate, success_figure, swap_figure
from online_agent.demo.records import Evaluation, LiveEpisode, Marker


def test_running_rate_forgets_what_left_the_window() -> None:
    assert running_rate([True, False, False, True], window=2) == [1.0, 0.5, 0.0, 0.5]


def test_the_success_figure_is_one_svg_that_names_the_change() -> None:
    live = [LiveEpisode(str(i), i % 2 == 0, 1) for i in range(300)]
    markers = [Marker("version", "1", 64), Marker("change", "silent rename", 150), Marker("reset", "tau", 160)]
    evaluations = [Evaluation("before", mode, 10, 5, 0, 0, 0) for mode in ("sampled", "greedy")]
    svg = success_figure(live, markers, evaluations)
    assert ElementTree.fromstring(svg).tag.endswith("svg")
    assert svg.count("<svg") == 1
    assert "silent rename" in svg


def test_figures_hold_without_any_data() -> None:
    for svg in (success_figure([], [], []), swap_figure([])):
        assert ElementTree.fromstring(svg).tag.endswith("svg")
