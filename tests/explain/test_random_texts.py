"""Tests of `check` on random texts with planted errors."""

import json
import random
import re
from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from clearhead import check
from clearhead.explain import parse
from clearhead.explain.render import AUDIT_FORMATS, print_audit, render_audit
from support.parameters import slow_except
from support.partial_claims import split_claims
from support.random_worked_texts import FAILURES, outcome, random_text

SEEDS, VARIANT_SEEDS, CHUNK = 80, 160, 10


@pytest.mark.parametrize(
    "start", slow_except({f"from {seed}": seed for seed in range(0, SEEDS, CHUNK)}, "from 0", "from 10")
)
def test_planted_errors_are_found_without_false_alarms(start):
    for seed in range(start, start + CHUNK):
        counts = outcome(random_text(seed))
        failed = {name: counts[name] for name in FAILURES if counts[name]}
        assert not failed, f"random_text({seed})"
        assert counts["errors found"] == counts["errors"]
        assert counts["carried marked"] == counts["carried"]


@pytest.mark.parametrize(
    "start", slow_except({f"from {seed}": seed for seed in range(0, VARIANT_SEEDS, CHUNK)}, "from 0")
)
def test_planted_errors_are_found_in_layers_with_shared_keys_memory_and_biases(start):
    for seed in range(start, start + CHUNK):
        counts = outcome(random_text(seed, variants=True))
        failed = {name: counts[name] for name in FAILURES if counts[name]}
        assert not failed, f"random_text({seed}, variants=True)"
        assert counts["errors found"] == counts["errors"]
        assert counts["carried marked"] == counts["carried"]


@pytest.mark.parametrize("part", ["row", "column", "cell"])
@pytest.mark.parametrize("start", slow_except({f"from {seed}": seed for seed in range(0, 40, 5)}, "from 0"))
def test_claims_about_parts_give_the_same_report(part, start):
    for seed in range(start, start + 5):
        text = random_text(seed)
        counts = outcome(replace(text, source=split_claims(text.source, part)))
        assert not {name: counts[name] for name in FAILURES if counts[name]}, f"random_text({seed})"
        assert counts["errors found"] == counts["errors"]
        assert counts["carried marked"] == counts["carried"]


def test_sample_contains_texts_of_every_kind():
    texts = [random_text(seed) for seed in range(SEEDS)]
    assert sum(not text.errors for text in texts) >= 5
    assert max(len(text.errors) for text in texts) == 4
    assert sum(bool(text.carried) for text in texts) >= 20
    steps = {cell[0] for text in texts for cell in text.errors}
    assert steps == {
        "input", "mask", "slice", "query_weight", "key_weight", "value_weight", "query", "key", "value", "scores",
        "scaled", "masked", "weights", "head_output", "concat", "output_weight", "output",
    }  # fmt: skip
    heads = {cell[1] for text in texts for cell in text.errors}
    assert heads == {None, 0, 1, 2}


def test_first_variants_have_every_key():
    texts = [random_text(seed, variants=True) for seed in range(CHUNK)]
    keys = {line.split(" = ")[0] for text in texts for line in text.source.splitlines()}
    assert keys >= {"kv_heads", "memory", "scale", "[biases]"}


@pytest.mark.slow
def test_sample_contains_variants_of_every_kind():
    texts = [random_text(seed, variants=True) for seed in range(VARIANT_SEEDS)]
    steps = {cell[0] for text in texts for cell in text.errors}
    assert steps >= {"memory", "query_bias", "key_bias", "value_bias", "output_bias"}
    groups = {(text.author.layer.heads, text.author.layer.kv_heads) for text in texts}
    assert groups == {(1, 1), (2, 1), (2, 2), (3, 1), (3, 3), (4, 1), (4, 2), (4, 4)}


EXTREME = ("-inf", "1e308", "-1e308", "1e-320", "0", "-0.0", "1e16", "-10000.0", '"_"')


@pytest.mark.parametrize("seed", slow_except({str(seed): seed for seed in range(12)}, "0", "1", "2"))
def test_extreme_numbers_in_claims_are_reported_and_never_raise(seed):
    draw = random.Random(seed)
    head, *claims = random_text(seed).source.split("[[claims]]")
    claims = [re.sub(r"-?\d+\.\d+", lambda n: draw.choice((*EXTREME, *[n[0]] * 60)), claim) for claim in claims]
    audit = check(parse("[[claims]]".join([head, *claims])))
    assert len([finding for finding in audit.findings if finding.claim]) == len(claims)
    print_audit(Console(file=StringIO(), width=80), audit)
    written = {style: render_audit(audit, style) for style in AUDIT_FORMATS}
    json.loads(written["json"])
    assert all(result.verdict == "agrees" for result in check(parse(written["toml"])).findings if result.claim)
