"""Emergence of relations in training: the heads that learn to find them, and the steps at which they do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clearhead.recording.recording import Address
from clearhead.translation.data.grammar.generate import AnnotatedPair
from clearhead.translation.heads.probes import SCORING_HALF, ProbeResult, probe_results
from clearhead.translation.run_directory import METRICS_FILE, RunDirectory


@dataclass(frozen=True)
class Emergence:
    """Accuracies of a run's heads over the steps of training."""

    trained: list[ProbeResult]  # at the step with the best BLEU
    untrained: list[ProbeResult]  # before the first step
    best: int  # step with the best BLEU
    steps: list[int]
    curves: dict[str, list[float]]  # by relation: accuracy of its head in `trained`, at each of `steps`

    def labels(self) -> dict[Address, list[str]]:
        """Return the relations that each head finds significantly better than a fixed offset."""
        labels: dict[Address, list[str]] = {}
        for result in self.trained:
            if result.clear:
                labels.setdefault(result.address, []).append(result.relation)
        return labels


def measure_emergence(run: RunDirectory, probe: Sequence[AnnotatedPair]) -> Emergence:
    """Read the emergence of relations from a run's metrics.

    Each head is selected on one half of the probe and scored on the other half.
    """
    try:
        return _read_emergence(run, probe)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{run.folder / METRICS_FILE}: not the head accuracies of a run ({type(error).__name__}: {error})"
        ) from None


def _read_emergence(run: RunDirectory, probe: Sequence[AnnotatedPair]) -> Emergence:
    validations = [line for line in run.metrics() if "heads" in line]
    if not validations:
        raise ValueError(f"{run.folder}: has no head accuracies; only the built-in grammar has annotated relations")
    best = max(validations, key=lambda line: (line["validation"]["bleu"], -line["validation"]["loss"]))
    trained = probe_results(best["heads"], probe)
    curves = {}
    for result in trained:
        _, layer, head = result.address
        accuracies = [line["heads"][result.relation][f"{layer}.{head}"] for line in validations]
        curves[result.relation] = [halves[SCORING_HALF] for halves in accuracies]
    steps = [line["step"] for line in validations]
    return Emergence(trained, probe_results(validations[0]["heads"], probe), best["step"], steps, curves)
