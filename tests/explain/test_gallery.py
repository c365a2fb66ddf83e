"""Tests of the gallery: the built-in examples besides the seeds, compared with plain NumPy calculations."""

import tomllib
from importlib import resources

import numpy as np
import pytest

from clearhead import check
from clearhead.explain import BUILT_IN, load

SEEDS = ("two-heads", "two-heads-projected", "song", "song-causal")
GALLERY = [name for name in BUILT_IN if name not in SEEDS]
every_example = pytest.mark.parametrize("name", GALLERY)


def attend(raw, x, memory=None, *, divisor, allowed=None):
    """Return the output of a file's layer by its formula."""
    memory = x if memory is None else memory
    heads, kv_heads = raw.get("heads", 1), raw.get("kv_heads", raw.get("heads", 1))
    query, key, value = (np.array(raw["weights"][name], dtype=float) for name in ("query", "key", "value"))
    query, key, value = (matrix if matrix.ndim == 3 else matrix[None] for matrix in (query, key, value))
    outputs = []
    for head in range(heads):
        shared = head // (heads // kv_heads)
        scores = (x @ query[head]) @ (memory @ key[shared]).T / divisor
        powers = np.exp(scores) if allowed is None else np.exp(scores) * allowed
        outputs.append(powers / powers.sum(axis=1, keepdims=True) @ (memory @ value[shared]))
    return np.concatenate(outputs, axis=1) @ np.array(raw["weights"]["output"], dtype=float)


def plain_output(name):
    """Return the output of a built-in example, from the numbers in its file."""
    raw = tomllib.loads(resources.files("clearhead.explain").joinpath("examples", f"{name}.toml").read_text("utf-8"))
    x = np.array(raw.get("x", []), dtype=float)
    if name == "three-by-four":
        return attend(raw, x, divisor=1)
    if name == "score-112":
        return attend(raw, x, divisor=8)
    if name == "causal-decoder":
        return attend(raw, x, divisor=2**0.5, allowed=np.tril(np.ones((4, 4))))
    if name == "cross-attention":
        return attend(raw, x, np.array(raw["memory"], dtype=float), divisor=2**0.5)
    if name == "grouped-heads":
        return attend(raw, x, divisor=2**0.5)
    rows = np.array([raw["embedding"][token] for token in raw["tokens"]])
    positions = [[np.sin(p), np.cos(p), np.sin(p / 100), np.cos(p / 100)] for p in range(len(rows))]
    return attend(raw, rows + np.array(positions), divisor=2**0.5)


@every_example
def test_every_claim_agrees(name):
    audit = check(name)
    assert audit.agrees
    assert len(audit.findings) >= 5
    assert not load(name).drawn  # every number is in the file
    assert all("follow" not in finding.message for finding in audit.findings)  # printed from unrounded numbers


@every_example
def test_output_equals_a_plain_calculation(name):
    np.testing.assert_allclose(load(name).trace().output.numpy(), plain_output(name), rtol=1e-12, atol=1e-13)


@every_example
def test_wrong_number_in_a_claim_is_reported(name):
    """Claims that cannot fail would agree as well."""
    example = load(name)
    for claim in example.claims:
        if claim.values is not None and claim.step != "mask":
            claim.values.values.nan_to_num_(nan=float("nan"), neginf=-1.0).add_(1.0)
    verdicts = {result.kind: result.verdict for result in check(example).findings}
    assert verdicts["values"] != "agrees"


def test_score_112_prints_the_row_that_names_it():
    traced = load("score-112").trace()
    assert traced.step("scores").values[0].tolist() == [112, 96]
    assert traced.step("scaled").values[0].tolist() == [14, 12]
    assert traced.step("scaled").formula == "S = Q Kᵀ / √64"
    assert [round(weight, 2) for weight in traced.step("weights").values[0].tolist()] == [0.88, 0.12]


def test_sentences_of_the_comments_are_true():
    weights = load("cross-attention").trace().step("weights").values
    assert weights.argmax(1).tolist()[0] == 2  # neko → cat
    assert weights.argmax(1).tolist()[2] == 3  # nemuru → sleeps
    words = load("embeddings").trace()
    assert words.step("embedding").values[0].equal(words.step("embedding").values[3])
    assert not words.step("weights").values[0].equal(words.step("weights").values[3])
    assert load("causal-decoder").trace().step("weights", 1).values[0].tolist() == [1, 0, 0, 0]


def test_every_example_has_a_description_and_a_file():
    folder = resources.files("clearhead.explain").joinpath("examples")
    assert {f"{name}.toml" for name in BUILT_IN} == {
        file.name for file in folder.iterdir() if file.name.endswith("toml")
    }
    assert all(0 < len(description) <= 100 for description in BUILT_IN.values())
    assert len({load(name).title for name in GALLERY}) == len(GALLERY)
