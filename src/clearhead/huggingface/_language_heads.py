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
    task = _saved_task(config)
    if task is None:
        raise ValueError(f"{name} is a {', '.join(config.architectures)} without a language-model head; {EXPECTED}")
    return AUTO_CLASSES[task]


def has_head(config: Any) -> bool:
    """Return whether a model was saved with its language-model head, and transformers has a class that loads it."""
    known = {"causal": causal_model_classes, "masked": masked_model_classes}
    task = _saved_task(config)
    return task == "seq2seq" or (task is not None and config.model_type in known[task]())


def _saved_task(config: Any) -> Task | None:
    if config.is_encoder_decoder:
        return "seq2seq"
    saved = config.architectures
    if saved is None:  # GGUF files do not name a class
        return "masked" if config.model_type in masked_model_classes() else "causal"
    if config.model_type in masked_model_classes() and any(each.endswith("ForPreTraining") for each in saved):
        return _task_of_names(saved) or "masked"  # BertForPreTraining contains this head too
    return _task_of_names(saved)


def check_head(name: str, model: nn.Module, missing_parameters: Iterable[str]) -> None:
    """Raise if parameters outside of the base model were not in the file, which transformers initializes randomly."""
    missing = missing_head(model, missing_parameters)
    if missing:
        raise ValueError(f"{name} has no parameter {missing[0]} of a language-model head; {EXPECTED}")


def missing_head(model: nn.Module, missing_parameters: Iterable[str]) -> list[str]:
    """Return the names of missing parameters outside of the base model."""
    prefix = f"{getattr(model, 'base_model_prefix', '')}."
    return sorted(parameter for parameter in missing_parameters if not parameter.startswith(prefix))


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
