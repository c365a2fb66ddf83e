"""Tests of `watch` and interventions on a GPU: the kernels that torch chooses, fast paths, and dropout."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from clearhead import watch
from clearhead.watching import ablate, cut, patch
from support.numerics import assert_matches
from support.watched_models import direct_weights

pytestmark = pytest.mark.gpu
HALF_KERNELS = ("FLASH_ATTENTION", "CUDNN_ATTENTION")  # for half precision only
OTHER_KERNELS = ("chosen", "EFFICIENT_ATTENTION", "MATH")


class Sdpa(nn.Module):
    def forward(self, *args, **options):
        return functional.scaled_dot_product_attention(*args, **options)


@pytest.mark.parametrize("options", [{}, {"is_causal": True}, {"scale": 0.2, "is_causal": True}], ids=str)
@pytest.mark.parametrize(
    ("kernel", "dtype"),
    [
        *((kernel, dtype) for kernel in HALF_KERNELS for dtype in (torch.bfloat16, torch.float16)),
        *((kernel, dtype) for kernel in OTHER_KERNELS for dtype in (torch.bfloat16, torch.float16, torch.float32)),
    ],
)
def test_outputs_are_equal_and_weights_exact_with_every_kernel(kernel, dtype, options):
    kernels = list(SDPBackend.__members__.values()) if kernel == "chosen" else [getattr(SDPBackend, kernel)]
    kernels = [each for each in kernels if each.value >= 0]
    query, key, value = (torch.randn(2, 4, 160, 64, device="cuda", dtype=dtype) for _ in range(3))
    module = Sdpa()
    with sdpa_kernel(kernels):
        plain = module(query, key, value, **options)
        with watch(module) as seen:
            output = module(query, key, value, **options)
        with watch(module, entropy=True) as reduced:
            assert torch.equal(module(query, key, value, **options), plain)
    assert torch.equal(output, plain)
    expected = direct_weights(query.cpu(), key.cpu(), **options)
    torch.testing.assert_close(seen[""].weights.dense().cpu().double(), expected, rtol=2e-5, atol=1e-6)
    entropy = torch.special.entr(expected).sum(dim=-1)
    torch.testing.assert_close(reduced[""].calls[0].entropy.cpu().double(), entropy, rtol=2e-5, atol=2e-5)


@pytest.mark.parametrize("width", [64, 80, 128, 20])
@pytest.mark.parametrize("mask", [None, "bool", "float"])
def test_grouped_heads_widths_and_masks(width, mask):
    query = torch.randn(1, 8, 96, width, device="cuda", dtype=torch.bfloat16)
    key = torch.randn(1, 2, 96, width, device="cuda", dtype=torch.bfloat16)
    given = {None: None, "bool": torch.rand(1, 1, 96, 96, device="cuda") > 0.3}.get(
        mask, torch.randn(1, 8, 96, 96, device="cuda", dtype=torch.bfloat16)
    )
    module = Sdpa()
    plain = module(query, key, key, given, enable_gqa=True)
    with watch(module) as seen:
        output = module(query, key, key, given, enable_gqa=True)
    assert torch.equal(output, plain)
    expected = direct_weights(query.cpu(), key.cpu(), None if given is None else given.cpu())
    torch.testing.assert_close(seen[""].weights.dense().cpu().double(), expected, rtol=2e-5, atol=1e-6)


def test_dropout_takes_the_same_random_numbers():
    query = torch.randn(2, 4, 128, 64, device="cuda", dtype=torch.bfloat16)
    module = Sdpa()
    torch.manual_seed(3)
    plain, state = module(query, query, query, dropout_p=0.5), torch.cuda.get_rng_state()
    torch.manual_seed(3)
    with watch(module, entropy=True):
        output = module(query, query, query, dropout_p=0.5)
    assert torch.equal(output, plain)
    assert torch.equal(torch.cuda.get_rng_state(), state)


def test_fast_path_of_an_encoder():
    layer = nn.TransformerEncoderLayer(64, 4, 128, batch_first=True, device="cuda")
    model = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False).eval()
    x = torch.randn(2, 50, 64, device="cuda")
    with torch.no_grad():
        plain = model(x)
        with watch(model) as seen:
            output = model(x)
    assert torch.equal(output, plain)
    with torch.no_grad():
        _, weights = model.layers[0].self_attn(x, x, x, average_attn_weights=False)
    torch.testing.assert_close(seen[0].weights.dense(), weights, rtol=1e-3, atol=1e-4)


def edit_weights(kind, weights, given):
    """Return the weights that a model has within an intervention."""
    weights = weights.clone()
    if kind == "pattern":
        weights[:, 2] = given
    elif kind.startswith("cut"):
        heads = slice(None) if kind == "cut" else 2
        weights[:, heads, 5:, :3] = 0
        if kind != "cut without renormalizing":
            weights /= weights.sum(dim=-1, keepdim=True)
    return weights


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32], ids=str)
@pytest.mark.parametrize("kind", ["ablate", "patch", "pattern", "cut", "cut of a head", "cut without renormalizing"])
def test_outputs_and_gradients_of_interventions(kind, dtype, causal):
    """Compared with the equation in float64; other heads than those that are changed keep their bits."""
    tensors = [torch.randn(2, heads, 160, 64, device="cuda", dtype=dtype) for heads in (4, 2, 2)]
    given = torch.rand(160, 160, device="cuda").softmax(dim=-1)
    replacement = torch.randn(160, 64, device="cuda", dtype=dtype)
    cotangent = torch.randn(2, 4, 160, 64, device="cuda", dtype=dtype)
    pairs, module = [(slice(5, None), [0, 1, 2])], Sdpa()
    block = {
        "ablate": lambda: ablate(module, [("", 2)]),
        "patch": lambda: patch(module, {("", 2): replacement}),
        "pattern": lambda: patch(module, {("", 2): given}),
        "cut": lambda: cut(module, pairs),
        "cut of a head": lambda: cut(module, {("", 2): pairs}),
        "cut without renormalizing": lambda: cut(module, {("", 2): pairs}, renormalize=False),
    }[kind]

    def written_out(query, key, value):
        key, value = (tensor.repeat_interleave(2, dim=1) for tensor in (key, value))
        scores = query @ key.mT / 8
        if causal:
            scores = scores.masked_fill(~torch.ones(160, 160, dtype=torch.bool, device="cuda").tril(), -torch.inf)
        weights = edit_weights(kind, scores.softmax(dim=-1), given.to(scores.dtype))
        output = weights @ value
        if kind in ("ablate", "patch"):
            output[:, 2] = 0 if kind == "ablate" else replacement.to(output.dtype)
        return output, weights

    def run(call, cast):
        leaves = [tensor.to(cast).requires_grad_() for tensor in tensors]
        output, weights = call(*leaves)
        gradients = torch.autograd.grad(output, leaves, cotangent.to(cast))
        return [tensor.detach().cpu() for tensor in (output, *gradients)], weights.detach()

    def with_intervention(*leaves):
        with watch(module) as seen, block():
            output = module(*leaves, is_causal=causal, enable_gqa=True)
        return output, seen[""].weights.dense()

    (got, weights), (exact, expected), (naive, _) = (
        run(call, cast)
        for call, cast in ((with_intervention, dtype), (written_out, torch.float64), (written_out, dtype))
    )
    for tensor, truth, baseline in zip(got, exact, naive, strict=True):
        assert_matches(tensor, truth, baseline, scale=4 * float(truth.abs().max()))
    torch.testing.assert_close(weights.double(), expected, rtol=2e-5, atol=2e-6)
    # torch may choose another kernel without gradients
    plain = module(*(tensor.requires_grad_() for tensor in tensors), is_causal=causal, enable_gqa=True).cpu()
    if kind != "cut":
        assert torch.equal(got[0][:, [0, 1, 3]], plain[:, [0, 1, 3]])
