"""Tests of the operator: outputs, log-sum-exp and gradients of every backend against extended precision."""

import pytest
import torch
from hypothesis import HealthCheck, given, settings

from clearhead import ALiBi, Causal, Dense, Documents, Padding, Prefix, Window, attention
from clearhead.ops import dispatch, sdpa
from clearhead.ops.arguments import build_call
from support.backend_checks import check_forward, check_gradients
from support.numerics import Case, assert_matches
from support.parameters import slow_except
from support.peers import assert_agrees
from support.strategies import cases

DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
BACKENDS = ("reference", "streaming")


@pytest.mark.parametrize("backend", BACKENDS)
@given(case=cases(DTYPES))
@settings(max_examples=150)
def test_forward_matches_the_equation(backend, case):
    check_forward(case, backend)


@given(case=cases((torch.float32, torch.bfloat16)))
@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_forward_over_many_tiles_matches_the_equation(small_tiles, case):
    check_forward(case, "streaming")


@pytest.mark.parametrize("backend", BACKENDS)
@given(case=cases((torch.float32, torch.bfloat16)))
@settings(max_examples=100)
def test_gradients_match_the_equation(backend, case):
    check_gradients(case, backend)


@given(case=cases())
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_gradients_over_many_tiles_match_the_equation(small_tiles, case):
    check_gradients(case, "streaming")


@given(case=cases(DTYPES, plain=True))
@settings(max_examples=150)
def test_fused_kernel_matches_the_equation(case):
    check_forward(case, "sdpa")
    if case.query.dtype in (torch.float32, torch.bfloat16):
        check_gradients(case, "sdpa")


DENSE = torch.rand((2, 1, 7, 11), generator=torch.Generator().manual_seed(1)) < 0.5
MASKS = (
    Causal(),
    Window(before=2, after=1),
    Padding([5, 0]),
    Padding.left([11, 3]),
    Documents([3, 0, 5]),
    Documents([[2, 9], [7]]),
    Prefix(4),
    Dense(DENSE),
    Window(before=1) | (Causal() & Prefix(3)),
    Dense(DENSE) & Causal(),
)


def random_inputs(dtype: torch.dtype = torch.float64, **options):
    """Return query, key and value: 2 sequences, 6 query heads, 3 key heads, 7 queries, 11 keys, widths 5 and 13."""
    generator = torch.Generator().manual_seed(2)
    shapes = ((2, 6, 7, 5), (2, 3, 11, 5), (2, 3, 11, 13))
    return tuple(torch.randn(shape, generator=generator, dtype=dtype, **options) for shape in shapes)


@pytest.mark.parametrize("mask", MASKS, ids=repr)
@pytest.mark.parametrize("backend", BACKENDS)
def test_gradients_match_finite_differences(backend, mask):
    query, key, value = random_inputs(requires_grad=True)
    bias = torch.randn(6, 1, 11, dtype=torch.float64, requires_grad=True)
    sinks = torch.randn(6, dtype=torch.float64, requires_grad=True)

    def call(query, key, value, bias, sinks):
        return attention(query, key, value, mask=mask, bias=bias, sinks=sinks, softcap=1.5, backend=backend)

    assert torch.autograd.gradcheck(call, (query, key, value, bias, sinks), fast_mode=True)


def test_gradient_of_slopes_matches_finite_differences():
    query, key, value = random_inputs()
    slopes = torch.rand(6, dtype=torch.float64, requires_grad=True)

    def call(slopes):
        return attention(query, key, value, bias=ALiBi(slopes), mask=Causal(), backend="streaming")

    assert torch.autograd.gradcheck(call, (slopes,))


@pytest.mark.parametrize("backend", ["streaming", "triton"])
def test_in_place_change_before_backward_raises(backend):
    x = torch.randn(1, 2, 5, 4, requires_grad=True)
    key = torch.randn(1, 2, 5, 4)
    output = attention(x, key, key, backend=backend)
    key.add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        output.sum().backward()


