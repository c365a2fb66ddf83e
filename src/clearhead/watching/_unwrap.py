"""The model inside a wrapper or pipeline."""

from __future__ import annotations

from typing import Any

from torch import nn

from clearhead._utils.checks import describe

# attribute that contains the model, by the name of the class; the packages need not be installed
WRAPPED = {
    "OptimizedModule": "_orig_mod",
    "DataParallel": "module",
    "DistributedDataParallel": "module",
    "Pipeline": "model",
}
DENOISERS = ("unet", "transformer")  # of a diffusion pipeline


def unwrap(model: Any) -> nn.Module:
    """Return the model inside wrappers: PEFT, torch.compile, DataParallel, DDP, SentenceTransformer and pipelines.

    Raises:
        TypeError: if there is no model.
    """
    inner = model
    while (wrapped := _wrapped(inner)) is not None:
        inner = wrapped
    if not isinstance(inner, nn.Module):
        raise TypeError(f"model is {describe(model)}; expected a torch.nn.Module, or a pipeline that contains one")
    return inner


def is_compiled(model: Any) -> bool:
    """Return whether a model is the result of `torch.compile`."""
    return "OptimizedModule" in _class_names(model)  # importing the class takes seconds


def _class_names(model: Any) -> list[str]:
    return [base.__name__ for base in type(model).__mro__]


def _wrapped(model: Any) -> Any:
    classes = _class_names(model)
    for name, attribute in WRAPPED.items():
        if name in classes:
            return getattr(model, attribute, None)
    if "PeftModel" in classes:
        return model.get_base_model()
    if "SentenceTransformer" in classes:
        return next((part.auto_model for part in model if hasattr(part, "auto_model")), None)
    if "DiffusionPipeline" in classes:
        parts = (getattr(model, name, None) for name in DENOISERS)
        return next((part for part in parts if isinstance(part, nn.Module)), None)
    return None
