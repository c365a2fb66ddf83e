"""Tests of decoding on preallocated buffers, without CUDA graphs; tests/gpu has those with graphs."""

import copy
import gc
import weakref
from functools import partial

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from clearhead import watch
from clearhead.translation import _cuda_graphs, _decoding
from clearhead.translation._cuda_graphs import unsupported_reasons
from clearhead.translation._decoding import beam_search, greedy
from clearhead.translation._static_decoding import DecodingShape, StaticDecoder
from clearhead.translation.model import Transformer
from support.small_transformers import draw, make, make_writer, sources

MAX_TOKENS = 13
every_position = pytest.mark.parametrize("positions", ["sinusoidal", "rope"])


@pytest.fixture
def captures(monkeypatch) -> list[torch.device]:
    """Decode on static buffers without capturing a graph; return the devices of all captures."""
    devices = []

    def run_directly(function, device):
        devices.append(device)
        return function

    monkeypatch.setattr(_cuda_graphs, "capture", run_directly)
    monkeypatch.setattr(_cuda_graphs, "unsupported_reasons", lambda *_: [])
    monkeypatch.setattr(_cuda_graphs, "_GRAPHS", weakref.WeakKeyDictionary())
    return devices


class TestTranslations:
    @every_position
    @pytest.mark.parametrize("padded", [True, False])
    @pytest.mark.parametrize("beams", [1, 2, 3, 7])
    def test_equal_those_of_growing_caches(self, captures, positions, padded, beams):
        lengths_written = set()
        for seed in (0, 2, 4):
            model = make_writer(seed, positions=positions)
            source, lengths = sources()
            lengths = lengths if padded else None
            search = partial(beam_search, model, source, lengths, beams=beams, max_tokens=MAX_TOKENS)
            expected = search(graph=False)
            assert search(graph=True) == expected
            lengths_written |= {(hypothesis.ended, len(hypothesis.tokens)) for hypothesis in expected}
        assert len(captures) == 3
        assert len(lengths_written) > 2

    @pytest.mark.parametrize("length_penalty", [0.0, 2.0, -1.0])
    @pytest.mark.parametrize("steps_per_check", [1, 3, 50])
    def test_do_not_depend_on_the_steps_between_two_checks(
        self, captures, monkeypatch, length_penalty, steps_per_check
    ):
        monkeypatch.setattr(_decoding, "STEPS_PER_CHECK", steps_per_check)
        for seed in (2, 4):
            model = make_writer(seed, positions="rope")
            search = partial(beam_search, model, *sources(), beams=3, max_tokens=29, length_penalty=length_penalty)
            assert search(graph=True) == search(graph=False)

    @pytest.mark.parametrize("beams", [1, 3])
    def test_reused_buffers_do_not_remember_earlier_sources(self, captures, beams):
        model = make_writer(0)
        batches = [sources(), (draw(8, 16, vocabulary=11), None), (draw(6, 2, vocabulary=11), None), sources()]
        for source, lengths in batches:
            search = partial(beam_search, model, source, lengths, beams=beams, max_tokens=MAX_TOKENS)
            assert search(graph=True) == search(graph=False)
        assert len(captures) == 1

    def test_hidden_nan_does_not_spread(self, captures):
        """Weights of 0 times NaN would be NaN: buffers are cleared."""
        model = make_writer(0)
        search = partial(greedy, model, *sources(), max_tokens=MAX_TOKENS)
        expected = search(graph=True)
        [captured] = _cuda_graphs._GRAPHS[model].graphs.values()
        with torch.inference_mode():
            for cache in (*captured.decoder.caches.self_attention, *captured.decoder.caches.cross_attention):
                cache.key.fill_(torch.nan)
                cache.value.fill_(torch.nan)
        assert search(graph=True) == expected
        assert len(captures) == 1

    def test_lengths_beyond_the_source_count_as_its_length(self, captures):
        model = make_writer(0)
        search = partial(greedy, model, sources()[0], torch.tensor([9, 3, 5, 70, 2]), max_tokens=MAX_TOKENS)
        assert search(graph=True) == search(graph=False)


