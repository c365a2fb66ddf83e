"""Tests of decoding as a CUDA graph: `pytest -m gpu tests/gpu/test_decoding_graphs.py`."""

import threading
from functools import partial

import pytest
import torch

from clearhead.translation import _cuda_graphs
from clearhead.translation._decoding import Hypothesis, beam_search, greedy, run_search
from clearhead.translation._static_decoding import DecodingShape, StaticDecoder
from clearhead.translation.config import Config
from clearhead.translation.model import Transformer
from support.gpu_calls import synchronization_forbidden
from support.small_transformers import draw, make_writer, sources

pytestmark = pytest.mark.gpu
MAX_TOKENS = 13


def on_gpu(seed: int, **sizes: object) -> Transformer:
    return make_writer(seed, **sizes).float().cuda()


def both_ways(model: Transformer, source: torch.Tensor, lengths: torch.Tensor | None = None, **options) -> list:
    """Assert that a graph and plain decoding give the same translations; return them."""
    source, lengths = source.cuda(), None if lengths is None else lengths.cuda()
    search = partial(beam_search, model, source, lengths, **{"max_tokens": MAX_TOKENS, **options})
    plain = search(graph=False)
    assert search(graph=True) == plain
    return plain


@pytest.mark.parametrize("positions", ["sinusoidal", "rope"])
@pytest.mark.parametrize("beams", [1, 3])
@torch.inference_mode()
def test_a_step_never_waits_for_the_gpu(positions, beams):
    """Fails at the operation that reads a value or copies from pageable memory, which a capture does not allow."""
    model = on_gpu(0, positions=positions)
    decoder = StaticDecoder(model, DecodingShape(4, beams, 16, 64))
    decoder.step(model)  # compiles kernels
    with synchronization_forbidden():
        decoder.step(model)


@pytest.mark.parametrize("positions", ["sinusoidal", "rope"])
@pytest.mark.parametrize("beams", [1, 2, 4])
def test_graphs_give_the_translations_of_plain_decoding(positions, beams):
    lengths_written = set()
    for seed in (0, 2, 4):
        model = on_gpu(seed, positions=positions)
        source, lengths = sources()
        for given in (lengths, None):
            written = both_ways(model, source, given, beams=beams)
            lengths_written |= {(hypothesis.ended, len(hypothesis.tokens)) for hypothesis in written}
    assert len(lengths_written) > 2


@pytest.mark.parametrize(("beams", "max_tokens"), [(1, 100), (4, 40)])
def test_the_default_model_at_a_real_size(beams, max_tokens):
    torch.manual_seed(0)
    config = Config()
    model = Transformer(config.model, config.text.vocabulary).cuda().eval()
    source = torch.randint(4, config.text.vocabulary, (32, 16))
    written = both_ways(model, source, beams=beams, max_tokens=max_tokens)
    assert max(len(hypothesis.tokens) for hypothesis in written) > 8


def test_graphs_are_reused_for_other_sources_and_other_values_of_parameters(monkeypatch):
    captures, capture = [], _cuda_graphs.capture

    def counted(*arguments):
        captures.append(arguments)
        return capture(*arguments)

    monkeypatch.setattr(_cuda_graphs, "capture", counted)
    model = on_gpu(2, positions="rope")
    first = both_ways(model, *sources(), beams=3)
    assert both_ways(model, draw(8, 16, vocabulary=11), beams=3) != first
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    both_ways(model, *sources(), beams=3)
    assert len(captures) == 1
    model.load_state_dict({name: tensor.clone() / 2 for name, tensor in model.state_dict().items()}, assign=True)
    both_ways(model, *sources(), beams=3)
    assert len(captures) == 2


@torch.inference_mode()
@pytest.mark.parametrize("beams", [1, 3])
def test_half_precision_gives_the_translations_of_the_same_step_without_a_graph(beams):
    """Plain decoding uses other kernels in half precision, so its last digits differ."""
    model = on_gpu(2, positions="rope", d_model=48).bfloat16()
    source, lengths = (tensor.cuda() for tensor in sources())
    memory = model.encode(source, lengths)
    decoder = StaticDecoder(model, DecodingShape.fitting(memory, beams, MAX_TOKENS))
    decoder.load(model, memory, MAX_TOKENS, 1.0)
    expected = run_search(decoder.search, partial(decoder.step, model), MAX_TOKENS, 1)
    assert beam_search(model, source, lengths, beams=beams, max_tokens=MAX_TOKENS, graph=True) == expected


def test_threads_share_graphs():
    model, results = on_gpu(2, positions="rope"), {}
    batches = [draw(5, 7, vocabulary=11).cuda() for _ in range(4)]
    expected = [beam_search(model, batch, beams=3, max_tokens=MAX_TOKENS, graph=False) for batch in batches]

    def decode(index: int) -> None:
        for _ in range(3):
            written = beam_search(model, batches[index], beams=3, max_tokens=MAX_TOKENS, graph=True)
            results.setdefault(index, []).append(written)

    threads = [threading.Thread(target=decode, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == {index: [written] * 3 for index, written in enumerate(expected)}


def test_graphs_are_used_by_default(monkeypatch):
    used = []
    monkeypatch.setattr(_cuda_graphs, "capture", lambda function, device: used.append(device) or function)
    model = on_gpu(0)
    written = greedy(model, sources()[0].cuda(), max_tokens=3)
    assert len(used) == 1
    assert all(isinstance(hypothesis, Hypothesis) for hypothesis in written)


def test_a_failed_capture_gives_a_warning_and_leaves_the_gpu_usable():
    model = on_gpu(4)
    source, lengths = (tensor.cuda() for tensor in sources())
    expected = greedy(model, source, lengths, max_tokens=MAX_TOKENS, graph=False)
    stream = torch.cuda.current_stream()
    forward = model.decoder_norm.forward

    def waiting(x):
        x.sum().item()  # not allowed while a graph is captured
        return forward(x)

    model.decoder_norm.forward = waiting
    with pytest.warns(UserWarning, match="decoding without a CUDA graph, because capturing one failed"):
        assert greedy(model, source, lengths, max_tokens=MAX_TOKENS) == expected
    assert torch.cuda.current_stream() == stream
    other = on_gpu(4)
    assert both_ways(other, *sources(), beams=1) == expected
