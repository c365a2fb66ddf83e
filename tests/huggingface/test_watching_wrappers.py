"""Tests of `watch` on wrappers and pipelines of transformers models, and of its refusal of compiled graphs."""

import pytest
import torch
import transformers
from torch import nn
from torch.nn import functional
from torch.nn.attention import flex_attention

from clearhead.huggingface import watch
from support.parameters import slow_except
from support.tiny_models import inputs_for, make
from support.tiny_tokenizer import tokenizer

IDS = {"input_ids": inputs_for("llama")["input_ids"]}
IMPLEMENTATIONS = ["sdpa", "eager", "clearhead"]
BY_NAME = {name: name for name in IMPLEMENTATIONS}
NAMES = ["model.layers.0.self_attn", "model.layers.1.self_attn"]
REFUSAL = "LlamaForCausalLM calls .* in a compiled graph, which cannot be observed"


@pytest.fixture(autouse=True)
def without_compiled_code():
    """Remove compiled code before and after each test."""
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


# -- wrappers ----------------------------------------------------------------------------------------------------


class LoraLinear(nn.Module):
    """Linear layer with a low-rank addition, as PEFT inserts it."""

    def __init__(self, base_layer):
        super().__init__()
        self.base_layer = base_layer
        self.lora_A = nn.Linear(base_layer.in_features, 2, bias=False)
        self.lora_B = nn.Linear(2, base_layer.out_features, bias=False)

    def forward(self, x):
        return self.base_layer(x) + self.lora_B(self.lora_A(x))


class LoraModel(nn.Module):
    """Stand-in for the class of PEFT that contains the changed model."""

    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, *args, **kwargs):
        return self.model(*args, **kwargs)


class PeftModel(nn.Module):
    """Stand-in for the class of PEFT with the same name and methods."""

    def __init__(self, model):
        super().__init__()
        for layer in model.model.layers:
            layer.self_attn.q_proj = LoraLinear(layer.self_attn.q_proj)
        self.base_model = LoraModel(model)

    def get_base_model(self):
        return self.base_model.model

    def forward(self, *args, **kwargs):
        return self.base_model(*args, **kwargs)


class PeftModelForCausalLM(PeftModel):
    """Stand-in for the class of PEFT that wraps language models."""


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_peft_models_are_unwrapped(implementation):
    model = PeftModelForCausalLM(make("llama", implementation)).eval()
    with torch.no_grad():
        plain = model(**IDS).logits
        with watch(model, entropy=True) as seen:
            watched = model(**IDS).logits
    assert torch.equal(plain, watched)
    assert list(seen) == NAMES
    assert seen["decoder", 1] is seen[1]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_data_parallel_is_unwrapped(implementation):
    model = nn.DataParallel(make("llama", implementation))
    with torch.no_grad():
        plain = model(**IDS).logits
        with watch(model) as seen:
            watched = model(**IDS).logits
    assert torch.equal(plain, watched)
    assert list(seen) == NAMES


class Transformer(nn.Module):
    """Stand-in for the module of sentence-transformers that contains the model."""

    def __init__(self, model):
        super().__init__()
        self.auto_model = model

    def forward(self, features):
        return {**features, "token_embeddings": self.auto_model(**features)[0]}


class Pooling(nn.Module):
    """Stand-in for the module of sentence-transformers that averages tokens."""

    def forward(self, features):
        mask = features["attention_mask"][..., None]
        return (features["token_embeddings"] * mask).sum(dim=1) / mask.sum(dim=1)


class SentenceTransformer(nn.Sequential):
    """Stand-in for the class of sentence-transformers."""


def test_sentence_transformers_are_unwrapped():
    inputs = inputs_for("bert", "right")
    model = SentenceTransformer(Transformer(make("bert", "sdpa")), Pooling())
    with torch.no_grad():
        plain = model(inputs)
        with watch(model, entropy=True) as seen:
            watched = model(inputs)
    assert torch.equal(plain, watched)
    assert list(seen) == ["encoder.layer.0.attention.self", "encoder.layer.1.attention.self"]
    assert seen["encoder", 1].queries == int(inputs["attention_mask"].sum())


def test_pipelines_are_unwrapped():
    pipeline = transformers.pipeline("feature-extraction", model=make("bert", "sdpa"), tokenizer=tokenizer())
    text = "the dogs running ."
    plain = pipeline(text)
    with watch(pipeline, entropy=True) as seen:
        assert pipeline(text) == plain
    assert seen["encoder", 1].queries == len(plain[0])


