"""Tests of `watch` on transformers models with threads, gradient checkpointing and copies."""

import copy
import threading

import pytest
import torch
import transformers

from clearhead.huggingface import watch
from support.tiny_models import SIZES, enable_checkpointing, inputs_for, make

IMPLEMENTATIONS = ["sdpa", "eager", "clearhead"]


def shared_layers(implementation):
    torch.manual_seed(0)
    model = transformers.AlbertModel(transformers.AlbertConfig(**SIZES, embedding_size=16)).eval()
    model.set_attn_implementation(implementation)
    return model


def run_together(*functions):
    """Run functions in threads, and raise the first error."""
    errors = []

    def run(function):
        try:
            function()
        except BaseException as error:
            errors.append(error)
            raise

    threads = [threading.Thread(target=run, args=(function,)) for function in functions]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert errors == []


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("make_model", [lambda name: make("llama", name), shared_layers], ids=["llama", "albert"])
def test_threads_that_watch_one_model_observe_their_calls(make_model, implementation):
    """Two threads watch the same model at the same time, also one whose layers share a module."""
    model, lengths, passes = make_model(implementation), {0: 5, 1: 9}, 8
    results, outputs = {}, {0: [], 1: []}
    barrier = threading.Barrier(2, timeout=60)
    inputs = {thread: torch.full((1, length), 7 + thread) for thread, length in lengths.items()}
    with torch.no_grad():
        plain = {thread: model(input_ids=ids)[0] for thread, ids in inputs.items()}

    def run(thread):
        with torch.no_grad(), watch(model, entropy=True) as seen:
            for _ in range(passes):
                barrier.wait()
                outputs[thread].append(model(input_ids=inputs[thread])[0])
            barrier.wait()
        results[thread] = seen

    run_together(lambda: run(0), lambda: run(1))
    for thread, seen in results.items():
        calls = [call for watched in seen.values() for call in watched.calls]
        assert [call.entropy.shape[-1] for call in calls] == [lengths[thread]] * 2 * passes
        assert all(torch.equal(output, plain[thread]) for output in outputs[thread])
    assert model.config._attn_implementation == implementation


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_calls_of_threads_without_a_watch_are_observed(implementation):
    model = make("llama", implementation)
    with watch(model, entropy=True) as seen:
        run_together(*(lambda n=n: model(input_ids=torch.full((1, n), 7)) for n in (4, 6)))
    assert sorted(call.entropy.shape[-1] for call in seen[1].calls) == [4, 6]
    assert seen[1].queries == 10


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_padding_belongs_to_the_thread(implementation):
    """The padded batch of one thread does not hide queries of another one."""
    model, padded, whole = make("llama", implementation), inputs_for("llama", "left"), inputs_for("llama")
    results, barrier = {}, threading.Barrier(2, timeout=60)

    def run(name, inputs):
        with torch.no_grad(), watch(model, entropy=True) as seen:
            for _ in range(5):
                barrier.wait()
                model(**inputs)
            barrier.wait()
        results[name] = seen[1].queries

    run_together(lambda: run("padded", padded), lambda: run("whole", whole))
    assert results == {"padded": 5 * int(padded["attention_mask"].sum()), "whole": 5 * whole["input_ids"].numel()}


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_watch_that_begins_during_a_pass_of_another_thread_does_not_change_it(implementation):
    """It observes the rest of the pass, because the other thread has not entered a watch."""
    model, inputs = make("llama", implementation), inputs_for("llama", "left")
    watches, results = [], []

    def enter(*_):
        def run():
            watches.append(watch(model, entropy=True))
            results.append(watches[0].__enter__())

        run_together(run)

    with torch.no_grad():
        plain = model(**inputs).logits
        hook = model.model.layers[1].register_forward_pre_hook(enter)
        assert torch.equal(model(**inputs).logits, plain)
        hook.remove()
        assert list(results[0]) == ["model.layers.1.self_attn"]
        assert torch.equal(model(**inputs).logits, plain)
    assert {name: len(watched.calls) for name, watched in results[0].items()} == {
        "model.layers.1.self_attn": 2,
        "model.layers.0.self_attn": 1,
    }
    watches[0].__exit__(None, None, None)
    assert model.config._attn_implementation == implementation


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
@pytest.mark.parametrize("reentrant", [False, True])
def test_recomputed_layers_are_counted_once(implementation, reentrant):
    model, ids = make("llama", implementation).train(), inputs_for("llama")["input_ids"]
    enable_checkpointing(model, use_reentrant=reentrant)
    model.enable_input_require_grads()
    with watch(model, entropy=True) as seen:
        model(input_ids=ids, labels=ids, use_cache=False).loss.backward()
    assert [len(watched.calls) for watched in seen.values()] == [1, 1]


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_a_copy_of_a_watched_model_is_not_watched(implementation):
    model, inputs = make("llama", implementation), inputs_for("llama")
    with torch.no_grad(), watch(model, entropy=True) as seen:
        twin = copy.deepcopy(model)
        twin(**inputs)
        assert len(seen) == 0
        model(**inputs)
    assert len(seen[0].calls) == 1
    with torch.no_grad(), watch(twin) as copied:
        twin(**inputs)
    assert len(copied) == 2
    assert len(seen[0].calls) == 1


@pytest.mark.parametrize("implementation", IMPLEMENTATIONS)
def test_two_models_are_watched_separately(implementation):
    models = [make(name, implementation) for name in ("llama", "gpt2")]
    with torch.no_grad(), watch(models[0]) as first, watch(models[1]) as second:
        for model in models:
            model(**inputs_for("llama"))
    assert list(first) == ["model.layers.0.self_attn", "model.layers.1.self_attn"]
    assert list(second) == ["transformer.h.0.attn", "transformer.h.1.attn"]