@pytest.mark.parametrize("backend", ["streaming", "triton"])
def test_compiled_graph_contains_one_node(backend):
    graphs = []

    def keep(graph, inputs):
        graphs.append(graph)
        return graph

    x = torch.randn(1, 2, 5, 4)
    torch.compile(lambda x: attention(x, x, x, backend=backend), fullgraph=True, backend=keep)(x)
    names = [str(node.target) for node in graphs[0].graph.nodes if "clearhead" in str(node.target)]
    assert names == [f"clearhead.{backend}_forward.default"], names
    torch._dynamo.reset()


def test_func_grad_matches_the_reference():
    x, key = torch.randn(1, 2, 5, 4), torch.randn(1, 2, 5, 4)

    def gradient(x, key, backend="reference"):
        return torch.func.grad(lambda x: attention(x, key, key, backend=backend).square().sum())(x)

    assert_agrees(gradient(x, key, "streaming"), gradient, x, key)


@pytest.mark.parametrize("backend", ["streaming", "triton"])
def test_second_derivative_is_refused(backend):
    """A gradient penalty must not silently be 0."""
    x = torch.randn(1, 2, 5, 4, requires_grad=True)
    key = torch.randn(1, 2, 5, 4)
    (gradient,) = torch.autograd.grad(attention(x, key, key, backend=backend).sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="backend='reference'"):
        (x.sum() + gradient.square().sum()).backward()


def test_vmap_and_meta_tensors_are_supported():
    x = torch.randn(3, 1, 2, 5, 4)

    def looped(x):
        return torch.stack([attention(one, one, one, backend="streaming") for one in x])

    assert_agrees(torch.vmap(lambda one: attention(one, one, one, backend="streaming"))(x), looped, x)
    assert attention(*[x[0].to("meta")] * 3, backend="streaming").is_meta


def test_second_derivative_of_the_reference_matches_finite_differences():
    inputs = random_inputs(requires_grad=True)
    assert torch.autograd.gradgradcheck(
        lambda q, k, v: attention(q, k, v, mask=Causal(), backend="reference"), inputs, fast_mode=True
    )


@pytest.mark.parametrize("key_dim", [1, 255, 2048])
@pytest.mark.parametrize("backend", [*BACKENDS, "sdpa"])
def test_key_dim_from_1_to_2048_matches_the_equation(backend, key_dim):
    generator = torch.Generator().manual_seed(3)
    check_forward(Case(*(torch.randn(1, 2, 7, key_dim, generator=generator) for _ in range(3))), backend)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize(("q_len", "kv_len"), [(0, 5), (5, 0), (0, 0)])
@pytest.mark.parametrize("sinks", [None, torch.tensor([0.5, -1.0])])
def test_empty_queries_or_keys_are_supported(backend, q_len, kv_len, sinks):
    query = torch.randn(3, 2, q_len, 7, requires_grad=True)
    key, value = (torch.randn(3, 2, kv_len, dim, requires_grad=True) for dim in (7, 11))
    output, weights = attention(query, key, value, sinks=sinks, return_weights=True, backend=backend)
    assert output.shape == (3, 2, q_len, 11)
    assert weights.shape == (3, 2, q_len, kv_len)
    if q_len:
        expected = torch.full((3, 2, q_len), -torch.inf) if sinks is None else sinks[:, None].expand(3, 2, q_len)
        assert (output == 0).all()
        assert torch.equal(weights.lse, expected)
    assert weights.entropy().shape == weights.distance().shape == (3, 2, q_len)
    assert (weights.received() == 0).all()
    assert weights.received().shape == (3, 2, kv_len)
    assert (weights.topk(2).keys == -1).all()
    output.sum().backward()
    assert all(t.grad is None or (t.grad == 0).all() for t in (query, key, value))


def test_empty_batch_is_supported():
    output = attention(torch.randn(0, 2, 3, 4), torch.randn(0, 2, 5, 4), torch.randn(0, 2, 5, 4))
    assert output.shape == (0, 2, 3, 4)


