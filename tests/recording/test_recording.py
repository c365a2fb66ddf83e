"""Tests of recordings: access to heads, files, and checks of damaged files."""

import json

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from clearhead import AttentionWeights, Causal, Recording, attention
from clearhead._utils import checksums
from clearhead.recording.recording import FORMAT, VERSION, Stack, Tokens
from clearhead.weights import serialization


def tokens(*texts):
    return Tokens(texts, tuple(text.startswith("[") for text in texts), tuple(range(len(texts))))


def weights(q_len, kv_len, heads=3, mask=None):
    query, key = torch.randn(1, heads, q_len, 4), torch.randn(1, heads, kv_len, 4)
    return attention(query, key, torch.randn(1, heads, kv_len, 5), mask=mask, return_weights=True)[1]


def recording():
    source, target = tokens("[CLS]", "ein", "Test", "日本"), tokens("a", "test")
    stacks = {
        "encoder": Stack((weights(4, 4), weights(4, 4)), source, source),
        "decoder": Stack((weights(2, 2, mask=Causal()),), target, target),
        "cross": Stack((weights(2, 4),), target, source),
    }
    return Recording("a model", stacks)


def test_recording_lists_its_heads_and_returns_their_weights():
    made = recording()
    assert len(list(made.heads())) == (2 + 1 + 1) * 3
    assert torch.equal(made.weights(("encoder", 1, 2)).dense(), made["encoder"].layers[1].dense()[:, 2:])
    assert repr(made) == (
        "Recording('a model': encoder 2 × 3 heads, 4 × 4 tokens; decoder 1 × 3 heads, 2 × 2 tokens;"
        " cross 1 × 3 heads, 2 × 4 tokens)"
    )
    with pytest.raises(KeyError, match="a model has no stack 'middle'; expected one of 'encoder', 'decoder', 'cross'"):
        made["middle"]
    assert made.to("cpu")["cross"].keys == made["cross"].keys


def test_save_and_load_round_trip(tmp_path):
    made, path = recording(), tmp_path / "recording.safetensors"
    made.save(path)
    read = Recording.load(path)
    assert read.model == made.model
    assert list(read.heads()) == list(made.heads())
    for name, stack in made.stacks.items():
        assert (read[name].queries, read[name].keys) == (stack.queries, stack.keys)
        assert read[name].has_values
        for one, other in zip(read[name].layers, stack.layers, strict=True):
            assert torch.equal(one.dense(), other.dense())
            assert torch.equal(one.value, other.value)
    assert [file.name for file in tmp_path.iterdir()] == [path.name]


def test_without_values_keeps_the_shape():
    kept = weights(3, 3).without_values()
    assert kept.value is None
    assert kept.shape == (1, 3, 3, 3)


def test_load_rejects_missing_foreign_and_damaged_files(tmp_path):
    path = tmp_path / "file.safetensors"
    with pytest.raises(FileNotFoundError, match="there is no such file"):
        Recording.load(path)
    weights(2, 2).save(path)
    with pytest.raises(ValueError, match="not saved by Recording.save"):
        Recording.load(path)
    recording().save(path)
    with pytest.raises(ValueError, match="not saved by AttentionWeights.save"):
        AttentionWeights.load(path)
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(ValueError, match="not a complete safetensors file"):
        Recording.load(path)
    facts = {"format": "clearhead.Recording", "version": 1, "model": "m", "stacks": {"encoder": {"layers": [{}]}}}
    serialization.write(path, {"x": torch.zeros(1)}, facts)
    with pytest.raises(ValueError, match="saved by Recording.save, but damaged"):
        Recording.load(path)
    serialization.write(path, {"x": torch.zeros(1)}, {**facts, "version": 9})
    with pytest.raises(ValueError, match="format version 9, but this clearhead reads 1 to 1"):
        Recording.load(path)


