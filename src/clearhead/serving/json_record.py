"""JSON object of one finished request, a line of `requests.jsonl`."""

from __future__ import annotations

from typing import Any

from clearhead._utils.json_numbers import json_numbers
from clearhead.serving.finished import FinishedRequest
from clearhead.serving.head_means import PhaseMeans, means_by_head, means_of_heads


def json_record(
    finished: FinishedRequest,
    means: PhaseMeans,
    *,
    model: str,
    time: str,
    recording: str | None = None,
    dropped: str | None = None,
) -> dict[str, Any]:
    """Return the summary of a request whose tensors are on the CPU.

    `top` has the rows of the answer only; the statistics file has all rows.

    Args:
        finished: the request.
        means: its `phase_means`.
        model: name of the model.
        time: time at which the request finished.
        recording: name of the recording file.
        dropped: reason why the recording is missing. Default: that of the request.
    """
    statistics, spans = finished.statistics, finished.spans
    phases = finished.phases
    record = {
        "request": finished.request,
        "id": str(finished.id),
        "model": model,
        "time": time,
        "prompt_tokens": finished.prompt_len,
        "cached_tokens": finished.first_row,
        "finish_reason": finished.finish_reason,
        "rows": {phase: rows.stop - rows.start for phase, rows in phases.items()},
        "layers": list(finished.layers),
        "heads": None if finished.heads is None else list(finished.heads),
        "spans": {name: list(span) for name, span in spans.items()},
        "means": {phase: means_of_heads(each, spans) for phase, each in means.items()},
        "heads_answer": means_by_head(means["answer"], spans),
        "heads_prompt": means_by_head(means["prompt"], spans),
    }
    if "received" in statistics:
        record["received"] = json_numbers(statistics["received"].numpy().mean(axis=(0, 1)).tolist())
    if "top_weights" in statistics:
        weights, keys = (statistics[name][:, :, phases["answer"]].tolist() for name in ("top_weights", "top_keys"))
        record["top"] = {"weights": json_numbers(weights), "keys": keys}
    return {**record, "recording": recording, "dropped": dropped or finished.dropped}
