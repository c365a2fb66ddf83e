"""Tests of wrong calls of the Python API: they work, or raise an error of clearhead that names the argument."""

import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext

import pytest
import torch
from torch import distributed
from torch._subclasses.fake_tensor import FakeTensorMode

from clearhead import (
    ALiBi,
    Causal,
    Documents,
    MultiHeadAttention,
    Padding,
    Recording,
    Window,
    attention,
    check,
    record,
    report,
    trace,
    view,
    watch,
)
from support.public_audit_calls import audit_calls
from support.public_calls import (
    attention_calls,
    cache_calls,
    heads_calls,
    intervention_calls,
    layer_calls,
    mask_calls,
    model_calls,
    parallel_calls,
    reading_calls,
    tensors,
    torch_calls,
    transformer_calls,
    weights_calls,
)
from support.public_exercise_calls import exercise_calls
from support.public_media_calls import media_calls
from support.public_recording_calls import recording_calls
from support.recordings import decoder, with_values
from support.wrong_calls import Call, fault, wrong_calls

GROUPS = {
    "attention": attention_calls,
    "masks": mask_calls,
    "layer": layer_calls,
    "cache": cache_calls,
    "weights": weights_calls,
    "torch_compat": torch_calls,
    "parallel": parallel_calls,
    "transformer": transformer_calls,
    "models": model_calls,
    "heads": heads_calls,
    "interventions": intervention_calls,
    "audits": audit_calls,
    "reading": reading_calls,
    "exercises": exercise_calls,
    "media": media_calls,
    "recordings": recording_calls,
}
SAMPLE = 7  # the normal suite runs one in 7 wrong calls


