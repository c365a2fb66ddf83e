"""Tests of --image and --audio with Hugging Face models, in folders of tiny models with random weights."""

import wave

import pytest
import torch
from PIL import Image

from clearhead import Recording, record
from support import media_models
from support.command_line import error_of, run


@pytest.fixture
def vit(tmp_path):
    """Return the folder of a vision transformer and its processor."""
    media_models.make("vit").save_pretrained(tmp_path / "vit")
    media_models.vit_processor().save_pretrained(tmp_path / "vit")
    Image.fromarray(media_models.image()).save(tmp_path / "cat.png")
    return tmp_path / "vit"


def test_record_stats_and_report_of_a_picture(tmp_path, vit):
    run("record", "--model", vit, "--image", tmp_path / "cat.png", "--output", tmp_path / "vit.safetensors")
    read = Recording.load(tmp_path / "vit.safetensors")
    expected = record(media_models.make("vit"), image=tmp_path / "cat.png", processor=media_models.vit_processor())
    assert read["encoder"].keys == expected["encoder"].keys
    assert torch.equal(read.media.pictures[0].pixels, expected.media.pictures[0].pixels)
    assert torch.equal(read["encoder"].layers[1].dense(), expected["encoder"].layers[1].dense())
    assert "encoder" in run("stats", "--model", vit, "--image", tmp_path / "cat.png", "--layers", "1").stdout
    run("view", "--model", vit, "--image", tmp_path / "cat.png", "--output", tmp_path / "report.html")
    assert (tmp_path / "report.html").stat().st_size > 100_000


def test_record_of_a_sound(tmp_path):
    media_models.make("whisper").save_pretrained(tmp_path / "whisper")
    media_models.whisper_processor().save_pretrained(tmp_path / "whisper")
    with wave.open(str(tmp_path / "sound.wav"), "wb") as file:
        file.setparams((1, 2, 16_000, 0, "NONE", ""))
        file.writeframes((media_models.sound() * 32767).astype("<i2").tobytes())
    output = tmp_path / "whisper.safetensors"
    run("record", "--model", tmp_path / "whisper", "--audio", tmp_path / "sound.wav", "--output", output)
    read = Recording.load(output)
    assert list(read.stacks) == ["encoder", "decoder", "cross"]
    assert read.media.sounds[0].seconds == pytest.approx(0.6)


def test_wrong_options_are_refused(tmp_path, vit):
    picture, output = tmp_path / "cat.png", tmp_path / "out.safetensors"
    expected = "expected --model with a model that reads it"
    assert f"--image is given with en-ja; {expected}" in error_of("record", "--image", picture, "--output", output)
    assert f"--audio is given with en-ja; {expected}" in error_of("view", "--audio", picture)
    run("record", "--model", vit, "--image", picture, "--output", output)
    assert f"--image is given with {output}; {expected}" in error_of("view", output, "--image", picture)
    assert f"--image is given with {output}; {expected}" in error_of("stats", output, "--image", picture)
    both = error_of("stats", "--model", vit, "--image", picture, "--audio", picture)
    assert "--image and --audio are both given; expected one of them" in both
    assert "text is given, but vit reads pictures only" in error_of("stats", "a", "--model", vit, "--image", picture)
    assert "audio is given, but vit does not read sound" in error_of("stats", "--model", vit, "--audio", picture)
    absent = error_of("stats", "--model", vit, "--image", tmp_path / "absent.png")
    assert absent == f"clearhead: {tmp_path}/absent.png: no such file or directory"