def test_a_model_inside_of_another_module_keeps_its_names():
    class Classifier(nn.Module):
        def __init__(self):
            super().__init__()
            self.backbone, self.head = make("bert", "sdpa"), nn.Linear(32, 3)

        def forward(self, **inputs):
            return self.head(self.backbone(**inputs).last_hidden_state[:, 0])

    model, inputs = Classifier(), inputs_for("bert", "right")
    with torch.no_grad(), watch(model, entropy=True) as seen:
        model(**inputs)
    assert next(iter(seen)) == "backbone.encoder.layer.0.attention.self"
    assert seen[0].queries == int(inputs["attention_mask"].sum())


# -- compiled graphs ---------------------------------------------------------------------------------------------


def compiled(function):
    return torch.compile(function, backend="aot_eager")


@pytest.mark.filterwarnings("ignore:.*torch.compile.*", "ignore::UserWarning:torch.*")
@pytest.mark.slow
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_compiled_model_is_refused_and_its_original_is_observed(implementation):
    model = make("llama", implementation)
    optimized = compiled(model)
    with torch.no_grad():
        for _ in range(2):  # compiled before, and then within the block
            with pytest.raises(ValueError, match="the model is compiled, .* model._orig_mod"), watch(optimized):
                optimized(**IDS)
            with pytest.raises(ValueError, match=REFUSAL), watch(model):
                optimized(**IDS)
            optimized(**IDS)
        with watch(optimized) as seen:
            model(**IDS)
    assert list(seen) == NAMES


@pytest.mark.parametrize("warm", slow_except({"compiled before": True, "compiled inside": False}, "compiled before"))
@pytest.mark.parametrize("implementation", slow_except(BY_NAME, "eager"))
def test_a_compiled_function_that_calls_the_model_is_refused(implementation, warm):
    model = make("llama", implementation)
    function = compiled(lambda ids: model(input_ids=ids).logits)
    with torch.no_grad():
        plain = function(IDS["input_ids"]) if warm else None
        for _ in range(2):  # the second time its graph was traced in the first block
            with pytest.raises(ValueError, match=REFUSAL), watch(model):
                assert torch.allclose(model(**IDS).logits, function(IDS["input_ids"]), atol=1e-4)
        with watch(model) as seen:
            model(**IDS)
        assert [len(watched.calls) for watched in seen.values()] == [1, 1]
        after = function(IDS["input_ids"])
        assert plain is None or torch.equal(plain, after)


@pytest.mark.parametrize("implementation", slow_except(BY_NAME, "sdpa"))
def test_a_compiled_layer_is_refused(implementation):
    model = make("llama", implementation)
    model.model.layers[1].compile(backend="aot_eager")
    with torch.no_grad():
        model(**IDS)
        for _ in range(2):
            with pytest.raises(ValueError, match=REFUSAL), watch(model, entropy=True):
                model(**IDS)


@pytest.mark.slow
@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_nested_watches_refuse_separately(implementation):
    """A graph that ran in the outer block only does not concern the inner one."""
    model = make("llama", implementation)
    function = compiled(lambda ids: model(input_ids=ids).logits)

    def run_nested():
        with watch(model):
            function(IDS["input_ids"])
            with watch(model) as inner:
                model(**IDS)
            assert len(inner) == 2
            with pytest.raises(ValueError, match=REFUSAL), watch(model):
                function(IDS["input_ids"])

    with torch.no_grad(), pytest.raises(ValueError, match=REFUSAL):
        run_nested()


def test_force_eager_observes_a_compiled_function():
    model = make("llama", "sdpa")
    function = compiled(lambda ids: model(input_ids=ids).logits)
    with torch.no_grad():
        function(IDS["input_ids"])
        with torch.compiler.set_stance("force_eager"), watch(model) as seen:
            function(IDS["input_ids"])
    assert list(seen) == NAMES


@pytest.mark.filterwarnings("ignore:flex_attention called without torch.compile")
@pytest.mark.parametrize("function", [flex_attention.flex_attention, functional.scaled_dot_product_attention])
def test_attention_that_is_compiled_separately_is_observed(function):
    """`flex_attention = torch.compile(flex_attention)` is the documented way to use it."""

    class Layer(nn.Module):
        def __init__(self):
            super().__init__()
            self.attend = compiled(function)

        def forward(self, x):
            return self.attend(x, x, x, scale=0.5)

    layer, x = Layer(), torch.randn(2, 3, 5, 16)
    before = layer.attend
    plain = layer(x)
    for _ in range(2):
        with watch(layer) as seen:
            assert torch.equal(layer(x), plain)
        torch.testing.assert_close(seen[0].weights.dense(), (x @ x.mT * 0.5).softmax(dim=-1))
        assert layer.attend is before
    call = compiled(lambda x: layer(x))
    with pytest.raises(ValueError, match="Layer calls .* in a compiled graph"), watch(layer):
        call(x)
