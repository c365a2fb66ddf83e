"""Which heads attend along the relations of the grammar: measured on sentences the model never met.

For every head and relation: how often, of all source words but itself, it attends most to the right one. What looks
from the target to the source is read on the decoder's row that *predicts* the token.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from clearhead.analysis.relations import wilson
from clearhead.recording.recording import Address
from clearhead.translation.data._batching import collate
from clearhead.translation.data.dataset import to_ids
from clearhead.translation.data.grammar.generate import SOURCE_RELATIONS, TARGET_RELATIONS, Example
from clearhead.translation.model import Transformer
from clearhead.translation.tokenizer import Vocabulary

STACK: dict[str, str] = {**dict.fromkeys(TARGET_RELATIONS, "cross"), **dict.fromkeys(SOURCE_RELATIONS, "encoder")}
BATCH = 100
HALVES = (0, 1)  # a head and an offset are chosen on the first, and scored on the second

# by relation: by head "layer.head": right answers on either half
Accuracies = dict[str, dict[str, tuple[float, float]]]


@dataclass(frozen=True)
class ProbeResult:
    """The head that finds a relation best, next to the best fixed offset."""

    relation: str
    address: Address
    accuracy: float
    low: float  # Wilson's 95 % interval
    high: float
    count: int  # questions
    offset: int
    baseline: float  # accuracy of the offset

    @property
    def clear(self) -> bool:
        """Whether it is more than its position: only then does the head get a label."""
        return self.low > self.baseline


@torch.inference_mode()
def accuracies(model: Transformer, vocabulary: Vocabulary, probe: Sequence[Example]) -> Accuracies:
    """Of every head, for every relation of its stack, on both halves of the probe: even and odd sentences."""
    device = model.embedding.weight.device
    training = model.training
    model.eval()
    right: dict[tuple[str, int], Tensor] = {}  # relation, half: [layers, heads]
    asked: Counter[tuple[str, int]] = Counter()
    for start in range(0, len(probe), BATCH):
        examples = probe[start : start + BATCH]
        batch = collate([to_ids(vocabulary, example) for example in examples]).to(device)
        _, attentions = model(batch.source, batch.target, batch.lengths, return_weights=True)
        found = {stack: _most_attended(attentions, stack, examples) for stack in ("encoder", "cross")}
        for place, example in enumerate(examples):
            for relation, at, to in example.links:
                key = relation, (start + place) % 2
                hits = (found[STACK[relation]][place, ..., at] == to).double()
                right[key] = right[key] + hits if key in right else hits
                asked[key] += 1
    model.train(training)
    table: Accuracies = {}
    for relation in STACK:
        shares = [right[relation, half] / asked[relation, half] for half in HALVES]
        layers, heads = shares[0].shape
        table[relation] = {
            f"{layer}.{head}": (round(float(shares[0][layer, head]), 4), round(float(shares[1][layer, head]), 4))
            for layer in range(layers)
            for head in range(heads)
        }
    return table


def probe_results(table: Accuracies, probe: Sequence[Example]) -> list[ProbeResult]:
    """For each relation the best head, chosen on one half of the probe and scored on the other; the offset likewise."""
    offsets = {(relation, half): Counter() for relation in STACK for half in HALVES}
    for place, example in enumerate(probe):
        for relation, at, to in example.links:
            offsets[relation, place % 2][to - at] += 1
    found = []
    for relation, heads in table.items():
        best = max(heads, key=lambda head: heads[head][0])
        layer, head = map(int, best.split("."))
        first, second = (offsets[relation, half] for half in HALVES)
        offset, count = first.most_common(1)[0][0], second.total()
        accuracy = heads[best][1]
        low, high = wilson(round(accuracy * count), count)
        found.append(
            ProbeResult(
                relation, (STACK[relation], layer, head), accuracy, low, high, count, offset, second[offset] / count
            )
        )
    return found


def _most_attended(attentions: dict, stack: str, examples: Sequence[Example]) -> Tensor:
    """[batch, layers, heads, queries]: the source word each query attends to most, itself and the end apart."""
    weights = torch.stack([layer.dense() for layer in attentions[stack]], dim=1)
    for place, example in enumerate(examples):
        weights[place, ..., len(example.source) :] = -1.0
    if stack == "encoder":
        weights.diagonal(dim1=-2, dim2=-1).fill_(-1.0)
    return weights.argmax(dim=-1).cpu()
