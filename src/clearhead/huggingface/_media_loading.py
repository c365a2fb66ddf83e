"""Loading of models that read pictures or sounds, with their processors."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModel, AutoModelForSpeechSeq2Seq, AutoProcessor
from transformers.models.auto.modeling_auto import MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING

from clearhead.huggingface._loading import loading_files
from clearhead.huggingface.model import HuggingFaceModel, name_of, named_errors


def load_with_processor(
    name: str | os.PathLike[str],
    *,
    processor: Any = None,
    device: torch.device | str = "cpu",
    dtype: torch.dtype | None = None,
    download: bool = False,
) -> tuple[HuggingFaceModel, Any]:
    """Load a model and its processor.

    Args:
        name: a folder of Hugging Face files, or a hub id.
        processor: processor to use instead of that of the files.
        device: device of the parameters.
        dtype: dtype of the parameters (default: float32).
        download: download the model from the hub if it is not in the local cache.
    """
    path, source = Path(name), str(name)
    if path.is_dir() and not (path / "config.json").is_file():
        raise FileNotFoundError(f"{name}: a folder without config.json; expected a Hugging Face model")
    if path.is_file():
        raise ValueError(
            f"{name}: a file; expected a folder of Hugging Face files or a hub id for a picture or a sound"
        )
    options: dict[str, Any] = {"local_files_only": not download}
    with named_errors(name, download), loading_files(None, is_gguf=False):
        config = AutoConfig.from_pretrained(source, **options)
        if processor is None:
            processor = AutoProcessor.from_pretrained(source, **options)
        model_class = AutoModelForSpeechSeq2Seq if type(config) in MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING else AutoModel
        model = model_class.from_pretrained(source, **options, dtype=dtype or torch.float32)
    tokenizer = getattr(processor, "tokenizer", None)
    return HuggingFaceModel(name_of(model), model.to(device).eval(), tokenizer), processor
