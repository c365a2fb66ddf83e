"""Hooks into the worker of vLLM, which begin and end the steps of the observer."""

# pyright: reportMissingImports=false
from __future__ import annotations

import functools
from typing import Any

from clearhead.serving._vllm_backends import log_once
from clearhead.serving._vllm_engine import EngineObservation

ATTRIBUTE = "clearhead"  # of a worker


@functools.cache
def install() -> None:
    """Add hooks to the class that wraps every worker of vLLM, once."""
    from vllm.v1.worker.worker_base import WorkerWrapperBase

    initialize, execute, shutdown = (
        getattr(WorkerWrapperBase, name) for name in ("initialize_from_config", "execute_model", "shutdown")
    )

    @functools.wraps(initialize)
    def initialize_from_config(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = initialize(self, *args, **kwargs)
        try:
            self.clearhead = EngineObservation.of(self.vllm_config, self.worker.model_runner)
        except Exception as error:  # a server must start in any case
            self.clearhead = None
            log_once(f"clearhead observes no requests: {error}")
        return result

    @functools.wraps(execute)
    def execute_model(self: Any, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        observation: EngineObservation | None = getattr(self, ATTRIBUTE, None)
        if observation is None:
            return execute(self, scheduler_output, *args, **kwargs)
        observation.begin_step(scheduler_output)
        result = execute(self, scheduler_output, *args, **kwargs)
        observation.end_step()
        return result

    def sample_tokens(self: Any, *args: Any, **kwargs: Any) -> Any:
        result = self.worker.sample_tokens(*args, **kwargs)
        observation: EngineObservation | None = getattr(self, ATTRIBUTE, None)
        if observation is not None:
            observation.end_answers()
        return result

    @functools.wraps(shutdown)
    def shut_down(self: Any, *args: Any, **kwargs: Any) -> Any:
        observation: EngineObservation | None = getattr(self, ATTRIBUTE, None)
        if observation is not None:
            observation.close()
        return shutdown(self, *args, **kwargs)

    def clearhead_configure(self: Any, settings: str | None) -> str | None:
        """Observe with other settings, given as JSON; None for those of the engine. Return the reason if it cannot."""
        observation: EngineObservation | None = getattr(self, ATTRIBUTE, None)
        if observation is None:
            return "its attention cannot be observed; its log has the reason"
        return observation.configure(settings)

    WorkerWrapperBase.initialize_from_config = initialize_from_config
    WorkerWrapperBase.execute_model = execute_model
    WorkerWrapperBase.sample_tokens = sample_tokens
    WorkerWrapperBase.shutdown = shut_down
    WorkerWrapperBase.clearhead_configure = clearhead_configure
