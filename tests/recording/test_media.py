"""Tests of pictures and sounds in recordings: regions, files, checks, and damaged files."""

import sys
import wave

import numpy as np
import pytest
import torch
from PIL import Image

from clearhead import Recording, attention
from clearhead.recording import (
    Frames,
    Media,
    Patches,
    Picture,
    Sound,
    Stack,
    Timestamps,
    Tokens,
    frame_tokens,
    patch_tokens,
    picture_of,
    picture_of_values,
    sound_of,
)
from clearhead.recording.recording import FORMAT, VERSION
from clearhead.recording.sounds import read_sound, resample
from clearhead.weights import serialization


def weights(q_len, kv_len):
    query, key = torch.randn(1, 2, q_len, 4), torch.randn(1, 2, kv_len, 4)
    return attention(query, key, key, return_weights=True)[1]


def recording():
    patches = patch_tokens(2, 3, special=["cls"], picture=0)
    frames = frame_tokens(5, 0.02, sound=0)
    words = Tokens(("a", "b"), (False, False), (0, 1), (Timestamps(0, (0.0, 0.04), 0),))
    media = Media((Picture(torch.arange(60, dtype=torch.uint8).view(4, 5, 3)),), (Sound(torch.zeros(2, 7), 0.1),))
    stacks = {"encoder": Stack((weights(7, 7),), patches, patches), "cross": Stack((weights(2, 5),), words, frames)}
    return Recording("a model", stacks, media=media)


def test_regions_and_media_are_saved_and_moved(tmp_path):
    made, path = recording(), tmp_path / "file.safetensors"
    made.save(path)
    for read in (Recording.load(path), made.to("cpu"), Recording.load(path).to("cpu")):
        for name, stack in made.stacks.items():
            assert (read[name].queries, read[name].keys) == (stack.queries, stack.keys)
        assert torch.equal(read.media.pictures[0].pixels, made.media.pictures[0].pixels)
        assert torch.equal(read.media.sounds[0].envelope, made.media.sounds[0].envelope)
        assert read.media.sounds[0].seconds == 0.1
    assert repr(made.media) == "Media(pictures=(Picture(5 × 4),), sounds=(Sound(0.10 s),))"


def test_files_without_media_are_read(tmp_path):
    """Earlier versions wrote neither regions nor media."""
    path = tmp_path / "file.safetensors"
    recording().save(path)
    tensors, header = serialization.read(path, FORMAT, VERSION, "cpu")
    del header["media"]
    for stack in header["stacks"].values():
        del stack["queries"]["regions"], stack["keys"]["regions"]
    serialization.write(path, tensors, header)
    read = Recording.load(path)
    assert not read.media.pictures
    assert read["encoder"].keys.texts == ("cls", "0,0", "0,1", "0,2", "1,0", "1,1", "1,2")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda tensors, header: header.update(media=3), "damaged"),
        (lambda tensors, header: header["media"].update(pictures=2), "'media.picture.1'"),
        (lambda tensors, header: header["media"].update(pictures=10**9), "pictures is 1000000000; expected"),
        (
            lambda tensors, header: header["media"].update(pictures=0),
            "a region has picture 0; expected an index below 0",
        ),
        (lambda tensors, header: header["media"].update(seconds=[float("nan")]), "Sound: seconds is nan"),
        (lambda tensors, header: header["media"].update(seconds=[]), "a region has sound 0; expected an index below 0"),
        (lambda tensors, header: region(header).update(rows=10**6), "regions.0. ends at 3000001; expected at most 7"),
        (lambda tensors, header: region(header).update(rows=0), "Patches: rows is 0"),
        (lambda tensors, header: region(header).update(start=-1), "Patches: start is -1"),
        (lambda tensors, header: region(header).update(picture="a"), "Patches: picture is 'a'"),
        (
            lambda tensors, header: region(header).update(block=2),
            "rows is 2 and columns 3; expected multiples of block, 2",
        ),
        (lambda tensors, header: region(header).update(extra=2), "unexpected keyword argument 'extra'"),
        (
            lambda tensors, header: regions(header).append(dict(region(header))),
            "a region starts at 1, before another one ends at 7",
        ),
        (lambda tensors, header: regions(header).append(4), "damaged"),
        (
            lambda tensors, header: tensors.update({"media.picture.0": torch.zeros(4, 5, 3)}),
            "Picture: pixels is a Tensor; expected a tensor of torch.uint8",
        ),
        (
            lambda tensors, header: tensors.update({"media.picture.0": torch.zeros(4, 999, 3, dtype=torch.uint8)}),
            "Picture: pixels is .4, 999, 3.; expected .height, width, 3. with 1 to 512 pixels",
        ),
        (
            lambda tensors, header: tensors.update({"media.sound.0": torch.full((2, 7), 3.0)}),
            "Sound: envelope has values outside of −1 to 1",
        ),
        (
            lambda tensors, header: tensors.update({"media.sound.0": torch.zeros(3, 7)}),
            "Sound: envelope is .3, 7.; expected .2, bins.",
        ),
    ],
)
def test_damaged_media_are_refused_in_one_line(tmp_path, change, message):
    path = tmp_path / "file.safetensors"
    recording().save(path)
    tensors, header = serialization.read(path, FORMAT, VERSION, "cpu")
    change(tensors, header)
    serialization.write(path, tensors, header)
    with pytest.raises(ValueError, match=message) as caught:
        Recording.load(path)
    assert str(caught.value).startswith(f"{path}: saved by Recording.save, but damaged (")
    assert "\n" not in str(caught.value)


