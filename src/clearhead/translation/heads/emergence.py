"""Emergence of relations in training: which head came to find which relation, and when."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from clearhead.recording.recording import Address
from clearhead.translation.data.grammar.generate import AnnotatedPair
from clearhead.translation.heads.probes import SCORING_HALF, ProbeResult, probe_results
from clearhead.translation.run_directory import METRICS_FILE, RunDirectory


@dataclass(frozen=True)
class Emergence:
    """What a run's metrics say of its heads."""

    trained: list[ProbeResult]  # when it translated best: of the weights that were kept
    untrained: list[ProbeResult]  # before the first step
    best: int  # the step of the former
    steps: list[int]
    curves: dict[str, list[float]]  # by relation: accuracy of the head of `trained`, at each of the steps

    def labels(self) -> dict[Address, list[str]]:
        """Return the relations that each head clearly finds: better than any fixed offset."""
        labels: dict[Address, list[str]] = {}
        for result in self.trained:
            if result.clear:
                labels.setdefault(result.address, []).append(result.relation)
        return labels


def measure_emergence(run: RunDirectory, probe: Sequence[AnnotatedPair]) -> Emergence:
    """Read the emergence of relations from a run's metrics.

    Each head is chosen on one half of the probe, and all accuracies are those of the other half.
    """
    try:
        return _read_emergence(run, probe)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{run.folder / METRICS_FILE}: not what training measured on heads ({type(error).__name__}: {error})"
        ) from None


def _read_emergence(run: RunDirectory, probe: Sequence[AnnotatedPair]) -> Emergence:
    validations = [line for line in run.metrics() if "heads" in line]
    if not validations:
        raise ValueError(f"{run.folder}: no heads were measured in this run; only the built-in grammar has relations")
    best = max(validations, key=lambda line: (line["validation"]["bleu"], -line["validation"]["loss"]))
    trained = probe_results(best["heads"], probe)
    curves = {}
    for result in trained:
        _, layer, head = result.address
        accuracies = [line["heads"][result.relation][f"{layer}.{head}"] for line in validations]
        curves[result.relation] = [halves[SCORING_HALF] for halves in accuracies]
    steps = [line["step"] for line in validations]
    return Emergence(trained, probe_results(validations[0]["heads"], probe), best["step"], steps, curves)
