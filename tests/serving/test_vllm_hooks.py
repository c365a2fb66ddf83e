"""Tests of the hooks into vLLM with stand-ins for its objects. `make test-vllm` runs them in vLLM."""

import json
import logging
from types import SimpleNamespace

import pytest
import torch

from clearhead.serving import SeenRequests, _vllm_engine, read_requests
from clearhead.serving._vllm_backends import OBSERVED, unsupported_reasons
from clearhead.serving._vllm_engine import EngineObservation, settings_of
from clearhead.serving._vllm_layers import served_layer
from clearhead.serving._vllm_runners import BatchReader
from clearhead.serving.paged import PagedCache
from clearhead.serving.writer import Writer

HEADS, KV_HEADS, KEY_DIM, BLOCK = 6, 2, 8, 4


def config_of(layers=(), **additional):
    parallel = SimpleNamespace(
        tensor_parallel_size=1,
        pipeline_parallel_size=1,
        decode_context_parallel_size=1,
        prefill_context_parallel_size=1,
    )
    return SimpleNamespace(
        parallel_config=parallel,
        cache_config=SimpleNamespace(cache_dtype="auto"),
        speculative_config=None,
        device_config=SimpleNamespace(device_type="cpu"),
        additional_config=additional,
        compilation_config=SimpleNamespace(static_forward_context=dict(layers)),
        model_config=SimpleNamespace(
            served_model_name="tiny", tokenizer="missing", tokenizer_revision=None, trust_remote_code=False,
            enforce_eager=True, dtype=torch.float32,
        ),
    )  # fmt: skip


def layer_of(**arguments):
    given = {"num_heads": HEADS, "num_kv_heads": KV_HEADS, "scale": 0.5, "attn_type": "decoder", **arguments}
    impl = SimpleNamespace(clearhead_arguments=given, clearhead_listener=None, sinks=None)
    builder = type("Builder", (), {OBSERVED: True})
    return SimpleNamespace(impl=impl, attn_backend=SimpleNamespace(get_builder_cls=lambda: builder))


class TestSupport:
    def test_plain_engines_are_supported(self):
        assert unsupported_reasons("CPU_ATTN", config_of()) == []

    @pytest.mark.parametrize(
        ("section", "name", "value", "reason"),
        [
            ("parallel_config", "tensor_parallel_size", 2, "tensor_parallel_size is 2; expected 1"),
            ("cache_config", "cache_dtype", "fp8", "the KV cache is quantized (fp8)"),
            (None, "speculative_config", object(), "speculative decoding is on"),
            ("cache_config", "kv_sharing_fast_prefill", True, "kv_sharing_fast_prefill is on"),
            ("parallel_config", "distributed_executor_backend", "ray", "the executor is ray"),
            ("parallel_config", "enable_dbo", True, "dual-batch overlap is on"),
        ],
    )
    def test_each_limit_is_named(self, section, name, value, reason):
        config = config_of()
        setattr(getattr(config, section) if section else config, name, value)
        (named,) = unsupported_reasons("CPU_ATTN", config)
        assert named.startswith(reason)

    def test_other_backends_are_named(self):
        assert unsupported_reasons("FLASHMLA", config_of())[0].startswith("the attention backend is FLASHMLA; expected")

    def test_options_of_a_layer_are_its_arguments(self):
        layer = layer_of(logits_soft_cap=0, sliding_window=7, alibi_slopes=[0.5] * HEADS)
        served = served_layer(3, "layers.3", layer.impl)
        assert (served.index, served.heads, served.kv_heads, served.scale) == (3, HEADS, KV_HEADS, 0.5)
        assert (served.softcap, served.window, served.slopes.tolist()) == (None, 7, [0.5] * HEADS)


class TestRunners:
    def test_first_runner_keeps_its_batch(self):
        ids = torch.arange(9)
        runner = SimpleNamespace(input_batch=SimpleNamespace(req_ids=["b", "a"]), input_ids=SimpleNamespace(gpu=ids))
        names, tokens = BatchReader(runner).read(5)
        assert names == ["b", "a"]
        assert tokens.tolist() == [0, 1, 2, 3, 4]

    def test_second_runner_returns_its_batch(self):
        batch = SimpleNamespace(req_ids=["c"], input_ids=torch.arange(7))
        runner = SimpleNamespace(prepare_inputs=lambda *args, **kwargs: batch)
        reader = BatchReader(runner)
        assert runner.prepare_inputs("scheduled", dummy=False) is batch
        names, tokens = reader.read(3)
        assert names == ["c"]
        assert tokens.tolist() == [0, 1, 2]

    @pytest.mark.parametrize(
        ("written", "position", "token"),
        [([7, 8], 4, 8), ([7, -1], 4, None), ([7, 8], 5, None), ([], 2, None)],
        ids=["last", "placeholder", "read", "none"],
    )
    def test_last_written_token_is_that_of_the_position(self, written, position, token):
        state = SimpleNamespace(prompt_token_ids=[1, 2, 3], output_token_ids=written)
        reader = BatchReader(SimpleNamespace(input_batch=None, requests={"a": state}))
        assert reader.last_written("a", position) == token
        assert reader.last_written("b", position) is None


