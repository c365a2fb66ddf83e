"""Transformer for translation: training, decoding, and probes that show how heads specialize."""

from clearhead.translation._signals import TrainingStopped
from clearhead.translation.callbacks import TrainingCallbacks
from clearhead.translation.config import Config, ModelConfig, TextConfig, TrainingConfig
from clearhead.translation.data.dataset import Dataset, from_files, from_grammar
from clearhead.translation.model import Transformer
from clearhead.translation.normalizer import Normalizer
from clearhead.translation.run_directory import RunDirectory
from clearhead.translation.sharding import shard_model
from clearhead.translation.tokenizer import Vocabulary
from clearhead.translation.training import train
from clearhead.translation.translator import Translator

__all__ = [
    "Config",
    "Dataset",
    "ModelConfig",
    "Normalizer",
    "RunDirectory",
    "TextConfig",
    "TrainingCallbacks",
    "TrainingConfig",
    "TrainingStopped",
    "Transformer",
    "Translator",
    "Vocabulary",
    "from_files",
    "from_grammar",
    "shard_model",
    "train",
]
