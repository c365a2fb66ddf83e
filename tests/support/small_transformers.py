"""Small Transformers with random weights, for the tests of the model and of decoding."""

from collections.abc import Sequence

import torch

from clearhead.translation.config import ModelConfig
from clearhead.translation.model import Transformer

SIZES = {"d_model": 30, "heads": 3, "encoder_layers": 2, "decoder_layers": 2, "feed_forward": 17, "dropout": 0.1}


def make(vocabulary: int = 23, *, seed: int = 0, scale: float = 0.3, **sizes: object) -> Transformer:
    """Return a float64 model in evaluation mode. Noise is added to every parameter, so that none stays at 0 or 1."""
    torch.manual_seed(seed)
    model = Transformer(ModelConfig(**(SIZES | sizes)), vocabulary).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return model


def draw(*shape: int, vocabulary: int = 23) -> torch.Tensor:
    """Draw random tokens, without special tokens."""
    return torch.randint(4, vocabulary, shape)


def favor(model: Transformer, token_ids: list[int], against: Sequence[int] = (), weight: float = 50.0) -> None:
    """Make `token_ids` the most probable next tokens for any input, and `against` the least probable ones."""
    with torch.no_grad():
        model.decoder_norm.weight.mul_(0.1)
        model.decoder_norm.bias.copy_(torch.randn(model.decoder_norm.bias.shape))
        direction = model.decoder_norm.bias / model.decoder_norm.bias.norm() ** 2
        model.embedding.weight[token_ids] = weight * direction
        model.embedding.weight[list(against)] = -weight * direction
