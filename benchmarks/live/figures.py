"""Pictures of benches: small SVG files whose text stays text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from benchmarks.live.records import Results
from benchmarks.live.statistics import WINDOW, Estimate, running_rate
from benchmarks.live.summary import REFERENCE, Row, RowKey, runs_of

BLUE, GREY, RED = "#1f4e79", "#9aa5b1", "#c0392b"
NUM_CURVE_POINTS = 60
STYLE: Any = {"svg.fonttype": "none", "svg.hashsalt": "online-agent", "font.size": 8}
PANELS = (
    ("mean_abs_logp", "mean |log π − log μ|"),
    ("masked_share", "masked share of action tokens"),
    ("rho", "active share ρ"),
)


def recipes_figure(results: Results, table: Sequence[Row], path: Path) -> None:
    """Held-out success of each recipe with its interval, and the live curves: the reference stands out."""
    with plt.rc_context(STYLE):
        figure, (points, curves) = plt.subplots(1, 2, figsize=(11, 0.26 * len(table) + 1.4), layout="constrained")
        _draw_points(points, [row for row in table if row.after is not None])
        _draw_curves(curves, results, table)
        _save(figure, path)


def staleness_figure(table: Sequence[Row], path: Path) -> None:
    """Success and mismatch of each recipe as the lag grows."""
    with plt.rc_context(STYLE):
        figure, panels = plt.subplots(2, 2, figsize=(10, 6.4), layout="constrained")
        recipes = list(dict.fromkeys(row.key.name for row in table))
        lags = sorted({row.key.lag for row in table})
        for number, recipe in enumerate(recipes):
            rows = sorted((r for r in table if r.key.name == recipe), key=lambda r: r.key.lag)
            style: dict[str, Any] = {"color": f"C{number}", "marker": "o", "ms": 3.5, "lw": 1.2, "label": recipe}
            shift = 1 + 0.03 * (number - len(recipes) / 2)  # intervals of the same lag stand side by side
            _draw_success(panels.flat[0], rows, shift, style)
            for axes, (name, _) in zip(panels.flat[1:], PANELS, strict=True):
                known = [(r.key.lag * shift, r.figures[name]) for r in rows if name in r.figures]
                axes.plot([x for x, _ in known], [y for _, y in known], **style)
        titles = ("held-out success after training", *(title for _, title in PANELS))
        for axes, title in zip(panels.flat, titles, strict=True):
            axes.set(title=title, xscale="log", xlabel="lag: the engine gets every n-th version")
            axes.set_xticks(lags, [str(lag) for lag in lags], minor=False)
            axes.minorticks_off()
            axes.grid(alpha=0.25)
        panels.flat[0].legend(fontsize=7)
        _save(figure, path)


def _draw_points(axes: Axes, rows: Sequence[Row]) -> None:
    ordered = sorted(rows, key=lambda row: row.after.mean if row.after else 0.0)
    for y, row in enumerate(ordered):
        assert row.after is not None
        colour = RED if row.key.recipe == REFERENCE else BLUE
        _whisker(axes, row.after, y, colour)
        if row.before is not None:
            axes.plot(row.before.mean, y, "|", color=GREY, ms=8)
    axes.set_yticks(range(len(ordered)), [row.key.name for row in ordered])
    axes.set(xlabel="held-out success after training, 95 % interval (grey: before)", xlim=(0, 1))
    axes.grid(alpha=0.25, axis="x")


def _whisker(axes: Axes, estimate: Estimate, y: float, colour: str) -> None:
    axes.plot([estimate.low, estimate.high], [y, y], color=colour, lw=1.2)
    axes.plot(estimate.mean, y, "o", color=colour, ms=4)


def _draw_curves(axes: Axes, results: Results, table: Sequence[Row]) -> None:
    for row in sorted(table, key=lambda row: row.key.recipe == REFERENCE):
        curve = mean_curve(results, row.key)
        if not curve:
            continue
        is_reference = row.key == RowKey(recipe=REFERENCE)
        at = np.unique(np.linspace(0, len(curve) - 1, NUM_CURVE_POINTS).astype(int))
        axes.plot(
            at + WINDOW,
            [curve[i] for i in at],
            color=RED if is_reference else GREY,
            lw=1.8 if is_reference else 0.8,
            label=REFERENCE if is_reference else None,
        )
    axes.set(xlabel=f"live episodes (mean of the last {WINDOW}, mean over seeds)", ylabel="success", ylim=(0, 1))
    axes.grid(alpha=0.25)
    if axes.get_legend_handles_labels()[0]:
        axes.legend()


def mean_curve(results: Results, key: RowKey) -> list[float]:
    """Running live success, averaged over the seeds as far as all of them go."""
    curves = [c for r in runs_of(results, key) if (c := running_rate(r.live))]
    length = min((len(c) for c in curves), default=0)
    return [float(np.mean([c[i] for c in curves])) for i in range(length)]


def _draw_success(axes: Axes, rows: Sequence[Row], shift: float, style: dict[str, Any]) -> None:
    known = [(r.key.lag * shift, r.after) for r in rows if r.after is not None]
    axes.plot([x for x, _ in known], [e.mean for _, e in known], **style)
    for x, e in known:
        axes.plot([x, x], [e.low, e.high], color=style["color"], lw=0.8)


def _save(figure: Figure, path: Path) -> None:
    figure.savefig(path, format="svg", metadata={"Date": None})
    plt.close(figure)
