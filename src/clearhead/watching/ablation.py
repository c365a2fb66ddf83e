"""`ablate`: heads whose outputs are replaced by zeros, by their means, or by a given tensor."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from clearhead._utils.checks import describe, list_items
from clearhead._utils.evaluating import evaluating
from clearhead.watching import running
from clearhead.watching._model_calls import Inputs, call_model, check_inputs
from clearhead.watching.editing import ALL_ROWS, Edit, EditedCall, Stage
from clearhead.watching.intervention import HeadIntervention, check_replacement
from clearhead.watching.selectors import Chosen, HeadSelector

Value = Literal["zero", "mean"] | Tensor


@contextmanager
def ablate(
    model: Any, heads: Iterable[HeadSelector], value: Value = "zero", *, batches: Sequence[Inputs] | None = None
) -> Iterator[None]:
    """Replace the outputs of heads within a `with` block, before the output projection.

        with ablate(model, {(4, 7), (2, 0)}):                        # (layer, head)
            model(**inputs)
        with ablate(model, {(4, 7)}, "mean", batches=batches):       # by its mean over the tokens of some batches
            model(**inputs)

    The rest of the model is unchanged, including gradients. `ablate`, `patch`, `cut` and `watch` can be nested in any
    order. The block also affects other threads that run the model, except threads that have entered another block.

    Args:
        model: any model that `watch` observes.
        heads: heads to ablate: `(layer, head)` or `(name of the module, head)`, or `(stack, layer, head)` for
            transformers models with several stacks. Layers count as in `seen[layer]` of `watch`.
        value: "zero", "mean", or a tensor that broadcasts to `[batch, q_len, head_dim]`.
        batches: inputs from which the means are computed, with the model outside of other blocks. Each is a tensor, a
            tuple of arguments or a dict of keyword arguments. Padding is excluded in models of transformers.

    Raises:
        ValueError: if the model has no such head.
    """
    ablation = _Ablation(model, heads, value)
    if isinstance(value, str) and value == "mean":
        ablation.chosen = _means(model, ablation, _checked_batches(batches))
    elif batches is not None:
        raise ValueError("batches is given, but value is not 'mean'; expected batches only for means")
    with ablation.active():
        yield


class _Ablation(HeadIntervention[Tensor | None]):
    """Outputs of heads replaced by a tensor; by 0, if it is None."""

    verb = "ablate"

    def __init__(self, model: Any, heads: Iterable[HeadSelector], value: Value) -> None:
        super().__init__(model)
        if isinstance(value, Tensor):
            check_replacement("value", value, "[..., head_dim]")
        elif not isinstance(value, str) or value not in ("zero", "mean"):
            raise ValueError(f"value is {describe(value)}; expected 'zero', 'mean' or a tensor")
        selectors = self.selectors("heads")
        replacement = value if isinstance(value, Tensor) else None
        self.chosen = [(selectors.head(head), replacement) for head in list_items("heads", heads)]

    def edits_of(self, chosen: Chosen, given: Tensor | None, module: nn.Module, edited: EditedCall) -> Iterable[Edit]:
        head = chosen.head
        assert head is not None
        batch, _, q_len, width = edited.output.shape
        if given is None:
            given = edited.output.new_zeros(1, 1, width)
        elif not _broadcasts(given, (batch, q_len, width)):
            raise ValueError(
                f"value has shape {tuple(given.shape)}; expected one that broadcasts to [batch = {batch}, q_len ="
                f" {q_len}, head_dim = {width}]"
            )
        return [Edit(Stage.OUTPUT, lambda call: call.write(head, ALL_ROWS, given.to(call.output.device)))]


class _Means(HeadIntervention[None]):
    """Means of the outputs of heads over all valid queries. Changes nothing."""

    verb = "ablate"

    def __init__(self, model: Any, chosen: list[Chosen]) -> None:
        super().__init__(model)
        self.chosen = [(each, None) for each in chosen]
        self.sums: dict[Chosen, Tensor] = {}
        self.counts: dict[Chosen, int] = {}

    def edits_of(self, chosen: Chosen, given: None, module: nn.Module, edited: EditedCall) -> Iterable[Edit]:
        return [Edit(Stage.READ, lambda call: self._add(chosen, module, call))]

    def _add(self, chosen: Chosen, module: nn.Module, edited: EditedCall) -> None:
        outputs: Float[Tensor, "batch q_len head_dim"] = edited.output[:, chosen.head].double()
        valid = self.valid_queries(module, edited.observed())[1]
        if valid is not None:
            outputs = outputs.masked_fill(~valid[..., None], 0.0)  # outputs of padding may be nan
        self.sums[chosen] = self.sums.get(chosen, 0.0) + outputs.sum(dim=(0, 1))
        count = outputs[..., 0].numel() if valid is None else int(valid.sum())
        self.counts[chosen] = self.counts.get(chosen, 0) + count


def _means(model: Any, ablation: _Ablation, batches: Sequence[Inputs]) -> list[tuple[Chosen, Tensor | None]]:
    """Return the mean output of each chosen head."""
    means = _Means(model, [chosen for chosen, _ in ablation.chosen])
    with evaluating(means.model), torch.no_grad(), means.active(), running.only(means):
        for batch in batches:
            call_model(model, batch)
    return [(chosen, means.sums[chosen] / max(1, means.counts[chosen])) for chosen, _ in ablation.chosen]


def _checked_batches(batches: Any) -> Sequence[Inputs]:
    if not isinstance(batches, Sequence) or not batches:
        raise ValueError(f"batches is {describe(batches)}; expected a list of at least one batch, for the means")
    return [check_inputs(f"batches[{index}]", batch) for index, batch in enumerate(batches)]


def _broadcasts(tensor: Tensor, shape: tuple[int, ...]) -> bool:
    sizes = zip(reversed(tensor.shape), reversed(shape), strict=False)
    return tensor.ndim <= len(shape) and all(size in (1, whole) for size, whole in sizes)
