"""Tests of recordings of pictures and sounds: axes with their grid, the picture, and weights of the plain model."""

import io
import wave
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image
from transformers import Qwen2VLImageProcessorPil

import clearhead
from clearhead import Recording, record
from clearhead.recording import Frames, Patches, Timestamps, png_bytes, word_times
from support import media_models
from support.attention_calls import captured_calls
from support.tiny_models import make as make_text_model
from support.tiny_tokenizer import tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:__array_wrap__:DeprecationWarning")
POOLING = "vision_model.head.attention"
PIXELS = torch.randn(1, 3, 32, 32, generator=torch.Generator().manual_seed(1))


def assert_recorded(recording, model, run):
    """Compare every layer of a recording with the calls of the plain model, whose output must not change."""
    with torch.no_grad():
        plain = run()
        with clearhead.watch(model):
            watched = run()
        with captured_calls(model) as calls:
            run()
    tensors = [value for value in plain.values() if isinstance(value, torch.Tensor)]
    assert tensors
    for key, value in plain.items():
        assert not isinstance(value, torch.Tensor) or torch.equal(value, watched[key])
    # a pooling nn.MultiheadAttention does not call a function that is captured
    stacks = [stack for name, stack in recording.stacks.items() if name != POOLING]
    recorded = [layer for stack in stacks for layer in stack.layers]
    plain_calls = [call for captured in calls.values() for call in captured]
    assert len(recorded) == len(plain_calls)
    for layer, call in zip(recorded, plain_calls, strict=True):
        call.assert_equals(layer.dense())


def test_vit_with_a_processor_records_patches_and_the_picture():
    model, picture = media_models.make("vit"), media_models.image()
    processor = media_models.vit_processor()
    recording = record(model, image=picture, processor=processor)
    pixels = processor(images=Image.fromarray(picture), return_tensors="pt")["pixel_values"]
    assert_recorded(recording, model, lambda: model(pixel_values=pixels))
    stack = recording["encoder"]
    assert stack.queries == stack.keys
    assert stack.keys.texts[:3] == ("cls", "0,0", "0,1")
    assert stack.keys.texts[-1] == "3,5"
    assert stack.keys.special == (True, *(False,) * 24)
    assert stack.keys.regions == (Patches(1, 4, 6, picture=0),)
    [shown] = recording.media.pictures
    assert (shown.height, shown.width) == (32, 48)
    expected = np.asarray(Image.fromarray(picture).resize((48, 32), Image.Resampling.BILINEAR))
    assert np.abs(shown.pixels.numpy().astype(int) - expected).max() <= 1  # the normalization is undone
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(png_bytes(shown)))), shown.pixels.numpy())


def test_pixel_values_alone_give_a_picture_from_black_to_white(tmp_path):
    model = media_models.make("dinov2")
    recording = record(model, pixel_values=PIXELS[0], values=True)
    assert_recorded(recording, model, lambda: model(pixel_values=PIXELS))
    assert recording["encoder"].keys.texts[:5] == ("cls", "reg0", "reg1", "reg2", "0,0")
    assert recording["encoder"].keys.special[:5] == (True, True, True, True, False)
    assert recording["encoder"].keys.regions == (Patches(4, 4, 4, picture=0),)
    assert recording["encoder"].has_values
    pixels = recording.media.pictures[0].pixels
    assert (int(pixels.min()), int(pixels.max())) == (0, 255)
    recording.save(tmp_path / "file.safetensors")
    read = Recording.load(tmp_path / "file.safetensors")
    assert read["encoder"].keys == recording["encoder"].keys
    assert torch.equal(read.to("cpu").media.pictures[0].pixels, pixels)


