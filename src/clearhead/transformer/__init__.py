"""A Transformer that learns to translate, and heads that are seen to specialise."""

from clearhead.transformer.config import Config
from clearhead.transformer.model import Transformer
from clearhead.transformer.runs import Run
from clearhead.transformer.translate import Translator

__all__ = ["Config", "Run", "Transformer", "Translator"]
