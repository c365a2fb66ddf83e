"""Tests of the kinds of attention that vLLM serves, with tiny models of random weights.

Windows, soft caps, sinks, ALiBi and shared keys: statistics equal those of transformers, and outputs stay identical.
"""

import contextlib
import itertools
import json
import subprocess
import sys

import pytest
import torch

from clearhead.serving import SeenRequests
from support.numerics import assert_matches
from support.paths import ROOT
from support.vllm_models import CONFIGS, VOCABULARY, save_model
from support.vllm_server import environment

pytestmark = pytest.mark.vllm

BLOCK = 32  # the smallest of the CPU backend
DTYPES = ("float32", "bfloat16")
EVERYTHING = {"arrays": True, "distance": True, "peak": True, "top": 3, "record": 1}
SPANS = {"start": [0, 2], "middle": [29, 71]}
ENGINE = {
    "enforce_eager": True,
    "skip_tokenizer_init": True,
    "block_size": BLOCK,
    "max_model_len": 512,
    "max_num_seqs": 3,
    "max_num_batched_tokens": 61,  # less than most prompts, so that they are read in chunks
    "enable_prefix_caching": True,
}
# with a penalty, because models with tied embeddings repeat their last token
SAMPLING = {"max_tokens": 11, "temperature": 0, "repetition_penalty": 100.0, "ignore_eos": True}


def prompts():
    """Return prompts, most of them longer than windows and blocks, and some with a common start."""
    generator = torch.Generator().manual_seed(3)
    shared, *rest = (
        torch.randint(3, VOCABULARY, (length,), generator=generator).tolist() for length in (101, 29, 5, 97, 13, 41, 67)
    )
    return [shared + ids if index in (0, 3, 5) else ids for index, ids in enumerate(rest)]


class Served:
    """One model, and what vLLM did with and without observation."""

    def __init__(self, folder, dtype):
        self.folder, self.dtype = folder, getattr(torch, dtype)
        (folder / "seen").mkdir(parents=True)
        engine = {"model": str(folder / "model"), "dtype": dtype, **ENGINE}
        observe = {"output": str(folder / "seen"), "spans": SPANS, **EVERYTHING}
        self._write("plain", engine)
        self._write("observed", {**engine, "additional_config": {"clearhead": observe}})

    def _write(self, name, engine):
        problem = {"engine": engine, "sampling": SAMPLING, "prompts": prompts()}
        (self.folder / f"{name}.json").write_text(json.dumps(problem))

    @property
    def files(self):
        """Pairs of problem and result, without observation first."""
        return [
            str(self.folder / f"{name}{end}") for name in ("plain", "observed") for end in (".json", "-result.json")
        ]

    def answers(self, name):
        return json.loads((self.folder / f"{name}-result.json").read_text())["answers"]


@pytest.fixture(scope="module")
def served(request, tmp_path_factory):
    """Return a model by dtype, after one process has run it with and without observation."""
    folder = tmp_path_factory.mktemp(request.param)
    models = {dtype: Served(folder / dtype, dtype) for dtype in DTYPES}
    for each in models.values():
        save_model(request.param, each.dtype, each.folder / "model")
    command = [sys.executable, str(ROOT / "tests" / "support" / "vllm_generate.py")]
    command += itertools.chain.from_iterable(each.files for each in models.values())
    done = subprocess.run(command, capture_output=True, text=True, env=environment())
    assert done.returncode == 0, done.stderr[-3000:]
    return models


