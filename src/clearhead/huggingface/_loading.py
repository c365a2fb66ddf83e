"""Loading of files by transformers: progress by stage, and GGUF headers that are parsed once instead of four times."""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from transformers import modeling_gguf_pytorch_utils
from transformers.utils import logging

from clearhead._utils.progress import ReportedSteps, StageProgress

_LOCK = threading.RLock()  # the functions of other packages are replaced for all threads
_TENSORS, _WEIGHTS = "converting tensors", "loading weights"


@contextmanager
def loading_files(progress: StageProgress | None, *, is_gguf: bool) -> Iterator[None]:
    """Report the progress of transformers to a function; without one, show its bars only if stderr is a terminal.

    Args:
        progress: called with a stage, the steps done and their total.
        is_gguf: also parse the header of a GGUF file once instead of four times.
    """
    with _LOCK, ExitStack() as stack:
        if progress is not None:
            hook = functools.partial(_reported_bar, progress)
            stack.callback(logging.set_tqdm_hook, logging.set_tqdm_hook(hook))
        elif not sys.stderr.isatty() and logging.is_progress_bar_enabled():
            logging.disable_progress_bar()
            stack.callback(logging.enable_progress_bar)
        if is_gguf:
            stack.enter_context(_gguf_parsed_once(progress))
        yield


def _reported_bar(progress: StageProgress, _: object, arguments: tuple[Any, ...], options: dict[str, Any]) -> Any:
    return ReportedSteps(progress, _WEIGHTS, *arguments[:1], total=options.get("total"))


@contextmanager
def _gguf_parsed_once(progress: StageProgress | None) -> Iterator[None]:
    """Parse the header of each GGUF file once, and report the conversion of its tensors.

    transformers parses it for the configuration, for the tokenizer, and twice for the model. Relies on the names
    `GGUFReader` and `get_tensor_name_map` of gguf, which transformers imports in its functions, and on the name `tqdm`
    in `modeling_gguf_pytorch_utils`.
    """
    import gguf
    from gguf.gguf_reader import GGUFReader

    class PlainReader(GGUFReader):
        """Reader whose data is a plain array: slicing a memmap takes four times as long."""

        def __setattr__(self, name: str, value: Any) -> None:
            is_mapped = name == "data" and isinstance(value, np.memmap)
            super().__setattr__(name, value.view(np.ndarray) if is_mapped else value)

    readers: dict[Path, PlainReader] = {}

    def read(path: str) -> PlainReader:
        resolved = Path(path).resolve()
        if resolved not in readers:
            readers[resolved] = PlainReader(path)
        return readers[resolved]

    def bar(steps: Any, **options: Any) -> Any:
        if progress is not None:
            return ReportedSteps(progress, _TENSORS, steps)
        return original_bar(steps, **{"disable": not sys.stderr.isatty(), **options})

    original_bar: Any = getattr(modeling_gguf_pytorch_utils, "tqdm", None)
    with ExitStack() as stack:
        _replace(stack, gguf, "GGUFReader", read)
        _replace(stack, gguf, "get_tensor_name_map", functools.cache(gguf.get_tensor_name_map))
        if original_bar is not None:
            _replace(stack, modeling_gguf_pytorch_utils, "tqdm", bar)
        yield


def _replace(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    stack.callback(setattr, owner, name, getattr(owner, name))
    setattr(owner, name, value)
