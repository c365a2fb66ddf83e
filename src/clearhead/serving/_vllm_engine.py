"""`EngineObservation`: the observer of one vLLM engine, with its settings and its writer."""

from __future__ import annotations

import functools
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from torch import Tensor

from clearhead.serving._vllm_backends import log_once
from clearhead.serving._vllm_layers import check_attention, observed_attention_layers, paged_cache, served_layer
from clearhead.serving._vllm_runners import BatchReader
from clearhead.serving._vllm_start import check_version
from clearhead.serving.answers import StopRules
from clearhead.serving.metrics import Outcome
from clearhead.serving.native import native_kernel
from clearhead.serving.observer import Observer, Scheduled
from clearhead.serving.output_files import check_writable
from clearhead.serving.paged import PagedCache
from clearhead.serving.rare_warnings import RareWarnings
from clearhead.serving.requests import RequestState
from clearhead.serving.settings import RequestOptions, Settings
from clearhead.serving.spans import SpanLike, resolve_spans
from clearhead.serving.tokens import tokenizer_or_none
from clearhead.serving.writer import Writer
from clearhead.serving.writer_process import WriterProcess

logger = logging.getLogger("clearhead.serving")
RANDOM_SUFFIX = 9  # vLLM appends "-" and 8 random characters to the ids of clients


