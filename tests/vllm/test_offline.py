"""Tests of vLLM in Python: outputs stay identical, and statistics equal those of transformers on the same tokens."""

import json
import re
import subprocess
import sys
from collections import defaultdict

import pytest
import torch

from clearhead import Recording
from clearhead.serving import SeenRequests, read_requests
from support.eager_reference import EagerReference, statistics_of
from support.numerics import assert_matches
from support.paths import ROOT
from support.vllm_server import environment

pytestmark = pytest.mark.vllm

SHARED = 140  # tokens of a common start, more than a block of the cache
LENGTHS = (3, 17, 29, 61, 113)
UNOBSERVED_MODULES = {
    "clearhead",
    "clearhead._utils",
    "clearhead._utils.version",
    "clearhead.serving",
    "clearhead.serving.plugin",
}
EVERYTHING = {"arrays": True, "distance": True, "peak": True, "top": 3, "spans": {"start": [0, 2]}}


def prompts_of(text_ids, count):
    """Return prompts of several lengths, a quarter of which have a common start."""
    return [
        (text_ids[:SHARED] if index % 4 == 0 else []) + text_ids[3 * index :][: LENGTHS[index % 5]]
        for index in range(count)
    ]


@pytest.fixture(scope="module")
def generate(model, tmp_path_factory):
    """Return a function that generates in another process, observed if it gets settings."""

    def run(prompts, *, observe=None, sampling=None, **engine):
        folder = tmp_path_factory.mktemp("generated")
        engine = {"model": model, "enforce_eager": True, "max_model_len": 1024, "max_num_seqs": 16, **engine}
        sampling = {"max_tokens": 8, "temperature": 0, "ignore_eos": True, **(sampling or {})}
        problem = {"engine": engine, "sampling": sampling, "prompts": prompts}
        (folder / "problem.json").write_text(json.dumps(problem))
        settings = {} if observe is None else {"CLEARHEAD_OBSERVE": json.dumps({"output": str(folder), **observe})}
        script = ROOT / "tests" / "support" / "vllm_generate.py"
        command = [sys.executable, str(script), str(folder / "problem.json"), str(folder / "result.json")]
        done = subprocess.run(command, capture_output=True, text=True, env=environment(**settings))
        assert done.returncode == 0, done.stderr[-3000:]
        return folder, json.loads((folder / "result.json").read_text()), done.stdout + done.stderr

    return run


@pytest.mark.parametrize("prefix", [False, True], ids=["no prefix caching", "prefix caching"])
@pytest.mark.parametrize("chunked", [False, True], ids=["whole prompts", "chunked prefill"])
def test_outputs_are_identical(generate, text_ids, chunked, prefix):
    engine = {"enable_chunked_prefill": chunked, "enable_prefix_caching": prefix}
    engine["max_num_batched_tokens"] = 128 if chunked else 1024
    prompts = prompts_of(text_ids, 200)
    _, plain, _ = generate(prompts, **engine)
    assert set(plain["modules"]) <= UNOBSERVED_MODULES
    folder, observed, _ = generate(prompts, observe={**EVERYTHING, "record": 0.1}, **engine)
    assert observed["answers"] == plain["answers"]  # tokens, log-probabilities and cached tokens
    assert any(answer["cached"] for answer in plain["answers"]) == prefix
    lines = {line["request"]: line for line in read_requests(folder)}
    assert set(lines) == {answer["request"] for answer in plain["answers"]}
    for answer in plain["answers"]:
        line = lines[answer["request"]]
        assert line["cached_tokens"] == answer["cached"]
        assert line["rows"] == {"prompt": len(answer["prompt"]) - 1 - answer["cached"], "answer": 8}


@pytest.fixture(scope="module")
def reference(model):
    return EagerReference(model)


def assert_equal_attention(folder, answers, reference):
    """Assert that the error of all requests' weights and statistics is at most twice that of eager attention."""
    seen, compared = SeenRequests(folder), defaultdict(list)
    for answer in answers:
        request = seen[answer["request"]]
        ids = answer["prompt"] + answer["samples"][0]["tokens"][:-1]
        assert request.token_ids == ids
        assert request.first_row == answer["cached"]
        rows = slice(request.first_row, None)
        exact, eager = (weights[:, :, rows] for weights in reference.weights(ids))
        recorded = torch.cat([layer.dense() for layer in request.recording["decoder"].layers])
        compared["weights"].append((recorded, exact, eager))
        truth, naive = (statistics_of(weights, request.first_row) for weights in (exact, eager))
        for name in truth:
            compared[name].append((getattr(request, name), truth[name], naive[name]))
    assert set(compared) == {"weights", "entropy", "distance", "sink", "mass", "received"}
    for triples in compared.values():
        assert all(got.shape == exact.shape for got, exact, _ in triples)
        assert_matches(
            *(torch.cat([each.double().flatten() for each in column]) for column in zip(*triples, strict=True))
        )


@pytest.mark.parametrize("budget", [64, 1024], ids=["chunks", "whole prompts"])
def test_statistics_and_recordings_equal_those_of_transformers(generate, text_ids, reference, budget):
    """The error is at most twice that of transformers in bfloat16, with transformers in float64 as the truth."""
    prompts = [*prompts_of(text_ids, 12), text_ids[:SHARED] + text_ids[300:317]]
    options = {"enable_prefix_caching": True, "max_num_batched_tokens": budget, "max_num_seqs": 3}
    folder, result, _ = generate(prompts, observe={**EVERYTHING, "record": 1}, **options)
    assert any(answer["cached"] for answer in result["answers"])
    assert_equal_attention(folder, result["answers"], reference)


