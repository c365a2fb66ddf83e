"""Cross-attention of the bundled translator for the course: `python benchmarks/course_alignment.py`.

Writes the weights of every cross head on one sentence, in thousandths, as a module that the page
"The whole Transformer" imports. `clearhead translate --show` prints the mean of the same weights.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from clearhead._utils.files import write_text
from clearhead.translation import Translator

SENTENCE = "The cat ate the fish."
MODULE = Path(__file__).parent.parent / "src/clearhead/explain/course/static/translation_weights.js"
HEADER = """// Cross-attention of the bundled translator on one sentence, written by benchmarks/course_alignment.py.
// `weights[layer][head][row][column]` are thousandths. A row belongs to the token that it writes.

"""


def sentence_weights(sentence: str) -> dict[str, object]:
    """Return the tokens of a sentence and its translation, and the weights of all cross heads in thousandths."""
    translator = Translator.load()
    cross = translator.record(sentence)["cross"]
    weights = torch.stack([layer.dense()[0] for layer in cross.layers])  # [layers, heads, written, source]
    assert cross.written is not None
    return {
        "sentence": sentence,
        "translation": translator.translate(sentence),
        "source": list(cross.keys.texts),
        "written": list(cross.written.texts),
        "weights": (weights * 1000).round().int().tolist(),
    }


if __name__ == "__main__":
    data = sentence_weights(SENTENCE)
    lines = [
        f"  {key}: {json.dumps(value, ensure_ascii=False, separators=(',', ':'))},\n" for key, value in data.items()
    ]
    write_text(MODULE, f"{HEADER}export const TRANSLATION = {{\n{''.join(lines)}}};\n")
    print(f"wrote {MODULE}")
