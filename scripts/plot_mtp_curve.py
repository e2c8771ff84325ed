#!/usr/bin/env python3
"""Draw the curves of a training of an MTP head: losses and hits by step of the draft.

    scripts/plot_mtp_curve.py curve.csv curve.png

Needs the extra ``plot``. Whole lines are rows that are held out, dashed ones the training's own.
"""

from __future__ import annotations

import argparse
import csv
from pathlib import Path

import matplotlib

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("curve", type=Path)
    parser.add_argument("figure", type=Path)
    options = parser.parse_args()
    with options.curve.open(newline="") as file:
        rows = list(csv.DictReader(file))
    visits = [float(row["visits"]) / 1e6 for row in rows]
    n_steps = sum(name.startswith("held_hits") for name in rows[0])
    figure, axes = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    for ax, what, title in zip(
        axes, ("loss", "hits"), ("cross-entropy, nats", "agreement with the model"), strict=True
    ):
        for i in range(1, n_steps + 1):
            color = f"C{i - 1}"
            held = [float(row[f"held_{what}{i}"]) for row in rows]
            ax.plot(visits, held, color=color, label=f"step {i}")
            trained = [float(row[f"train_{what}{i}"]) for row in rows]
            ax.plot(visits, trained, color=color, linestyle="--", alpha=0.6)
        ax.set_xlabel("million tokens visited")
        ax.set_title(title)
        ax.grid(alpha=0.3)
    axes[0].legend()
    figure.savefig(options.figure, dpi=110)


if __name__ == "__main__":
    main()
