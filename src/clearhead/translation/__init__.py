"""A Transformer that learns to translate, and heads that are seen to specialise."""

from clearhead.translation.config import Config
from clearhead.translation.model import Transformer
from clearhead.translation.run_directory import RunDirectory
from clearhead.translation.translator import Translator

__all__ = ["Config", "RunDirectory", "Transformer", "Translator"]