@pytest.mark.parametrize("backend", [*BACKENDS, "sdpa"])
def test_empty_rows_depend_on_the_mask_and_not_on_the_scores(backend):
    """A row of scores of −10⁴ has a normal softmax; a fully masked row is 0, whatever its scores."""
    query, key, value = torch.full((1, 1, 2, 4), 100.0), torch.full((1, 1, 3, 4), -50.0), torch.randn(1, 1, 3, 4)
    query.requires_grad_()
    allowed = torch.tensor([[True, True, True], [False, False, False]])
    output, weights = attention(query, key, value, mask=allowed, return_weights=True, backend=backend)
    assert_agrees(output[0, 0, 0], lambda value: value.mean(dim=0), value[0, 0])
    assert (output[0, 0, 1] == 0).all()
    assert weights.lse[0, 0, 0] < -9000
    assert weights.lse[0, 0, 1] == -torch.inf
    assert torch.autograd.grad(output.sum(), query)[0].isfinite().all()


@pytest.mark.parametrize("scale", [-1.0, 0.0])
@pytest.mark.parametrize("mask", [Causal(), Causal() & Padding([7]), Padding([7])])
def test_zero_and_negative_scales_match_the_equation(scale, mask):
    """The fused kernel of torch writes −inf before it scales, so it must not be chosen with a causal mask."""
    check_forward(Case(*(torch.randn(1, 2, 17, 13) for _ in range(3)), mask, scale=scale), "auto")


def test_autocast_does_not_change_the_precision():
    x = torch.randn(1, 4, 50, 16, requires_grad=True)
    case = Case(x.detach(), x.detach(), x.detach(), Window(5))
    exact, naive = case.exact()["weights"], case.statistics()["weights"]
    for backend in (*BACKENDS, "auto"):
        expected = attention(x, x, x, mask=Window(5), backend=backend)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            output, weights = attention(x, x, x, mask=Window(5), return_weights=True, backend=backend)
            assert torch.equal(output, expected)
            assert_matches(weights.dense(), exact, naive, scale=case.terms)
            assert_matches(weights.received(), exact.sum(axis=2), naive.sum(dim=2), scale=case.terms)
            mean = exact.mean(axis=(2, 3), keepdims=True)
            assert_matches(weights.pool(1, 1), mean, naive.mean(dim=(2, 3), keepdim=True), scale=case.terms / 50)
            assert weights.diagonal().dtype == torch.float32


def test_query_start_of_a_narrow_dtype_does_not_overflow():
    x = torch.randn(1, 1, 300, 4, requires_grad=True)
    start = torch.zeros(1, dtype=torch.uint8)
    narrow, wide = (
        attention(x, x, x, bias=ALiBi([0.5]), query_start=at, return_weights=True)[1][0, 0, 256:] for at in (start, 0)
    )
    assert torch.equal(narrow, wide)


def test_softcap_is_applied_before_mask_and_bias():
    """A −inf must not pass through tanh, and a bias is not capped."""
    query, key, value = (torch.randn(1, 1, 3, 4) for _ in range(3))
    bias = torch.tensor([[0.0, 50.0, -torch.inf]]).expand(3, 3)
    case = Case(query, key, value, bias=bias, softcap=2.0)
    for backend in BACKENDS:
        _, weights = attention(query, key, value, bias=bias, softcap=2.0, return_weights=True, backend=backend)
        assert (weights[..., 2] == 0).all()
        naive = case.statistics()["weights"]
        assert_matches(weights.dense(), case.exact()["weights"], naive, scale=case.terms)
        assert (naive[..., 1] > 0.99).all()


def test_grouped_heads_equal_repeated_keys():
    def repeated(query, key, value):
        return attention(query, *(t.repeat_interleave(2, dim=1) for t in (key, value)))

    inputs = random_inputs(torch.float32)
    for backend in BACKENDS:
        assert_agrees(attention(*inputs, backend=backend), repeated, *inputs)