class Reference:
    """Attention of transformers: in float64, and in the dtype of the server by eager attention."""

    def __init__(self, folder, dtype):
        from transformers import AutoModelForCausalLM

        eager = {"attn_implementation": "eager", "experts_implementation": "eager"}
        self._models = [
            AutoModelForCausalLM.from_pretrained(folder, dtype=each, **eager).eval() for each in (torch.float64, dtype)
        ]
        for module in itertools.chain.from_iterable(model.modules() for model in self._models):
            if hasattr(module, "gelu_impl"):  # Bloom in vLLM uses the exact GELU, and in transformers an approximation
                module.gelu_impl = torch.nn.GELU()

    def statistics(self, ids, first_row):
        """Return weights and statistics of the rows from `first_row`, exact and in the dtype of the server."""
        return [self._statistics(model, ids, slice(first_row, None)) for model in self._models]

    def _statistics(self, model, ids, rows):
        with torch.no_grad(), _softmax_inputs() as scores:
            outputs = model(torch.tensor([ids]), output_attentions=True)
        # statistics are in float32, unless they are the truth
        weights = torch.cat(outputs.attentions).to(torch.promote_types(model.dtype, torch.float32))[:, :, rows]
        distances = (torch.arange(len(ids))[rows, None] - torch.arange(len(ids))).abs()
        return {
            "weights": weights,
            "entropy": torch.special.entr(weights).sum(-1),
            "received": weights.sum(-2),
            "distance": (weights * distances).sum(-1),
            "peak": torch.stack([_peaks(model, *each) for each in enumerate(scores)]).to(weights.dtype)[:, :, rows],
            "sink": weights[..., 0],
            "mass": torch.stack([weights[..., start:end].sum(-1) for start, end in SPANS.values()], dim=-1),
        }


@contextlib.contextmanager
def _softmax_inputs():
    """Yield a list of the scores of each layer, and keep softmax in float64, which transformers computes in float32."""
    softmax, inputs = torch.nn.functional.softmax, []

    def exact_softmax(scores, dim=None, dtype=None):
        if scores.ndim == 4:
            inputs.append(scores)
        return softmax(scores, dim=dim, dtype=torch.float64 if scores.dtype == torch.float64 else dtype)

    torch.nn.functional.softmax = exact_softmax
    try:
        yield inputs
    finally:
        torch.nn.functional.softmax = softmax


def _peaks(model, layer, scores):
    """Return the largest score of each row [heads, rows], from the input of the softmax of a layer."""
    scores = scores[0].double()
    peak = scores.amax(-1)
    if model.config.model_type == "gpt_oss":  # the last column is the sink, and the largest was subtracted from all
        sinks = model.model.layers[layer].self_attn.sinks.double()
        return scores[..., :-1].amax(-1) + sinks[:, None] - scores[..., -1]
    if model.config.model_type == "bloom":  # it adds slope · key instead of −slope · (query − key)
        from transformers.models.bloom.modeling_bloom import build_alibi_tensor

        tokens = peak.shape[1]
        return peak - build_alibi_tensor(torch.ones(1, tokens), model.config.n_head, torch.float64)[:, 0]
    return peak


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("served", list(CONFIGS), indirect=True)
def test_outputs_are_identical(served, dtype):
    plain, observed = (served[dtype].answers(name) for name in ("plain", "observed"))
    assert observed == plain  # tokens, log-probabilities and cached tokens
    assert any(answer["cached"] for answer in plain)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("served", list(CONFIGS), indirect=True)
def test_statistics_and_recordings_equal_those_of_transformers(served, dtype):
    """The error is at most twice that of transformers in the same dtype, with transformers in float64 as the truth."""
    model = served[dtype]
    reference, seen = Reference(model.folder / "model", model.dtype), SeenRequests(model.folder / "seen")
    found = []
    for answer in model.answers("observed"):
        request = seen[answer["request"]]
        ids = answer["prompt"] + answer["samples"][0]["tokens"][:-1]
        assert request.token_ids == ids
        assert request.first_row == answer["cached"]
        got = {name: getattr(request, name) for name in ("entropy", "received", "distance", "peak", "sink", "mass")}
        got["weights"] = torch.cat([layer.dense() for layer in request.recording["decoder"].layers])
        found.append((got, *reference.statistics(ids, request.first_row)))
    for name in found[0][0]:
        got, exact, eager = (torch.cat([each[name].flatten() for each in part]) for part in zip(*found, strict=True))
        assert_matches(got, exact, eager)


@pytest.mark.parametrize("served", ["gemma3n"], indirect=True)
def test_layers_that_share_keys(served):
    seen = SeenRequests(served["float32"].folder / "seen")
    assert len(seen) == len(prompts())
    for request in seen.values():
        layers = request.recording["decoder"].layers
        for index in (4, 5):
            assert torch.equal(layers[index].key, layers[index - 2].key)
            assert not torch.equal(layers[index].query, layers[index - 2].query)
