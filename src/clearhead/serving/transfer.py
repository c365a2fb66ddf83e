"""Transfer of finished requests to the CPU, and their size in memory."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace

import torch
from torch import Tensor

from clearhead._utils.text import format_bytes
from clearhead.serving.finished import FinishedRequest, RecordedLayer

TOKEN_BYTES = 40  # of a Python integer and its reference
REQUEST_BYTES = 4096  # of the objects of a request, so that a queue of empty requests is bounded too


def request_bytes(finished: FinishedRequest) -> int:
    """Return the memory of a request without its recording."""
    tensors = _storage_bytes(finished.statistics.values())
    return REQUEST_BYTES + TOKEN_BYTES * len(finished.token_ids) + tensors


def recording_bytes(finished: FinishedRequest) -> int:
    """Return the memory of the recording of a request."""
    return _storage_bytes(_recorded(finished.recording))


def fit(finished: FinishedRequest, free: int) -> tuple[FinishedRequest | None, int]:
    """Return a request and its bytes. Beyond the free memory its recording is left out, and then the request itself."""
    size, extra = request_bytes(finished), recording_bytes(finished)
    if extra and size + extra > free:
        reason = f"the recording of {format_bytes(extra)} exceeds the memory that the queue has left"
        finished, extra = replace(finished, recording=(), dropped=reason), 0
    return (finished, size + extra) if size <= free else (None, 0)


def _storage_bytes(tensors: Iterable[Tensor]) -> int:
    """Return the memory that tensors hold. A view holds the whole storage; views of one storage count once."""
    storages = (tensor.untyped_storage() for tensor in tensors)
    return sum({storage.data_ptr(): storage.nbytes() for storage in storages}.values())


def _recorded(layers: Iterable[RecordedLayer]) -> Iterator[Tensor]:
    for layer in layers:
        yield from (layer.query, layer.key, layer.lse)
        if layer.value is not None:
            yield layer.value


class PendingTransfer:
    """Finished request whose tensors a GPU may still be computing.

    It is created in the thread that launched the kernels; `to_cpu` may run in another thread.
    """

    def __init__(self, finished: FinishedRequest) -> None:
        self._finished = finished
        tensors = (*finished.statistics.values(), *_recorded(finished.recording))
        devices = {tensor.device for tensor in tensors if tensor.is_cuda}
        self._events = {device: torch.cuda.current_stream(device).record_event() for device in devices}

    @property
    def is_on_cpu(self) -> bool:
        """True if `to_cpu` does not wait for a GPU."""
        return not self._events

    def to_cpu(self) -> FinishedRequest:
        """Return the request with all tensors on the CPU, after waiting for the kernels that compute them.

        The copies run on other streams than those of the model, which they therefore do not delay. Each copy is
        finished before it returns, so the memory may be freed afterwards.
        """
        streams = {device: torch.cuda.Stream(device) for device in self._events}
        for device, event in self._events.items():
            streams[device].wait_event(event)

        def moved(tensor: Tensor) -> Tensor:
            if not tensor.is_cuda:
                return tensor.detach().cpu()
            with torch.cuda.stream(streams[tensor.device]):
                return tensor.detach().cpu()

        def moved_layer(recorded: RecordedLayer) -> RecordedLayer:
            slopes, sinks = recorded.layer.slopes, recorded.layer.sinks
            return RecordedLayer(
                replace(
                    recorded.layer,
                    slopes=None if slopes is None else moved(slopes),
                    sinks=None if sinks is None else moved(sinks),
                ),
                moved(recorded.query),
                moved(recorded.key),
                None if recorded.value is None else moved(recorded.value),
                moved(recorded.lse),
            )

        finished = self._finished
        return replace(
            finished,
            statistics={name: moved(tensor) for name, tensor in finished.statistics.items()},
            recording=tuple(map(moved_layer, finished.recording)),
        )