@pytest.fixture(autouse=True)
def elsewhere(tmp_path, monkeypatch):
    """Run in a temporary folder, because some replaced arguments are valid and write a file."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def one_rank() -> Iterator[None]:
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    yield
    distributed.destroy_process_group()


def faults(calls: list[Call], mode: AbstractContextManager, every: int) -> list[str]:
    """Run one in `every` wrong calls and return their defects."""
    defects, count = [], 0
    with warnings.catch_warnings(), mode:
        warnings.simplefilter("ignore")  # prototype warnings of nested and quantized tensors
        for call in calls:
            for argument, mutation, arguments in wrong_calls(call):
                count += 1
                if count % every == 0:
                    defect = fault(call, argument, arguments)
                    defects += [] if defect is None else [f"{call.name}({argument}={mutation}): {defect}"]
    return defects


@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("group", GROUPS)
def test_sampled_wrong_calls_are_rejected_with_the_argument(group):
    assert faults(GROUPS[group](), nullcontext(), SAMPLE) == []


@pytest.mark.attack
@pytest.mark.usefixtures("one_rank")
@pytest.mark.parametrize("mode", [nullcontext, torch.no_grad, torch.inference_mode])
@pytest.mark.parametrize("group", GROUPS)
def test_every_wrong_call_is_rejected_with_the_argument(group, mode):
    assert faults(GROUPS[group](), mode(), 1) == []


@pytest.mark.attack
def test_every_wrong_call_of_attention_is_rejected_under_vmap():
    def output(*given, **options):
        result = attention(*given, **options)
        return result[0] if isinstance(result, tuple) else result

    def over_batch(call: Call) -> Call:
        """Return the call with its queries batched by vmap."""

        def function(query, **others):
            return torch.func.vmap(lambda one: output(one, **others), randomness="different")(query[None])

        return Call(f"vmap of {call.name}", function, call.arguments, call.aliases, ("query", "return_weights"))

    assert faults([over_batch(call) for call in attention_calls()], nullcontext(), 1) == []


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (
            lambda t: attention(**{**t, "key": t["key"].to_sparse()}),
            "key has layout torch.sparse_coo; expected a tensor",
        ),
        (
            lambda t: attention(**{**t, "value": torch.nested.nested_tensor(list(t["value"]))}),
            "value is a nested tensor",
        ),
        (lambda t: attention(**t, bias=torch.zeros(5, 11).to_sparse()), "bias has layout torch.sparse_coo"),
        (lambda t: attention(**t, backend=[]), "backend is []; expected 'auto'"),
        (lambda t: attention(**t, scale=10**400), "scale is an integer of 1329 bits; expected a finite number"),
        (lambda t: attention(**t, softcap=10**5000), "softcap is an integer of 16610 bits; expected a finite number"),
        (lambda t: attention(**t, return_weights="no"), "return_weights is 'no'; expected True or False"),
        (lambda t: ALiBi("x"), "ALiBi: slopes is 'x'; expected one slope per head"),
        (lambda t: MultiHeadAttention(2**62, 4), "d_model is 4611686018427387904; expected"),
        (lambda t: MultiHeadAttention(2**31, 4), "a layer of d_model 2147483648, heads 4"),
        (lambda t: MultiHeadAttention(8, 2, device="cuda:99"), "device is 'cuda:99', which torch cannot use"),
        (lambda t: MultiHeadAttention(8, 2)(torch.ones(1, 3, 8, dtype=torch.int64)), "x has dtype torch.int64"),
        (lambda t: MultiHeadAttention(8, 2)(torch.ones(1, 3, 8).double()), "x.to(torch.float32) or layer.to"),
        (lambda t: MultiHeadAttention(8, 2)(torch.ones(1, 3, 8, device="meta")), "x is on meta, but the layer's"),
    ],
)
def test_rejected_calls_name_argument_and_fix(use, message):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        given = tensors()
        with pytest.raises((TypeError, ValueError, RuntimeError)) as caught:
            use(given)
    assert message in str(caught.value)


@pytest.fixture(scope="module")
def recording():
    return with_values(decoder(["a", "b", "c"]))[0]


@pytest.mark.parametrize(
    ("use", "message"),
    [
        (lambda r: ALiBi([]), "ALiBi: slopes has shape (0,); expected one slope per head"),
        (lambda r: trace(5, torch.randn(3, 4)), "layer is 5; expected a MultiHeadAttention"),
        (lambda r: Recording("m", {"a": 5}), "Recording: stacks['a'] is 5; expected a Stack"),
        (lambda r: Recording("m", 5), "Recording: stacks is 5; expected a dict"),
        (lambda r: Recording("x" * 10**7, r.stacks), "a name has 10,000,000 characters; expected at most 10,000"),
        (lambda r: Recording.load(""), "path is ''; expected a path"),
        (lambda r: r.weights(5), "head is 5; expected a head, such as ('cross', 2, 5) or 'cross.2.5'"),
        (lambda r: r.to("xyz"), "device is 'xyz', which torch cannot use: "),
        (lambda r: record("en-ja", 5), "text is 5; expected a string or a list of words"),
        (lambda r: record("en-ja", "hi", target=5), "target is 5; expected a string or None"),
        (lambda r: check(None), "example is None; expected a path"),
        (lambda r: report(r, roles="a"), "roles is 'a'; expected Roles, from clearhead.analysis.head_roles, or None"),
        (lambda r: report(r, progress=5), "progress is 5; expected a function of done and total"),
        (lambda r: report(r, view="garbage"), "view is 'garbage'; expected a URL fragment, such as 'head=cross.2.5&c"),
        (lambda r: report(r, view="head=cross.0.0"), "head is 'cross.0.0', which a model does not have; expected deco"),
        (lambda r: view(r, roles="x", browser=False), "roles is 'x'; expected Roles"),
        (lambda r: watch(MultiHeadAttention(8, 2), values="a").__enter__(), "values is 'a'; expected True or False"),
    ],
)
def test_rejected_calls_of_recordings_name_argument_and_fix(recording, use, message):
    with pytest.raises((TypeError, ValueError)) as caught:
        use(recording)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 300


# -- without data ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("mask", [None, Causal(), Window(before=2), Padding([3, 7]), Causal() & Documents([3, 8])])
@pytest.mark.parametrize("backend", ["auto", "streaming", "reference"])
def test_meta_tensors_return_shapes(mask, backend):
    given = {name: tensor.to("meta").requires_grad_() for name, tensor in tensors().items()}
    output, weights = attention(**given, mask=mask, backend=backend, return_weights=True)
    assert (output.shape, output.dtype, output.device.type) == ((2, 6, 5, 7), torch.float32, "meta")
    assert weights.lse.shape == (2, 6, 5)
    output.sum().backward()
    assert all(tensor.grad is not None and tensor.grad.shape == tensor.shape for tensor in given.values())


def test_fake_tensors_return_shapes():
    layer = MultiHeadAttention(12, 4)
    with FakeTensorMode(allow_non_fake_inputs=True):
        output = layer(torch.randn(2, 5, 12), mask=Causal(), bias=ALiBi(torch.rand(4)))
    assert output.shape == (2, 5, 12)
