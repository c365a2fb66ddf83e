"""Export a training run as the bundled model, in float16, and score it on a development set."""

from __future__ import annotations

import argparse
import shutil
from pathlib import Path

import torch

from clearhead.translation._evaluation import bleu_score
from clearhead.translation.data._corpus import prepare_corpus, read_pairs
from clearhead.translation.run_directory import RunDirectory
from clearhead.translation.translator import Translator
from measuring import RESULTS, write


def bundle(run: Path, target: Path) -> None:
    """Write the configuration, tokenizer and weights of a run to `target`. An existing model card is kept."""
    target.mkdir(parents=True, exist_ok=True)
    for name in ("config.json", "tokenizer.json"):
        shutil.copyfile(run / name, target / name)
    bundled = RunDirectory(target)
    bundled.read()  # the weights get the identity in config.json
    bundled.save_best(RunDirectory(run).model(), torch.float16)


def scores(folder: Path, data: list[str], valid: list[str], device: str) -> list[dict[str, object]]:
    """Return the BLEU of beam search and greedy decoding, on all pairs and on pairs with unseen English."""
    translator = Translator.load(folder, device=device)
    text = translator.config.text
    held_out = prepare_corpus(read_pairs(valid), text.source, text.target).pairs
    seen = {pair.source for pair in prepare_corpus(read_pairs(data), text.source, text.target, without=held_out).pairs}
    rows: list[dict[str, object]] = []
    for beams in (4, 1):
        translations = translator.translate([pair.source for pair in held_out], beams=beams)
        for label, is_chosen in (
            ("all", lambda pair: True),
            ("English not in training", lambda pair: pair.source not in seen),
        ):
            chosen = [index for index, pair in enumerate(held_out) if is_chosen(pair)]
            texts, references = [translations[index] for index in chosen], [held_out[index].target for index in chosen]
            bleu = {f"BLEU {split}": round(bleu_score(texts, references, split), 2) for split in ("ja-mecab", "char")}
            rows.append({"pairs": label, "count": len(chosen), "beams": beams, **bleu, "target": "≥ 30 ja-mecab"})
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path, help="the model's folder in the package")
    parser.add_argument("--run", type=Path, help="run to export (default: only score the existing model)")
    parser.add_argument("--data", action="append", required=True, help="training data, to find unseen pairs")
    parser.add_argument("--valid", action="append", required=True, help="development set to score")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--output", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    if arguments.run is not None:
        bundle(arguments.run, arguments.model)
    rows = scores(arguments.model, arguments.data, arguments.valid, arguments.device)
    write("translation-scores", "The bundled English–Japanese model on the development set", rows, arguments.output)


if __name__ == "__main__":
    main()
