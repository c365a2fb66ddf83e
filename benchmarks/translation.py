"""Benchmark of clearhead's Transformer against torch's: training speed, translation quality, cached decoding.

`--parts quality` needs parallel text (--data, --valid) and trains both models in full.
"""

from __future__ import annotations

import argparse
import random
import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from unittest.mock import patch

import torch
from torch import Tensor, nn

from clearhead.ops.masks import Mask, Padding
from clearhead.translation import RunDirectory, TrainingCallbacks, from_files, train
from clearhead.translation._decoding import beam_search, decode_all
from clearhead.translation._evaluation import bleu_score
from clearhead.translation._loss import cross_entropy
from clearhead.translation._trainer import Trainer
from clearhead.translation.config import Config, ModelConfig
from clearhead.translation.data._batching import Batch, TokenIds, collate
from clearhead.translation.model import DecoderCaches, Memory, Transformer
from clearhead.translation.tokenizer import END, PAD, START, UNKNOWN
from measuring import RESULTS, write

ROUNDS, STEPS = 9, 10
GENERATED, BATCH, DECODING_ROUNDS = 128, 32, 5


class TokenHistory(DecoderCaches):
    """State of a model without a KV cache: the tokens read so far."""

    def __init__(self) -> None:
        self.tokens: Tensor | None = None

    def reorder(self, rows: Tensor) -> None:
        if self.tokens is not None:
            self.tokens = self.tokens[rows]


class TorchTransformer(Transformer):
    """`torch.nn.Transformer` with clearhead's embedding, trained and decoded by the same code."""

    def __init__(self, config: ModelConfig, vocabulary: int) -> None:
        super().__init__(config, vocabulary)
        del self.encoder, self.decoder, self.encoder_norm, self.decoder_norm
        self.both = nn.Transformer(
            config.d_model, config.heads, config.encoder_layers, config.decoder_layers, config.feed_forward,
            config.dropout, batch_first=True, norm_first=True,
        )  # fmt: skip
        for module in self.both.modules():  # as in clearhead's model, no dropout on attention weights
            if isinstance(module, nn.MultiheadAttention):
                module.dropout = 0.0

    def encode(self, source: Tensor, lengths: Tensor | None = None, **_: object) -> Memory:
        mask = None if lengths is None else Padding(lengths)
        states = self.both.encoder(self._embed(source, 0), src_key_padding_mask=hidden(mask, source))
        return Memory(states, mask)

    def decode(self, target: Tensor, memory: Memory, *, caches: DecoderCaches | None = None, **_: object) -> Tensor:
        if isinstance(caches, TokenHistory):
            target = target if caches.tokens is None else torch.cat([caches.tokens, target], dim=1)
            caches.tokens = target
        n = target.shape[1]
        states = self.both.decoder(
            self._embed(target, 0),
            memory.states,
            tgt_mask=nn.Transformer.generate_square_subsequent_mask(n, device=target.device, dtype=memory.states.dtype),
            memory_key_padding_mask=hidden(memory.mask, memory.states),
            tgt_is_causal=True,
        )
        return states @ self.embedding.weight.T

    def caches(self) -> DecoderCaches:
        return TokenHistory()


def hidden(mask: Mask | None, source: Tensor) -> Tensor | None:
    """Return torch's key padding mask: True at padding."""
    if not isinstance(mask, Padding):
        return None
    return torch.arange(source.shape[1], device=source.device)[None] >= mask.lengths.to(source.device)[:, None]


MODELS: dict[str, Callable[[ModelConfig, int], Transformer]] = {"ours": Transformer, "torch": TorchTransformer}


def random_batches(config: Config, same: bool) -> list[Batch]:
    """Return batches of random sentences of 8 to 16 tokens. `same` gives all sentences of a batch one length."""
    rng = random.Random(0)
    batches = []
    for _ in range(STEPS):
        length = rng.randint(8, 16)
        count = config.training.batch_tokens // (2 * length)
        lengths = [length if same else rng.randint(8, 16) for _ in range(count)]
        tokens = [[rng.randrange(4, config.text.vocabulary) for _ in range(2 * n)] for n in lengths]
        batches.append(collate([TokenIds(row[::2], row[1::2]) for row in tokens]))
    return batches


