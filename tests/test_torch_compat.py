"""Tests of the drop-in `MultiheadAttention`: outputs, weights and gradients match torch's for all options."""

import copy
import inspect
import itertools

import pytest
import torch
from torch import nn

from clearhead import Causal, torch_compat
from clearhead.torch_compat import MultiheadAttention
from support.numerics import assert_matches
from support.parameters import slow_except
from support.peers import assert_agrees, truth_of
from support.torch_layers import BATCH, HEADS, KEYS, OPTIONS, QUERIES, every_option, pair


def tensors(module: nn.MultiheadAttention, batched: bool = True) -> list[torch.Tensor]:
    """Return query, key and value for a module, as leaves."""
    leaves = []
    for length, width in ((QUERIES, module.embed_dim), (KEYS, module.kdim), (KEYS, module.vdim)):
        shape = (length, width) if not batched else (BATCH, length, width)
        tensor = torch.randn(shape)
        leaves.append((tensor if module.batch_first or not batched else tensor.transpose(0, 1)).requires_grad_())
    return leaves


def attn_masks() -> dict[str, torch.Tensor | None]:
    """Return masks (True = ignore) that never hide the first key, so that torch does not return NaN."""
    two = torch.rand(QUERIES, KEYS) < 0.4
    three = torch.rand(BATCH * HEADS, QUERIES, KEYS) < 0.4
    two[:, 0] = three[..., 0] = False
    floats = torch.randn(QUERIES, KEYS).masked_fill(two, -torch.inf)
    return {"none": None, "bool": two, "bool 3D": three, "float": floats, "float 3D": floats.expand_as(three) * 2}


def padding_masks() -> dict[str, torch.Tensor | None]:
    hidden = torch.rand(BATCH, KEYS) < 0.4
    hidden[:, 0] = False
    return {"none": None, "bool": hidden, "float": torch.zeros(BATCH, KEYS).masked_fill(hidden, -torch.inf)}


def assert_same(theirs, ours, inputs, **arguments) -> None:
    """Compare outputs, weights, and their gradients in inputs and parameters."""
    distinct = {id(tensor): index for index, tensor in enumerate(inputs)}
    leaf_indices = [list(distinct.values()).index(distinct[id(tensor)]) for tensor in inputs]

    def results_and_gradients(module, leaves, arguments):
        results = [t for t in module(*(leaves[index] for index in leaf_indices), **arguments) if t is not None]
        generator = torch.Generator().manual_seed(5)
        cotangents = [torch.randn(t.shape, generator=generator).to(t.dtype) for t in results]
        leaves = [*leaves, *module.parameters()]
        gradients = torch.autograd.grad(results, leaves, cotangents, allow_unused=True, materialize_grads=True)
        # the gradient of a bias may cancel to 0, so it is compared together with those of the weights
        return [*results, *gradients[: len(distinct)], torch.cat([t.flatten() for t in gradients[len(distinct) :]])]

    leaves = [inputs[index] for index in distinct.values()]
    assert_agrees(results_and_gradients(ours, leaves, arguments), results_and_gradients, theirs, leaves, arguments)


def called(module, x, arguments=None):
    """Return the output of self-attention, and the weights if they are not None."""
    return [t for t in module(x, x, x, **(arguments or {})) if t is not None]


def test_signatures_match_torch():
    for name in ("__init__", "forward"):
        ours, theirs = (inspect.signature(getattr(m, name)) for m in (MultiheadAttention, nn.MultiheadAttention))
        assert [(p.name, p.default, p.kind) for p in ours.parameters.values()] == [
            (p.name, p.default, p.kind) for p in theirs.parameters.values()
        ]


@every_option
def test_state_dicts_and_initial_weights_match_torch(options):
    torch.manual_seed(1)
    theirs = nn.MultiheadAttention(6, HEADS, **options)
    torch.manual_seed(1)
    ours = MultiheadAttention(6, HEADS, **options)
    assert list(theirs.state_dict()) == list(ours.state_dict())
    for parameter, expected in zip(ours.parameters(), theirs.parameters(), strict=True):
        assert torch.equal(parameter, expected)


@every_option
@pytest.mark.parametrize("padding", ["none", "bool", "float"])
@pytest.mark.parametrize("kind", ["none", "bool", "bool 3D", "float", "float 3D"])
@pytest.mark.filterwarnings("ignore:Support for mismatched:UserWarning")
def test_all_masks_match_torch(options, kind, padding):
    theirs, ours = pair(options)
    mask, hidden = attn_masks()[kind], padding_masks()[padding]
    for weights, average in ((False, True), (True, True), (True, False)):
        assert_same(
            theirs,
            ours,
            tensors(theirs),
            attn_mask=mask,
            key_padding_mask=hidden,
            need_weights=weights,
            average_attn_weights=average,
        )


