"""Recordings of a model's attention on one text, picture or sound, with its tokens."""

from clearhead.recording.media import Frames, Media, Patches, Picture, Region, Sound, Timestamps
from clearhead.recording.next_tokens import DeferredNextTokens, NextTokens
from clearhead.recording.output_projection import OutputProjection
from clearhead.recording.pictures import patch_tokens, picture_of, picture_of_values, png_bytes
from clearhead.recording.protocol import RecordableModel, RecordsRepeatedTokens, RecordsTokenIds
from clearhead.recording.recording import Address, Recording, Stack, Tokens, is_self_attention
from clearhead.recording.sounds import frame_tokens, read_sound, sound_of, word_times

__all__ = [
    "Address",
    "DeferredNextTokens",
    "Frames",
    "Media",
    "NextTokens",
    "OutputProjection",
    "Patches",
    "Picture",
    "RecordableModel",
    "Recording",
    "RecordsRepeatedTokens",
    "RecordsTokenIds",
    "Region",
    "Sound",
    "Stack",
    "Timestamps",
    "Tokens",
    "frame_tokens",
    "is_self_attention",
    "patch_tokens",
    "picture_of",
    "picture_of_values",
    "png_bytes",
    "read_sound",
    "sound_of",
    "word_times",
]