SIZES = {"vocab_size": 99, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2}
GROUPED = {**SIZES, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 32}
# weights large enough for attention that is not uniform, and for scores that the softcap changes
KINDS = {
    "softcap and window": (
        "gemma2",
        {**GROUPED, "initializer_range": 0.3, "sliding_window": 13, "attn_logit_softcapping": 3.0},
    ),
    "window": ("mistral", {**GROUPED, "initializer_range": 0.1, "sliding_window": 13}),
    "sinks and window": (
        "gpt_oss",
        {**GROUPED, "initializer_range": 0.1, "sliding_window": 13, "num_local_experts": 2, "num_experts_per_tok": 1},
    ),
    "ALiBi": ("bloom", {"vocab_size": 99, "hidden_size": 128, "n_layer": 2, "n_head": 4, "initializer_range": 0.1}),
}


@pytest.mark.parametrize("kind", KINDS)
def test_kinds_of_attention_equal_those_of_transformers(generate, tmp_path, kind):
    from transformers import AutoConfig, AutoModelForCausalLM

    model_type, sizes = KINDS[kind]
    config = AutoConfig.for_model(model_type, **sizes, bos_token_id=1, eos_token_id=2, pad_token_id=0)
    random = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    for name, parameter in random.named_parameters():
        if name.endswith(".sinks"):
            parameter.data += 2  # takes a share of attention that is larger than any error of rounding
    random.save_pretrained(tmp_path)
    prompts = torch.randint(3, 99, (5, 37)).tolist()
    options = {"model": str(tmp_path), "skip_tokenizer_init": True, "max_model_len": 128}
    options |= {"max_num_batched_tokens": 16, "max_num_seqs": 3, "enable_prefix_caching": False}
    folder, result, _ = generate(
        [ids[: 7 * index + 5] for index, ids in enumerate(prompts)],
        observe={**EVERYTHING, "record": 1},
        sampling={"max_tokens": 19, "detokenize": False},
        **options,
    )
    # the default code of experts does not support float64
    experts = {"experts_implementation": "eager"} if model_type == "gpt_oss" else {}
    assert_equal_attention(folder, result["answers"], EagerReference(str(tmp_path), **experts))


def test_each_sample_is_a_request(generate, text_ids):
    sampling = {"n": 2, "temperature": 1.0, "seed": 7}
    folder, result, _ = generate(prompts_of(text_ids, 3), observe=EVERYTHING, sampling=sampling)
    seen = SeenRequests(folder)
    for answer in result["answers"]:
        assert answer["samples"][0]["tokens"] != answer["samples"][1]["tokens"]
        for index, sample in enumerate(answer["samples"]):
            request = seen[f"{index}_{answer['request']}"]
            assert request.token_ids == answer["prompt"] + sample["tokens"][:-1]
    assert len(seen) == 6


def test_rows_of_preempted_requests_are_counted_once(generate, text_ids):
    prompts = [text_ids[17 * index :][:120] for index in range(8)]
    options = {"num_gpu_blocks_override": 12, "max_model_len": 256, "enable_prefix_caching": False}
    observe = {**EVERYTHING, "record": 1}
    folder, result, _ = generate(prompts, observe=observe, sampling={"max_tokens": 40}, **options)
    assert result["preemptions"] > 0
    seen = SeenRequests(folder)
    for answer in result["answers"]:
        request = seen[answer["request"]]
        assert request.token_ids == answer["prompt"] + answer["samples"][0]["tokens"][:-1]
        assert request.first_row == 0
        assert request.entropy.shape[2] == 159
        torch.testing.assert_close(request.received.sum(-1), torch.full((30, 9), 159.0))
        weights = request.recording["decoder"].layers[7]
        torch.testing.assert_close(weights.entropy()[0], request.entropy[7], atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("observe", "engine", "message"),
    [
        ({"entropi": True}, {}, "settings has the key 'entropi'; expected output, entropy, "),
        ({"layers": [30, 31]}, {}, "layers is (30, 31); expected some of 0 to 29"),
        ({}, {"kv_cache_dtype": "fp8_e5m2"}, "the KV cache is quantized (fp8_e5m2); expected the dtype of the model"),
    ],
    ids=["setting", "layers", "quantized cache"],
)
def test_unobservable_engines_log_one_line_and_run(generate, text_ids, observe, engine, message):
    folder, result, log = generate(prompts_of(text_ids, 1), observe=observe, **engine)
    assert len(result["answers"]) == 1
    (line,) = (line for line in log.splitlines() if "clearhead observes no requests" in line)
    assert message in line
    assert not list(read_requests(folder))


def test_python_of_the_guide_runs(model, tmp_path):
    (tmp_path / "SmolLM2-135M-Instruct").symlink_to(model)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "guides" / "serving.md").read_text(), re.DOTALL)
    (tmp_path / "guide.py").write_text("if __name__ == '__main__':\n" + re.sub("(?m)^", "    ", "\n".join(blocks)))
    command = [sys.executable, "guide.py"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr[-3000:]


def test_command_records_a_generation(model, tmp_path):
    command = [sys.executable, "-m", "clearhead", "record", "--engine", "vllm", "--model", model, "--max-tokens", "11"]
    command += ["--output", "story.safetensors", "Once upon a time"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, env=environment())
    assert done.returncode == 0, done.stderr[-3000:]
    recording = Recording.load(tmp_path / "story.safetensors")
    stack = recording["decoder"]
    assert recording.input == "Once upon a time"
    assert len(stack.written.texts) == 4 + 11 - 1
    assert recording.output.endswith(stack.written.texts[-1])
    assert stack.written.texts[-1]
    assert len(stack.keys.texts) == len(stack.queries.texts) == 4 + 11 - 1
