"""Tests of `--model timm:NAME`, with random weights in a Hugging Face cache and no network."""

import re

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file

from clearhead import Recording
from clearhead.recording import Patches
from support.attention_calls import captured_calls
from support.command_line import error_of, run

pytestmark = pytest.mark.vision

NAME = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
SWIN = "swin_tiny_patch4_window7_224.ms_in1k"


@pytest.fixture(autouse=True)
def empty_cache(tmp_path, monkeypatch, timm):
    """Set an empty Hugging Face cache and current folder."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def image(tmp_path):
    """Return the path of an image that is not square."""
    pixels = torch.randint(0, 256, (90, 130, 3), dtype=torch.uint8, generator=torch.Generator().manual_seed(3))
    Image.fromarray(pixels.numpy()).save(tmp_path / "image.png")
    return tmp_path / "image.png"


@pytest.fixture
def cached(tmp_path, timm):
    """Return a function that puts a model with random weights into a Hugging Face cache."""

    def put(name):
        model = timm.create_model(name, pretrained=False)
        folder = tmp_path / "hub" / f"models--timm--{name}"
        (folder / "snapshots" / "abc").mkdir(parents=True)
        (folder / "refs").mkdir()
        (folder / "refs" / "main").write_text("abc")
        save_file(model.state_dict(), folder / "snapshots" / "abc" / "model.safetensors")
        return model.eval()

    return put


def test_record_writes_the_attention_on_an_image(tmp_path, cached, image, timm):
    model = cached(NAME)
    run("record", "--model", f"timm:{NAME}", "--image", image, "--output", "vit.safetensors")
    recording = Recording.load(tmp_path / "vit.safetensors")
    assert recording.model == f"timm:{NAME}"
    [(name, stack)] = recording.stacks.items()
    assert name == "blocks.attn"
    assert stack.queries.texts[:4] == ("cls", "0,0", "0,1", "0,2")
    assert stack.queries.texts[-1] == "13,13"
    assert stack.queries.special == (True, *(False,) * 196)
    assert stack.queries.regions == (Patches(1, 14, 14, picture=0),)
    config = timm.data.resolve_model_data_config(model)
    transform = timm.data.create_transform(**config, is_training=False)
    [picture] = recording.media.pictures
    pixels = transform(Image.open(image).convert("RGB"))
    mean, std = (torch.tensor(config[name])[:, None, None] for name in ("mean", "std"))
    shown = (pixels * std + mean).permute(1, 2, 0) * 255
    assert (picture.pixels - shown).abs().max() < 1
    with torch.no_grad(), captured_calls(model) as calls:
        model(transform(Image.open(image).convert("RGB"))[None])
    for layer, (_, [call]) in zip(stack.layers, calls.items(), strict=True):
        call.assert_equals(layer.dense())


def test_stats_and_report_are_written(tmp_path, cached, image):
    cached(NAME)
    printed = run("stats", "--model", f"timm:{NAME}", "--image", image, "--layers", "11").stdout
    assert len(re.findall("blocks.attn", printed)) == 3
    run("view", "--model", f"timm:{NAME}", "--image", image, "--output", "report.html")
    assert (tmp_path / "report.html").stat().st_size > 100_000


def test_absent_weights_name_the_option_that_downloads_them(tmp_path, image):
    error = error_of("stats", "--model", f"timm:{NAME}", "--image", image)
    assert f"the local Hugging Face cache has no weights of timm/{NAME}; pass --download" in error


def test_wrong_names_and_images_are_refused(tmp_path, image):
    error = error_of("stats", "--model", "timm:vit_tiny_patch16_225", "--image", image)
    assert "timm has no model of that name; close: vit_tiny_patch16_224" in error
    error = error_of("stats", "--model", f"timm:{NAME}", "--image", tmp_path / "absent.png")
    assert error == f"clearhead: {tmp_path}/absent.png: no such file or directory"
    (tmp_path / "text.png").write_text("not an image")
    error = error_of("stats", "--model", f"timm:{NAME}", "--image", tmp_path / "text.png")
    assert error.endswith("; expected a PNG or JPEG image")
    image.write_bytes(image.read_bytes()[:500])
    error = error_of("stats", "--model", f"timm:{NAME}", "--image", image)
    assert error.endswith("; expected a PNG or JPEG image")


def test_windows_are_refused(tmp_path, cached, image):
    cached(SWIN)
    error = error_of("stats", "--model", f"timm:{SWIN}", "--image", image)
    assert "layers.0.blocks.0.attn attends within 64 sequences or windows; expected one" in error
