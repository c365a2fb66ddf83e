"""Generate with vLLM in this process, and write tokens and log-probabilities as JSON.

`python vllm_generate.py problem.json result.json`: the problem has `engine` (arguments of LLM), `sampling` (arguments of
SamplingParams) and `prompts` (token ids). The engine runs in this process, because its schedule would otherwise depend
on the time at which requests reach the other one.
"""

import json
import os
import sys
from pathlib import Path

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def main(problem: Path, result: Path) -> None:
    from vllm import LLM, SamplingParams

    settings = json.loads(problem.read_text())
    llm = LLM(**settings["engine"])
    prompts = [{"prompt_token_ids": ids} for ids in settings["prompts"]]
    outputs = llm.generate(prompts, SamplingParams(**settings["sampling"]), use_tqdm=False)
    lines = [
        {
            "request": output.request_id,
            "cached": output.num_cached_tokens,
            "samples": [
                {
                    "tokens": list(sample.token_ids),
                    "logprobs": [{str(token): entry.logprob for token, entry in row.items()} for row in sample.logprobs],
                }
                for sample in output.outputs
            ],
        }
        for output in outputs
    ]
    result.write_text(json.dumps(lines))
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