@every_option
@pytest.mark.filterwarnings("ignore:Support for mismatched:UserWarning")
def test_unbatched_inputs_match_torch(options):
    theirs, ours = pair(options)
    mask = attn_masks()["bool"]
    three = attn_masks()["bool 3D"][:HEADS]
    for arguments in (
        {},
        {"need_weights": False},
        {"average_attn_weights": False, "attn_mask": mask},
        {"attn_mask": three, "key_padding_mask": padding_masks()["bool"][0]},
    ):
        assert_same(theirs, ours, tensors(theirs, batched=False), **arguments)


@pytest.mark.parametrize("batch_first", [False, True])
def test_self_attention_matches_torch(batch_first):
    theirs, ours = pair({"batch_first": batch_first})
    x = torch.randn(4, 5, 6, requires_grad=True)
    assert_same(theirs, ours, [x, x, x])
    memory = torch.randn(4, 5, 6, requires_grad=True)
    assert_same(theirs, ours, [x, memory, memory], need_weights=False)
    assert ours(x, x, x)[0].is_contiguous()


@pytest.mark.parametrize("padding", ["none", "bool", "float"])
@pytest.mark.parametrize("floating", [False, True])
@pytest.mark.filterwarnings("ignore:Support for mismatched:UserWarning")
def test_eval_matches_torchs_fast_path(padding, floating):
    theirs, ours = (module.eval() for module in pair({"batch_first": True}))
    x = torch.randn(BATCH, KEYS, 6)
    mask = torch.rand(KEYS, KEYS) < 0.4
    mask[:, 0] = False
    mask = torch.zeros(KEYS, KEYS).masked_fill(mask, -torch.inf) if floating else mask
    hidden = padding_masks()[padding]
    with torch.no_grad():
        for weights, average, attn_mask in itertools.product((False, True), (False, True), (None, mask)):
            arguments = {"need_weights": weights, "average_attn_weights": average}
            arguments |= {"attn_mask": attn_mask, "key_padding_mask": hidden}
            assert_agrees(called(ours, x, arguments), called, theirs, x, arguments)


class TestCausal:
    MASK = torch.ones(KEYS, KEYS, dtype=torch.bool).triu(1)

    @pytest.fixture
    def passed_masks(self, monkeypatch):
        """Masks and biases that the layer passed to `attention()`."""
        passed = []
        attention = torch_compat.attention
        monkeypatch.setattr(
            torch_compat, "attention", lambda *a, **k: passed.append((k["mask"], k["bias"])) or attention(*a, **k)
        )
        return passed

    @pytest.mark.parametrize("floating", [False, True])
    def test_correct_hint_selects_a_causal_mask(self, floating, passed_masks):
        theirs, ours = pair({"batch_first": True})
        x = torch.randn(BATCH, KEYS, 6, requires_grad=True)
        mask = torch.zeros(KEYS, KEYS).masked_fill(self.MASK, -torch.inf) if floating else self.MASK
        assert_same(theirs, ours, [x, x, x], attn_mask=mask, is_causal=True, need_weights=False)
        [(passed, bias)] = passed_masks
        assert isinstance(passed, Causal)
        assert bias is None

    def test_learned_mask_gets_a_gradient(self):
        _, ours = pair({"batch_first": True})
        x = torch.randn(BATCH, KEYS, 6)
        mask = torch.zeros(KEYS, KEYS).masked_fill(self.MASK, -torch.inf).requires_grad_()
        output, _ = ours(x, x, x, attn_mask=mask, is_causal=True, need_weights=False)
        [gradient] = torch.autograd.grad(output.square().sum(), mask)
        assert gradient.abs().max() > 0

    def test_wrong_hint_has_no_effect(self, passed_masks):
        """Torch silently replaces the mask by a causal mask; clearhead does not."""
        _, ours = pair({"batch_first": True})
        x, other = torch.randn(BATCH, KEYS, 6), self.MASK.roll(1, dims=1)
        other[:, 0] = False
        hinted = ours(x, x, x, attn_mask=other, is_causal=True, need_weights=False)[0]
        assert torch.equal(hinted, ours(x, x, x, attn_mask=other, need_weights=False)[0])
        assert not isinstance(passed_masks[0][0], Causal)

    @pytest.mark.parametrize("options", [{"add_zero_attn": True}, {"add_bias_kv": True}])
    def test_added_keys_are_visible_to_every_query(self, options):
        _, ours = pair({"batch_first": True} | options)
        x = torch.randn(BATCH, KEYS, 6)
        _, weights = ours(x, x, x, attn_mask=self.MASK, is_causal=True)
        assert (weights[..., -1] > 0).all()

    def test_causal_masks_with_padding_match_torch(self):
        theirs, ours = pair({"batch_first": True})
        x = torch.randn(BATCH, KEYS, 6, requires_grad=True)
        for mask, hidden in itertools.product(
            (self.MASK, torch.zeros(KEYS, KEYS).masked_fill(self.MASK, -torch.inf)),
            (padding_masks()["bool"], padding_masks()["float"]),
        ):
            if mask.dtype == hidden.dtype:
                arguments = {"attn_mask": mask, "key_padding_mask": hidden, "is_causal": True, "need_weights": False}
                assert_same(theirs, ours, [x, x, x], **arguments)


