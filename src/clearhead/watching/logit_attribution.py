"""`direct_logits`: the direct contribution of every head to a logit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from clearhead._utils.checks import check_int, describe, list_items
from clearhead._utils.evaluating import evaluating
from clearhead._utils.tensor_checks import check_dense_tensor, check_int_tensor
from clearhead.watching._projections import find_names, projections_of
from clearhead.watching._residual_stream import ResidualStream
from clearhead.watching._unwrap import unwrap
from clearhead.watching.head_matrices import Heads, heads

TOLERANCE = 1e-4  # of the norm and of the factor of the logits, relative; more for dtypes of less precision
Towards = int | tuple[int, int] | Tensor


class FrozenNorm(NamedTuple):
    """Norm as a linear map of each position: `scale * gain * (x - mean(x) if centered else x)`, without its bias."""

    scale: Float[Tensor, "batch positions"]
    gain: Float[Tensor, " model_dim"]
    centered: bool

    def transposed(self, direction: Float[Tensor, " model_dim"]) -> Float[Tensor, " model_dim"]:
        """Return the vector whose product with x is that of the direction with the norm of x, up to `scale`."""
        scaled = self.gain * direction
        return scaled - scaled.mean() if self.centered else scaled


@torch.no_grad()
def direct_logits(
    model: Any,
    inputs: Tensor | Mapping[str, Any],
    towards: Towards,
    *,
    layers: int | slice | Sequence[int] | None = None,
) -> Float[Tensor, "*batch layers heads positions"]:
    """Return how much the output of each head adds directly to a logit, at every position.

        ids = tokenizer("When Mary and John went to the store, John gave a drink to", return_tensors="pt")
        mary, john = (tokenizer(name, add_special_tokens=False).input_ids[0] for name in (" Mary", " John"))
        direct_logits(model, ids, towards=(mary, john))[:, :, -1]      # [layers, heads], at the last position

    The output of a head is its part of the output projection, without the bias. It goes through the final norm with the
    mean and the scale that the norm has at that position, and then to the unembedding. The contributions of all heads,
    of the embeddings, the MLPs and the biases add up to the logit. Paths through later layers are not included.

    The forward pass runs in evaluation mode without gradients. It keeps the outputs of the heads of all chosen layers,
    as much memory as their hidden states.

    Args:
        model: a causal language model of transformers, or a wrapper of one.
        inputs: token ids `[positions]` or `[batch, positions]`, or keyword arguments of the model.
        towards: a token id; a pair (a, b) for the logit of a minus that of b; a vector `[vocabulary]` of factors of all
            logits; or a direction `[model_dim]` after the final norm.
        layers: which layers: an index, a slice or a list. Default: all.

    Returns:
        One sequence gives `[layers, heads, positions]`. A batch of several has a leading axis. Positions of padding
        have values too, which have no meaning.

    Raises:
        ValueError: if the model has no unembedding, is an encoder–decoder, does not add the output of attention to its
            residual stream unchanged, or computes logits that are not a multiple of the unembedding's output.
    """
    root = unwrap(model)
    unembedding = _unembedding(root)
    names = _names(heads(root), root)
    chosen = _chosen(names, layers)
    direction, is_logit = _direction(towards, unembedding)
    stream = _stream(root, names, chosen, unembedding)
    with evaluating(root), stream.recorded():
        outputs = root(**inputs) if isinstance(inputs, Mapping) else root(_ids(inputs))
    stream.check()
    norm = _frozen(stream)
    factor = _logit_factor(outputs, stream) if is_logit else 1.0
    vector = norm.transposed(direction)
    parts = []
    for name in chosen:
        if _output(root, name) not in stream.heads:
            raise ValueError(f"{name} did not run on these inputs; choose other layers by layers=")
        projections = projections_of(root, name)
        columns = projections.output.weight.float() @ vector  # [heads * value_dim]
        products = stream.heads[_output(root, name)].float() * columns
        parts.append(products.unflatten(-1, (projections.heads, -1)).sum(-1))  # [batch, positions, heads]
    if len({part.shape[-1] for part in parts}) > 1:
        raise ValueError("the layers have different numbers of heads; choose layers with the same number by layers=")
    logits = factor * torch.stack(parts, 1).permute(0, 1, 3, 2) * norm.scale[:, None, None]
    return logits[0] if logits.shape[0] == 1 else logits


def _unembedding(model: nn.Module) -> nn.Module:
    kind = type(model).__name__
    getter = getattr(model, "get_output_embeddings", None)
    unembedding = getter() if callable(getter) else None
    weight = getattr(unembedding, "weight", None)
    if not isinstance(unembedding, nn.Module) or not isinstance(weight, Tensor) or weight.ndim != 2:
        raise ValueError(f"{kind} has no unembedding; expected a causal language model, with get_output_embeddings()")
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        raise ValueError(f"{kind} is an encoder–decoder; expected a causal language model")
    return unembedding


def _names(by_layer: Heads, model: nn.Module) -> list[str]:
    """Return the names of the attention modules of the stack that computes the logits."""
    stacks = (
        [stack for stack in by_layer.stacks if stack.endswith("decoder")]
        if len(by_layer.stacks) > 1
        else by_layer.stacks
    )
    if len(stacks) != 1 or any(stack.endswith("cross") for stack in by_layer.stacks):
        kind, shown = type(model).__name__, ", ".join(by_layer.stacks)
        raise ValueError(f"{kind} has the stacks {shown}; expected a causal language model with one decoder")
    return by_layer.modules(stacks[0])


def _chosen(names: list[str], layers: int | slice | Sequence[int] | None) -> list[str]:
    if layers is None:
        return names
    if isinstance(layers, slice):
        chosen = names[layers]
    else:
        indices = list_items("layers", layers)
        chosen = [names[check_int("layers", index, least=0, most=len(names) - 1)] for index in indices]
    if not chosen:
        raise ValueError(f"layers is {layers}, which is none of {len(names)} layers")
    return chosen


def _stream(model: nn.Module, names: list[str], chosen: list[str], unembedding: nn.Module) -> ResidualStream:
    """Return the hooks for the list of blocks that contain the attention modules."""
    outputs = {_block(model, name): _output(model, name) for name in names}
    lists = {name.rpartition(".")[0] for name in outputs}
    if len(lists) != 1 or len(outputs) != len(names):
        raise ValueError(
            f"{type(model).__name__} has layers in {', '.join(sorted(lists))}; expected one list of layers"
        )
    [parent] = lists
    blocks = [f"{parent}.{index}" for index, _ in model.get_submodule(parent).named_children()]
    return ResidualStream(model, blocks, outputs, {_output(model, name) for name in chosen}, unembedding)


def _block(model: nn.Module, name: str) -> str:
    """Return the innermost element of a list of modules that contains an attention module."""
    parts = name.split(".")
    for depth in range(len(parts), 0, -1):
        if isinstance(model.get_submodule(".".join(parts[: depth - 1])), nn.ModuleList | nn.Sequential):
            return ".".join(parts[:depth])
    raise ValueError(f"{name} is not part of a list of layers; expected an nn.ModuleList")


def _output(model: nn.Module, name: str) -> str:
    names = find_names(model, name)
    if names is None:
        projections_of(model, name)  # raises
    assert names is not None
    return names.output


def _direction(towards: Any, unembedding: nn.Module) -> tuple[Float[Tensor, " model_dim"], bool]:
    """Return a direction after the final norm, and whether it is that of logits."""
    weight: Any = unembedding.weight
    vocabulary, width = weight.shape
    if isinstance(towards, tuple) and len(towards) == 2:
        first, second = (check_int("towards", token, least=0, most=vocabulary - 1) for token in towards)
        return weight[first].float() - weight[second].float(), True
    if isinstance(towards, Tensor) and not towards.is_meta and towards.ndim == 1 and towards.is_floating_point():
        vector = check_dense_tensor("towards", towards, "a vector").to(weight.device).float()
        if vector.shape == (width,):
            return vector, False
        if vector.shape == (vocabulary,):
            return vector @ weight.float(), True
    if isinstance(towards, Tensor) and towards.ndim:
        raise ValueError(
            f"towards is a {towards.dtype} tensor of shape {list(towards.shape)}; expected a floating-point vector of"
            f" {width} (model_dim) or {vocabulary} (vocabulary) numbers"
        )
    if isinstance(towards, str):
        raise TypeError(
            f"towards is {describe(towards)}; expected a token id, such as"
            " tokenizer(…, add_special_tokens=False).input_ids[0]"
        )
    return weight[check_int("towards", towards, least=0, most=vocabulary - 1)].float(), True


def _ids(inputs: Any) -> Int[Tensor, "batch positions"]:
    expected = "token ids [batch, positions], or a dict of arguments"
    ids = check_int_tensor("inputs", check_dense_tensor("inputs", inputs, expected))
    if ids.ndim not in (1, 2) or not ids.numel():
        raise ValueError(f"inputs has shape {list(ids.shape)}; expected {expected}")
    return ids[None] if ids.ndim == 1 else ids


def _frozen(stream: ResidualStream) -> FrozenNorm:
    """Return the final norm as a linear map, from its input and output.

    The candidates are LayerNorm and RMSNorm with the gains `weight`, `1 + weight` and 1. The scale of each position is
    that with the smallest error, so the epsilon of the norm is part of it.
    """
    final, normed, norm = stream.final, stream.unembedded, stream.norm
    assert final is not None
    assert normed is not None
    x, y = final.double(), normed.double()
    if norm is None:
        return FrozenNorm(x.new_ones(x.shape[:2]).float(), x.new_ones(x.shape[2]).float(), False)
    if isinstance(bias := getattr(norm, "bias", None), Tensor):
        y = y - bias.double()
    gains = [x.new_ones(x.shape[2])]
    if isinstance(weight := getattr(norm, "weight", None), Tensor) and weight.shape == gains[0].shape:
        gains += [weight.double(), 1 + weight.double()]
    candidates = []
    for centered in (False, True):
        for gain in gains:
            mapped = gain * (x - x.mean(-1, keepdim=True) if centered else x)
            scale = (mapped * y).sum(-1) / mapped.square().sum(-1).clamp(min=1e-300)
            errors = (y - scale[..., None] * mapped).norm(dim=-1) / y.norm(dim=-1).clamp(min=1e-300)
            candidates.append((float(errors.max()), FrozenNorm(scale.float(), gain.float(), centered)))
    error, best = min(candidates, key=lambda candidate: candidate[0])
    if not error <= _tolerance(normed):
        raise ValueError(
            f"the final norm {type(norm).__name__} is neither a LayerNorm nor an RMSNorm: its output differs by"
            f" {error:.1e} of its length"
        )
    return best


def _logit_factor(outputs: Any, stream: ResidualStream) -> float:
    """Return the factor between the unembedding's output and the logits, such as Granite's scaling; 1 for most."""
    logits = outputs if isinstance(outputs, Tensor) else getattr(outputs, "logits", None)
    if not isinstance(logits, Tensor) or stream.logits is None or logits.shape[-1] != stream.logits.shape[-1]:
        raise ValueError(f"{type(stream.model).__name__} returned no logits of its unembedding")
    got, expected = logits[:, -1].double(), stream.logits.double()
    factor = (got * expected).sum() / expected.square().sum()
    error = (got - factor * expected).norm() / got.norm()
    if not float(error) <= _tolerance(stream.logits):
        raise ValueError(
            f"the logits of {type(stream.model).__name__} are not a multiple of its unembedding's output, as with a"
            " softcap; pass a direction [model_dim] as towards"
        )
    return float(factor)


def _tolerance(tensor: Tensor) -> float:
    return max(TOLERANCE, 4 * torch.finfo(tensor.dtype).eps)
