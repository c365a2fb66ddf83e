"""Tiny tokenizers of the kinds that served models have: byte-level BPE, and BPE with byte fallback."""

from functools import cache

from tokenizers import Tokenizer, decoders, normalizers, pre_tokenizers, trainers
from tokenizers.models import BPE
from transformers import PreTrainedTokenizerFast

CORPUS = ["the old dog saw the older dogs. 😀😀 日本語 é", "dogs  saw\n\nthe old one", "😀 the 日本"] * 3
START = "<|start|>"


@cache
def byte_level() -> PreTrainedTokenizerFast:
    """Return a byte-level tokenizer, as of GPT-2, Llama 3, Qwen and SmolLM2. Some tokens are parts of characters."""
    pieces = Tokenizer(BPE())
    pieces.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    pieces.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=280, initial_alphabet=alphabet, special_tokens=[START], show_progress=False
    )
    pieces.train_from_iterator(CORPUS, trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=pieces, bos_token=START)
    tokenizer.add_tokens(["日本 token"])  # its letters are not those of bytes
    return tokenizer


@cache
def byte_fallback() -> PreTrainedTokenizerFast:
    """Return a tokenizer with ▁ for spaces and a token for each byte of unknown letters, as of Llama 2 and Gemma."""
    words = ["<unk>", START, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"thedogs.", "▁d", "▁do", "▁dog", "▁t"]
    merges = [("▁", "d"), ("▁d", "o"), ("▁do", "g"), ("▁", "t")]
    vocabulary = {word: index for index, word in enumerate(words)}
    pieces = Tokenizer(BPE(vocabulary, merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    pieces.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    parts = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    pieces.decoder = decoders.Sequence(parts)
    return PreTrainedTokenizerFast(tokenizer_object=pieces, bos_token=START, unk_token="<unk>")
