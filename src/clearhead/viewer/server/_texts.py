"""The texts a viewer can show: those it was given, and those that are typed into its page."""

from __future__ import annotations

import os
import warnings
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from clearhead.analysis.roles import Roles
from clearhead.models import HuggingFaceModel, default_text, load, record, token_count
from clearhead.recording.recording import Recording
from clearhead.translation.translator import Translator
from clearhead.viewer._recording_cache import Gallery

TYPED = 20_000  # letters that may be typed, at most
READ = {"translator": 256, "other": 8192}  # tokens of a typed text, at most: some seconds of a model's time
KEPT = 4  # recordings of typed texts, the latest
Shown = Recording | HuggingFaceModel | Translator | str | os.PathLike[str]


_ELSEWHERE = "start clearhead view --file for longer ones"


class Recorded(NamedTuple):
    """A text's recording with what is computed of it, and what was to be said about it when it was recorded."""

    gallery: Gallery
    notes: list[str]


class Texts:
    """A model and its texts, each recorded when it is first looked at; or a single recording, which cannot run again.

    One thread does all that torch has to do, from loading the model on: where two threads each have their own workers,
    these are more than there are cores, OpenMP puts them to sleep in between, and everything takes twice as long.
    """

    def __init__(
        self,
        shown: Shown | Callable[[], Shown],
        text: str | list[str] | None = None,
        roles: Roles | None = None,
    ) -> None:
        self.worker = ThreadPoolExecutor(1, "clearhead")
        self._roles = roles
        self._given: dict[str, Recorded] = {}
        self._typed: OrderedDict[str, Recorded] = OrderedDict()
        self._model: HuggingFaceModel | Translator | None = None
        self.given = self.worker.submit(self._begin, shown, text).result()

    @property
    def runs(self) -> bool:
        """Whether there is a model to run on other texts."""
        return self._model is not None

    @property
    def first(self) -> Recorded:
        """What is shown at first."""
        return self._given[self.given[0]]

    def kept(self, text: str) -> Recorded | None:
        """A text's recording, if there is one. May be asked from any thread."""
        return self._given.get(text) or self._typed.get(text)

    def recorded(self, text: str) -> Recorded:
        """A text's recording, made now if there is none. For the worker only."""
        if text in self._given:
            return self._given[text]
        if text in self.given:
            self._given[text] = found = self._record(text)
        else:
            self._typed[text] = found = self._typed.pop(text, None) or self._record_typed(text)
            while len(self._typed) > KEPT:
                self._typed.popitem(last=False)
        return found

    def _begin(self, shown: Shown | Callable[[], Shown], text: str | list[str] | None) -> list[str]:
        """Load what is to be shown and record the first text: what is wrong is said before a page is served."""
        if callable(shown):
            shown = shown()
        if isinstance(shown, Recording):
            if text is not None:
                raise ValueError("text is given, but a recording is of its own text; expected one of them")
            self._given[""] = Recorded(Gallery(shown, self._roles), [])
            return [""]
        self._model = load(shown) if isinstance(shown, str | os.PathLike) else shown
        if text is None:
            text = default_text(self._model)
        given = [text] if isinstance(text, str) else list(text)
        if not given:
            raise ValueError("text is an empty list; expected at least one text")
        self._given[given[0]] = self._record(given[0])
        return given

    def _record_typed(self, text: str) -> Recorded:
        """What is typed is bounded: all pages wait while it is read."""
        if self._model is not None:
            most = READ["translator" if isinstance(self._model, Translator) else "other"]
            count = token_count(self._model, text)
            if count > most:
                raise ValueError(f"the text has {count:,} tokens, and {most:,} can be typed here; {_ELSEWHERE}")
        return self._record(text)

    def _record(self, text: str) -> Recorded:
        if self._model is None:
            raise ValueError("this is a recording: there is no model to run on another text")
        if not text.strip():
            raise ValueError("the text is empty")
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", UserWarning)
            recording = record(self._model, text, values=True)
        return Recorded(Gallery(recording, self._roles), [str(warning.message) for warning in said])


def typed(text: str) -> str:
    """A text as it was typed, if it is not too long: what a page asks for is bounded."""
    if len(text) > TYPED:
        raise ValueError(f"the text has {len(text):,} letters, and {TYPED:,} can be typed here; {_ELSEWHERE}")
    return text
