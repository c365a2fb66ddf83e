"""Emergence of heads that find relations, for several seeds: the table and chart of docs/learn/specialize.md.

Trains with the defaults of `clearhead train`, or reads existing runs (--runs).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

from clearhead.cli.tables import head_name
from clearhead.translation import Config, RunDirectory, from_grammar, train
from clearhead.translation.heads import Emergence, ablation_effect, measure_emergence, plot_emergence
from measuring import RESULTS, write

SEEDS = (0, 1, 2)
CHART = Path(__file__).parent.parent / "docs" / "images" / "specialize.svg"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--runs", type=Path, nargs="+", help="folders of runs with the default settings (default: train new runs)"
    )
    parser.add_argument("--output", type=Path, default=RESULTS)
    parser.add_argument("--chart", type=Path, default=CHART)
    arguments = parser.parse_args()
    runs = [RunDirectory(folder) for folder in arguments.runs or ()] or [trained(seed) for seed in SEEDS]
    seeds = [run.read()[0].training.seed for run in runs]
    probe = from_grammar(runs[0].read()[0]).probe
    emergences = [measure_emergence(run, probe) for run in runs]
    rows: list[dict[str, object]] = []
    for index, first in enumerate(emergences[0].trained):
        row: dict[str, object] = {"relation": first.relation, "fixed offset": f"{first.baseline:.2f}"}
        for seed, emergence in zip(seeds, emergences, strict=True):
            after, before = emergence.trained[index], emergence.untrained[index]
            mark = "" if after.clear else " (no)"
            row[f"seed {seed}: untrained"] = f"{before.accuracy:.2f}"
            row[f"seed {seed}: trained"] = f"{after.accuracy:.2f} ± {(after.high - after.low) / 2:.2f}{mark}"
            row[f"seed {seed}: head"] = head_name(after.address)
        rows.append(row)
    exact_row: dict[str, object] = {"relation": "exact translations", "fixed offset": ""}
    for seed, run in zip(seeds, runs, strict=True):
        by_step = {line["step"]: line["validation"]["exact"] for line in run.metrics()}
        best = emergences[seeds.index(seed)].best
        shares = by_step[0], by_step[best]
        exact_row |= {f"seed {seed}: untrained": f"{shares[0]:.1%}", f"seed {seed}: trained": f"{shares[1]:.1%}"}
        exact_row[f"seed {seed}: head"] = f"step {best}"
    write(
        "specialization",
        "Relations found by heads, on sentences never met in training",
        [*rows, exact_row],
        arguments.output,
    )
    plot_emergence(emergences[0], arguments.chart, f"Emergence of relations (seed {seeds[0]})")
    write(
        "specialization-ablation",
        "Errors after ablating a head",
        ablation_rows(runs, emergences, seeds),
        arguments.output,
    )


def ablation_rows(runs: list[RunDirectory], emergences: list[Emergence], seeds: list[int]) -> list[dict[str, object]]:
    """Return a table row for the ablation of each labeled head."""
    rows: list[dict[str, object]] = []
    for seed, run, emergence in zip(seeds, runs, emergences, strict=True):
        probe = from_grammar(run.read()[0]).probe
        for address, relations in emergence.labels().items():
            effect = ablation_effect(run.model(), run.vocabulary(), probe, address)
            errors = {relation: f"{after:.1%}" for relation, (_, after) in effect.errors.items()}
            row: dict[str, object] = {"seed": seed, "without": head_name(address), "label": ", ".join(relations)}
            row["exact"] = f"{effect.exact[1]:.1%}"
            rows.append(row | {f"wrong: {relation}": error for relation, error in errors.items()})
    return rows


def trained(seed: int) -> RunDirectory:
    config = Config.from_dict({"training": {"seed": seed}})
    run = RunDirectory(Path(tempfile.mkdtemp()) / f"seed-{seed}")
    train(from_grammar(config), config, run)
    return run


if __name__ == "__main__":
    main()
