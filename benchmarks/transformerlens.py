"""Comparison with TransformerLens on small random models: matrices of heads, circuits, direct logits, interventions.

TransformerLens has other requirements than clearhead, so it runs in the environment that `benchmarks/peers.py` creates:

    python benchmarks/peers.py --install-only
    PYTHONPATH=src ~/.cache/clearhead-peers/transformer-lens/bin/python benchmarks/transformerlens.py

`COMPARISONS` lists functions that take a `Pair` and yield rows.
"""

from __future__ import annotations

import copy
import importlib
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # models are built from configurations

import torch
from tokenizers import Tokenizer
from tokenizers.models import WordLevel
from torch import Tensor, nn
from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

import clearhead.huggingface  # noqa: F401, registers the adapter of transformers
from clearhead.watching import (
    ablate,
    composition,
    composition_scores,
    cut,
    direct_logits,
    heads,
    patch,
    watch,
)
from measuring import write

LAYER, HEAD = 1, 4  # of interventions
LAYERS, HEADS, WIDTH, VOCABULARY, LENGTH = 3, 6, 48, 97, 13
Row = dict[str, object]


@dataclass(frozen=True)
class Pair:
    """One model with clearhead and in TransformerLens, and its inputs.

    Attributes:
        name: name of the architecture.
        model: the transformers model, which clearhead reads.
        bridge: a TransformerBridge of a copy of it.
        ids: token ids of the two sequences: a clean and a corrupted one.
    """

    name: str
    model: PreTrainedModel
    bridge: Any
    ids: Tensor

    def row(self, quantity: str, got: Tensor, expected: Tensor) -> Row:
        """Return the largest difference of a quantity."""
        assert got.shape == expected.shape, f"{quantity}: {tuple(got.shape)}, expected {tuple(expected.shape)}"
        return {
            "quantity": quantity,
            "model": self.name,
            "largest difference": f"{float((got - expected).abs().max()):.1e}",
            "scale": f"{float(expected.abs().max()):.3g}",
        }


def stacked(pair: Pair, name: str) -> Tensor:
    """Return a property of all heads: `[layers, heads, ...]`."""
    found = heads(pair.model)
    return torch.stack([getattr(head, name) for head in found.values()]).unflatten(0, (LAYERS, HEADS))


