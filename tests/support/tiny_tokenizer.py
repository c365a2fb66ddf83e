"""WordPiece tokenizer with ten entries, for tiny models."""

from tokenizers import Tokenizer
from tokenizers.models import WordPiece
from tokenizers.normalizers import Lowercase
from tokenizers.pre_tokenizers import Whitespace
from tokenizers.processors import TemplateProcessing
from transformers import PreTrainedTokenizerFast

WORDS = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "the", "dog", "##s", "run", "##ning", "."]


def tokenizer():
    pieces = Tokenizer(WordPiece({word: index for index, word in enumerate(WORDS)}, unk_token="[UNK]"))
    pieces.normalizer, pieces.pre_tokenizer = Lowercase(), Whitespace()
    pieces.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 1), ("[SEP]", 2)])
    return PreTrainedTokenizerFast(
        tokenizer_object=pieces, unk_token="[UNK]", cls_token="[CLS]", sep_token="[SEP]", pad_token="[PAD]"
    )