def changed(path, tensors=lambda tensors: tensors, facts=lambda header: header):
    """Write a recording with queries and keys, and with changes that `save` never makes."""
    axis = tokens(*"abcdefghi")
    Recording("a model", {"decoder": Stack((weights(9, 9, mask=Causal()),), axis, axis)}).save(path)
    with safe_open(str(path), framework="pt") as file:
        kept = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        about = json.loads(file.metadata()["clearhead"])
    save_file(tensors(kept), path, {"clearhead": json.dumps(facts(about))})
    checksums.seal(path)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"facts": lambda header: [header]}, "not saved by Recording.save"),
        ({"facts": lambda header: {**header, "version": "2"}}, "format version '2', but this clearhead reads 1 to 1"),
        ({"facts": lambda header: {**header, "version": None}}, "format version None"),
        ({"facts": lambda header: {**header, "stacks": 3}}, "damaged"),
        ({"tensors": lambda tensors: without(tensors, "lse")}, "damaged .'lse'"),
        ({"tensors": lambda tensors: without(tensors, "ranges")}, "damaged .'ranges, dense'"),
        ({"tensors": lambda tensors: cut(tensors, "lse")}, "damaged .lse is .*; expected"),
        ({"tensors": lambda tensors: cut(tensors, "key")}, "damaged .key is .*; expected"),
        ({"tensors": lambda tensors: cut(tensors, "query")}, "damaged .key is .*; expected"),
        ({"tensors": lambda tensors: cut(tensors, "ranges")}, "damaged .ranges is .*; expected"),
        (
            {"tensors": lambda tensors: put(tensors, "ranges", lambda old: old + 1000)},
            "damaged .ranges has keys outside 0 to 9",
        ),
        (
            {"tensors": lambda tensors: put(tensors, "ranges", lambda old: old.float())},
            "damaged .ranges has dtype torch.float32",
        ),
        (
            {"tensors": lambda tensors: put(tensors, "ranges", lambda old: old.repeat(1, 1, 3, 1))},
            "damaged .ranges is .*3, 9",
        ),
        ({"tensors": lambda tensors: put(tensors, "lse", lambda old: old.int())}, "damaged .lse has dtype torch.int32"),
        (
            {"tensors": lambda tensors: put(tensors, "key", lambda old: old.double())},
            "damaged .key has dtype torch.float64",
        ),
        (
            {"tensors": lambda tensors: put(tensors, "query_start", lambda old: old.expand(5))},
            "damaged .query_start is .5,.",
        ),
        ({"facts": lambda header: in_layer(header, scale="x")}, "damaged .scale is 'x'; expected a number"),
        ({"facts": lambda header: in_layer(header, softcap="x")}, "damaged .softcap is 'x'; expected a number or null"),
        ({"facts": lambda header: {**header, "version": True}}, "format version True"),
        ({"facts": lambda header: {**header, "model": 5}}, "damaged .Recording: model is 5"),
        ({"facts": lambda header: numbered(header)}, "damaged .Tokens: texts.0. is 0; expected a string"),
    ],
)
def test_load_rejects_a_damaged_file_in_one_line(tmp_path, damage, message):
    path = tmp_path / "file.safetensors"
    changed(path, **damage)
    with pytest.raises(ValueError, match=message) as caught:
        Recording.load(path)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


def without(tensors, part):
    return {name: value for name, value in tensors.items() if not name.endswith(f".{part}")}


def put(tensors, part, change):
    return {name: change(value).contiguous() if name.endswith(f".{part}") else value for name, value in tensors.items()}


def in_layer(facts, **changes):
    facts["stacks"]["decoder"]["layers"][0] |= changes
    return facts


def numbered(facts):
    facts["stacks"]["decoder"]["queries"]["texts"] = list(range(9))
    return facts


def cut(tensors, part):
    """Return the tensors with the last axis of `part` shortened by one."""
    return {
        name: value[..., :-1].contiguous() if name.endswith(f".{part}") else value for name, value in tensors.items()
    }


