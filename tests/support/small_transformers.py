"""Small Transformers with random weights, for the tests of the model and of decoding."""

from collections.abc import Sequence

import torch

from clearhead.translation.config import ModelConfig
from clearhead.translation.model import Transformer
from clearhead.translation.tokenizer import END

WRITER_VOCABULARY = 11
SIZES = {"d_model": 30, "heads": 3, "encoder_layers": 2, "decoder_layers": 2, "feed_forward": 17, "dropout": 0.1}


def make(vocabulary: int = 23, *, seed: int = 0, scale: float = 0.3, **sizes: object) -> Transformer:
    """Return a float64 model in evaluation mode. Noise is added to every parameter, so that none stays at 0 or 1."""
    torch.manual_seed(seed)
    model = Transformer(ModelConfig(**(SIZES | sizes)), vocabulary).double().eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return model


def make_writer(seed: int, vocabulary: int = WRITER_VOCABULARY, **sizes: object) -> Transformer:
    """Return a model whose translations vary: in most batches some end before others."""
    model = make(vocabulary, seed=seed, scale=0.5, **sizes)
    with torch.no_grad():
        model.decoder_norm.bias.zero_()
        # the embedding of the last token favors repeating it: let attention count more
        model.embedding.weight.mul_(0.1)
        model.embedding.weight[END] *= 1.3
        model.decoder_norm.weight.mul_(20)
    return model


def sources(vocabulary: int = WRITER_VOCABULARY) -> tuple[torch.Tensor, torch.Tensor]:
    """Return random sources of different lengths, padded on the right, and their lengths."""
    lengths = torch.tensor([7, 3, 5, 7, 2])
    return draw(5, 7, vocabulary=vocabulary) * (torch.arange(7) < lengths[:, None]), lengths


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
