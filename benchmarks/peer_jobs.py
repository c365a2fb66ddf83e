"""Jobs of `benchmarks/peers.py`: write the attention of all heads of a model on a text to a file, with one tool.

`python peer_jobs.py TOOL MODEL IDS OUTPUT` runs in the environment of the tool, so it imports no other tool. IDS is a
JSON file of token ids. The script prints `ready` when the model is loaded, and then the results as JSON.
"""

from __future__ import annotations

import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # the model is a folder
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import torch
from torch import Tensor

PROBE = (17, 4)  # layer and head whose last row all tools must agree on


@dataclass(frozen=True)
class Job:
    """Input of a tool: the folder of the model, and the ids and texts of the tokens.

    Attributes:
        folder: folder of Hugging Face files.
        ids: token ids, [1, tokens].
        tokens: text of each token.
    """

    folder: str
    ids: Tensor
    tokens: list[str]


# loads a tool and its model; returns a function that writes the file and returns the last row of the probed head
Tool = Callable[[Job], Callable[[Path], Tensor]]


def imported(name: str) -> Any:
    """Import a package that is not installed with clearhead."""
    return importlib.import_module(name)


def attentions_of(job: Job) -> Callable[[], tuple[Tensor, ...]]:
    """Load the model with eager attention; return the call that computes the matrices of all layers."""
    model = imported("transformers").AutoModel.from_pretrained(
        job.folder, dtype=torch.float32, attn_implementation="eager"
    )
    model.eval()
    return lambda: model(job.ids, use_cache=False, output_attentions=True).attentions


def probed(attentions: Any) -> Tensor:
    layer, head = PROBE
    return attentions[layer][0, head, -1].clone()


def bertviz_page(job: Job) -> Callable[[Path], Tensor]:
    """Draw the head view. The model view contains the same numbers, and its file has the same size."""
    draw, attentions = imported("bertviz").head_view, attentions_of(job)

    def write(path: Path) -> Tensor:
        matrices = attentions()
        path.write_text(draw(matrices, job.tokens, html_action="return").data)
        return probed(matrices)

    return write


def circuitsvis_page(job: Job) -> Callable[[Path], Tensor]:
    """Draw all heads of all layers in one page. `local_src` is the page that works offline."""
    attention, attentions = imported("circuitsvis.attention"), attentions_of(job)

    def write(path: Path) -> Tensor:
        matrices = attentions()
        heads = torch.cat(matrices, dim=1)[0]  # [layers * heads, q_len, kv_len]
        path.write_text(attention.attention_heads(heads, job.tokens).local_src)
        return probed(matrices)

    return write


def inspectus_page(job: Job) -> Callable[[Path], Tensor]:
    """Collect what a notebook would display, including the scripts."""
    inspectus, display, attentions = imported("inspectus"), imported("IPython.display"), attentions_of(job)
    shown: list[str] = []
    display.display = lambda *values, **_: shown.extend(value.data for value in values)

    def write(path: Path) -> Tensor:
        matrices = attentions()
        inspectus.attention(matrices, job.tokens)
        path.write_text("".join(shown))
        return probed(matrices)

    return write


def save_matrices(path: Path, matrices: list[Tensor]) -> None:
    """Write dense matrices of all layers."""
    named = {f"layer {index}": matrix.contiguous() for index, matrix in enumerate(matrices)}
    imported("safetensors.torch").save_file(named, path)


def transformer_lens_matrices(job: Job) -> Callable[[Path], Tensor]:
    transformers = imported("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(job.folder, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(job.folder)
    bridge = imported("transformer_lens.model_bridge").TransformerBridge.boot_transformers(
        job.folder, hf_model=model, tokenizer=tokenizer, device="cpu"
    )

    def write(path: Path) -> Tensor:
        _, cache = bridge.run_with_cache(job.ids, names_filter=lambda name: name.endswith("attn.hook_pattern"))
        matrices = [cache[f"blocks.{layer}.attn.hook_pattern"] for layer in range(model.config.num_hidden_layers)]
        save_matrices(path, matrices)
        return probed(matrices)

    return write


def nnsight_matrices(job: Job) -> Callable[[Path], Tensor]:
    nnsight = imported("nnsight")
    options = {"dtype": torch.float32, "attn_implementation": "eager", "device_map": "cpu", "dispatch": True}
    model = nnsight.TransformersModel(job.folder, task="text-generation", **options)

    def write(path: Path) -> Tensor:
        with model.trace(job.ids):
            matrices = nnsight.save([layer.self_attn.output[1] for layer in model.model.layers])
        save_matrices(path, matrices)
        return probed(matrices)

    return write


def recorded(job: Job) -> Callable[[], Any]:
    models = imported("clearhead.models")
    model = models.load(job.folder)
    return lambda: models.record(model, input_ids=job.ids, values=True)


def clearhead_page(job: Job) -> Callable[[Path], Tensor]:
    record, report = recorded(job), imported("clearhead").report

    def write(path: Path) -> Tensor:
        recording = record()
        report(recording, path)
        return probed(recording["decoder"].layers)

    return write


def clearhead_recording(job: Job) -> Callable[[Path], Tensor]:
    record = recorded(job)

    def write(path: Path) -> Tensor:
        recording = record()
        recording.save(path)
        return probed(recording["decoder"].layers)

    return write


def clearhead_matrices(job: Job) -> Callable[[Path], Tensor]:
    """Write the dense matrices, which clearhead computes from its lazy ones."""
    record = recorded(job)

    def write(path: Path) -> Tensor:
        layers = record()["decoder"].layers
        save_matrices(path, [weights.dense() for weights in layers])
        return probed(layers)

    return write


TOOLS: dict[str, Tool] = {
    "bertviz": bertviz_page,
    "circuitsvis": circuitsvis_page,
    "inspectus": inspectus_page,
    "transformer-lens": transformer_lens_matrices,
    "nnsight": nnsight_matrices,
    "clearhead report": clearhead_page,
    "clearhead recording": clearhead_recording,
    "clearhead dense": clearhead_matrices,
}


def make_job(folder: str, ids_path: str) -> Job:
    ids = json.loads(Path(ids_path).read_text())
    tokenizer = imported("transformers").AutoTokenizer.from_pretrained(folder)
    return Job(folder, torch.tensor([ids]), tokenizer.convert_ids_to_tokens(ids))


@torch.no_grad()
def main(tool: str, folder: str, ids_path: str, output: str) -> None:
    start = time.perf_counter()
    write = TOOLS[tool](make_job(folder, ids_path))
    loaded = time.perf_counter()
    print("ready", flush=True)
    before = time.process_time()
    row = write(Path(output))
    results = {
        "load_s": loaded - start,
        "seconds": time.perf_counter() - loaded,
        "cpu_s": time.process_time() - before,
        "peak_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "probe": [float(row[0]), float(row[-1]), float(row.square().sum())],
    }
    print(json.dumps(results), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
