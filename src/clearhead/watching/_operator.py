"""Observation of and interventions in clearhead's operator.

Its layers and its implementation for transformers call it.
"""

from __future__ import annotations

from typing import Any

from clearhead import functional
from clearhead.ops import dispatch
from clearhead.ops.arguments import build_call
from clearhead.ops.call import AttentionCall
from clearhead.watching import running
from clearhead.watching.adapters import register
from clearhead.watching.editing import edit
from clearhead.watching.observed import ObservedCall
from clearhead.watching.replacement import Replacement


def _observed_operator(
    original: Any, query: Any, *args: Any, return_weights: Any = False, backend: str = "auto", **options: Any
) -> Any:
    """Wrap `attention`."""
    is_compiling = running.is_compiling("clearhead.attention")
    targets = [] if is_compiling else running.observers_of_call(query)
    interventions = [] if is_compiling else running.interventions_of_call(query)
    # with weights it calls `attend_with_weights`, which is handled below
    if return_weights or not (targets or interventions):
        return original(query, *args, return_weights=return_weights, backend=backend, **options)
    call = build_call(query, *args, **options)
    with running.suspended():
        output, lse = dispatch.choose(call, backend)[1].attend(call, bool(targets))
        if interventions:
            edited = edit(interventions, output, call.shape[3], lambda: call)
            running.deliver(targets, edited.observed)
            return edited.output
    assert lse is not None
    running.deliver(targets, lambda: ObservedCall(call.detached(), lse.detach()))
    return output


def _observed_call(original: Any, call: AttentionCall, *args: Any, **kwargs: Any) -> Any:
    """Wrap `attend_with_weights`."""
    if running.is_compiling("clearhead.attention"):
        return original(call, *args, **kwargs)
    targets, interventions = running.observers_of_call(call.query), running.interventions_of_call(call.query)
    with running.suspended():
        output, weights = original(call, *args, **kwargs)
        if interventions:
            edited = edit(interventions, output, call.shape[3], lambda: call)
            running.deliver(targets, edited.observed)
            return edited.output, edited.observed().weights if edited.changes_weights else weights
    running.deliver(targets, lambda: ObservedCall(call.detached(), weights.lse))
    return output, weights


register(
    "clearhead.attention",
    [
        Replacement(functional.attention, _observed_operator),
        Replacement(functional.attend_with_weights, _observed_call),
    ],
)