class EngineObservation:
    """Observer of one engine. Errors are logged once and drop the requests of the step; the engine continues."""

    def __init__(self, config: Any, runner: Any, layers: Sequence[tuple[str, Any]]) -> None:
        self._config, self._layers = config, layers
        for name, layer in layers:
            check_attention(name, layer)
        self._caches: dict[int, tuple[Tensor, PagedCache]] = {}  # by layer, with the tensor that vLLM passes
        self._served = {index: served_layer(index, name, layer.impl) for index, (name, layer) in enumerate(layers)}
        if len({layer.heads for layer in self._served.values()}) > 1:
            raise ValueError("the layers have different numbers of heads; expected the same in all layers")
        self._reader = BatchReader(runner)
        model = config.model_config
        self._load_tokenizer = functools.partial(
            tokenizer_or_none, model.tokenizer, model.tokenizer_revision, model.trust_remote_code
        )
        self._tokenizer = functools.cache(self._load_tokenizer)
        self._failed = False
        self._warnings = RareWarnings()
        self._settings: Settings | None = None
        self._observer: Observer | None = None
        self._writer: Writer | WriterProcess | None = None
        for index, (_, layer) in enumerate(layers):
            layer.impl.clearhead_listener = functools.partial(self.attend, index)

    @classmethod
    def of(cls, config: Any, runner: Any) -> EngineObservation | None:
        """Return the observation of an engine whose KV cache exists; None if none of its layers is observed."""
        layers = observed_attention_layers(config)
        if not layers:
            if not log_once.cache_info().currsize:  # an unsupported backend has logged its reason
                log_once("clearhead observes no requests: the model has no layers of decoder attention")
            return None
        check_version()
        observation = cls(config, runner, layers)
        settings = settings_of(config)
        if settings is not None:
            observation.start(settings)
        return observation

    def start(self, settings: Settings, *, in_process: bool = False) -> None:
        """Observe all requests from now on.

        Args:
            settings: settings of the observation.
            in_process: write the results in a thread of this process, whose caller waits for them. Default: in a
                process that continues when this one is killed.
        """
        chosen = {i: layer for i, layer in self._served.items() if settings.layers is None or i in settings.layers}
        heads = next(iter(self._served.values())).heads
        if not chosen:
            raise ValueError(f"layers is {settings.layers}; expected some of 0 to {len(self._served) - 1}")
        if settings.heads is not None and max(settings.heads) >= heads:
            raise ValueError(f"heads is {settings.heads}; expected indices below {heads}")
        check_writable(settings.output)
        on_cpu = self._config.device_config.device_type == "cpu"
        self._tokenizer()  # loading it takes up to a second, so it is done before the first request
        model = self._config.model_config
        if in_process:
            self._writer = Writer(settings, model.served_model_name, self._tokenizer)
        else:
            self._writer = WriterProcess(settings, model.served_model_name, self._load_tokenizer, list(chosen))
        self._observer = Observer(
            chosen,
            settings.wanted,
            self._writer.put,
            heads=settings.heads,
            values=settings.values,
            memory=settings.memory,
            kernel=native_kernel() if settings.compile and on_cpu else None,  # compiled before the first request
        )
        self._settings = settings
        logger.info("clearhead observes %d layers and writes to %s", len(chosen), settings.output)

    def configure(self, settings: str | None) -> str | None:
        """Observe with settings given as JSON, or None for those of the engine. Return the reason if it is impossible.

        All requests that are under way are finished and written before.
        """
        try:
            self._stop()
            chosen = settings_of(self._config) if settings is None else Settings.from_mapping(json.loads(settings))
            if chosen is not None:
                self.start(chosen, in_process=settings is not None)
        except Exception as error:
            return str(error)
        return None

    def _stop(self) -> None:
        observer, writer = self._observer, self._writer
        self._observer = self._writer = self._settings = None
        if observer is not None and writer is not None:
            observer.finish(observer.requests, self._reader.last_written)
            writer.set_under_way(0)
            writer.flush()
            writer.close()

    def close(self) -> None:
        """Write all requests. An engine in the process of its caller ends without a step that reports the last ones."""
        if self._observer is not None and self._writer is not None:
            with self._apart("the last requests"):
                self._observer.finish(self._observer.requests, self._reader.last_written)
            self._writer.set_under_way(0)
            self._writer.close()

    def begin_step(self, scheduled: Any) -> None:
        """Begin a step with the output of the scheduler."""
        if self._observer is not None:
            try:
                self._begin(self._observer, scheduled)
            except Exception:
                self._fail("the scheduled requests")

    def attend(self, index: int, query: Tensor, kv_cache: Tensor, block_table: Tensor | None) -> None:
        """Observe one layer."""
        if self._observer is not None:
            try:
                if block_table is None:
                    raise ValueError("the attention metadata have no block table")
                self._observer.attend(index, query, self._cache(index, kv_cache), block_table)
            except Exception:
                self._fail(f"layer {index}")

    def _cache(self, index: int, kv_cache: Tensor) -> PagedCache:
        if index not in self._caches or self._caches[index][0] is not kv_cache:
            self._caches[index] = kv_cache, paged_cache(self._layers[index][1], kv_cache)
        return self._caches[index][1]

    def end_step(self) -> None:
        """End a step."""
        if self._observer is not None:
            try:
                for _ in self._observer.end():
                    self._count("dropped")
            except Exception:
                self._fail("a step")
            self._note_under_way(self._observer)

    def end_answers(self) -> None:
        """Send the requests whose last token was sampled, before the server answers them.

        The server reports their end with its next step, which does not run if it is killed after the answer.
        """
        observer, last_written = self._observer, self._reader.last_written
        if observer is not None:
            with self._apart("the end of an answer"):
                observer.finish(observer.ended(last_written), last_written)
            self._note_under_way(observer)

    def _note_under_way(self, observer: Observer) -> None:
        assert self._writer is not None
        self._writer.set_under_way(len(observer.requests))

    def _begin(self, observer: Observer, scheduled: Any) -> None:
        for request_id in scheduled.finished_req_ids:
            with self._apart("the end of a request"):
                observer.finish((request_id,), self._reader.last_written)
        cached = scheduled.scheduled_cached_reqs
        computed = dict(zip(cached.req_ids, cached.num_computed_tokens, strict=True))
        for request in scheduled.scheduled_new_reqs:
            computed[request.req_id] = request.num_computed_tokens
            if request.req_id not in observer.requests and not _is_resumed(request):
                with self._apart("a new request"):
                    self._add(observer, request)
        self._note_under_way(observer)
        if not observer.requests:
            observer.skip()
            return
        lengths, total = scheduled.num_scheduled_tokens, scheduled.total_num_scheduled_tokens

        def batch() -> tuple[list[Scheduled], Tensor]:
            ids, tokens = self._reader.read(total)
            return [Scheduled(i, lengths[i], computed[i] + lengths[i]) for i in ids], tokens

        observer.begin(batch)

    def _add(self, observer: Observer, request: Any) -> None:
        """Observe a new request if the settings or its options choose it."""
        assert self._settings is not None
        extra = getattr(request.sampling_params, "extra_args", None) or {}
        request_id: str = request.req_id
        given = extra.get("clearhead")
        prompt: list[int] = list(request.prompt_token_ids or ())
        try:
            options = RequestOptions() if given is None else RequestOptions.parse(given)
        except (TypeError, ValueError) as error:  # the options may have asked for privacy
            self._warnings.log("options", f"request {request_id} is not observed: {error}")
            self._count("skipped")
            return
        if not self._settings.client_options and options != options.refusals:
            options = options.refusals
            message = f"request {request_id} has options that are ignored, because the setting client_options is off"
            self._warnings.log("ignored", message)
        client_id = _client_id(request_id)
        choice = self._settings.chooses(client_id, options)
        # tokens of images may attend to later ones
        is_causal = not (getattr(self._config.model_config, "is_mm_prefix_lm", False) and request.mm_features)
        if not choice.observed or not prompt or not is_causal:  # prompts may also be embeddings
            self._count("skipped")
            return
        spans = self._resolve(request_id, prompt, self._settings.spans, strict=False)
        spans |= self._resolve(request_id, prompt, options.spans, strict=True)
        rules = StopRules.of(
            request.sampling_params, len(prompt), getattr(self._config.model_config, "max_model_len", None)
        )
        observer.add(
            RequestState(request_id, prompt, spans, record=choice.recorded, client_id=client_id, stop_rules=rules)
        )

    def _resolve(
        self, request_id: str, prompt: list[int], spans: Mapping[str, SpanLike], *, strict: bool
    ) -> dict[str, tuple[int, int]]:
        """Return spans in tokens, without texts that do not occur. `strict` logs them, for the spans of a request."""
        tokenizer = self._tokenizer() if any(isinstance(span, str) for span in spans.values()) else None
        resolved = resolve_spans(spans, prompt, tokenizer, strict=False)
        missing = [name for name in spans if strict and name not in resolved]
        if missing:
            names = ", ".join(missing)
            self._warnings.log("spans", f"request {request_id}: the text of {names} does not occur in the prompt")
        return resolved

    def _count(self, outcome: Outcome) -> None:
        assert self._writer is not None
        self._writer.count(outcome)

    def _fail(self, part: str) -> None:
        assert self._observer is not None
        for _ in self._observer.abandon():
            self._count("failed")
        self._log_error(part)

    @contextmanager
    def _apart(self, part: str) -> Iterator[None]:
        """Keep an error in one request from the others."""
        try:
            yield
        except Exception:
            self._count("failed")
            self._log_error(part)

    def _log_error(self, part: str) -> None:
        if not self._failed:
            self._failed = True
            logger.exception("clearhead could not observe %s; its requests are dropped", part)


def settings_of(config: Any) -> Settings | None:
    """Return the settings of an engine: its `additional_config`, or the environment variable.

    None if `additional_config` has no settings: observation then begins with `observe(llm)`.
    """
    given = config.additional_config.get("clearhead") if isinstance(config.additional_config, dict) else None
    if given is None:
        return Settings.from_environment()
    return Settings.from_mapping(given) if given != {} else None


def _is_resumed(request: Any) -> bool:
    """Return whether a request was preempted while it wrote. The second runner gets it like a new one."""
    return len(getattr(request, "prefill_token_ids", None) or ()) > len(request.prompt_token_ids or ())


def _client_id(request_id: str) -> str:
    """Return the id that the client uses, without the random characters that vLLM appends."""
    if os.environ.get("VLLM_DISABLE_REQUEST_ID_RANDOMIZATION", "0") not in ("", "0"):
        return request_id
    return request_id[:-RANDOM_SUFFIX] if len(request_id) > RANDOM_SUFFIX else request_id
