"""Decoding steps captured in CUDA graphs, kept for later calls with the same shape.

A decoding step of a small model is about a hundred short kernels, and launching them takes several times as long as
they run. A graph launches all of them at once.
"""

from __future__ import annotations

import threading
import warnings
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from clearhead._utils.torch_internals import PLAIN_TENSORS, has_forward_hooks
from clearhead.ops.dispatch import uses_tf32
from clearhead.recording.recording import Address
from clearhead.translation._static_decoding import DecodingShape, StaticDecoder
from clearhead.translation.model import Memory, Transformer
from clearhead.watching import running

WARM_UP_STEPS = 2  # compile kernels, and make libraries allocate their workspaces
MAX_GRAPHS = 8  # per model; the one not used for the longest time is dropped
MAX_CACHE_BYTES = 2**30  # of the KV caches of all graphs of a model


class CapturedDecoder:
    """Decoding step of a model, captured in a CUDA graph.

    The graph reads the parameters of the model, so it uses values that are later changed in place. `fits` detects that
    parameters or modules were replaced. It does not detect changes of other attributes, such as an attention's `scale`.

    Args:
        model: model to decode with. It is not referenced later, so that it can be freed.
        shape: sizes of the buffers.
    """

    def __init__(self, model: Transformer, shape: DecodingShape) -> None:
        self.decoder = StaticDecoder(model, shape)
        # adds a token to each translation; called at most `shape.tokens` times after `decoder.load`
        self.step = capture(partial(self.decoder.step, model), model.embedding.weight.device)
        self._modules = _submodules(model)
        # references keep the memory that the graph reads; aliases, because `.to()` replaces the data of a parameter
        self._tensors = [tensor.detach() for tensor in _tensors(model)]

    @property
    def cache_bytes(self) -> int:
        """Size of the KV caches."""
        caches = self.decoder.caches
        return sum(c.key.nbytes + c.value.nbytes for c in (*caches.self_attention, *caches.cross_attention))

    def fits(self, model: Transformer) -> bool:
        """Return whether the model still has the modules and parameters that the graph reads."""
        modules, tensors = _submodules(model), _tensors(model)
        return (
            len(modules) == len(self._modules)
            and len(tensors) == len(self._tensors)
            and all(module is known for module, known in zip(modules, self._modules, strict=True))
            and all(_same_memory(*pair) for pair in zip(tensors, self._tensors, strict=True))
        )


def capture(function: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """Capture a function in a CUDA graph; return a function that launches the graph on the current stream.

    The function is called three times. The graph does not refer to it.
    """
    graph = torch.cuda.CUDAGraph()
    # the second block restores the current stream also after a capture that failed, which torch does not
    with torch.cuda.device(device), torch.cuda.stream(torch.cuda.current_stream(device)):
        side_stream = torch.cuda.Stream()
        side_stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side_stream):
            for _ in range(WARM_UP_STEPS):
                function()
        torch.cuda.current_stream().wait_stream(side_stream)
        # with "thread_local", calls of other threads do not invalidate the capture
        # the stream is given, because torch's default one belongs to the device of the first capture
        with torch.cuda.graph(graph, stream=side_stream, capture_error_mode="thread_local"):
            function()
    return graph.replay


@dataclass
class _GraphsOfModel:
    """Graphs of one model, the last used one at the end."""

    graphs: OrderedDict[Any, CapturedDecoder] = field(default_factory=OrderedDict)
    failure: str | None = None  # why a capture failed; it is not tried again


_GRAPHS: WeakKeyDictionary[Transformer, _GraphsOfModel] = WeakKeyDictionary()
# Buffers of a graph serve one decoding at a time. Graphs also share the workspace of cuBLAS, so the lock is for all.
_LOCK = threading.RLock()