def training_speed(config: Config, device: torch.device, dtype: torch.dtype, same: bool) -> dict[str, float]:
    """Return the median training speed in tokens per second. The models alternate in random order."""
    batches = [batch.to(device) for batch in random_batches(config, same)]
    tokens = sum(batch.source.numel() + batch.target.numel() for batch in batches)
    models, optimizers = {}, {}
    for name, make in MODELS.items():
        torch.manual_seed(0)
        models[name] = make(config.model, config.text.vocabulary).to(device).train()
        optimizers[name] = torch.optim.AdamW(models[name].parameters(), lr=1e-4, fused=True)

    def run(name: str) -> float:
        model, optimizer = models[name], optimizers[name]
        start = time.perf_counter()
        for batch in batches:
            with torch.autocast(device.type, dtype, enabled=dtype != torch.float32):
                logits = model(batch.source, batch.target, batch.lengths)
            loss = cross_entropy(logits, batch.expected, 0.1) / batch.expected.numel()
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
        if device.type == "cuda":
            torch.cuda.synchronize()
        return tokens / (time.perf_counter() - start)

    for name in models:
        run(name)
    rng, speeds_by_model = random.Random(0), {name: [] for name in models}
    for _ in range(ROUNDS):
        for name in rng.sample(list(models), len(models)):
            speeds_by_model[name].append(run(name))
    return {name: statistics.median(speeds) for name, speeds in speeds_by_model.items()}


def decoding(config: Config, device: torch.device) -> dict[str, float]:
    """Return the median seconds of decoding 128 tokens for 32 sentences, encoding included, in different ways.

    Graphs are captured by a first call, which is not part of the medians.
    """
    torch.manual_seed(0)
    model = Transformer(config.model, config.text.vocabulary).to(device).eval()
    with torch.no_grad():
        model.embedding.weight[END] = 0.0  # its logit is 0, and never the largest: no translation ends early
    source = torch.randint(4, config.text.vocabulary, (BATCH, 16), device=device)

    @torch.inference_mode()
    def write_without_cache() -> list[list[int]]:
        memory, read = model.encode(source), source.new_full((BATCH, 1), START)
        forbidden = torch.tensor([PAD, START, UNKNOWN], device=device)
        for _ in range(GENERATED):
            logits = model.decode(read, memory)[:, -1].index_fill_(-1, forbidden, -torch.inf)
            read = torch.cat([read, logits.argmax(dim=-1, keepdim=True)], dim=1)
        return read[:, 1:].tolist()

    def write_with_cache(beams: int, graph: bool) -> list[list[int]]:
        written = beam_search(model, source, beams=beams, max_tokens=GENERATED, graph=graph)
        return [list(hypothesis.tokens) for hypothesis in written]

    calls = {
        "without the cache": write_without_cache,
        "cache": partial(write_with_cache, 1, False),
        "beams, cache": partial(write_with_cache, 4, False),
    }
    if device.type == "cuda":
        calls |= {"graph": partial(write_with_cache, 1, True), "beams, graph": partial(write_with_cache, 4, True)}

    def run(name: str) -> float:
        start = time.perf_counter()
        tokens = calls[name]()  # a list, so the GPU has finished
        seconds = time.perf_counter() - start
        if not all(len(row) == GENERATED for row in tokens):
            raise AssertionError(f"{name} did not write {GENERATED} tokens for every sentence")
        written[name] = tokens
        return seconds

    written: dict[str, list[list[int]]] = {}
    first = {name: run(name) for name in calls}
    for name in calls:  # printed, not required: rounding can swap two nearly equal logits
        expected = written["beams, cache" if name.startswith("beams") else "without the cache"]
        same = sum(row == other for row, other in zip(written[name], expected, strict=True))
        print(f"{name}: first call {first[name]:.2f} s, {same} of {BATCH} translations as expected", flush=True)
    rng, times = random.Random(0), {name: [] for name in calls}
    for _ in range(DECODING_ROUNDS):
        for name in rng.sample(list(calls), len(calls)):
            times[name].append(run(name))
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def decoding_rows(times: dict[str, float]) -> list[dict[str, object]]:
    """Return the rows of the table: the fastest way against decoding without a cache, and its parts."""
    size = f"{GENERATED} tokens, batch {BATCH}, seconds"
    without, cache, beams = times["without the cache"], times["cache"], times["beams, cache"]
    rows = []
    if "graph" in times:
        graph, beams_graph = times["graph"], times["beams, graph"]
        rows += [
            row(f"greedy, cache and CUDA graph, {size}", graph, "without the cache", without, without / graph, "≥ 3"),
            row(f"greedy, cache and CUDA graph, {size}", graph, "cache without a graph", cache, cache / graph, ""),
            row(
                f"beam 4, cache and CUDA graph, {size}",
                beams_graph,
                "cache without a graph",
                beams,
                beams / beams_graph,
                "",
            ),
        ]
    target = "" if "graph" in times else "≥ 3"
    return [*rows, row(f"greedy, cache, {size}", cache, "without the cache", without, without / cache, target)]


