"""Comparison of clearhead with eager attention on tiny models of every model type of the installed transformers.

python benchmarks/model_types.py                 # all; writes results/model-types.md and .json
python benchmarks/model_types.py mpt longformer  # some; only prints them
"""

from __future__ import annotations

import json
import sys
import warnings
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import torch
import transformers
from transformers.models.auto.modeling_auto import MODEL_MAPPING_NAMES

sys.path.insert(0, str(Path(__file__).parent.parent / "tests"))

from measuring import RESULTS
from support.model_types import FIXED_TABLE, Outcome, compare  # pyright: ignore[reportMissingImports]


def write(outcomes: list[Outcome]) -> None:
    """Write all outcomes as JSON, and their counts and exceptions as tables."""
    counts = Counter(outcome.outcome for outcome in outcomes)
    seen = sum(outcome.outcome == "equal" and outcome.calls > 0 for outcome in outcomes)
    fixed = sum(outcome.reason == FIXED_TABLE for outcome in outcomes)
    lines = [
        "# Model types of transformers on clearhead",
        "",
        f"transformers {transformers.__version__}, torch {torch.__version__}; `python benchmarks/model_types.py`.",
        "Tiny models with random weights, on texts without padding, padded on the right and padded on the left, or on",
        "images or sound. Equal: float32 outputs differ from eager attention in float64 by at most twice eager's own",
        "float32 error and two units in the last place.",
        "",
        "| outcome | model types |",
        "|---|---|",
        f"| equal, through clearhead's attention | {seen} |",
        f"| equal, by the model's own attention code | {counts['equal'] - seen} |",
        f"| refused by clearhead with a reason | {counts['refused'] - fixed} |",
        f"| refused by transformers (fixed list of implementations) | {fixed} |",
        f"| different | {counts['different']} |",
        f"| not run: no working test configuration | {counts['not run']} |",
        "",
        "| model type | outcome | reason |",
        "|---|---|---|",
    ]
    for outcome in outcomes:
        if outcome.outcome != "equal":
            lines.append(f"| {outcome.type} | {outcome.outcome} | {outcome.reason.replace('|', '/')} |")
    (RESULTS / "model-types.md").write_text("\n".join(lines) + "\n")
    rows = ",\n".join(json.dumps(asdict(outcome)) for outcome in outcomes)
    (RESULTS / "model-types.json").write_text(f"[\n{rows}\n]\n")


def main(chosen: list[str]) -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    outcomes = []
    for model_type in chosen or sorted(MODEL_MAPPING_NAMES):
        outcomes.append(outcome := compare(model_type))
        print(outcome, flush=True)
    if not chosen:
        write(outcomes)


if __name__ == "__main__":
    main(sys.argv[1:])