def unsupported_reasons(model: Transformer, shape: DecodingShape, ablate: Collection[Address] = ()) -> list[str]:
    """Return why a decoding cannot run as a CUDA graph; empty if it can."""
    device = model.embedding.weight.device
    methods = ((name, getattr(type(model), name, None)) for name in ("decode", "caches"))
    if any(method is not getattr(Transformer, name) for name, method in methods):  # also a compiled model
        return [f"{type(model).__name__} does not decode with the caches of Transformer"]
    reasons = []
    if device.type != "cuda":
        reasons.append(f"the model is on {device}; CUDA graphs require a GPU")
    if any(module.training for module in model.modules()):
        reasons.append("the model is in training mode, in which dropout draws new random numbers")
    if ablate:
        reasons.append("heads are ablated")
    if running.is_active() or has_forward_hooks(model):
        reasons.append("an observer, an intervention or a hook is active, and a graph does not call Python functions")
    if torch.is_autocast_enabled(device.type):
        reasons.append("autocast is enabled, whose cached weights do not outlive its block")
    if torch.are_deterministic_algorithms_enabled():
        reasons.append("deterministic algorithms are enabled, some of which cannot be captured")
    if any(type(tensor) not in PLAIN_TENSORS or tensor.device != device for tensor in _tensors(model)):
        reasons.append("the model is sharded or on several devices")
    if device.type == "cuda" and torch.cuda.is_current_stream_capturing():
        reasons.append("the current stream is being captured in another graph")
    size = shape.cache_bytes(model)
    if size > MAX_CACHE_BYTES:
        reasons.append(f"the KV caches take {size:,} bytes; at most {MAX_CACHE_BYTES:,} are kept for graphs")
    return reasons


@contextmanager
def captured_decoder(
    model: Transformer, memory: Memory, beams: int, max_tokens: int, ablate: Collection[Address], graph: bool | None
) -> Iterator[CapturedDecoder | None]:
    """Yield a captured decoding step, or None to decode without a graph.

    Args:
        model: model to decode with.
        memory: encoder output, one row per source.
        beams: number of beams.
        max_tokens: largest number of tokens of a translation.
        ablate: heads to leave out.
        graph: True to require a graph, False for none. None: a graph if it is supported; a capture that fails gives a
            warning with the reason.

    Raises:
        ValueError: `graph` is True, and a graph is not supported; the message lists the reasons.
        RuntimeError: `graph` is True, and the capture failed.
    """
    if graph is False or (graph is None and model.embedding.weight.device.type != "cuda"):
        yield None
        return
    shape = DecodingShape.fitting(memory, beams, max_tokens)
    reasons = unsupported_reasons(model, shape, ablate)
    if reasons:
        if graph:
            raise ValueError(f"decoding does not run as a CUDA graph: {'; '.join(reasons)}")
        yield None
        return
    with _LOCK:
        yield _captured(model, shape, bool(graph))


def _captured(model: Transformer, shape: DecodingShape, required: bool) -> CapturedDecoder | None:
    """Return a graph for a shape: one that was captured before, or a new one; None if its capture failed."""
    known = _GRAPHS.setdefault(model, _GraphsOfModel())
    key = shape, uses_tf32()
    if key in known.graphs and known.graphs[key].fits(model):
        known.graphs.move_to_end(key)
        return known.graphs[key]
    if not all(captured.fits(model) for captured in known.graphs.values()):
        known.graphs.clear()
    if known.failure is not None and not required:
        return None
    size = shape.cache_bytes(model)
    while known.graphs and (
        len(known.graphs) >= MAX_GRAPHS or size + sum(c.cache_bytes for c in known.graphs.values()) > MAX_CACHE_BYTES
    ):
        known.graphs.popitem(last=False)
    try:
        captured = known.graphs[key] = CapturedDecoder(model, shape)
    except RuntimeError as error:  # also torch.cuda.OutOfMemoryError
        reason = _first_line(_first_cause(error))
        if required:
            raise RuntimeError(f"capturing a decoding step in a CUDA graph failed: {reason}") from error
        if not isinstance(error, torch.cuda.OutOfMemoryError):  # there may be memory later
            known.failure = reason
        warnings.warn(f"decoding without a CUDA graph, because capturing one failed: {reason}", stacklevel=2)
        return None
    return captured


def _first_cause(error: BaseException) -> BaseException:
    """Return the error that the others followed: the end of a failed capture raises a further, vague one."""
    while error.__context__ is not None:
        error = error.__context__
    return error


def _first_line(error: BaseException) -> str:
    return str(error).partition("\n")[0]


def _submodules(model: Transformer) -> list[nn.Module]:
    """Return the modules of a model, except the model itself: a reference to it would keep it alive."""
    return list(model.modules())[1:]


def _tensors(model: Transformer) -> list[Tensor]:
    return [*model.parameters(), *model.buffers()]


def _same_memory(tensor: Tensor, other: Tensor) -> bool:
    return (
        tensor.data_ptr() == other.data_ptr()
        and tensor.dtype == other.dtype
        and tensor.shape == other.shape
        and tensor.stride() == other.stride()
    )