def test_stack_and_tokens_reject_wrong_lengths():
    with pytest.raises(ValueError, match="layer 0 is .1, 3, 4, 4., but there are 3 query tokens"):
        Stack((weights(4, 4),), tokens("a", "b", "c"), tokens("a", "b", "c", "d"))
    with pytest.raises(ValueError, match="Tokens: texts, special and words"):
        Tokens(("a",), (False, True), (None,))


def test_empty_stacks_layers_and_tokens_are_rejected():
    axis, none = tokens("a", "b"), tokens()
    for make, message in (
        (lambda: Recording("m", {}), "Recording: there are no stacks; expected at least one"),
        (lambda: Stack((), axis, axis), "Stack: there are no layers; expected at least one"),
        (lambda: Stack((weights(2, 2),), none, axis), "Stack: there are no query tokens; expected at least one"),
        (lambda: Stack((weights(2, 2),), axis, none), "Stack: there are no key tokens; expected at least one"),
        (lambda: Recording("\ud800", {}), "Recording: model is '.ud800'; expected a name of valid Unicode"),
        (
            lambda: Recording("m", {"\0": Stack((weights(2, 2),), axis, axis)}),
            "a stack is named '.x00'; expected printable",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            make()


@pytest.mark.parametrize(
    ("part", "value", "message"),
    [
        ("texts", 3, "texts.1. is 3; expected a string of valid Unicode"),
        ("texts", "\ud800", "texts.1. is '.ud800'; expected a string of valid Unicode"),
        ("special", "x", "special.1. is 'x'; expected True or False"),
        ("special", 1, "special.1. is 1; expected True or False"),
        ("words", "x", "words.1. is 'x'; expected a word's index from 0, or None"),
        ("words", True, "words.1. is True"),
        ("words", -1, "words.1. is -1"),
        ("words", 2**63, "words.1. is 9223372036854775808"),
    ],
)
def test_tokens_reject_wrong_entries(part, value, message):
    parts = {"texts": ("a", "b"), "special": (True, False), "words": (0, None)}
    parts[part] = (parts[part][0], value)
    with pytest.raises(ValueError, match=message):
        Tokens(**parts)


def with_tensor(path, name, change):
    """Write a recording with one tensor of its first layer changed."""
    recording().save(path)
    tensors, facts = serialization.read(path, FORMAT, VERSION, "cpu")
    tensors[f"encoder.0.{name}"] = change(tensors[f"encoder.0.{name}"])
    serialization.write(path, tensors, facts)


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        (
            "query",
            lambda value: value.to(torch.float8_e4m3fn),
            "query has dtype torch.float8_e4m3fn; expected torch.float64,",
        ),
        ("lse", lambda value: value.half(), "lse has dtype torch.float16; expected torch.float32"),
        ("value", lambda value: value.double(), "value has dtype torch.float64; expected that of query, torch.float32"),
        ("key", lambda value: value.sum(), "query is .*, key ..; expected 4 axes each"),
        ("query_start", lambda value: value + (2**63 - 1), "query_start is out of range"),
        ("query_start", lambda value: value - 2**62, "query_start is out of range"),
    ],
)
def test_load_rejects_tensors_of_wrong_dtype_shape_or_range(tmp_path, name, change, message):
    path = tmp_path / "file.safetensors"
    with_tensor(path, name, change)
    with pytest.raises(ValueError, match=f"file.safetensors: saved by Recording.save, but damaged .{message}"):
        Recording.load(path)


@pytest.mark.parametrize(
    "facts", [{"scale": float("nan")}, {"scale": float("inf")}, {"softcap": 0.0}, {"scale": 10**400}]
)
def test_load_rejects_invalid_scale_and_softcap(tmp_path, facts):
    path = tmp_path / "file.safetensors"
    recording().save(path)
    tensors, header = serialization.read(path, FORMAT, VERSION, "cpu")
    header["stacks"]["encoder"]["layers"][0] |= facts
    serialization.write(path, tensors, header)
    with pytest.raises(ValueError, match="saved by Recording.save, but damaged"):
        Recording.load(path)