class RejectsOtherDevices(TorchDispatchMode):
    """Mode that raises if an operation takes or returns a tensor that is not on the meta device."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            assert not isinstance(leaf, torch.Tensor) or leaf.is_meta, f"{func} uses a tensor on {leaf.device}"
        return result


class TestCapturable:
    @every_position
    @pytest.mark.parametrize("beams", [1, 3])
    @torch.inference_mode()
    def test_a_step_reads_no_values_and_copies_nothing_between_devices(self, positions, beams):
        """Tensors on the meta device have no values: reading one raises, as it would while a graph is captured."""
        model = make(positions=positions).to("meta")
        decoder = StaticDecoder(model, DecodingShape(4, beams, 16, 64))
        with RejectsOtherDevices():
            decoder.step(model)

    def test_the_mode_notices_a_read_and_a_copy(self):
        logits = torch.zeros(3, 5, device="meta")
        with RejectsOtherDevices(), pytest.raises(AssertionError, match="on cpu"):
            logits.index_fill_(1, torch.tensor([0, 2]).to("meta"), 1.0)
        with RejectsOtherDevices(), pytest.raises((RuntimeError, NotImplementedError)):
            bool((logits == 0).all())


class TestKeptGraphs:
    def decode(self, model: Transformer, batch: int = 3) -> list:
        source = draw(batch, 5, vocabulary=11)
        assert greedy(model, source, max_tokens=7, graph=True) == greedy(model, source, max_tokens=7, graph=False)

    def test_similar_sizes_share_a_graph(self, captures):
        model = make_writer(0)
        for batch, source, max_tokens in [(3, 5, 7), (4, 16, 64), (3, 1, 1)]:
            greedy(model, draw(batch, source, vocabulary=11), max_tokens=max_tokens, graph=True)
        assert len(captures) == 1
        for batch, source, max_tokens in [(5, 5, 7), (3, 17, 7), (3, 5, 65)]:
            greedy(model, draw(batch, source, vocabulary=11), max_tokens=max_tokens, graph=True)
        assert len(captures) == 4

    def test_the_graph_not_used_for_the_longest_time_is_dropped(self, captures, monkeypatch):
        monkeypatch.setattr(_cuda_graphs, "MAX_GRAPHS", 2)
        model = make_writer(0)
        for batch in (1, 2, 1, 4, 1):
            self.decode(model, batch)
        assert len(captures) == 3
        assert [shape.batch for shape, _ in _cuda_graphs._GRAPHS[model].graphs] == [4, 1]

    def test_graphs_are_dropped_to_bound_the_memory_of_their_caches(self, captures, monkeypatch):
        model = make_writer(0)
        size = DecodingShape(4, 1, 16, 64).cache_bytes(model)
        self.decode(model, 4)
        [captured] = _cuda_graphs._GRAPHS[model].graphs.values()
        assert captured.cache_bytes == size == 2 * 4 * 2 * 30 * 8 * (16 + 64)
        monkeypatch.setattr(_cuda_graphs, "MAX_CACHE_BYTES", 2 * size)
        for batch in (2, 1, 4, 8):
            self.decode(model, batch)
        assert [shape.batch for shape, _ in _cuda_graphs._GRAPHS[model].graphs] == [8]

    def test_parameters_changed_in_place_are_used(self, captures):
        model = make_writer(0)
        self.decode(model)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.mul_(1.5)
        self.decode(model)
        assert len(captures) == 1

    @pytest.mark.parametrize(
        "change",
        [
            lambda model: model.float(),
            lambda model: model.load_state_dict(copy.deepcopy(model.state_dict()), assign=True),
            lambda model: setattr(model.decoder[1], "cross", copy.deepcopy(model.decoder[0].cross)),
            lambda model: model.decoder[0].feed_forward.__setitem__(1, torch.nn.GELU()),
        ],
        ids=["dtype", "assigned", "module", "activation"],
    )
    def test_replaced_parameters_and_modules_need_a_new_graph(self, captures, change):
        model = make_writer(0)
        self.decode(model)
        self.decode(model, 1)
        change(model)
        self.decode(model)
        assert len(captures) == 3
        assert len(_cuda_graphs._GRAPHS[model].graphs) == 1

    def test_do_not_keep_the_model_alive(self, captures, monkeypatch):
        monkeypatch.setattr(_cuda_graphs, "capture", lambda function, device: (function(), list)[1])
        model = make_writer(0)
        greedy(model, draw(1, 5, vocabulary=11), max_tokens=3, graph=True)
        reference = weakref.ref(model)
        assert _cuda_graphs._GRAPHS
        del model
        gc.collect()
        assert reference() is None
        assert not _cuda_graphs._GRAPHS


class TestReasons:
    SHAPE = DecodingShape(1, 1, 16, 64)

    def test_a_failed_capture_gives_one_warning_or_an_error(self, captures, monkeypatch):
        def fail(function, device):
            captures.append(device)
            raise RuntimeError("operation not permitted when stream is capturing")

        monkeypatch.setattr(_cuda_graphs, "capture", fail)
        model, source = make_writer(0), draw(2, 5, vocabulary=11)
        expected = greedy(model, source, max_tokens=7, graph=False)
        shape = DecodingShape(2, 1, 16, 64)
        with pytest.warns(UserWarning, match="decoding without a CUDA graph, .* failed: operation not permitted"):
            assert _cuda_graphs._captured(model, shape, required=False) is None
        assert _cuda_graphs._captured(model, shape, required=False) is None
        assert len(captures) == 1
        with pytest.raises(RuntimeError, match="capturing a decoding step in a CUDA graph failed: operation not"):
            greedy(model, source, max_tokens=7, graph=True)
        assert greedy(model, source, max_tokens=7) == expected

    @pytest.mark.parametrize("write", [greedy, beam_search])
    def test_a_required_graph_on_the_cpu_raises(self, write):
        with pytest.raises(ValueError, match="does not run as a CUDA graph: the model is on cpu; CUDA graphs require"):
            write(make_writer(0), sources()[0], graph=True)

    def test_each_obstacle_is_named(self):
        model = make_writer(0)
        [device] = unsupported_reasons(model, self.SHAPE)

        def added(*arguments) -> str:
            first, reason = unsupported_reasons(model, self.SHAPE, *arguments)
            assert first == device
            return reason

        assert added([("encoder", 0, 0)]) == "heads are ablated"
        with watch(model):
            model(*sources()[:1], draw(5, 2, vocabulary=11))
            assert "an observer" in added()
        handle = model.decoder[1].cross.query.register_forward_hook(lambda *_: None)
        assert "a hook is active" in added()
        handle.remove()
        model.decoder[0].dropout.train()
        assert "training mode" in added()
        model.eval()
        with torch.autocast("cpu"):
            assert "autocast" in added()
        torch.use_deterministic_algorithms(True)
        try:
            assert "deterministic" in added()
        finally:
            torch.use_deterministic_algorithms(False)
        huge = DecodingShape(2**14, 1, 16, 2**14)
        assert "bytes; at most 1,073,741,824 are kept" in unsupported_reasons(model, huge)[1]
        assert unsupported_reasons(model, self.SHAPE) == [device]

    def test_a_model_that_decodes_otherwise_is_not_captured(self):
        class Other(Transformer):
            def caches(self):
                return super().caches()

        model = make_writer(0)
        model.__class__ = Other
        [reason] = unsupported_reasons(model, self.SHAPE)
        assert reason == "Other does not decode with the caches of Transformer"
