"""Pictures of a demo run as inline SVG: success against episodes, and the evaluations side by side."""

from __future__ import annotations

import io
from collections.abc import Sequence

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from online_agent.demo.records import Evaluation, LiveEpisode, Marker

WINDOW = 128  # live episodes per point: a 95 % interval of about ±0.085 at a rate of 0.5
MARKER_STYLES = {
    "change": ("#c0392b", "-", 1.6),
    "rollback": ("#8e44ad", "-", 1.6),
    "reset": ("#e67e22", ":", 1.0),
    "drift": ("#16a085", "--", 1.0),
}
SAMPLED, GREEDY, LIVE = "#1f4e79", "#7fb3d5", "#2c7fb8"


def running_rate(outcomes: Sequence[bool], window: int) -> list[float]:
    """Mean of the last ``window`` outcomes at each point (of fewer at the start)."""
    rates: list[float] = []
    total = 0
    for i, outcome in enumerate(outcomes):
        total += outcome
        if i >= window:
            total -= outcomes[i - window]
        rates.append(total / min(i + 1, window))
    return rates


def success_figure(live: Sequence[LiveEpisode], markers: Sequence[Marker], evaluations: Sequence[Evaluation]) -> str:
    """Live success (running mean), held-out evaluations with intervals, and what happened when."""
    figure, axes = plt.subplots(figsize=(11, 4.6), layout="constrained")
    rates = running_rate([e.is_success for e in live], WINDOW)
    skip = min(WINDOW // 4, len(rates))
    axes.plot(range(skip, len(rates)), rates[skip:], color=LIVE, lw=1.4, label=f"live episodes, last {WINDOW}")
    _draw_evaluations(axes, evaluations)
    _draw_markers(axes, markers)
    axes.set(xlabel="live episodes", ylabel="success", ylim=(0, 1.02), xlim=(0, max(1, len(live))))
    axes.grid(alpha=0.25)
    axes.legend(loc="lower right", fontsize=8, framealpha=0.9)
    return _svg(figure)


def _draw_evaluations(axes: Axes, evaluations: Sequence[Evaluation]) -> None:
    for mode, colour, marker in (("sampled", SAMPLED, "o"), ("greedy", GREEDY, "s")):
        points = [e for e in evaluations if e.mode == mode]
        if not points:
            continue
        below = [max(0.0, e.rate - e.interval[0]) for e in points]
        above = [max(0.0, e.interval[1] - e.rate) for e in points]
        axes.errorbar(
            [e.at_episode for e in points],
            [e.rate for e in points],
            yerr=[below, above],
            fmt=marker,
            color=colour,
            capsize=3,
            ms=5,
            label=f"held-out, {mode} (95 % interval)",
        )


def _draw_markers(axes: Axes, markers: Sequence[Marker]) -> None:
    versions = [m.at_episode for m in markers if m.kind == "version"]
    axes.plot(versions, [0.012] * len(versions), "|", color="#555555", ms=7, label="version published")
    for marker in markers:
        if marker.kind not in MARKER_STYLES:
            continue
        colour, style, width = MARKER_STYLES[marker.kind]
        axes.axvline(marker.at_episode, color=colour, ls=style, lw=width)
        if marker.kind in ("change", "rollback"):
            side = "right" if marker.kind == "change" else "left"
            text = axes.text(
                marker.at_episode, 0.05, f" {marker.label} ", color=colour, fontsize=8, rotation=90, ha=side
            )
            text.set_bbox({"facecolor": "white", "alpha": 0.75, "edgecolor": "none", "pad": 0.5})
    for kind in ("reset", "drift"):
        if any(m.kind == kind for m in markers):
            colour, style, width = MARKER_STYLES[kind]
            axes.plot([], [], color=colour, ls=style, lw=width, label=kind)


def swap_figure(seconds: Sequence[float]) -> str:
    """Each hot swap's duration in order, in milliseconds."""
    figure, axes = plt.subplots(figsize=(11, 2.4), layout="constrained")
    axes.bar(range(1, len(seconds) + 1), [1000 * s for s in seconds], color=LIVE)
    axes.set(xlabel="swap", ylabel="milliseconds")
    axes.grid(alpha=0.25, axis="y")
    return _svg(figure)


def _svg(figure: Figure) -> str:
    buffer = io.StringIO()
    figure.savefig(buffer, format="svg", metadata={"Date": None})
    plt.close(figure)
    text = buffer.getvalue()
    return text[text.index("<svg") :]