def test_causal_aligns_the_last_keys_by_default_and_the_first_with_query_start_0():
    query, key = torch.randn(1, 1, 3, 4), torch.randn(1, 1, 5, 4)
    last = attention(query, key, key, mask=Causal(), return_weights=True)[1]
    first = attention(query, key, key, mask=Causal(), query_start=0, return_weights=True)[1]
    assert torch.equal(last.dense()[0, 0] > 0, torch.ones(3, 5).tril(2).bool())
    assert torch.equal(first.dense()[0, 0] > 0, torch.ones(3, 5).tril(0).bool())


@pytest.mark.parametrize("backend", [*BACKENDS, "sdpa"])
def test_inputs_may_have_any_strides(backend):
    """Heads of one fused projection, and a last axis that is not contiguous."""
    fused = torch.randn(2, 7, 3, 3, 5)  # batch, length, (query, key, value), heads, dim
    query, key, value = fused.unbind(2)
    query, key, value = (t.transpose(1, 2) for t in (query, key, value))
    value = value.transpose(-1, -2).contiguous().transpose(-1, -2)

    def contiguous(*tensors):
        return attention(*(t.contiguous() for t in tensors), backend="reference")

    assert_agrees(attention(query, key, value, backend=backend), contiguous, query, key, value)


def test_inputs_are_not_modified():
    inputs = [*random_inputs(torch.float32), torch.randn(6, 7, 11)]
    copies = [t.clone() for t in inputs]
    for backend in BACKENDS:
        _, weights = attention(*inputs[:3], bias=inputs[3], mask=Causal(), return_weights=True, backend=backend)
        weights.observe(entropy=True, received=True, distance=True, top=2)
        rows = weights[0, 0]
        rows.zero_()
    assert all(torch.equal(a, b) for a, b in zip(inputs, copies, strict=True))
    assert weights[0, 0].sum() > 0


class TestDropout:
    """Tests of dropout: the same seed drops the same weights on every backend, whatever its tile sizes."""

    def test_backends_agree(self, small_tiles):
        results = []
        for backend in BACKENDS:
            query, key, value = random_inputs(requires_grad=True)
            torch.manual_seed(5)
            output = attention(query, key, value, mask=Causal(), dropout=0.4, backend=backend)
            results.append([output, *torch.autograd.grad(output.square().sum(), (query, key, value))])
        for one, other in zip(*results, strict=True):
            torch.testing.assert_close(one, other)

    def test_drops_its_share_and_scales_the_rest(self):
        query, value = torch.zeros(1, 8, 64, 4), torch.eye(64).expand(1, 8, 64, 64)
        applied = attention(query, query, value, dropout=0.25)  # equal weights of 1/64, made visible by V = identity
        kept = applied > 0
        assert abs(kept.float().mean() - 0.75) < 0.02  # ± 8 standard deviations of 32,768 draws
        torch.testing.assert_close(applied[kept], torch.full_like(applied[kept], 1 / 64 / 0.75))
        by_row, by_column = kept.float().mean(dim=-1), kept.float().mean(dim=-2)
        assert by_row.std() < 0.09, "rows are correlated"  # √(.25·.75/64) = 0.054
        assert by_column.std() < 0.09, "columns are correlated"

    def test_calls_differ_unless_the_seed_is_the_same(self):
        inputs = random_inputs(torch.float32)
        torch.manual_seed(1)
        first, second = (attention(*inputs, dropout=0.5) for _ in range(2))
        torch.manual_seed(1)
        assert not torch.equal(first, second)
        assert torch.equal(first, attention(*inputs, dropout=0.5))

    def test_returned_weights_are_those_before_dropout(self):
        query, key, value = random_inputs()
        _, weights = attention(query, key, value, dropout=0.5, return_weights=True)
        torch.testing.assert_close(weights.dense().sum(dim=-1), torch.ones(2, 6, 7, dtype=torch.float64))