class Engine:
    """Engine with one request per call of `run`, whose blocks follow one another."""

    def __init__(self, monkeypatch, layers=2, **additional):
        monkeypatch.setattr(_vllm_engine, "paged_cache", lambda layer, cache: PagedCache.interleaved(cache))
        monkeypatch.setattr(_vllm_engine, "check_version", lambda: None)
        monkeypatch.setattr(_vllm_engine, "WriterProcess", Writer)
        self.layers = {f"layers.{index}": layer_of() for index in range(layers)}
        self.runner = SimpleNamespace(
            input_batch=SimpleNamespace(req_ids=[]), input_ids=SimpleNamespace(gpu=torch.zeros(64, dtype=torch.int32))
        )
        self.observation = EngineObservation.of(config_of(self.layers.items(), **additional), self.runner)
        self.caches = {name: torch.randn(16, KV_HEADS, BLOCK, 2 * KEY_DIM) for name in self.layers}

    def step(self, lengths, *, new=(), computed=None, finished=()):
        """Run a step of some tokens of each request."""
        cached = computed or {}
        scheduled = SimpleNamespace(
            finished_req_ids=set(finished),
            scheduled_new_reqs=list(new),
            scheduled_cached_reqs=SimpleNamespace(req_ids=list(cached), num_computed_tokens=list(cached.values())),
            num_scheduled_tokens=lengths,
            total_num_scheduled_tokens=sum(lengths.values()),
        )
        self.observation.begin_step(scheduled)
        self.runner.input_batch.req_ids = list(lengths)
        self.runner.input_ids.gpu[: sum(lengths.values())] = torch.arange(sum(lengths.values())) + 50
        table = torch.arange(1, 1 + 4 * len(lengths), dtype=torch.int32).view(-1, 4)
        for name, layer in self.layers.items():
            query = torch.randn(sum(lengths.values()) + 3, HEADS, KEY_DIM)  # vLLM pads batches
            layer.impl.clearhead_listener(query, self.caches[name], table)
        self.observation.end_step()


def new_request(request_id, prompt, options=None, computed=0, sampling=None, **others):
    extra = None if options is None else {"clearhead": options}
    return SimpleNamespace(
        req_id=request_id,
        prompt_token_ids=prompt,
        num_computed_tokens=computed,
        sampling_params=SimpleNamespace(extra_args=extra, **(sampling or {})),
        **others,
    )


@pytest.fixture
def engine(monkeypatch, tmp_path):
    return Engine(monkeypatch, clearhead={"output": str(tmp_path), "arrays": True, "client_options": True})


def finish(engine, folder):
    engine.observation.close()
    return {line["request"]: line for line in read_requests(folder)}