@pytest.mark.parametrize("name", ["clip", "siglip"])
def test_towers_of_pictures_and_texts_run_together_or_alone(name):
    model, ids = media_models.make(name), torch.tensor([[1, 5, 6, 2]])
    both = record(model, pixel_values=PIXELS, input_ids=ids)
    assert_recorded(both, model, lambda: model(input_ids=ids, pixel_values=PIXELS, attention_mask=torch.ones_like(ids)))
    cls = ("cls",) if name == "clip" else ()
    assert both["vision encoder"].keys.texts[: len(cls) + 1] == (*cls, "0,0")
    assert both["vision encoder"].keys.regions == (Patches(len(cls), 4, 4, picture=0),)
    assert both["text encoder"].keys.texts == ("1", "5", "6", "2")
    assert both["text encoder"].keys.regions == ()
    picture_only = record(model, image=media_models.image(), processor=media_models.clip_processor())
    assert "text encoder" not in picture_only.stacks
    text_only = record(model, "the dogs", tokenizer=tokenizer(), processor=media_models.clip_processor())
    assert list(text_only.stacks) == ["text encoder"]
    assert text_only["text encoder"].keys.texts[1] == "the"
    assert not text_only.media.pictures
    if name == "siglip":  # a learned query pools the patches
        pooled = both[POOLING]
        head = model.vision_model.head
        with torch.no_grad():
            patches = model.vision_model(pixel_values=PIXELS).last_hidden_state
            _, expected = head.attention(head.probe, patches, patches, average_attn_weights=False)
        torch.testing.assert_close(pooled.layers[0].dense(), expected)
        assert pooled.queries.texts == ("probe",)
        assert pooled.keys.regions == (Patches(0, 4, 4, picture=0),)


def test_llava_has_patches_within_its_text():
    model, processor = media_models.make("llava"), media_models.llava_processor()
    recording = record(model, "the dogs", image=media_models.image(), processor=processor)
    given = processor(images=Image.fromarray(media_models.image()), text="<image>\nthe dogs", return_tensors="pt")
    assert_recorded(recording, model, lambda: model(**given, use_cache=False, logits_to_keep=1))
    tokens = recording["decoder"].keys
    assert tokens.regions == (Patches(1, 4, 4, picture=0),)
    assert tokens.texts[:3] == ("[CLS]", "0,0", "0,1")
    assert recording.input == "the dogs"
    assert recording["decoder"].written.texts[17:] == ("dog", "##s", "[SEP]", "")
    assert recording["encoder"].written is None
    assert tokens.texts[16:] == ("3,3", "the", "dog", "##s", "[SEP]")
    assert tokens.special == (True, *(False,) * 19, True)
    assert recording["encoder"].keys.regions == (Patches(1, 4, 4, picture=0),)
    # the same from tensors, with another order of text and picture
    ids = [4, *[media_models.IMAGE_TOKEN] * 16, 5]
    tokens = record(model, pixel_values=given["pixel_values"], input_ids=ids)["decoder"].keys
    assert tokens.regions == (Patches(1, 4, 4, picture=0),)
    assert tokens.texts[0] == "4"


def test_qwen_has_grids_after_merging_and_blocks_before():
    model = media_models.make("qwen2-vl")
    processor = Qwen2VLImageProcessorPil(patch_size=4, merge_size=2, size={"shortest_edge": 64, "longest_edge": 4096})
    pictures = [media_models.image(24, 32), media_models.image(16, 16)]
    given = dict(processor(images=[Image.fromarray(picture) for picture in pictures], return_tensors="pt"))
    assert given["image_grid_thw"].tolist() == [[1, 6, 8], [1, 4, 4]]
    picture = media_models.IMAGE_TOKEN
    ids = torch.tensor([[1, 97, *[picture] * 12, 96, 97, *[picture] * 4, 96, 7]])
    recording = record(model, pixel_values=given, input_ids=ids, processor=processor)
    kinds = (ids == picture).long()
    assert_recorded(
        layers_in_order(recording, ["encoder, picture 1", "encoder, picture 2", "decoder"]),
        model,
        lambda: model(input_ids=ids, **given, mm_token_type_ids=kinds, use_cache=False, logits_to_keep=1),
    )
    assert recording["encoder, picture 1"].keys.regions == (Patches(0, 6, 8, picture=0, block=2),)
    assert recording["encoder, picture 2"].keys.regions == (Patches(0, 4, 4, picture=1, block=2),)
    assert recording["encoder, picture 1"].keys.texts[:5] == ("0,0", "0,1", "1,0", "1,1", "0,2")
    assert recording["decoder"].keys.regions == (Patches(2, 3, 4, picture=0), Patches(16, 2, 2, picture=1))
    for shown, expected in zip(recording.media.pictures, pictures, strict=True):
        assert np.abs(shown.pixels.numpy().astype(int) - expected).max() <= 1  # blocks are in their place again


