"""Language-model heads: the class that loads one, and the task that a model with a head was trained for."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Literal

from torch import nn
from transformers import AutoModelForCausalLM, AutoModelForMaskedLM, AutoModelForSeq2SeqLM

from clearhead.huggingface._transformers_internals import causal_model_classes, masked_model_classes

Task = Literal["causal", "masked", "seq2seq"]
AUTO_CLASSES: dict[Task, Any] = {
    "causal": AutoModelForCausalLM,
    "masked": AutoModelForMaskedLM,
    "seq2seq": AutoModelForSeq2SeqLM,
}
EXPECTED = "expected a language model for head=True (--effects)"


def class_with_head(name: str, config: Any) -> Any:
    """Return the auto class that loads a model with its language-model head.

    Raises:
        ValueError: if the model was saved without a language-model head.
    """
    if config.is_encoder_decoder:
        return AUTO_CLASSES["seq2seq"]
    saved = config.architectures
    if saved is None:  # GGUF files do not name a class
        task = "masked" if config.model_type in masked_model_classes() else "causal"
        return AUTO_CLASSES[task]
    task = _task_of_names(saved)
    if task is None and config.model_type in masked_model_classes():  # BertForPreTraining contains this head too
        task = "masked" if any(each.endswith("ForPreTraining") for each in saved) else None
    if task is None:
        raise ValueError(f"{name} is a {', '.join(saved)} without a language-model head; {EXPECTED}")
    return AUTO_CLASSES[task]


def check_head(name: str, model: nn.Module, missing_parameters: Iterable[str]) -> None:
    """Raise if parameters outside of the base model were not in the file, which transformers initializes randomly."""
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    missing = sorted(parameter for parameter in missing_parameters if not parameter.startswith(prefix))
    if missing:
        raise ValueError(f"{name} has no parameter {missing[0]} of a language-model head; {EXPECTED}")


def task_of(model: nn.Module) -> Task | None:
    """Return the task of a model's language-model head; None for a model without one."""
    if getattr(model.config, "is_encoder_decoder", False):
        return "seq2seq"
    return _task_of_names(each.__name__ for each in type(model).__mro__)


def _task_of_names(classes: Iterable[str]) -> Task | None:
    names = set(classes)
    if names & set(causal_model_classes().values()):
        return "causal"
    return "masked" if names & set(masked_model_classes().values()) else None
