"""Order of the batch and tokens of a step, from the two model runners of vLLM."""

from __future__ import annotations

from typing import Any

from jaxtyping import Int
from torch import Tensor


class BatchReader:
    """Reader of the batch that a model runner has prepared.

    The first runner keeps its batch as an attribute. The second returns it from `prepare_inputs`, which is wrapped.
    """

    def __init__(self, runner: Any) -> None:
        self._runner, self._batch = runner, None
        self._keeps_batch = hasattr(runner, "input_batch")
        if self._keeps_batch:
            return
        prepare = runner.prepare_inputs

        def prepare_inputs(*args: Any, **kwargs: Any) -> Any:
            self._batch = prepare(*args, **kwargs)
            return self._batch

        runner.prepare_inputs = prepare_inputs

    def read(self, tokens: int) -> tuple[list[str], Int[Tensor, " tokens"]]:
        """Return the ids of the requests in the order of the batch, and the tokens of the queries."""
        if self._keeps_batch:
            return list(self._runner.input_batch.req_ids), self._runner.input_ids.gpu[:tokens]
        assert self._batch is not None
        return list(self._batch.req_ids), self._batch.input_ids[:tokens]

    def last_written(self, request_id: str, position: int) -> int | None:
        """Return the token that a request wrote at a position, its last; None if the runner does not keep it.

        The first runner keeps the tokens of a request until the step after its end. With asynchronous scheduling, it
        has a placeholder instead of the last one.
        """
        state = getattr(self._runner, "requests", {}).get(request_id)
        written = [] if state is None else state.output_token_ids
        if state is None or not written or len(state.prompt_token_ids or ()) + len(written) != position + 1:
            return None
        return written[-1] if written[-1] >= 0 else None
