"""Generate with vLLM in this process, and write what it did as JSON.

`python vllm_generate.py problem.json result.json`: the problem has `engine` (arguments of LLM), `sampling` (those of
SamplingParams) and `prompts` (token ids). More pairs of files run one after the other, because importing vLLM takes
longer than starting a small model. The engine runs in this process, because its schedule would otherwise depend on the
time at which requests reach the other one.
"""

import json
import os
import sys
from pathlib import Path

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"


def main(problem: Path, result: Path) -> None:
    from vllm import LLM, SamplingParams

    settings = json.loads(problem.read_text())
    llm = LLM(**settings["engine"], disable_log_stats=False)
    prompts = [{"prompt_token_ids": ids} for ids in settings["prompts"]]
    outputs = llm.generate(prompts, SamplingParams(**settings["sampling"], logprobs=5), use_tqdm=False)
    answers = [
        {
            "request": output.request_id,
            "prompt": output.prompt_token_ids,
            "cached": output.num_cached_tokens,
            "samples": [
                {
                    "tokens": list(sample.token_ids),
                    "logprobs": [
                        {str(token): entry.logprob for token, entry in row.items()} for row in sample.logprobs
                    ],
                }
                for sample in output.outputs
            ],
        }
        for output in outputs
    ]
    counters = {metric.name: getattr(metric, "value", None) for metric in llm.get_metrics()}
    modules = sorted(name for name in sys.modules if name.partition(".")[0] == "clearhead")
    facts = {"answers": answers, "preemptions": counters["vllm:num_preemptions"], "modules": modules}
    result.write_text(json.dumps(facts))
    llm.llm_engine.engine_core.shutdown()


if __name__ == "__main__":
    for problem, result in zip(sys.argv[1::2], sys.argv[2::2], strict=True):
        main(Path(problem), Path(result))