def test_towers_with_windows_are_left_out_with_a_warning():
    model = media_models.make("qwen2.5-vl")
    picture = media_models.IMAGE_TOKEN
    given = {"pixel_values": torch.randn(48, 96), "image_grid_thw": torch.tensor([[1, 6, 8]])}
    with pytest.warns(
        UserWarning, match="attends within windows, so the attention of the vision tower is not"
    ) as warned:
        recording = record(model, pixel_values=given, input_ids=[1, *[picture] * 12, 7])
    assert warned[0].filename == __file__
    assert list(recording.stacks) == ["decoder"]
    assert recording["decoder"].keys.regions == (Patches(1, 3, 4, picture=0),)


def layers_in_order(recording, names):
    """Return a recording whose layers are in the order in which the model calls them: picture by picture."""
    first, second, rest = (recording[name].layers for name in names)
    layers = [layer for pair in zip(first, second, strict=True) for layer in pair] + list(rest)
    return type("Layers", (), {"stacks": {"all": type("Stack", (), {"layers": layers})}})


def test_each_of_several_pictures_has_a_stack():
    model = media_models.make("dinov2")
    both = torch.cat([PIXELS, PIXELS.flip(3)])
    recording = record(model, pixel_values=both)
    for index, name in enumerate(["encoder, picture 1", "encoder, picture 2"]):
        assert recording[name].keys.regions == (Patches(4, 4, 4, picture=index),)
        alone = record(model, pixel_values=both[index])
        torch.testing.assert_close(recording[name].layers[1].dense(), alone["encoder"].layers[1].dense())


def test_whisper_has_frames_in_seconds_and_timestamps():
    model, samples = media_models.make("whisper"), media_models.sound()
    recording = record(model, audio=samples, sampling_rate=16_000)
    assert model.config._attn_implementation == "sdpa"  # generate() alone would leave "eager"
    cross = recording["cross"]
    assert cross.keys.regions == (Frames(0, 50, 0.02, sound=0),)
    assert cross.keys.texts[:3] == ("0.00 s", "0.02 s", "0.04 s")
    assert cross.queries == recording["decoder"].keys
    assert cross.queries.texts[0] == "2"  # the start token, which generate() does not return
    [times] = cross.queries.regions
    assert isinstance(times, Timestamps)
    assert len(times) == len(cross.queries)
    assert list(times.seconds) == sorted(times.seconds)
    assert 0 < times.seconds[-1] <= 0.6
    [recorded] = recording.media.sounds
    assert recorded.seconds == pytest.approx(0.6)
    peaks = recorded.envelope.abs().amax(dim=0)
    assert float(peaks.max()) == 1.0
    assert peaks[-100:].max() > 3 * peaks[:500].max()  # the tone becomes louder

    # a decoder input of the user, and a sound with half as many samples
    ids = [2, 4, 5]
    given = record(model, audio=media_models.sound(rate=8_000), sampling_rate=8_000, decoder_input_ids=ids)
    assert given["cross"].queries.texts == ("2", "4", "5")
    assert given["cross"].queries.regions == ()
    again = record(model, audio=samples, sampling_rate=16_000, decoder_input_ids=ids)
    difference = (given["cross"].layers[0].dense() - again["cross"].layers[0].dense()).abs().max()
    assert difference < 0.05  # a tone of 440 Hz is the same at both rates


def test_wav_files_are_read_and_words_have_times(tmp_path):
    path = tmp_path / "sound.wav"
    with wave.open(str(path), "wb") as file:
        file.setparams((2, 2, 16_000, 0, "NONE", ""))
        samples = (media_models.sound() * 32767).astype("<i2")
        file.writeframes(np.stack([samples, samples], axis=1).tobytes())
    recording = record(media_models.make("whisper"), audio=path, tokenizer=tokenizer(), decoder_input_ids=[2, 4, 5])
    assert recording.media.sounds[0].seconds == pytest.approx(0.6)
    assert recording.output == "the dog"
    assert recording["cross"].written.texts == ("the", "dog", "")
    transcript = clearhead.recording.Tokens(
        ("<s>", " My", " moth", "er"),
        (True, False, False, False),
        (None, 0, 1, 1),
        (Timestamps(0, (0.0, 0.1, 0.3, 0.5)),),
    )
    assert word_times(transcript) == [("My", 0.1, 0.3), ("mother", 0.3, None)]


