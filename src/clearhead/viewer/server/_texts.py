"""Texts of a viewer: those passed at the start, and those typed into its page."""

from __future__ import annotations

import os
import warnings
from collections import OrderedDict
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, NamedTuple

import torch

from clearhead._utils.checks import describe
from clearhead._utils.progress import StageProgress
from clearhead.analysis import Roles
from clearhead.models import load_source
from clearhead.recording import Recording
from clearhead.recording.protocol import RecordableModel
from clearhead.viewer._recording_cache import RecordingCache
from clearhead.watching.seen import Seen

MAX_TYPED_LETTERS = 20_000
MAX_TYPED_RECORDINGS = 4  # older ones are evicted
MAX_ONE_THREAD_PARAMETERS, MAX_ONE_THREAD_TOKENS = 50_000_000, 256  # larger work gains from more threads
Source = Recording | Seen | RecordableModel | str | os.PathLike[str]

_LONGER_TEXTS = "for longer texts use clearhead view --file"


class Recorded(NamedTuple):
    """Cached recording of a text, and the warnings raised while the model ran."""

    cache: RecordingCache
    notes: list[str]


class Texts:
    """Model and its texts, each recorded when it is first shown; or a single recording without a model.

    All torch work runs in one thread, starting with loading the model. Two threads would each have an OpenMP thread
    pool. Together the pools oversubscribe the cores, and everything takes twice as long.
    """

    def __init__(
        self,
        source: Source,
        text: str | list[str] | None = None,
        roles: Roles | None = None,
        *,
        compare: Recording | Seen | str | os.PathLike[str] | None = None,
        device: torch.device | str | None = None,
        dtype: torch.dtype | None = None,
        download: bool = False,
        progress: StageProgress | None = None,
    ) -> None:
        self.worker = ThreadPoolExecutor(1, "clearhead")
        self._roles = roles
        self._listed: dict[str, Recorded] = {}
        self._typed: OrderedDict[str, Recorded] = OrderedDict()
        self._model: RecordableModel | None = None

        self.compared: RecordingCache | None = None  # recording to compare with

        def begin() -> list[str]:
            if compare is not None:
                self.compared = RecordingCache(_load_recording(compare, device))
            options = {"device": device, "dtype": dtype, "download": download, "progress": progress}
            loaded = load_source(source, head=None, **options)
            if progress is not None:
                progress("running the model", 0, 0)
            return self._begin(loaded, text)

        self.choices = self.worker.submit(begin).result()

    @property
    def runs(self) -> bool:
        """True if a model is available to run on other texts."""
        return self._model is not None

    @property
    def first(self) -> Recorded:
        """Recording shown first."""
        return self._listed[self.choices[0]]

    def chosen(self, request: Mapping[str, Any]) -> str:
        """Return the text that a request or an address names: by itself, or as the index of a listed text."""
        if "text" in request:
            text = str(request["text"])
            return text if text in self.choices else check_typed(text)
        return self.choices[int(request.get("given", 0)) % len(self.choices)]

    def cached(self, text: str) -> Recorded | None:
        """Return a text's recording, or None if it has not been recorded. May be called from any thread."""
        return self._listed.get(text) or self._typed.get(text)

    def recorded(self, text: str) -> Recorded:
        """Return a text's recording, and record it if needed. Must be called in the worker thread."""
        if text in self._listed:
            return self._listed[text]
        if text in self.choices:
            self._listed[text] = recorded = self._record(text)
        else:
            self._typed[text] = recorded = self._typed.pop(text, None) or self._record_typed(text)
            while len(self._typed) > MAX_TYPED_RECORDINGS:
                self._typed.popitem(last=False)
        return recorded

    def _begin(self, source: Recording | RecordableModel, text: str | list[str] | None) -> list[str]:
        """Record the first text, so that errors are raised before a page is served; return all texts."""
        if isinstance(source, Recording):
            if text is not None:
                raise ValueError("text is given, but a recording already contains its text; expected one of them")
            self._listed[""] = Recorded(RecordingCache(source, self._roles), [])
            return [""]
        self._model = source
        if text is None:
            text = source.default_text
        texts = [text] if isinstance(text, str) else list(text)
        if not texts:
            raise ValueError("text is an empty list; expected at least one text")
        self._listed[texts[0]] = self._record(texts[0])
        return texts

    def _record_typed(self, text: str) -> Recorded:
        """Record a typed text. Its length is bounded, because all pages wait while the model runs."""
        if self._model is not None:
            limit = self._model.max_interactive_tokens
            count = self._model.token_count(text)
            if count > limit:
                raise ValueError(f"the text has {count:,} tokens; expected at most {limit:,}; {_LONGER_TEXTS}")
        return self._record(text)

    def _record(self, text: str) -> Recorded:
        if self._model is None:
            raise ValueError("this is a recording; expected a model to run on another text")
        if not text.strip():
            raise ValueError("the text is empty")
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always", UserWarning)
            with _one_thread_if_small(self._model, text):
                recording = self._model.record(text, values=True)
        return Recorded(RecordingCache(recording, self._roles), [str(warning.message) for warning in caught])


@contextmanager
def _one_thread_if_small(model: RecordableModel, text: str) -> Iterator[None]:
    """Compute a small model on a short text in one thread.

    Its products take microseconds. With more threads, each one waits for a thread that competes with the browser for
    a core: a sentence takes up to 3 seconds on 2 cores, instead of 0.15.
    """
    threads = torch.get_num_threads()
    size = sum(parameter.numel() for parameter in model.parameters())
    if size <= MAX_ONE_THREAD_PARAMETERS and model.token_count(text) <= MAX_ONE_THREAD_TOKENS:
        torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


def _load_recording(source: Recording | Seen | str | os.PathLike[str], device: torch.device | str | None) -> Recording:
    """Return a recording to compare with, or raise if it is something else."""
    expected = "expected a recording or its path (.safetensors)"
    if isinstance(source, str | os.PathLike):
        if not os.fspath(source).endswith(".safetensors"):
            raise ValueError(f"compare is {os.fspath(source)}; {expected}")
        loaded = load_source(source, device=device)
    else:
        loaded = source.recording() if isinstance(source, Seen) else source
    if not isinstance(loaded, Recording):
        raise TypeError(f"compare is {describe(loaded)}; {expected}")
    return loaded


def check_typed(text: str) -> str:
    """Return a typed text unchanged, or raise if it is too long. This bounds the work that a page can cause."""
    if len(text) > MAX_TYPED_LETTERS:
        raise ValueError(
            f"the text has {len(text):,} characters; expected at most {MAX_TYPED_LETTERS:,}; {_LONGER_TEXTS}"
        )
    return text