def regions(header):
    return header["stacks"]["encoder"]["keys"]["regions"]


def region(header):
    return regions(header)[0]


def test_parts_of_tokens_keep_the_regions_within():
    tokens = patch_tokens(2, 2, special=["cls"], picture=0)
    assert tokens.part(1, 5).regions == (Patches(0, 2, 2, picture=0),)
    assert tokens.part(0, 4).regions == ()
    assert tokens.part(1, 5).texts == ("0,0", "0,1", "1,0", "1,1")
    with pytest.raises(ValueError, match="a region starts at 3, before another one ends at 4"):
        Tokens(("a",) * 9, (False,) * 9, (None,) * 9, (Frames(3, 2, 1.0), Patches(0, 2, 2)))


def test_blocks_of_patches_have_positions_row_by_row():
    assert Patches(5, 2, 3).positions() == [5, 6, 7, 8, 9, 10]
    assert Patches(0, 2, 4, block=2).positions() == [0, 1, 4, 5, 2, 3, 6, 7]
    assert patch_tokens(2, 4, block=2).texts == ("0,0", "0,1", "1,0", "1,1", "0,2", "0,3", "1,2", "1,3")


def test_pictures_are_reduced_and_keep_their_proportions(tmp_path):
    picture = np.zeros((600, 1200, 3), dtype=np.uint8)
    picture[:, 600:] = 255
    Image.fromarray(picture).save(tmp_path / "picture.png")
    for source in (picture, tmp_path / "picture.png", Image.fromarray(picture), torch.from_numpy(picture)):
        pixels = picture_of(source).pixels
        assert pixels.shape == (256, 512, 3)
        assert (int(pixels[:, :250].max()), int(pixels[:, 262:].min())) == (0, 255)
    values = picture_of_values(torch.from_numpy(picture).permute(2, 0, 1) / 255.0)
    assert torch.equal(values.pixels, torch.from_numpy(picture[:256, 344:856]))
    gray = picture_of_values(torch.tensor([[[0.0, float("nan"), 2.0, float("inf")]]]))
    assert gray.pixels[0, :, 0].tolist() == [0, 0, 255, 0]


def test_missing_pillow_is_named(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "PIL", None)
    with pytest.raises(ImportError, match="image= needs pillow: pip install 'clearhead.view.'"):
        picture_of(tmp_path / "picture.png")
    assert picture_of_values(torch.zeros(3, 2, 2)).height == 2  # needs none


@pytest.mark.parametrize("content", [b"", b"not an image", b"GIF89a\x01\x00\x01\x00\x00\x00\x00;"])
def test_files_that_are_not_pictures_are_refused(tmp_path, content):
    path = tmp_path / "picture.png"
    path.write_bytes(content)
    with pytest.raises(ValueError, match="picture.png: .*; expected a PNG or JPEG image"):
        picture_of(path)


@pytest.mark.parametrize("width", [1, 2, 3, 4])
def test_wav_files_of_every_width_are_read(tmp_path, width):
    path, expected = tmp_path / "sound.wav", np.sin(np.arange(100) / 3)
    integers = np.round(expected * (2 ** (8 * width - 1) - 1)).astype(np.int64)
    raw = (integers + 128).astype(np.uint8) if width == 1 else integers.astype("<i8")
    content = b"".join(int(value).to_bytes(width, "little", signed=width > 1) for value in raw)
    with wave.open(str(path), "wb") as file:
        file.setparams((1, width, 100, 0, "NONE", ""))
        file.writeframes(content)
    samples, rate = read_sound(path)
    assert rate == 100
    np.testing.assert_allclose(samples, expected, atol=2.0 ** (2 - 8 * width) + 1e-6)
    assert sound_of(samples, rate).seconds == 1.0


def test_files_that_are_not_sounds_are_refused(tmp_path):
    path = tmp_path / "sound.wav"
    for content in (b"", b"RIFF", b"not a sound at all, but a text"):
        path.write_bytes(content)
        with pytest.raises(ValueError, match="sound.wav: .*expected a"):
            read_sound(path)


def test_resampling_keeps_a_tone():
    time = torch.arange(1600, dtype=torch.float64) / 16_000
    tone = torch.sin(2 * torch.pi * 400 * time)
    half = resample(tone, 16_000, 8_000)
    torch.testing.assert_close(half, tone[::2], atol=1e-4, rtol=0)
    torch.testing.assert_close(resample(half, 8_000, 16_000), tone, atol=1e-4, rtol=0)
    high = torch.sin(2 * torch.pi * 6000 * time)
    assert resample(high, 16_000, 8_000).abs().max() < 1e-4  # above half of the new rate


def test_envelope_is_the_smallest_and_largest_sample_of_each_bin():
    samples = torch.randn(5000, generator=torch.Generator().manual_seed(0))
    envelope = sound_of(samples, 1000).envelope
    peak = samples.abs().max()
    assert envelope.shape == (2, 2048)
    edges = [index * 5000 // 2048 for index in range(2049)]
    for index in (0, 1, 1000, 2047):
        part = samples[edges[index] : edges[index + 1]] / peak
        assert torch.equal(envelope[:, index], torch.stack([part.min(), part.max()]))