class TestCompile:
    """Tests of `torch.compile(fullgraph=True)`: no graph breaks, the same results and gradients."""

    @pytest.fixture(autouse=True)
    def reset_dynamo(self):
        torch._dynamo.reset()

    @pytest.mark.parametrize(
        ("options", "backend"),
        slow_except(
            {
                "fused kernel": ({}, "sdpa"),
                "fused kernel with padding": ({"mask": Causal() & Padding([7, 4])}, "sdpa"),
                "documents and softcap": ({"mask": Causal() & Documents([3, 4]), "softcap": 3.0}, "streaming"),
                "several ranges": ({"mask": Window(2) | Prefix(1), "query_start": torch.tensor([0, 1])}, "streaming"),
                "dense": ({"mask": Dense(DENSE[..., :7])}, "reference"),
            },
            "fused kernel with padding",
            "several ranges",
        ),
    )
    def test_compiled_call_matches_eager(self, options, backend):
        def call(query, key, value, sinks):
            extra = {} if backend == "sdpa" else {"sinks": sinks, "bias": ALiBi(sinks.abs())}
            output, weights = attention(query, key, value, **options, **extra, return_weights=True, backend=backend)
            return output.square(), weights

        def results(*inputs, function=call):
            output, weights = function(*inputs)
            gradients = torch.autograd.grad(output.sum(), inputs, allow_unused=True)
            empty, keys = weights.lse == -torch.inf, weights.topk(2).keys
            exact = [t.to(output.dtype) for t in (empty, keys)]
            lse = torch.where(empty, 0.0, weights.lse)
            rounded = [output, lse, weights.dense(), weights.entropy(), *gradients]
            return [*exact, *(t for t in rounded if t is not None)]

        inputs = [torch.randn(2, heads, 7, 5, requires_grad=True) for heads in (6, 3, 3)]
        inputs.append(torch.randn(6, requires_grad=True))
        got = results(*inputs, function=torch.compile(call, fullgraph=True))
        assert_agrees(got, results, *inputs)

    def test_weights_can_be_read_in_a_compiled_graph(self):
        def call(x):
            _, weights = attention(x, x, x, mask=Causal(), return_weights=True)
            return weights[0, 1, 3:9:2], weights.diagonal(-1), weights.dense()

        x = torch.randn(1, 2, 30, 4)
        assert_agrees(torch.compile(call, fullgraph=True)(x), call, x)

    def test_one_exported_graph_serves_all_lengths(self):
        class Model(torch.nn.Module):
            def forward(self, x):
                return attention(x, x, x, mask=Window(3))

        length = torch.export.Dim("n", min=2, max=4096)
        program = torch.export.export(Model(), (torch.randn(1, 2, 30, 4),), dynamic_shapes=({2: length},))
        x = torch.randn(1, 2, 1000, 4)
        assert_agrees(program.module()(x), Model(), x)

    def test_compiled_dropout_gives_finite_outputs(self):
        compiled = torch.compile(attention, fullgraph=True)
        output = compiled(*random_inputs(torch.float32), mask=Causal(), dropout=0.5)
        assert output.isfinite().all()


@pytest.mark.parametrize("backend", BACKENDS)
def test_runs_repeat_bit_for_bit(backend):
    results = []
    for _ in range(2):
        inputs = random_inputs(torch.float32, requires_grad=True)
        output = attention(*inputs, mask=Causal(), backend=backend)
        results.append([output, *torch.autograd.grad(output.sum(), inputs)])
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def test_sharp_heads_and_large_scores_match_the_equation():
    """Weights that underflow are 0, sums are 1, and nothing overflows."""
    generator = torch.Generator().manual_seed(4)
    case = Case(*(30 * torch.randn(2, 7, 17, 13, generator=generator) for _ in range(3)), mask=Causal())
    for backend in (*BACKENDS, "sdpa"):
        check_forward(case, backend)
        check_gradients(case, backend)


