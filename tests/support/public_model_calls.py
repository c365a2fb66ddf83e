"""Valid calls of the public functions that take a model, for `public_calls.py`."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import Tensor, nn

from clearhead import Causal, MultiHeadAttention, record
from clearhead.explain import trace_head
from clearhead.explain.render import cell_arithmetic
from clearhead.models import head_roles, load
from clearhead.watching import (
    LowRank,
    ablate,
    composition,
    composition_scores,
    cut,
    direct_logits,
    heads,
    patch,
    patching,
)
from support.recordings import decoder
from support.tiny_models import make
from support.tiny_tokenizer import tokenizer
from support.wrong_calls import Call


def small() -> MultiHeadAttention:
    return MultiHeadAttention(12, 4, kv_heads=2)


def model_calls() -> list[Call]:
    llama, bart = make("llama"), make("bart")
    given = {"text": None, "tokenizer": None, "target": None, "values": False}
    roles = {"texts": "the dogs run . the dog", "sentences": (), "layers": [1], "effects": False, "progress": None}
    return [
        Call(
            "record",
            record,
            lambda: {"model": llama, "input_ids": torch.tensor([4, 5, 6]), **given},
            skipped=("tokenizer",),
        ),
        Call(
            "record of a pair",
            record,
            lambda: {"model": bart, "input_ids": [4, 5], "decoder_input_ids": torch.tensor([[2, 7]]), **given},
            skipped=("model", "tokenizer", "input_ids", "text", "values"),
        ),
        Call(
            "head_roles",
            head_roles,
            lambda: {"model": llama, "tokenizer": tokenizer(), **roles},
            skipped=("tokenizer", "progress"),
        ),
        Call(
            "trace_head",
            trace_head,
            lambda: {"recording": decoder(["a", "b", "c"]), "head": "decoder.1.3", "query": 1},
        ),
        Call(
            "cell_arithmetic",
            cell_arithmetic,
            lambda: {
                "step": trace_head(decoder(["a", "b", "c"]), "decoder.1.3").step("weights"),
                "row": 2,
                "column": 1,
                "digits": 3,
                "latex": False,
                "max_terms": None,
            },
        ),
        Call("NextTokens.at", record("en-ja", "A dog.").next_tokens.at, lambda: {"position": 1}),
        Call(
            "load",
            load,
            lambda: {"name": "en-ja", "dtype": None, "download": False, "head": False, "progress": None},
            {"name": ("there is no such folder",)},
        ),
    ]


class Block(nn.Module):
    """Attention with a residual connection."""

    def __init__(self) -> None:
        super().__init__()
        self.attn = small()

    def forward(self, x: Tensor) -> Tensor:
        return x + self.attn(x, mask=Causal())


class LanguageModel(nn.Module):
    """Language model of two layers of attention."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.blocks = nn.Embedding(11, 12), nn.ModuleList([Block(), Block()])
        self.norm, self.unembedding = nn.LayerNorm(12), nn.Linear(12, 11)

    def get_output_embeddings(self) -> nn.Linear:
        return self.unembedding

    def forward(self, input_ids: Tensor) -> Tensor:
        x = self.embedding(input_ids)
        for block in self.blocks:
            x = block(x)
        return self.unembedding(self.norm(x))


def heads_calls() -> list[Call]:
    layers = nn.Sequential(small(), small())
    first, second = heads(layers)[0, 1], heads(layers)[1, 2]
    tables = {"embedding": torch.randn(7, 12), "unembedding": torch.randn(7, 12)}
    model = {"model": ("has no attention", "has no unembedding")}
    return [
        Call("heads", heads, lambda: {"model": small()}, model),
        Call("head.copying_score", first.copying_score, lambda: dict(tables), dict.fromkeys(tables, ("not finite",))),
        Call("LowRank", LowRank, lambda: {"left": torch.randn(5, 2), "right": torch.randn(2, 5)}),
        Call("composition", composition, lambda: {"earlier": first, "later": second, "through": "K"}),
        Call("composition_scores", composition_scores, lambda: {"model": layers, "through": "K", "stack": None}, model),
        Call(
            "direct_logits",
            direct_logits,
            lambda: {"model": LanguageModel(), "inputs": torch.arange(10).view(2, 5), "towards": 5, "layers": [1]},
            model,
            ("inputs",),  # the model checks token ids and arguments itself
        ),
    ]


def entered(intervene: Callable[..., AbstractContextManager[None]]) -> Callable[..., None]:
    """Return a function that runs a layer within an intervention."""

    def run(model: Any, **arguments: Any) -> None:
        with intervene(model, **arguments):
            model(torch.randn(2, 5, 12))

    return run


def intervention_calls() -> list[Call]:
    x = torch.randn(2, 5, 12)
    return [
        Call(
            "ablate",
            entered(ablate),
            lambda: {"model": small(), "heads": [(0, 1)], "value": torch.randn(3), "batches": None},
            skipped=("model",),  # another module takes other inputs
        ),
        Call(
            "patch",
            entered(patch),
            lambda: {"model": small(), "patches": {(0, 1): torch.randn(3)}, "positions": [1, 2], "what": "output"},
            skipped=("model",),
        ),
        Call(
            "cut",
            entered(cut),
            lambda: {"model": small(), "edges": [(1, [0, 1])], "renormalize": True},
            skipped=("model",),
        ),
        Call(
            "patching",
            patching,
            lambda: {
                "model": small(),
                "clean": x,
                "corrupted": -x,
                "metric": lambda output: output.sum(),
                "what": "output",
                "positions": [1],
                "where": None,
                "estimate": False,
                "progress": False,
            },
            skipped=("model", "clean", "corrupted", "metric", "where"),  # functions of the user raise their errors
        ),
    ]