@pytest.mark.parametrize(
    ("model", "arguments", "message"),
    [
        ("vit", {"image": "absent.png", "processor": 1}, "absent.png"),
        ("vit", {"image": 3, "processor": 1}, "image is 3; expected the path of a PNG or JPEG file"),
        ("vit", {"image": np.zeros((3, 4))}, "image is a ndarray of torch.float64; expected the path"),
        ("vit", {"image": media_models.image()}, "processor is None; expected the processor of the model"),
        ("vit", {"image": media_models.image(), "processor": 3}, "processor is 3; expected the processor of the model"),
        ("vit", {"pixel_values": 3}, "pixel_values is 3; expected a tensor .channels, height, width."),
        ("vit", {"pixel_values": torch.zeros(3, 4)}, "pixel_values has shape .3, 4.; expected a tensor"),
        (
            "vit",
            {"pixel_values": torch.zeros(1, 3, 4, 4, dtype=torch.int)},
            "pixel_values has dtype torch.int32; expected float",
        ),
        ("vit", {"pixel_values": PIXELS, "text": "a"}, "text is given, but ViTModel reads pictures only; omit it"),
        ("vit", {"pixel_values": PIXELS, "audio": [0.0]}, "pixel_values and audio are both given; expected one"),
        ("vit", {"pixel_values": PIXELS[..., :8, :8]}, "ViTModel raised"),
        ("vit", {"audio": [0.0], "sampling_rate": 8000}, "audio is given, but ViTModel does not read sound"),
        ("vit", {"sampling_rate": 8000}, "sampling_rate is given without audio; omit it"),
        ("llama", {"pixel_values": PIXELS}, "pixel_values is given, but LlamaForCausalLM does not read pictures"),
        ("llava", {"pixel_values": PIXELS}, "text is None; expected a text, because Llava.* reads pictures within"),
        ("llava", {"pixel_values": PIXELS, "input_ids": [4, 10, 5]}, "LlavaForConditionalGeneration raised ValueError"),
        ("whisper", {"audio": [0.0, 0.1]}, "sampling_rate is None; expected the samples per second of audio"),
        ("whisper", {"audio": "a.wav", "sampling_rate": 8000}, "sampling_rate is 8000, but audio is a file"),
        ("whisper", {"audio": [float("nan")], "sampling_rate": 8000}, "audio contains values that are not finite"),
        ("whisper", {"audio": "absent.wav"}, "absent.wav"),
        ("whisper", {"audio": object(), "sampling_rate": 8000}, "audio is .*; expected the path of a WAV file"),
        (
            "whisper",
            {"audio": [0.0] * 9000, "sampling_rate": 8000},
            "audio lasts 1.1 s at a sampling_rate of 8000; expected at most 1 s",
        ),
        ("whisper", {"audio": [0.0], "sampling_rate": 8000, "text": "a"}, "text is given with audio; expected target"),
        ("whisper", {"audio": [0.0], "sampling_rate": 8000, "target": "a"}, "target is given, but processor and token"),
    ],
)
def test_wrong_arguments_are_named(model, arguments, message):
    maker = make_text_model if model == "llama" else media_models.make
    with pytest.raises((ValueError, TypeError, FileNotFoundError), match=message):
        record(maker(model), **arguments)


def test_errors_of_models_contain_no_control_characters(monkeypatch):
    model = media_models.make("vit")
    monkeypatch.setattr(model.embeddings, "forward", Mock(side_effect=RuntimeError("no\n\x1b[2J picture")))
    with pytest.raises(ValueError, match=r"ViTModel raised RuntimeError: no \\x1b\[2J picture$"):
        record(model, pixel_values=PIXELS)


def test_a_model_in_a_folder_is_loaded_with_its_processor(tmp_path):
    media_models.make("vit").save_pretrained(tmp_path)
    media_models.vit_processor().save_pretrained(tmp_path)
    recording = record(tmp_path, image=media_models.image())
    expected = record(media_models.make("vit"), image=media_models.image(), processor=media_models.vit_processor())
    assert recording.model == tmp_path.name
    assert torch.equal(recording["encoder"].layers[1].dense(), expected["encoder"].layers[1].dense())
    assert recording["encoder"].keys == expected["encoder"].keys