class TestRowsWithoutAKey:
    @pytest.mark.parametrize("weights", [False, True])
    @pytest.mark.parametrize("floating", [False, True])
    def test_output_is_the_bias_and_gradients_are_finite(self, weights, floating):
        _, ours = pair({"batch_first": True})
        x = torch.randn(BATCH, KEYS, 6, requires_grad=True)
        hidden = torch.zeros(BATCH, KEYS, dtype=torch.bool)
        hidden[1] = True
        hidden = torch.zeros(BATCH, KEYS).masked_fill(hidden, -torch.inf) if floating else hidden
        output, returned = ours(x, x, x, key_padding_mask=hidden, need_weights=weights)
        assert torch.equal(output[1], ours.out_proj.bias.expand(KEYS, -1))
        assert returned is None or (returned[1] == 0).all()
        gradients = torch.autograd.grad(output.sum(), [x, *ours.parameters()])
        assert all(gradient.isfinite().all() for gradient in gradients)


class TestDropout:
    def test_weights_are_before_dropout_and_outputs_keep_their_mean(self):
        theirs, ours = pair({"batch_first": True, "dropout": 0.3})
        inputs = tensors(theirs)
        expected, weights = ours.eval()(*inputs)
        ours.train()
        for need_weights in (False, True):
            outputs = torch.stack([ours(*inputs, need_weights=need_weights)[0].detach() for _ in range(3000)])
            assert outputs.std(dim=0).max() > 0
            assert (outputs.mean(dim=0) - expected).abs().max() < 0.1
        assert torch.equal(ours(*inputs)[1], weights)


def unbound_outputs(module, texts, arguments):
    """Call a module with one nested tensor of these texts; return the output of each text, and the weights."""
    nested = torch.nested.nested_tensor(list(texts))
    output, *weights = called(module, nested, arguments)
    return [*output.unbind(), *weights]


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
class TestNested:
    def test_outputs_and_weights_match_torch(self):
        theirs, ours = (module.eval() for module in pair({"batch_first": True}))
        texts = torch.nested.nested_tensor([torch.randn(3, 6), torch.randn(5, 6), torch.randn(1, 6)])
        with torch.no_grad():
            for weights, average in ((False, True), (True, True), (True, False)):
                arguments = {"need_weights": weights, "average_attn_weights": average}
                output, expected = (module(texts, texts, texts, **arguments)[0] for module in (ours, theirs))
                assert output.is_nested
                assert output.layout == expected.layout
                outputs = unbound_outputs(ours, texts.unbind(), arguments)
                assert_agrees(outputs, unbound_outputs, theirs, texts.unbind(), arguments)

    @pytest.mark.parametrize("options", [{"add_bias_kv": True}, {"add_zero_attn": True}], ids=str)
    def test_refuses_added_keys_as_torch_does(self, options):
        _, ours = pair({"batch_first": True} | options)
        texts = torch.nested.nested_tensor([torch.randn(3, 6), torch.randn(5, 6)])
        with pytest.raises(ValueError, match="expected a layer without add_bias_kv and add_zero_attn"):
            ours(texts, texts, texts)

    def test_rejects_cross_attention_and_masks(self):
        _, ours = pair({"batch_first": True})
        a, b = (torch.nested.nested_tensor([torch.randn(3, 6), torch.randn(5, 6)]) for _ in range(2))
        with pytest.raises(ValueError, match="query is nested; expected self-attention without masks"):
            ours(a, b, b)
        with pytest.raises(ValueError, match="query is nested; expected self-attention without masks"):
            ours(a, a, a, key_padding_mask=torch.zeros(2, 5, dtype=torch.bool))


