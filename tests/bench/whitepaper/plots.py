# SPDX-License-Identifier: Apache-2.0
"""The plots of the report, as SVG. Grey text on no background is readable on white and on black."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
import matplotlib.pyplot as plt  # noqa: E402

GREY = "#808080"
COLOURS = {"safetensors": "#c0504d", "tensorizer": "#d98e32", "runai": "#8064a2", "streamerd": "#3b86c8", "auto": "#c0504d"}
LABELS = {"runai": "Run:ai Model Streamer", "auto": "safetensors (auto)"}

matplotlib.rcParams.update({
    "svg.fonttype": "none",
    "svg.hashsalt": "streamerd",  # the same picture has the same ids
    "font.family": "sans-serif",
    "text.color": GREY,
    "axes.edgecolor": GREY,
    "axes.labelcolor": GREY,
    "xtick.color": GREY,
    "ytick.color": GREY,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "legend.frameon": False,
})  # fmt: skip


def _save(figure: Any, path: Path, note: str) -> None:
    figure.get_layout_engine().set(rect=(0, 0.04, 1, 0.96))  # room for the note
    figure.text(0.01, 0.01, note, fontsize=7)
    figure.savefig(path, transparent=True, metadata={"Date": None, "Creator": None})
    plt.close(figure)


def _axes(title: str, y: str) -> tuple[Any, Any]:
    figure, axes = plt.subplots(figsize=(8, 4.5), layout="constrained")
    axes.set_title(title, fontsize=11)
    axes.set_ylabel(y)
    return figure, axes


Spread = tuple[float, float, float]  # median, minimum, maximum


def by_concurrency(path: Path, title: str, series: dict[str, dict[int, Spread]], lines: dict[str, float], note: str) -> None:
    """Seconds over concurrency; `lines` are horizontal: a loader without a setting, a limit."""
    figure, axes = _axes(title, "seconds to load")
    ticks = sorted({n for points in series.values() for n in points})
    for loader, points in series.items():
        x = [ticks.index(n) for n in points]
        y = [median for median, _, _ in points.values()]
        spread = [[m - low for m, low, _ in points.values()], [high - m for m, _, high in points.values()]]
        axes.errorbar(x, y, yerr=spread, marker="o", capsize=3, color=COLOURS[loader], label=LABELS.get(loader, loader))
    for name, seconds in lines.items():
        axes.axhline(seconds, linestyle="--", linewidth=1, color=COLOURS.get(name, GREY), label=name)
    axes.set_xticks(range(len(ticks)), [str(n) for n in ticks])
    axes.set_xlabel("concurrency")
    axes.set_ylim(bottom=0)
    axes.legend()
    _save(figure, path, note)


def bars(path: Path, title: str, rows: dict[str, Spread], note: str) -> None:
    """Seconds of each loader at its best setting; a label is "loader" or "loader, setting"."""
    figure, axes = _axes(title, "seconds to load")
    for i, (label, (median, low, high)) in enumerate(rows.items()):
        loader = label.partition(",")[0]
        axes.bar(i, median, yerr=[[median - low], [high - median]], capsize=3, width=0.6, color=COLOURS.get(loader, GREY), ecolor=GREY)
        axes.text(i, median, f" {median:.2f}", ha="left", va="bottom", fontsize=9)
    axes.set_xticks(range(len(rows)), [LABELS.get(label, label).replace(", ", "\n") for label in rows], fontsize=8)
    _save(figure, path, note)


def ready(path: Path, title: str, storages: dict[str, dict[str, dict[str, float]]], note: str) -> None:
    """Stacked bars: start of the process, weights, the rest; groups by storage."""
    bars = [(storage, label, parts) for storage, rows in storages.items() for label, parts in rows.items()]
    figure, axes = plt.subplots(figsize=(8, 1.2 + 0.33 * len(bars)), layout="constrained")
    axes.set_title(title, fontsize=11)
    axes.set_xlabel("seconds until ready: start of the process (pale), weights (full), the rest")
    shades = {"start": 0.35, "weights": 1.0, "rest": 0.6}
    for y, (_, label, parts) in enumerate(bars):
        left = 0.0
        for part, shade in shades.items():
            axes.barh(y, parts[part], left=left, height=0.7, color=COLOURS.get(label.partition(",")[0], GREY), alpha=shade)
            left += parts[part]
        axes.text(left, y, f" {left:.1f}", va="center", fontsize=8)
    axes.set_yticks(range(len(bars)), [f"{storage}: {LABELS.get(label, label)}" for storage, label, _ in bars], fontsize=8)
    axes.set_ylim(-0.6, len(bars) - 0.4)
    axes.invert_yaxis()
    _save(figure, path, note)


def scaling(path: Path, panels: dict[str, dict[str, dict[float, Spread]]], note: str) -> None:
    """Seconds per GiB over bytes, tensors, files and loads at once."""
    figure, grid = plt.subplots(2, 2, figsize=(8, 6), layout="constrained")
    for axes, (what, kinds) in zip(grid.flat, panels.items(), strict=True):
        for kind, points in kinds.items():
            y = [median for median, _, _ in points.values()]
            axes.plot(list(points), y, marker="o", color=COLOURS["streamerd" if kind == "cold" else "tensorizer"], label=kind)
        axes.set_xscale("log")
        ticks = sorted({x for points in kinds.values() for x in points})
        axes.set_xticks(ticks, [f"{x:,.2f}".rstrip("0").rstrip(".") for x in ticks], fontsize=8)
        axes.minorticks_off()
        axes.set_xlabel(what)
        axes.set_ylabel("s per GiB")
        axes.set_ylim(bottom=0)
        axes.legend(fontsize=8)
    _save(figure, path, note)