def quality(
    config: Config, data: list[str], valid: list[str], device: torch.device, dtype: torch.dtype, trained: Path | None
) -> dict[str, dict[str, float]]:
    """Return the BLEU and the training speed of both models after the same training on the same data."""
    run_of = {name: RunDirectory(Path(tempfile.mkdtemp()) / name) for name in MODELS}
    if trained is not None:
        run_of["ours"] = RunDirectory(trained)
    sentences = from_files(data, valid, config, None if trained is None else run_of["ours"].vocabulary())
    results = {}
    for name, make in MODELS.items():
        run, model = run_of[name], make(config.model, len(sentences.vocabulary)).to(device)
        if run.exists:
            run.load_best(model)
        else:
            callbacks = TrainingCallbacks(on_validation=lambda metrics, name=name: print(name, metrics, flush=True))
            with patch.object(Trainer, "head_statistics", dict):  # the peer has no attention statistics
                train(sentences, config, run, device=device, dtype=dtype, callbacks=callbacks, model=model)
        written = decode_all(model.eval(), [pair.source for pair in sentences.valid], beams=4)
        texts = [sentences.vocabulary.decode(hypothesis.tokens) for hypothesis in written]
        references = [pair.target for pair in sentences.references]
        results[name] = {split: round(bleu_score(texts, references, split), 2) for split in ("ja-mecab", "char")}
        results[name]["tokens/s"] = statistics.median(line["tokens_per_second"] for line in run.metrics()[1:])
    return results


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parts", nargs="+", choices=("speed", "decoding", "quality"), default=["speed", "decoding"])
    parser.add_argument("--config", type=Path, help="configuration file (default: the defaults of `clearhead train`)")
    parser.add_argument("--data", action="append", default=[])
    parser.add_argument("--valid", action="append", default=[])
    parser.add_argument("--steps", type=int, help="training steps for quality")
    parser.add_argument(
        "--trained", type=Path, help="for quality: a run of clearhead's model with the same data and settings"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    config = Config() if arguments.config is None else Config.from_file(arguments.config)
    device = torch.device(arguments.device)
    if arguments.steps:
        config = replace(config, training=replace(config.training, steps=arguments.steps))
    dtype, torchs = getattr(torch, arguments.dtype), "torch.nn.Transformer"
    rows: list[dict[str, object]] = []
    if "speed" in arguments.parts:
        for same in (True, False):
            speeds = training_speed(config, device, dtype, same)
            case = f"training, {'sources of one length' if same else 'padded sources'}, {arguments.dtype}, tokens/s"
            rows.append(row(case, speeds["ours"], torchs, speeds["torch"], speeds["ours"] / speeds["torch"], "≥ 1.0"))
    if "decoding" in arguments.parts:
        rows += decoding_rows(decoding(config, device))
    if "quality" in arguments.parts:
        results = quality(config, arguments.data, arguments.valid, device, dtype, arguments.trained)
        ours, peer = results["ours"], results["torch"]
        for split in ("ja-mecab", "char"):
            case = f"BLEU {split}, dev, beam 4, after {config.training.steps} steps; difference"
            rows.append(row(case, ours[split], torchs, peer[split], ours[split] - peer[split], "≥ −1"))
        case = f"training, the whole run, {arguments.dtype}, tokens/s"
        rows.append(row(case, ours["tokens/s"], torchs, peer["tokens/s"], ours["tokens/s"] / peer["tokens/s"], "≥ 1.0"))
    parts = "-".join(arguments.parts)
    write(f"translation-{device.type}-{parts}", f"Our Transformer and torch's: {parts}", rows, arguments.output)


def row(case: str, ours: float, peer: str, theirs: float, ratio: float, target: str) -> dict[str, object]:
    return {
        "case": case,
        "ours": round(ours, 3),
        "peer": peer,
        "its": round(theirs, 3),
        "ratio": round(ratio, 3),
        "target": target,
    }


if __name__ == "__main__":
    main()
