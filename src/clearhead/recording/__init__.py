"""Recordings of a model's attention on one text, with its tokens."""

from clearhead.recording.next_tokens import DeferredNextTokens, NextTokens
from clearhead.recording.output_projection import OutputProjection
from clearhead.recording.protocol import RecordableModel, RecordsRepeatedTokens, RecordsTokenIds
from clearhead.recording.recording import Address, Recording, Stack, Tokens, is_self_attention

__all__ = [
    "Address",
    "DeferredNextTokens",
    "NextTokens",
    "OutputProjection",
    "RecordableModel",
    "Recording",
    "RecordsRepeatedTokens",
    "RecordsTokenIds",
    "Stack",
    "Tokens",
    "is_self_attention",
]
