"""Tests of `heads` with models of any library: keys, views, projections and errors."""

import pytest
import torch
from diffusers import UNet2DConditionModel
from torch import nn
from torch.nn import functional

from clearhead import MultiHeadAttention
from clearhead.watching import heads, watch
from support.head_projections import assert_heads_project
from support.watched_models import OwnModel


class TimmAttention(nn.Module):
    """Attention with the projections of timm."""

    def __init__(self):
        super().__init__()
        self.num_heads, self.qkv, self.proj = 3, nn.Linear(15, 45), nn.Linear(15, 15)

    def forward(self, x):
        query, key, value = self.qkv(x).unflatten(-1, (3, 3, 5)).permute(2, 0, 3, 1, 4)
        return self.proj(functional.scaled_dot_product_attention(query, key, value).transpose(1, 2).flatten(2))


class Blocks(nn.Module):
    def __init__(self, make):
        super().__init__()
        self.blocks = nn.ModuleList(make() for _ in range(2))

    def forward(self, x):
        for block in self.blocks:
            x = x + block(x)
        return x


def test_mapping():
    model = Blocks(TimmAttention)
    found = heads(model)
    assert list(found) == [(layer, head) for layer in range(2) for head in range(3)]
    assert len(found) == 6
    assert repr(found) == "Heads(Blocks: 2 layers)"
    head = found[1, 2]
    assert repr(head) == "Head(1, 2 of blocks.1: [15, 5])"
    assert found["blocks.1", 2].W_Q.data_ptr() == head.W_Q.data_ptr()
    assert head.b_V.tolist() == model.blocks[1].qkv.bias[40:].tolist()
    assert head.output_bias is model.blocks[1].proj.bias
    for key in [(2, 0), (0, 3), (-1, 0), ("blocks", 0), ("blocks.0.qkv", 0), (0, 0, 0), 0, None, "x"]:
        assert key not in found
        with pytest.raises(KeyError, match="is not a head; "):
            found[key]
    with pytest.raises(KeyError, match=r"\(0, 3\) is not a head; blocks.0 has heads 0 to 2"):
        found[0, 3]


def test_fused_projections_in_blocks():
    assert assert_heads_project(Blocks(TimmAttention), {"x": torch.randn(2, 7, 15)}) == {"blocks.0": 3, "blocks.1": 3}


def test_layer_of_clearhead():
    model = MultiHeadAttention(12, 6, kv_heads=2, key_dim=5, value_dim=7, output_dim=11)
    assert assert_heads_project(model, {"x": torch.randn(2, 3, 12)}) == {"": 6}
    head, own = heads(model)[0, 3], model.head(3)
    assert torch.equal(head.W_V, own.value_weight)
    assert torch.equal(head.W_O, own.output_weight)
    with pytest.raises(ValueError, match="query is a BlockDiagonalLinear with weight torch.float32"):
        heads(MultiHeadAttention(12, 4, split="slice"))[0, 0]


@pytest.mark.parametrize("options", [{}, {"kdim": 11, "vdim": 11}, {"bias": False}])
def test_layer_of_torch(options):
    layer = nn.MultiheadAttention(15, 3, batch_first=True, **options).double().eval()
    x, memory = torch.randn(2, 5, 15).double(), torch.randn(2, 7, options.get("kdim", 15)).double()
    with torch.no_grad(), watch(layer, values=True) as seen:
        output, _ = layer(x, memory, memory, need_weights=False)
    weights, total = seen[0].weights, 0
    for index in range(3):
        head = heads(layer)[0, index]
        biases = [0.0 if bias is None else bias for bias in (head.b_Q, head.b_K, head.b_V)]
        torch.testing.assert_close(x @ head.W_Q + biases[0], weights._call.query[:, index])
        torch.testing.assert_close(memory @ head.W_K + biases[1], weights._call.key[:, index])
        torch.testing.assert_close(memory @ head.W_V + biases[2], weights.value[:, index])
        total = total + (weights @ weights.value)[:, index] @ head.W_O
    torch.testing.assert_close(total + (0.0 if head.output_bias is None else head.output_bias), output)


def test_diffusion_model():
    unet = UNet2DConditionModel(
        sample_size=8, layers_per_block=1, block_out_channels=(12, 24), norm_num_groups=3, cross_attention_dim=11,
        down_block_types=("CrossAttnDownBlock2D", "DownBlock2D"), up_block_types=("UpBlock2D", "CrossAttnUpBlock2D"),
        attention_head_dim=3,
    )  # fmt: skip
    inputs = {
        "sample": torch.randn(2, 4, 8, 8),
        "timestep": torch.tensor(3),
        "encoder_hidden_states": torch.randn(2, 7, 11),
    }
    counts = assert_heads_project(unet, inputs)
    assert len(counts) >= 4
    cross = heads(unet)["down_blocks.0.attentions.0.transformer_blocks.0.attn2", 1]
    assert (cross.W_Q.shape, cross.W_K.shape) == ((12, 4), (11, 4))
    assert cross.qk.shape == (12, 11)


def test_models_without_known_projections_are_refused():
    with pytest.raises(ValueError, match="OwnModel has no attention module with known projections; expected one with"):
        heads(OwnModel())
    with pytest.raises(TypeError, match="model is 3; expected a torch.nn.Module"):
        heads(3)
    module = TimmAttention()
    del module.num_heads
    with pytest.raises(ValueError, match="has no number of heads; expected an attribute such as num_heads or head_dim"):
        heads(Blocks(lambda: module))[0, 0]
    module.num_heads = 4
    with pytest.raises(ValueError, match="has 4 heads, but queries of 15 columns; expected a number of columns that"):
        heads(Blocks(lambda: module))[0, 0]


def test_adapters_and_quantized_layers_are_refused():
    model = Blocks(TimmAttention)
    model.blocks[0].qkv.base_layer = nn.Linear(2, 2)
    with pytest.raises(ValueError, match="blocks.0.qkv is a Linear, with an adapter; expected a linear layer. Merge"):
        heads(model)[0, 0]
    model.blocks[1].qkv.weight = nn.Parameter(torch.ones(45, 15, dtype=torch.uint8), requires_grad=False)
    with pytest.raises(ValueError, match="blocks.1.qkv is a Linear with weight torch.uint8 .* expected a floating"):
        heads(model)[1, 0]


@torch.no_grad()
def test_copying_score():
    head = heads(MultiHeadAttention(12, 3))[0, 1]
    head.W_O.copy_(head.W_V.T)
    assert head.copying_score() == pytest.approx(1.0)
    embedding, unembedding = torch.randn(17, 12), torch.randn(17, 12)
    eigenvalues = torch.linalg.eigvals(embedding.double() @ head.ov.dense().double() @ unembedding.double().T)
    expected = float(eigenvalues.sum().real / eigenvalues.abs().sum())
    assert float(head.copying_score(embedding, unembedding)) == pytest.approx(expected, abs=1e-4)
    with pytest.raises(ValueError, match="unembedding is None; expected both embedding and unembedding, or neither"):
        head.copying_score(embedding)