def expanded(matrices: Tensor) -> Tensor:
    """Repeat TransformerLens' key heads for the query heads that share them."""
    return matrices.repeat_interleave(HEADS // matrices.shape[1], 1)


def compare_matrices(pair: Pair) -> Iterator[Row]:
    for name in ("W_Q", "W_K", "W_V", "W_O"):
        yield pair.row(name, stacked(pair, name), expanded(getattr(pair.bridge, name)))


def compare_circuits(pair: Pair) -> Iterator[Row]:
    circuits = {"OV": ("ov", pair.bridge.OV), "QK": ("qk", pair.bridge.QK)}
    for name, (attribute, theirs) in circuits.items():
        mine = [getattr(head, attribute) for head in heads(pair.model).values()]
        dense = torch.stack([matrix.dense() for matrix in mine]).unflatten(0, (LAYERS, HEADS))
        yield pair.row(f"{name} circuit", dense, theirs.AB)
        # the order of eigenvalues depends on roundings, so their absolute values are sorted
        eigenvalues = torch.stack([matrix.eigenvalues().abs().sort().values for matrix in mine])
        yield pair.row(f"eigenvalues of {name}", eigenvalues, theirs.eigenvalues.abs().flatten(0, 1).sort().values)
        values = torch.stack([matrix.singular_values() for matrix in mine]).unflatten(0, (LAYERS, HEADS))
        yield pair.row(f"singular values of {name}", values, theirs.S)
    ratios = pair.bridge.OV.eigenvalues.sum(-1).real / pair.bridge.OV.eigenvalues.abs().sum(-1)
    scores = torch.stack([head.copying_score() for head in heads(pair.model).values()]).unflatten(0, (LAYERS, HEADS))
    yield pair.row("copying score", scores, ratios)


def compare_composition(pair: Pair) -> Iterator[Row]:
    found = heads(pair.model)
    for through in ("Q", "K", "V"):
        theirs = pair.bridge.all_composition_scores(through).scores
        yield pair.row(f"{through}-composition, all pairs", composition_scores(found, through), theirs)
        one = composition(found[0, 1], found[2, 4], through)
        yield pair.row(f"{through}-composition, one pair", one, theirs[0, 1, 2, 4])


def compare_direct_logits(pair: Pair) -> Iterator[Row]:
    """Compare with `stack_head_results` and `apply_ln_to_stack`, followed by the unembedding."""
    first, second = 11, 23
    _, cache = pair.bridge.run_with_cache(pair.ids)
    results = cache.stack_head_results(layer=-1)  # [layers * heads, batch, positions, model_dim]
    normed = cache.apply_ln_to_stack(results, layer=-1)
    normed = normed * _unfolded_gain(pair)
    unembedding: Any = pair.model.get_output_embeddings()
    direction = unembedding.weight
    logits = (normed @ (direction[first] - direction[second])).unflatten(0, (LAYERS, HEADS))
    got = direct_logits(pair.model, pair.ids, (first, second))
    yield pair.row("direct logits", got, logits.permute(2, 0, 1, 3))


def _unfolded_gain(pair: Pair) -> Tensor:
    """Return the gain of the final norm, which `apply_ln_to_stack` expects to be folded into the unembedding."""
    norm: Any = pair.model.get_submodule("transformer.ln_f" if pair.name == "GPT-2" else "model.norm")
    return norm.weight


def logits_with(pair: Pair, change: Callable[[Tensor], Tensor], ids: Tensor, name: str = "attn.hook_z") -> Tensor:
    """Return TransformerLens' logits if a function changes an activation of the layer under test."""

    def changed(activation: Tensor, hook: Any) -> Tensor:
        return change(activation.clone())

    return pair.bridge.run_with_hooks(ids, fwd_hooks=[(f"blocks.{LAYER}.{name}", changed)])


def compare_ablation(pair: Pair) -> Iterator[Row]:
    def zeroed(z: Tensor) -> Tensor:
        z[:, :, HEAD] = 0.0
        return z

    def averaged(z: Tensor) -> Tensor:
        z[:, :, HEAD] = z[:, :, HEAD].mean(dim=(0, 1))
        return z

    with ablate(pair.model, [(LAYER, HEAD)]):
        yield pair.row("zero-ablation", pair.model(pair.ids).logits, logits_with(pair, zeroed, pair.ids))
    with ablate(pair.model, [(LAYER, HEAD)], "mean", batches=[pair.ids]):
        yield pair.row("mean-ablation", pair.model(pair.ids).logits, logits_with(pair, averaged, pair.ids))


def compare_patches(pair: Pair) -> Iterator[Row]:
    clean, corrupted = pair.ids[:1], pair.ids[1:]
    _, cache = pair.bridge.run_with_cache(clean)
    with watch(pair.model, values=True) as seen:
        pair.model(clean)

    def with_output(z: Tensor) -> Tensor:
        z[:, :, HEAD] = cache[f"blocks.{LAYER}.attn.hook_z"][:, :, HEAD]
        return z

    def with_pattern(pattern: Tensor) -> Tensor:
        pattern[:, HEAD] = cache[f"blocks.{LAYER}.attn.hook_pattern"][:, HEAD]
        return pattern

    with patch(pair.model, {(LAYER, HEAD): seen[LAYER].output}):
        yield pair.row("output patch", pair.model(corrupted).logits, logits_with(pair, with_output, corrupted))
    with patch(pair.model, {(LAYER, HEAD): seen[LAYER].weights}):
        expected = logits_with(pair, with_pattern, corrupted, "attn.hook_pattern")
        yield pair.row("pattern patch", pair.model(corrupted).logits, expected)


def compare_cuts(pair: Pair) -> Iterator[Row]:
    """Compare cuts without renormalization, for which TransformerLens sets weights to 0."""

    def without_edges(pattern: Tensor) -> Tensor:
        pattern[:, :, 5:, 2] = 0.0
        return pattern

    expected = logits_with(pair, without_edges, pair.ids, "attn.hook_pattern")
    with cut(pair.model, {LAYER: [(slice(5, None), 2)]}, renormalize=False):
        yield pair.row("cut, not renormalized", pair.model(pair.ids).logits, expected)


COMPARISONS: list[Callable[[Pair], Iterator[Row]]] = [
    compare_matrices,
    compare_circuits,
    compare_composition,
    compare_direct_logits,
    compare_ablation,
    compare_patches,
    compare_cuts,
]


def tokenizer() -> PreTrainedTokenizerFast:
    """Return a tokenizer of numbers, which TransformerLens requires."""
    words = Tokenizer(WordLevel({str(number): number for number in range(VOCABULARY)}, unk_token="0"))
    return PreTrainedTokenizerFast(tokenizer_object=words, eos_token="1", pad_token="2", unk_token="0")


def pairs() -> Iterator[Pair]:
    """Yield small random models with learned biases and gains."""
    bridges: Any = importlib.import_module("transformer_lens.model_bridge")  # not installed with clearhead
    grouped: dict[str, Any] = {"num_attention_heads": HEADS, "num_key_value_heads": 2, "num_hidden_layers": LAYERS}
    models = {
        "GPT-2": lambda: GPT2LMHeadModel(
            GPT2Config(vocab_size=VOCABULARY, n_embd=WIDTH, n_layer=LAYERS, n_head=HEADS, n_positions=64)
        ),
        "Llama, 2 key heads": lambda: LlamaForCausalLM(
            LlamaConfig(vocab_size=VOCABULARY, hidden_size=WIDTH, intermediate_size=96, **grouped)
        ),
    }
    for name, make in models.items():
        torch.manual_seed(0)
        model = make().eval()
        for parameter in model.parameters():
            nn.init.normal_(parameter, mean=1.0 if parameter.ndim == 1 else 0.0, std=0.2)
        bridge = bridges.TransformerBridge.boot_transformers(
            name, hf_model=copy.deepcopy(model), tokenizer=tokenizer(), device="cpu"
        )
        yield Pair(name, model, bridge, torch.randint(VOCABULARY, (2, LENGTH)))


@torch.no_grad()
def main() -> None:
    rows = [row for pair in pairs() for compare in COMPARISONS for row in compare(pair)]
    write("transformer-lens", f"clearhead and TransformerLens {version('transformer-lens')}", rows)


if __name__ == "__main__":
    main()
