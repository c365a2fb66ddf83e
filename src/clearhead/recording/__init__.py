"""Recordings of a model's attention on one text, with its tokens."""

from clearhead.recording.protocol import RecordableModel, RecordsRepeatedTokens
from clearhead.recording.recording import Address, Recording, Stack, Tokens, is_self_attention

__all__ = [
    "Address",
    "RecordableModel",
    "Recording",
    "RecordsRepeatedTokens",
    "Stack",
    "Tokens",
    "is_self_attention",
]