class TestEngine:
    def test_requests_are_written_by_the_ids_of_their_clients(self, engine, tmp_path):
        engine.step({"a-12345678": 7}, new=[new_request("a-12345678", list(range(7)), "record")])
        engine.step({"a-12345678": 1}, computed={"a-12345678": 7})
        engine.step({}, finished=["a-12345678"])
        line = finish(engine, tmp_path)["a"]
        assert (line["id"], line["rows"]) == ("a-12345678", {"prompt": 6, "answer": 2})
        request = SeenRequests(tmp_path)["a"]
        assert request.token_ids == [0, 1, 2, 3, 4, 5, 6, 50]
        assert request.recording["decoder"].layers[1].shape == (1, HEADS, 8, 8)

    def test_preempted_requests_that_come_again_continue(self, engine, tmp_path):
        request = new_request("a-12345678", list(range(5)))
        engine.step({"a-12345678": 5}, new=[request])
        engine.step({"a-12345678": 1}, computed={"a-12345678": 5})
        engine.step({"a-12345678": 6}, new=[request])  # the second runner removes preempted requests
        engine.step({"a-12345678": 1}, computed={"a-12345678": 6})
        engine.step({}, finished=["a-12345678"])
        assert finish(engine, tmp_path)["a"]["rows"] == {"prompt": 4, "answer": 3}

    @pytest.mark.parametrize("options", [{"unknown": True}, {"observe": False, "record": True}, "no", 7])
    def test_requests_with_wrong_options_are_not_observed(self, engine, tmp_path, caplog, options):
        with caplog.at_level(logging.WARNING, logger="clearhead.serving"):
            for name in ("a-12345678", "b-12345678"):
                engine.step({name: 5}, new=[new_request(name, list(range(5)), options)])
        (record,) = caplog.records  # not one for each request
        assert record.getMessage().startswith("request a-12345678 is not observed: ")
        assert engine.observation._writer.metrics.snapshot()["requests"]["skipped"] == 2
        engine.step({}, finished=["a-12345678", "b-12345678"])
        assert not finish(engine, tmp_path)

    def test_lines_have_the_end_of_the_answer(self, engine, tmp_path):
        """Servers run steps after the end of an answer, until they have found it."""
        ends = {"stop": {"eos_token_id": 50}, "length": {"max_tokens": 2}, "abort": {}}
        names = [f"{name}-12345678" for name in ends]
        new = [new_request(name, list(range(5)), sampling=ends[name[:-9]]) for name in names]
        engine.step(dict.fromkeys(names, 5), new=new)
        for step in range(3):
            engine.step(dict.fromkeys(names, 1), computed=dict.fromkeys(names, 5 + step))
        states = {name: SimpleNamespace(prompt_token_ids=range(5), output_token_ids=[50, 51, 52, 53]) for name in names}
        engine.runner.requests = states
        engine.step({}, finished=names)
        lines = finish(engine, tmp_path)
        assert {name: (line["finish_reason"], line["rows"]["answer"]) for name, line in lines.items()} == {
            "stop": ("stop", 1),
            "length": ("length", 2),
            "abort": ("abort", 4),
        }

    def test_requests_are_sent_with_their_last_token(self, engine, tmp_path):
        """A server that is killed after an answer runs no step that reports its end."""
        name = "a-12345678"
        engine.step({name: 5}, new=[new_request(name, list(range(5)), sampling={"max_tokens": 2})])
        state = SimpleNamespace(prompt_token_ids=range(5), output_token_ids=[50])
        engine.runner.requests = {name: state}
        engine.observation.end_answers()
        engine.step({name: 1}, computed={name: 5})
        state.output_token_ids.append(-1)  # a placeholder of asynchronous scheduling
        engine.observation.end_answers()
        assert engine.observation._observer.requests == [name]
        state.output_token_ids[-1] = 51
        engine.observation.end_answers()
        assert engine.observation._observer.requests == []
        engine.step({}, finished=[name])
        line = finish(engine, tmp_path)["a"]
        assert (line["finish_reason"], line["rows"]["answer"]) == ("length", 2)

    def test_a_folder_that_cannot_be_written_is_refused(self, monkeypatch, tmp_path):
        (tmp_path / "file").write_text("")
        with pytest.raises(ValueError, match=r"output is .*file/out, which cannot be written \(Not a directory\)"):
            Engine(monkeypatch, clearhead={"output": str(tmp_path / "file" / "out")})

    def test_requests_without_token_ids_are_skipped(self, engine, tmp_path):
        engine.step({"a-12345678": 5}, new=[new_request("a-12345678", None)])
        engine.step({}, finished=["a-12345678"])
        assert finish(engine, tmp_path) == {}

    def test_errors_drop_the_requests_of_the_step_and_are_logged_once(self, engine, tmp_path, caplog):
        engine.step({"a-12345678": 5}, new=[new_request("a-12345678", list(range(5)))])
        engine.caches["layers.1"] = torch.randn(16, KV_HEADS, BLOCK, 2)  # another width
        with caplog.at_level(logging.ERROR, logger="clearhead.serving"):
            for _ in range(2):
                engine.step({"a-12345678": 1}, computed={"a-12345678": 5})
                engine.step({"b-12345678": 5}, new=[new_request("b-12345678", list(range(5)))])
        assert len(caplog.records) == 1
        engine.caches["layers.1"] = torch.randn(16, KV_HEADS, BLOCK, 2 * KEY_DIM)
        engine.step({"c-12345678": 5}, new=[new_request("c-12345678", list(range(5)))])
        engine.step({}, finished=["a-12345678", "b-12345678", "c-12345678"])
        assert set(finish(engine, tmp_path)) == {"c"}

    def test_caches_of_an_unknown_form_do_not_fail(self, engine, monkeypatch):
        monkeypatch.setattr(_vllm_engine, "paged_cache", lambda layer, cache: cache.view(-1, 17))
        listener = engine.layers["layers.0"].impl.clearhead_listener
        listener(torch.randn(5, HEADS, KEY_DIM), engine.caches["layers.0"], torch.ones(1, 4).int())

    def test_errors_in_one_request_do_not_affect_others(self, engine, tmp_path, monkeypatch):
        engine.step({"a-12345678": 5}, new=[new_request("a-12345678", list(range(5)))])
        strange = new_request("b-12345678", list(range(3)), {"spans": {"text": "no"}})
        monkeypatch.setattr(_vllm_engine, "resolve_spans", lambda *args, **kwargs: {}["missing"])
        engine.step({"a-12345678": 1, "b-12345678": 3}, new=[strange], computed={"a-12345678": 5})
        engine.observation._observer._states["b-12345678"] = object()  # which cannot be finished
        engine.step({}, finished=["b-12345678", "a-12345678"])
        assert finish(engine, tmp_path)["a"]["rows"] == {"prompt": 4, "answer": 2}

    def test_dropped_requests_do_not_begin_again_in_the_second_runner(self, engine, tmp_path):
        """The tokens between the prompt and the first row would be unknown."""
        resumed = new_request("a-12345678", list(range(5)), computed=8, prefill_token_ids=list(range(11)))
        engine.step({"a-12345678": 3}, new=[resumed])
        engine.step({}, finished=["a-12345678"])
        assert finish(engine, tmp_path) == {}

    def test_prompts_with_images_that_attend_both_ways_are_skipped(self, engine, tmp_path):
        engine.observation._config.model_config.is_mm_prefix_lm = True
        new = [
            new_request(f"{name}-12345678", [1, 2], mm_features=images)
            for name, images in (("a", ["image"]), ("b", []))
        ]
        engine.step({"a-12345678": 2, "b-12345678": 2}, new=new)
        engine.step({}, finished=["a-12345678", "b-12345678"])
        assert set(finish(engine, tmp_path)) == {"b"}

    def test_settings_can_change(self, engine, tmp_path):
        engine.step({"a-12345678": 5}, new=[new_request("a-12345678", list(range(5)))])
        other = {"output": str(tmp_path / "other"), "arrays": True, "layers": [1]}
        assert engine.observation.configure(json.dumps(other)) is None
        assert [line["request"] for line in read_requests(tmp_path)] == ["a"]
        engine.step({"b-12345678": 5}, new=[new_request("b-12345678", list(range(5)))])
        assert engine.observation.configure(None) is None
        assert SeenRequests(tmp_path / "other")["b"].layers == (1,)
        engine.step({"c-12345678": 5}, new=[new_request("c-12345678", list(range(5)))])
        assert set(finish(engine, tmp_path)) == {"a", "c"}  # the settings of the engine are back

    @pytest.mark.parametrize(
        ("settings", "options", "observed"),
        [
            ({}, "record", True),
            ({}, {"spans": {"a": [0, 2]}}, True),
            ({"record": 1}, {"record": False}, True),
            ({}, {"observe": False}, False),
            ({}, "[1]", False),
            ({"share": 0}, {"observe": True, "record": True}, False),
        ],
    )
    def test_by_default_clients_can_only_refuse(self, monkeypatch, tmp_path, settings, options, observed):
        engine = Engine(monkeypatch, clearhead={"output": str(tmp_path), **settings})
        engine.step({"a-12345678": 5}, new=[new_request("a-12345678", list(range(5)), options)])
        found = [(line["spans"], line["recording"]) for line in finish(engine, tmp_path).values()]
        assert found == [({}, None)] * observed

    def test_wrong_settings_are_reported(self, engine):
        assert "expected some of 0 to 1" in engine.observation.configure(json.dumps({"output": "x", "layers": [7]}))
        assert "expected indices below 6" in engine.observation.configure(json.dumps({"output": "x", "heads": [6]}))


def test_engines_without_an_output_folder_wait(monkeypatch):
    monkeypatch.delenv("CLEARHEAD_OBSERVE", raising=False)
    assert settings_of(config_of(clearhead={})) is None
    assert settings_of(config_of()) is None
    engine = Engine(monkeypatch, clearhead={})
    engine.step({"a-12345678": 5}, new=[new_request("a-12345678", list(range(5)))])


@pytest.mark.parametrize(("given", "message"), [({"folder": "x"}, "folder"), ({"share": 0.5}, "output is missing")])
def test_wrong_settings_of_an_engine_are_named(given, message):
    with pytest.raises(ValueError, match=message):
        settings_of(config_of(clearhead=given))


def test_engines_without_observed_layers_are_not_observed():
    assert EngineObservation.of(config_of([("layers.0", SimpleNamespace(impl=object()))]), None) is None


def test_layers_with_different_heads_are_refused(monkeypatch):
    layers = {"layers.0": layer_of(), "layers.1": layer_of(num_heads=4)}
    with pytest.raises(ValueError, match="different numbers of heads"):
        EngineObservation(config_of(layers.items()), SimpleNamespace(input_batch=None), list(layers.items()))