def test_auto_chooses_the_fused_kernel_if_it_supports_the_call():
    query, key, value = (torch.randn(1, 2, 300, 8) for _ in range(3))
    names = {
        "sdpa": [{}, {"mask": Causal()}, {"mask": Padding([7])}, {"bias": torch.randn(300, 300)}],
        "streaming": [{"mask": Window(9)}, {"mask": Documents([100, 200])}, {"softcap": 1.0}, {"dropout": 0.1}],
    }
    for expected, calls in names.items():
        for options in calls:
            assert dispatch.choose(build_call(query, key, value, **options))[0] == expected, options


@pytest.mark.parametrize(
    ("capability", "width", "queries", "suits"),
    [(9, 128, 512, True), (9, 256, 512, True), (9, 264, 512, False), (9, 256, 64, False), (10, 128, 512, True),
     (10, 256, 512, False), (8, 128, 512, False)],
)  # fmt: skip
def test_cudnn_depends_on_capability_head_width_and_queries(monkeypatch, capability, width, queries, suits):
    monkeypatch.setitem(sdpa._CAPABILITIES, torch.device("meta"), capability)
    assert sdpa._suits_cudnn(torch.empty(1, 1, queries, width, device="meta")) == suits


NAN_SOURCES = ["query", "key", "value", "bias"]


@pytest.mark.parametrize(
    ("source", "backend"),
    [(source, backend) for source in NAN_SOURCES for backend in ("sdpa", "streaming", "reference")]
    + [("sinks", "streaming"), ("sinks", "reference")],
)
@pytest.mark.parametrize("kv_len", [5, 611])
def test_nan_reaches_only_its_rows(source, kv_len, backend):
    """Checks the table in docs/reference/numerics.md: all other rows stay finite."""
    arguments = {
        "query": torch.randn(1, 2, 5, 7),
        "key": torch.randn(1, 2, kv_len, 7),
        "value": torch.randn(1, 2, kv_len, 7),
    }
    arguments |= {"bias": torch.randn(1, 2, 5, kv_len)} if source == "bias" else {}
    arguments |= {"sinks": torch.randn(2)} if source == "sinks" else {}
    cell = {"query": (0, 0, 3, 2), "key": (0, 0, 4, 2), "value": (0, 0, 4, 2), "bias": (0, 0, 3, 4), "sinks": (0,)}
    arguments[source][cell[source]] = torch.nan
    output, weights = attention(**arguments, backend=backend, return_weights=True)
    assert output[0, 1].isfinite().all()
    assert weights[0, 1].isfinite().all()
    rows = [3] if source in ("query", "bias") else [0, 1, 2, 3, 4]
    others = [row for row in range(5) if row not in rows]
    assert output[0, 0, others].isfinite().all()
    assert weights.lse[0, 0, others].isfinite().all()
    assert weights[0, 0][others].isfinite().all()
    reached, lse = output[0, 0, rows], weights.lse[0, 0, rows]
    if source == "value":
        assert reached[:, 2].isnan().all()
        assert reached[:, [0, 1, 3, 4, 5, 6]].isfinite().all()
        assert lse.isfinite().all()
        assert weights[0, 0].isfinite().all()
        return
    if (source, backend) == ("query", "sdpa"):
        assert reached.isnan().all() or (reached == 0).all()
        assert lse.isnan().all() or (lse == 0).all()
    else:
        assert reached.isnan().all()
        assert lse.isnan().all()
    reached_weights = weights[0, 0][rows]
    assert reached_weights[:, 4].isnan().all()


def test_nan_in_a_bias_does_not_hide_its_key():
    bias = torch.zeros(5, 5)
    bias[3, 2] = torch.nan
    x = torch.randn(1, 1, 5, 7)
    _, weights = attention(x, x, x, bias=bias, backend="reference", return_weights=True)
    assert weights.scores[0, 0, 3, 2].isnan()
    assert weights.diagonal(-1)[0, 0, 3].isnan()
