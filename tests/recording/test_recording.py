"""Tests of recordings: access to heads, files, and checks of damaged files."""

import json
from dataclasses import replace

import pytest
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from clearhead import AttentionWeights, Causal, Recording, attention
from clearhead._utils import checksums
from clearhead.recording import NextTokens
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


def complete():
    """Return a recording with all optional parts."""
    made = recording()
    norms = {name: tuple(torch.rand(3, len(stack.keys)) for _ in stack.layers) for name, stack in made.stacks.items()}
    stacks = {name: replace(stack, value_norms=norms[name]) for name, stack in made.stacks.items()}
    stacks |= {name: replace(stacks[name], written=tokens("test", "[EOS]")) for name in ("decoder", "cross")}
    probabilities = torch.tensor([[0.5, 0.25], [0.75, 0.125]])
    predicted = NextTokens((("test", "a"), ("[EOS]", "日本")), probabilities, (0, 1))
    return Recording("a model", stacks, "ein Test", "a <b>test", predicted)


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


def test_heads_are_named_as_on_the_command_line():
    made = recording()
    assert torch.equal(made.weights("encoder.1.2").dense(), made.weights(("encoder", 1, 2)).dense())
    with pytest.raises(
        ValueError, match=r"head is 'cross\.1\.0', which a model does not have; expected encoder\.0\.0 to"
    ):
        made.weights("cross.1.0")
    with pytest.raises(IndexError, match="layer is 9; expected 0 to 1, the layers of 'encoder'"):
        made.weights(("encoder", 9, 0))


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


def test_optional_parts_are_moved_saved_and_loaded(tmp_path):
    made, path = complete(), tmp_path / "recording.safetensors"
    made.save(path)
    for other in (Recording.load(path), made.to("cpu")):
        assert (other.input, other.output) == ("ein Test", "a <b>test")
        assert other["encoder"].written is None
        assert other["cross"].written == other["decoder"].written == tokens("test", "[EOS]")
        assert other.next_tokens.at(1) == (("[EOS]", 0.75), ("日本", 0.125))
        for name, stack in made.stacks.items():
            for one, norms in zip(other[name].value_norms, stack.value_norms, strict=True):
                assert torch.equal(one, norms)
    recording().save(path)
    read = Recording.load(path)
    assert (read.input, read.output, read.next_tokens) == (None, None, None)
    assert {stack.value_norms for stack in read.stacks.values()} == {None}


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ({"facts": lambda facts: facts | {"input": 3}}, "Recording: input is 3; expected a string"),
        ({"facts": lambda facts: facts | {"output": "\ud800"}}, "Recording: output is '.ud800'; expected a string"),
        ({"facts": lambda facts: in_decoder(facts, written=3)}, "damaged .'int' object is not subscriptable"),
        (
            {"facts": lambda facts: in_decoder(facts, written=facts["stacks"]["encoder"]["keys"])},
            "Stack: written has 4 tokens; expected 2, one per query token",
        ),
        ({"facts": lambda facts: predicted(facts, texts=[["a", "b"]])}, "NextTokens: there are 1 rows of texts"),
        ({"facts": lambda facts: predicted(facts, texts=["ab", [3, "b"]])}, "NextTokens: texts.1. is .3, 'b'."),
        ({"facts": lambda facts: predicted(facts, texts=["ab", ["a"]])}, "NextTokens: texts.1. is .'a',."),
        ({"facts": lambda facts: predicted(facts, positions=[1, 0])}, "NextTokens: positions is not ascending"),
        ({"facts": lambda facts: predicted(facts, positions=[0, "x"])}, "NextTokens: positions is not ascending"),
        (
            {"facts": lambda facts: predicted(facts, positions=[0, 4])},
            "next_tokens has position 4; expected less than 4",
        ),
        ({"facts": lambda facts: predicted(facts, texts=None)}, "damaged"),
        ({"facts": lambda facts: facts | {"next_tokens": []}}, "damaged"),
        ({"tensors": lambda tensors: without(tensors, "probabilities")}, "damaged .'next_tokens.probabilities'"),
        ({"tensors": lambda tensors: put(tensors, "probabilities", lambda old: old + 0.5)}, "outside of 0 to 1"),
        ({"tensors": lambda tensors: put(tensors, "probabilities", lambda old: old * torch.nan)}, "outside of 0 to 1"),
        (
            {"tensors": lambda tensors: put(tensors, "probabilities", lambda old: old.int())},
            "expected .positions, count",
        ),
        (
            {"tensors": lambda tensors: put(tensors, "probabilities", lambda old: old.to(torch.float8_e4m3fn))},
            "expected .positions, count",
        ),
        (
            {"tensors": lambda tensors: cut(tensors, "value_norms")},
            "Stack: value_norms.0. is .*; expected floats .3, 4.",
        ),
        ({"tensors": lambda tensors: put(tensors, "value_norms", lambda old: -old)}, "value_norms.0. is negative"),
        ({"tensors": lambda tensors: put(tensors, "value_norms", lambda old: old * torch.nan)}, "or not finite"),
        (
            {"tensors": lambda tensors: put(tensors, "value_norms", lambda old: old.to(torch.float8_e5m2))},
            "Stack: value_norms.0. is .*; expected floats",
        ),
        (
            {"tensors": lambda tensors: without(tensors, "1.value_norms")},
            "Stack: value_norms has 1 layers; expected 2",
        ),
    ],
)
def test_load_rejects_damaged_optional_parts(tmp_path, damage, message):
    path = tmp_path / "file.safetensors"
    changed(path, **damage, made=complete())
    with pytest.raises(ValueError, match=f"damaged .*{message}|{message}") as caught:
        Recording.load(path)
    assert str(caught.value).startswith(f"{path}: saved by Recording.save, but damaged")


def in_decoder(facts, **changes):
    facts["stacks"]["decoder"] |= changes
    return facts


def predicted(facts, **changes):
    return facts | {"next_tokens": facts["next_tokens"] | changes}


def test_without_values_keeps_the_shape():
    kept = weights(3, 3).without_values()
    assert kept.value is None
    assert kept.shape == (1, 3, 3, 3)


def test_errors_of_load_escape_and_shorten_names_of_tensors(tmp_path):
    path = tmp_path / "hostile.safetensors"
    name = "\x1b[2J\u202e" + "x" * 10_000
    header = json.dumps({name: {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}).encode()
    path.write_bytes(len(header).to_bytes(8, "little") + header + bytes(8))
    with pytest.raises(ValueError, match=r"not a complete safetensors file .*\\x1b\[2J\\u202exxx") as caught:
        Recording.load(path)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 600


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


def changed(path, tensors=lambda tensors: tensors, facts=lambda header: header, made=None):
    """Write a recording, by default with queries and keys, and with changes that `save` never makes."""
    axis = tokens(*"abcdefghi")
    made = made or Recording("a model", {"decoder": Stack((weights(9, 9, mask=Causal()),), axis, axis)})
    made.save(path)
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
    with pytest.raises(ValueError, match="layer 0 is .1, 3, 4, 4., but the stack has 3 query tokens"):
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
