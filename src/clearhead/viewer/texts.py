"""The texts a viewer can show: those it was given, and those that are typed into its page."""

from __future__ import annotations

import os
import threading
import warnings
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor

from clearhead.models import PASSAGE, Loaded, load, record
from clearhead.recording import Recording
from clearhead.roles import Roles
from clearhead.transformer.translate import Translator
from clearhead.viewer.gallery import Gallery

SENTENCE = "My mother was cooking dinner in the kitchen when I came home from school yesterday."
TYPED = 20_000  # letters that may be typed, at most
KEPT = 4  # recordings of typed texts; those used last stay


class Texts:
    """A model and its texts, each recorded when it is first looked at; or a single recording, which cannot run again.

    Recording takes turns; what is known already is there at once.
    """

    def __init__(
        self,
        shown: Recording | Loaded | Translator | str | os.PathLike[str],
        text: str | list[str] | None = None,
        roles: Roles | None = None,
    ) -> None:
        self._roles = roles
        self._given: dict[str, tuple[Gallery, list[str]]] = {}
        self._typed: OrderedDict[str, tuple[Gallery, list[str]]] = OrderedDict()
        self._turn = threading.Lock()
        self.worker = ThreadPoolExecutor(1, "clearhead-maps")  # of all pages: galleries are not for two at a time
        self.recorder = ThreadPoolExecutor(1, "clearhead-record")
        if isinstance(shown, Recording):
            if text is not None:
                raise ValueError("text is given, but a recording is of its own text; expected one of them")
            self._model, self.given = None, [""]
            self._given[""] = Gallery(shown, roles), []
            return
        self._model = load(shown) if isinstance(shown, str | os.PathLike) else shown
        if text is None:
            text = SENTENCE if isinstance(self._model, Translator) else PASSAGE[0]
        self.given = [text] if isinstance(text, str) else list(text)
        if not self.given:
            raise ValueError("text is an empty list; expected at least one text")
        self.gallery(self.given[0])  # so that what is wrong with it is said before a page is served

    @property
    def runs(self) -> bool:
        """Whether there is a model to run on other texts."""
        return self._model is not None

    def known(self, text: str) -> bool:
        return text in self._given or text in self._typed

    def gallery(self, text: str) -> tuple[Gallery, list[str]]:
        """A text's recording with what is computed of it, and what was to be said about it when it was recorded."""
        with self._turn:
            if text in self._given:
                return self._given[text]
            if text not in self._typed:
                found = self._record(text)
                if text in self.given:
                    self._given[text] = found
                    return found
                self._typed[text] = found
            self._typed.move_to_end(text)
            while len(self._typed) > KEPT:
                self._typed.popitem(last=False)
            return self._typed[text]

    def _record(self, text: str) -> tuple[Gallery, list[str]]:
        if self._model is None:
            raise ValueError("this is a recording: there is no model to run on another text")
        if not text.strip():
            raise ValueError("the text is empty")
        if text not in self.given and len(text) > TYPED:
            raise ValueError(
                f"the text has {len(text):,} letters, and {TYPED:,} can be typed here; start clearhead view --file"
            )
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always", UserWarning)
            recording = record(self._model, text, values=True)
        return Gallery(recording, self._roles), [str(warning.message) for warning in said]
