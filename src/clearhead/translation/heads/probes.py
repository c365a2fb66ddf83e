"""Probes of heads: accuracy with which heads attend along the relations of the grammar, on held-out sentences.

The accuracy of a head for a relation is the share of links for which the head attends most to the linked source word.
The query word itself is excluded from the argmax. For relations from the target to the source, the query is the row
of the decoder that *predicts* the token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from clearhead._utils.evaluating import evaluating
from clearhead.analysis.relations import wilson
from clearhead.recording.recording import Address
from clearhead.translation.data._batching import collate
from clearhead.translation.data.dataset import encode_pair
from clearhead.translation.data.grammar.generate import SOURCE_RELATIONS, TARGET_RELATIONS, AnnotatedPair
from clearhead.translation.model import Transformer
from clearhead.translation.tokenizer import Vocabulary

RELATION_STACKS: dict[str, str] = {
    **dict.fromkeys(TARGET_RELATIONS, "cross"),
    **dict.fromkeys(SOURCE_RELATIONS, "encoder"),
}
PROBE_BATCH_SIZE = 100  # sentences
# heads and offsets are selected on the even sentences of the probe and scored on the odd ones
SELECTION_HALF, SCORING_HALF = PROBE_HALVES = (0, 1)

# accuracies on the two halves, by relation and by head "layer.head"
AccuracyTable = dict[str, dict[str, Sequence[float]]]


@dataclass(frozen=True)
class ProbeResult:
    """Head that finds a relation best, compared with the best fixed offset."""

    relation: str
    address: Address
    accuracy: float
    low: float  # 95 % Wilson interval of the accuracy
    high: float
    count: int  # links
    offset: int
    baseline: float  # accuracy of the offset

    @property
    def clear(self) -> bool:
        """True if the head is significantly better than the offset. Only such heads get a label."""
        return self.low > self.baseline


@torch.inference_mode()
def head_accuracies(model: Transformer, vocabulary: Vocabulary, probe: Sequence[AnnotatedPair]) -> AccuracyTable:
    """Return the accuracies of every head for every relation of its stack, on the even and the odd sentences."""
    device = model.embedding.weight.device
    correct: dict[tuple[str, int], Tensor] = {}  # relation, half: [layers, heads]
    link_counts: Counter[tuple[str, int]] = Counter()
    with evaluating(model):
        for start in range(0, len(probe), PROBE_BATCH_SIZE):
            pairs = probe[start : start + PROBE_BATCH_SIZE]
            batch = collate([encode_pair(vocabulary, pair) for pair in pairs]).to(device)
            _, attentions = model(batch.source, batch.target, batch.lengths, return_weights=True)
            most_attended = {stack: _most_attended(attentions, stack, pairs) for stack in ("encoder", "cross")}
            for row, pair in enumerate(pairs):
                for relation, at, to in pair.links:
                    key = relation, (start + row) % 2
                    hits = (most_attended[RELATION_STACKS[relation]][row, ..., at] == to).double()
                    correct[key] = correct[key] + hits if key in correct else hits
                    link_counts[key] += 1
    table: AccuracyTable = {}
    for relation in RELATION_STACKS:
        first, second = (correct[relation, half] / link_counts[relation, half] for half in PROBE_HALVES)
        layers, heads = first.shape
        table[relation] = {
            f"{layer}.{head}": (round(float(first[layer, head]), 4), round(float(second[layer, head]), 4))
            for layer in range(layers)
            for head in range(heads)
        }
    return table


def probe_results(table: AccuracyTable, probe: Sequence[AnnotatedPair]) -> list[ProbeResult]:
    """Return the best head of each relation, selected on one half of the probe and scored on the other.

    Fixed offsets are selected and scored in the same way.
    """
    offsets = {(relation, half): Counter() for relation in RELATION_STACKS for half in PROBE_HALVES}
    for index, pair in enumerate(probe):
        for relation, at, to in pair.links:
            offsets[relation, index % 2][to - at] += 1
    results = []
    for relation, accuracies in table.items():
        best = max(accuracies, key=lambda name: accuracies[name][SELECTION_HALF])
        layer, head = map(int, best.split("."))
        first, second = (offsets[relation, half] for half in PROBE_HALVES)
        offset, count = first.most_common(1)[0][0], second.total()
        accuracy = accuracies[best][SCORING_HALF]
        low, high = wilson(round(accuracy * count), count)
        address = (RELATION_STACKS[relation], layer, head)
        results.append(ProbeResult(relation, address, accuracy, low, high, count, offset, second[offset] / count))
    return results


def _most_attended(
    attentions: dict, stack: str, pairs: Sequence[AnnotatedPair]
) -> Int[Tensor, "batch layers heads queries"]:
    """Return the most attended source word of each query, excluding the word itself and the end token."""
    weights = torch.stack([layer.dense() for layer in attentions[stack]], dim=1)
    for row, pair in enumerate(pairs):
        weights[row, ..., len(pair.source) :] = -1.0
    if stack == "encoder":
        weights.diagonal(dim1=-2, dim2=-1).fill_(-1.0)
    return weights.argmax(dim=-1).cpu()
