"""`LossWithoutHeads`: the loss of a language model without each of some heads, on texts and on repeated tokens."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Bool, Int
from torch import Tensor

from clearhead._utils.evaluating import evaluating
from clearhead.analysis.corpus import REPEATED_TOKENS
from clearhead.analysis.roles import Loss
from clearhead.huggingface._language_heads import task_of
from clearhead.huggingface._model_inputs import ModelInputs, prepare_inputs, prepare_repeated_inputs
from clearhead.huggingface.ablation import head_importance
from clearhead.huggingface.model import HuggingFaceModel
from clearhead.recording.recording import Address, Tokens

IGNORED = -100  # label of tokens that transformers leaves out of the loss
REPEATED_SEQUENCES = 2  # the first of the 4 repeated random sequences of `corpus_roles`; each costs time per head
MASKED_SHARE = 0.15  # of the tokens that a masked language model predicts, as in BERT's training

Batch = dict[str, Tensor]


@dataclass(frozen=True, eq=False)
class LossWithoutHeads:
    """Measures the loss of a language model on fixed inputs, with all heads and without one of them.

    A causal model predicts every token of a text. In repeated random tokens it predicts the second copy without its
    first token, which no head can predict. A masked model predicts a random 15 % of these tokens.
    """

    model: Any
    text_batches: list[Batch]
    repeated_batches: list[Batch]

    @classmethod
    def of(cls, owner: HuggingFaceModel, texts: Sequence[str]) -> LossWithoutHeads:
        """Tokenize the texts, and draw repeated random tokens.

        Raises:
            ValueError: if the model has no causal or masked language-model head, or a text has too few tokens.
        """
        masked = _is_masked(owner)
        generator = torch.Generator().manual_seed(0)
        batches = []
        for index, text in enumerate(texts):
            inputs = prepare_inputs(owner, text)
            predicted = _ordinary(inputs) if masked else _after_first(inputs)
            if not predicted.any():
                raise ValueError(f"texts[{index}] is {text!r}, which has no token to predict; expected a longer text")
            batches.append(_batch(owner, inputs, predicted, generator if masked else None))
        repeated = []
        for seed in range(REPEATED_SEQUENCES):
            inputs = prepare_repeated_inputs(owner, REPEATED_TOKENS, seed)
            repeated.append(_batch(owner, inputs, _second_copy(inputs), generator if masked else None))
        joined = {name: torch.cat([batch[name] for batch in repeated]) for name in repeated[0]}
        return cls(owner.model, batches, [joined])

    @torch.no_grad()
    def whole(self) -> Loss:
        """Return the loss of the whole model."""
        with evaluating(self.model):
            text, repeated = (
                sum(float(self.model(**batch).loss) for batch in batches) / len(batches)
                for batches in (self.text_batches, self.repeated_batches)
            )
        return Loss(text, repeated)

    def changes(self, heads: Iterable[Address], *, progress: bool = False) -> dict[Address, Loss]:
        """Return the increase of the loss without each head, by `head_importance`.

        Args:
            heads: heads to remove, one at a time.
            progress: show progress bars on stderr.
        """
        heads = list(heads)
        text, repeated = (
            {
                (change.stack, change.layer, change.head): change.change
                for change in head_importance(self.model, batches, heads=heads, progress=progress)
            }
            for batches in (self.text_batches, self.repeated_batches)
        )
        return {head: Loss(text[head], repeated[head]) for head in heads}


def _is_masked(owner: HuggingFaceModel) -> bool:
    task = task_of(owner.model)
    if task not in ("causal", "masked"):
        kind = "an encoder–decoder" if task == "seq2seq" else f"a {type(owner.model).__name__}"
        raise ValueError(f"{owner.name} is {kind}; expected a causal or masked language model with its head")
    if task == "masked" and owner.tokenizer.mask_token_id is None:
        raise ValueError(f"the tokenizer of {owner.name} has no mask token; expected that of a masked language model")
    return task == "masked"


def _batch(
    owner: HuggingFaceModel, inputs: ModelInputs, predicted: Bool[Tensor, " tokens"], generator: torch.Generator | None
) -> Batch:
    """Return the arguments of a call with labels. With a generator, mask a random 15 % of the predicted tokens."""
    ids = inputs.arguments["input_ids"]
    given = ids
    if generator is not None:
        predicted = _sample(predicted, generator)
        given = ids.masked_fill(predicted.to(ids.device), owner.tokenizer.mask_token_id)
    labels = ids.masked_fill(~predicted.to(ids.device), IGNORED)
    return {**inputs.arguments, "input_ids": given, "labels": labels}


def _sample(mask: Bool[Tensor, " tokens"], generator: torch.Generator) -> Bool[Tensor, " tokens"]:
    """Return a random 15 % of the true positions, and at least one."""
    positions = mask.nonzero().flatten()
    count = max(1, round(MASKED_SHARE * len(positions)))
    chosen = positions[torch.randperm(len(positions), generator=generator)[:count]]
    return torch.zeros_like(mask).index_fill(0, chosen, True)


def _source(inputs: ModelInputs) -> Tokens:
    return inputs.axes["decoder"][0]  # the same tokens for all stacks, except in an encoder–decoder


def _ordinary(inputs: ModelInputs) -> Bool[Tensor, " tokens"]:
    return ~torch.tensor(_source(inputs).special)


def _after_first(inputs: ModelInputs) -> Bool[Tensor, " tokens"]:
    return torch.arange(len(_source(inputs))) > 0


def _second_copy(inputs: ModelInputs) -> Bool[Tensor, " tokens"]:
    """Return the positions of the second copy without its first token, which the first copy does not determine."""
    positions: Int[Tensor, " tokens"] = _ordinary(inputs).nonzero().flatten()
    second = positions[len(positions) // 2 + 1 :]
    return torch.zeros(len(_source(inputs)), dtype=torch.bool).index_fill(0, second, True)
