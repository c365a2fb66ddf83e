"""Offline use of vLLM: `observe(llm)`, and the recording of one generation."""

# pyright: reportMissingImports=false
from __future__ import annotations

import os
import tempfile
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from clearhead._utils.checks import check_int, describe
from clearhead._utils.extras import needs_extra
from clearhead.recording.recording import Recording
from clearhead.serving.plugin import is_asked
from clearhead.serving.results import SeenRequests
from clearhead.serving.settings import Settings
from clearhead.serving.spans import SpanLike

OBSERVABLE = {"additional_config": {"clearhead": {}}}  # arguments of `LLM`


@contextmanager
def observe(
    llm: Any,
    *,
    output: str | os.PathLike[str] | None = None,
    entropy: bool = True,
    received: bool = True,
    distance: bool = False,
    peak: bool = False,
    sink: bool = True,
    top: int = 0,
    spans: Mapping[str, SpanLike] | None = None,
    layers: object = None,
    heads: object = None,
    record: bool | float = False,
    values: bool = True,
    memory: int | str = "4 GiB",
) -> Iterator[SeenRequests]:
    """Observe the requests that a vLLM engine runs in a block.

    The results are complete after the block: `seen[output.request_id]`. With several samples per prompt, the id of
    sample i is `f"{i}_{output.request_id}"`.

    Args:
        llm: a `vllm.LLM` that was created with `additional_config={"clearhead": {}}`.
        output: folder of the results. Default: a temporary folder, which is deleted with `seen`.
        entropy: compute the entropy of each query row.
        received: compute the attention that each key receives.
        distance: compute the mean distance of the keys of each query row.
        peak: compute the largest score of each query row.
        sink: compute the weight of each query row on the first key.
        top: number of largest weights of each query row to keep.
        spans: spans of tokens of all requests by name: (start, end), or a text of the prompt.
        layers: observed layers, as indices or as a text such as "0,3-5". Default: all.
        heads: observed heads of each layer. Default: all.
        record: record all requests, or a share of them: `seen[id].recording`.
        values: store the values in recordings.
        memory: bytes for the requests under way. Requests beyond it are dropped.

    Examples:
        ```python
        llm = LLM("HuggingFaceTB/SmolLM2-135M-Instruct", additional_config={"clearhead": {}})
        with observe(llm, record=True) as seen:
            outputs = llm.generate(["The capital of France is"])
        seen[outputs[0].request_id].entropy       # [layers, heads, rows]
        seen[outputs[0].request_id].recording     # for clearhead.view and clearhead.report
        ```
    """
    if not callable(getattr(llm, "collective_rpc", None)):
        raise TypeError(f"llm is {describe(llm)}; expected a vllm.LLM")
    temporary = None if output is not None else tempfile.TemporaryDirectory(prefix="clearhead-")
    folder = output if temporary is None else temporary.name
    settings = Settings.from_mapping(
        {
            "output": folder,
            "entropy": entropy,
            "received": received,
            "distance": distance,
            "peak": peak,
            "sink": sink,
            "top": top,
            "spans": spans or {},
            "layers": layers,
            "heads": heads,
            "record": record,
            "values": values,
            "memory": memory,
            "arrays": True,
            "metrics": False,
        }
    )
    seen = SeenRequests(settings.output)
    if temporary is not None:
        weakref.finalize(seen, temporary.cleanup)
    _configure(llm, settings.to_json())
    try:
        yield seen
    finally:
        _configure(llm, None)


def record_generation(
    model: str, text: str, *, max_tokens: int = 64, dtype: str = "auto", values: bool = True
) -> Recording:
    """Generate a continuation of a text with vLLM, greedily, and return the attention of all its tokens.

    Args:
        model: folder or hub id of a model that vLLM supports.
        text: the prompt.
        max_tokens: number of tokens to write at most.
        dtype: dtype of the model, as vLLM takes it.
        values: record the values too.
    """
    check_int("max_tokens", max_tokens, 1)
    with needs_extra("vllm", "--engine vllm"):
        from vllm import LLM, SamplingParams
    llm = LLM(model, dtype=dtype, enforce_eager=True, max_num_seqs=1, **OBSERVABLE)
    with observe(llm, record=True, values=values, received=False) as seen:
        outputs = llm.generate([text], SamplingParams(max_tokens=max_tokens, temperature=0), use_tqdm=False)
    recording = seen[outputs[0].request_id].recording
    if recording is None:
        raise ValueError("the recording exceeds 4 GiB; expected a shorter text or fewer tokens to write")
    return recording


def _configure(llm: Any, settings: str | None) -> None:
    """Send settings to all workers of an engine."""
    config = llm.llm_engine.vllm_config
    if "clearhead" not in (config.additional_config or {}) and not is_asked():
        raise ValueError('llm was created without clearhead; expected LLM(..., additional_config={"clearhead": {}})')
    for reason in llm.collective_rpc("clearhead_configure", args=(settings,)):
        if reason is not None:
            raise ValueError(f"llm cannot be observed: {reason}")
