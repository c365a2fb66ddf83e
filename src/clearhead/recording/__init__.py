"""Recordings of a model's attention on one text, with its tokens."""

from clearhead.recording.protocol import RecordableModel, RecordsRepeatedTokens, RecordsTokenIds
from clearhead.recording.recording import Address, Recording, Stack, Tokens, is_self_attention

__all__ = [
    "Address",
    "RecordableModel",
    "Recording",
    "RecordsRepeatedTokens",
    "RecordsTokenIds",
    "Stack",
    "Tokens",
    "is_self_attention",
]
