"""Which head came to find which relation while a model learned, and what goes wrong without it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import torch

from clearhead.recording.recording import Address
from clearhead.translation._decoding import greedy
from clearhead.translation.data._batching import collate, padded
from clearhead.translation.data.dataset import to_ids
from clearhead.translation.data.grammar._lexicon import FREQUENCIES, MANNERS, TIMES
from clearhead.translation.data.grammar.generate import Example
from clearhead.translation.heads.probes import BATCH, HALVES, ProbeResult, probe_results
from clearhead.translation.model import Transformer
from clearhead.translation.run_directory import METRICS, RunDirectory
from clearhead.translation.tokenizer import Vocabulary

WRITTEN = 200  # sentences translated without a head
KINDS = ("noun", "adjective", "verb", "tense", "adverb", "other word", "particle")
ADVERBS = {*FREQUENCIES.values(), *MANNERS.values(), *(time.japanese.split()[0] for time in TIMES)}


@dataclass(frozen=True)
class Emergence:
    """What a run's metrics say of its heads."""

    trained: list[ProbeResult]  # when it translated best: of the weights that were kept
    untrained: list[ProbeResult]  # before the first step
    best: int  # the step of the former
    steps: list[int]
    curves: dict[str, list[float]]  # by relation: how often the head found then was right, at each of the steps

    def labels(self) -> dict[Address, list[str]]:
        """The relations a head clearly finds: better than any position could."""
        found: dict[Address, list[str]] = {}
        for finding in self.trained:
            if finding.clear:
                found.setdefault(finding.address, []).append(finding.relation)
        return found


def measure_emergence(run: RunDirectory, probe: Sequence[Example]) -> Emergence:
    """From the metrics alone; the head is chosen on one half of the probe, and everything here is of the other."""
    try:
        return _specialised(run, probe)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"{run.folder / METRICS}: not what training measured on heads ({type(error).__name__}: {error})"
        ) from None


def _specialised(run: RunDirectory, probe: Sequence[Example]) -> Emergence:
    measured = [line for line in run.metrics() if "heads" in line]
    if not measured:
        raise ValueError(f"{run.folder}: no heads were measured in this run; only the built-in grammar has relations")
    best = max(measured, key=lambda line: (line["validation"]["bleu"], -line["validation"]["loss"]))
    trained = probe_results(best["heads"], probe)
    curves = {}
    for finding in trained:
        _, layer, head = finding.address
        curves[finding.relation] = [line["heads"][finding.relation][f"{layer}.{head}"][HALVES[1]] for line in measured]
    steps = [line["step"] for line in measured]
    return Emergence(trained, probe_results(measured[0]["heads"], probe), best["step"], steps, curves)


@dataclass(frozen=True)
class AblationEffect:
    """What goes wrong in translations without a head."""

    address: Address
    exact: tuple[float, float]  # share of translations that are right, with it and without
    errors: dict[str, tuple[float, float]]  # by kind of token: share that is predicted wrongly, with it and without
    example: tuple[str, str, str] | None  # a source, its translation, and what is written without the head


@torch.inference_mode()
def ablation_effects(
    model: Transformer, vocabulary: Vocabulary, probe: Sequence[Example], address: Address
) -> AblationEffect:
    """Compare the model with itself without the head, on sentences it never met."""
    training = model.training
    model.eval()
    errors = [_errors(model, vocabulary, probe, left_out) for left_out in ((), (address,))]
    few = probe[:WRITTEN]
    whole, without = (_translations(model, vocabulary, few, left_out) for left_out in ((), (address,)))
    model.train(training)
    expected = [" ".join(example.target) for example in few]
    spoilt = (
        (" ".join(example.source), right, wrong)
        for example, right, before, wrong in zip(few, expected, whole, without, strict=True)
        if before == right != wrong
    )
    return AblationEffect(
        address,
        (_share_equal(whole, expected), _share_equal(without, expected)),
        {relation: (errors[0][relation], errors[1][relation]) for relation in errors[0]},
        next(spoilt, None),
    )


def _errors(
    model: Transformer, vocabulary: Vocabulary, probe: Sequence[Example], ablate: Collection[Address]
) -> dict[str, float]:
    """By kind of token: how often it is predicted wrongly, the right ones before it given."""
    device = model.embedding.weight.device
    wrong: Counter[str] = Counter()
    asked: Counter[str] = Counter()
    for start in range(0, len(probe), BATCH):
        examples = probe[start : start + BATCH]
        batch = collate([to_ids(vocabulary, example) for example in examples]).to(device)
        logits = model(batch.source, batch.target, batch.lengths, ablate=ablate)
        missed = (logits.argmax(dim=-1) != batch.expected).cpu()
        for place, example in enumerate(examples):
            for at, kind in enumerate(kinds(example)):
                asked[kind] += 1
                wrong[kind] += bool(missed[place, at])
    return {kind: wrong[kind] / asked[kind] for kind in KINDS if asked[kind]}


def kinds(example: Example) -> list[str]:
    """What kind of token each of a translation is."""
    found = ["adverb" if token in ADVERBS else "particle" for token in example.target]
    for relation, at, _ in example.links:
        if relation in KINDS:
            found[at] = relation
        elif relation == "alignment" and found[at] == "particle":
            found[at] = "other word"
    return found


def _translations(
    model: Transformer, vocabulary: Vocabulary, examples: Sequence[Example], ablate: Collection[Address]
) -> list[str]:
    sources = [to_ids(vocabulary, example).source for example in examples]
    source, lengths = padded(sources, model.embedding.weight.device)
    return [vocabulary.decode(own.tokens) for own in greedy(model, source, lengths, most=40, ablate=ablate)]


def _share_equal(texts: Sequence[str], expected: Sequence[str]) -> float:
    return sum(text == right for text, right in zip(texts, expected, strict=True)) / len(texts)