class TestAsModule:
    @pytest.mark.parametrize("options", slow_except(OPTIONS, "all"))
    def test_compiled_output_matches_torch(self, options):
        torch._dynamo.reset()
        theirs, ours = pair(options)
        inputs, mask = tensors(theirs), attn_masks()["bool"]
        compiled = torch.compile(ours, fullgraph=True, backend="aot_eager")
        for arguments in ({"attn_mask": mask}, {"attn_mask": mask, "need_weights": False}):
            got = [t for t in compiled(*inputs, **arguments) if t is not None]
            assert_agrees(got, lambda m, i, a: [t for t in m(*i, **a) if t is not None], theirs, inputs, arguments)

    def test_exported_copied_and_autocast_outputs_match_torch(self):
        theirs, ours = (module.eval() for module in pair({"batch_first": True}))
        x = torch.randn(BATCH, KEYS, 6)
        program = torch.export.export(ours, (x, x, x), {"need_weights": False})
        exported = program.module()(x, x, x, need_weights=False)[0]
        for output in (exported, copy.deepcopy(ours)(x, x, x)[0]):
            assert_agrees(output, lambda module, x: called(module, x)[0], theirs, x)
        with torch.autocast("cpu", torch.bfloat16):
            output, weights = ours(x, x, x, attn_mask=torch.zeros(KEYS, KEYS))
            narrow = called(theirs, x)[0]
        assert output.dtype == torch.bfloat16
        assert_matches(output, truth_of(lambda module, x: called(module, x)[0], theirs, x), narrow)
        assert weights.isfinite().all()

    @pytest.mark.filterwarnings("ignore:`torch.jit", "ignore::torch.jit.TracerWarning")
    def test_vmap_jvp_and_jit_trace_match_torch(self):
        theirs, ours = pair({"batch_first": True})  # not in eval mode: torch's fast path does not support these
        x, mask = torch.randn(4, BATCH, KEYS, 6), torch.ones(KEYS, KEYS, dtype=torch.bool).triu(1)
        with torch.no_grad():
            for arguments in ({}, {"attn_mask": mask}):

                def call(x, arguments=arguments):
                    return ours(x, x, x, **arguments)[0]

                def looped(module, x, arguments=arguments):
                    return torch.stack([module(batch, batch, batch, **arguments)[0] for batch in x])

                def derivative(module, x, arguments=arguments):
                    return torch.func.jvp(lambda x: module(x, x, x, **arguments)[0], (x[0],), (x[1],))

                assert_agrees(torch.func.vmap(call)(x), looped, theirs, x)
                assert_agrees(derivative(ours, x), derivative, theirs, x)
        traced = torch.jit.trace(ours, (x[0], x[0], x[0]))
        assert_agrees(called(traced, x[1]), called, theirs, x[1])

    def test_can_be_built_on_the_meta_device(self):
        ours = MultiheadAttention(6, HEADS, device="meta").to_empty(device="cpu")
        ours._reset_parameters()
        ours.out_proj.reset_parameters()  # which `_reset_parameters` leaves out, as in torch
        assert ours(*torch.randn(3, 4, 5, 6))[0].isfinite().all()


OURS = MultiheadAttention(6, HEADS)
Q, K = torch.randn(QUERIES, BATCH, 6), torch.randn(KEYS, BATCH, 6)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: OURS(Q[None], K, K), ValueError, "query has 4 axes; expected 3, or 2 for a single sequence"),
        (lambda: OURS(Q, K[0], K), ValueError, "key has 2 axes, but query has 3; expected the same"),
        (lambda: OURS(Q[..., :5], K, K), ValueError, "query has shape (5, 3, 5); expected 6 columns"),
        (lambda: OURS(Q, K, K[:4]), ValueError, "key has shape (7, 3, 6) and value (4, 3, 6); expected equal lengths"),
        (lambda: OURS(Q, K[:, :2], K[:, :2]), ValueError, "query has batch 3 and key 2; expected the same"),
        (
            lambda: OURS(Q, K, K, attn_mask=torch.ones(5, 6) > 0),
            ValueError,
            "attn_mask has shape (5, 6); expected (5, 7) or (6, 5, 7)",
        ),
        (
            lambda: OURS(Q, K, K, key_padding_mask=torch.ones(7, 3) > 0),
            ValueError,
            "key_padding_mask has shape (7, 3); expected (3, 7)",
        ),
        (
            lambda: OURS(Q, K, K, attn_mask=torch.ones(5, 7).long()),
            TypeError,
            "attn_mask has dtype torch.int64; expected torch.bool (True = ignore) or a float dtype",
        ),
        (lambda: OURS(Q, K, K, is_causal=True), RuntimeError, "is_causal is a hint about attn_mask, which is None"),
        (lambda: MultiheadAttention(7, 2), ValueError, "embed_dim is 7; expected a multiple of num_heads 2"),
    ],
)
def test_rejects_invalid_arguments(call, error, message):
    with pytest.raises(error) as caught:
        call()
    assert message in str(caught.value)
