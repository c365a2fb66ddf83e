"""Tests of the Transformer: formula, causality, padding, caches, weights, ablation and gradients."""

import copy
import math
from itertools import pairwise

import pytest
import torch

from clearhead.nn import sinusoidal
from clearhead.translation.config import ModelConfig
from clearhead.translation.model import Transformer
from support.peers import assert_agrees
from support.small_transformers import SIZES, draw, make

BATCH, SOURCE, TARGET, VOCABULARY = 2, 7, 5, 23
LENGTHS = torch.tensor([7, 4])
STACKS = ("encoder", "decoder", "cross")
every_position = pytest.mark.parametrize("positions", ["sinusoidal", "rope"])
every_stack = pytest.mark.parametrize("stack", STACKS)
padded_or_not = pytest.mark.parametrize("lengths", [None, LENGTHS], ids=["equal lengths", "padded"])


def texts() -> tuple[torch.Tensor, torch.Tensor]:
    return draw(BATCH, SOURCE), draw(BATCH, TARGET)


def attention_of(model: Transformer, stack: str, layer: int):
    if stack == "encoder":
        return model.encoder[layer].attention
    return model.decoder[layer].attention if stack == "decoder" else model.decoder[layer].cross


def in_chunks(model, target, memory, cuts) -> torch.Tensor:
    caches = model.caches()
    edges = [0, *cuts, target.shape[1]]
    logits = [model.decode(target[:, a:b], memory, caches=caches) for a, b in pairwise(edges)]
    assert len(caches) == target.shape[1]
    return torch.cat(logits, dim=1)


def plain(model: Transformer, source: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    """Return the logits of a pre-norm Transformer, computed with torch's attention."""

    def embedded(tokens):
        weight = model.embedding.weight
        return weight[tokens] * math.sqrt(30) + sinusoidal(tokens.shape[1], 30).to(weight.dtype)

    def attended(layer, x, keys, mask=None):
        return layer.to_torch()(x, keys, keys, attn_mask=mask)[0]

    def fed_forward(layer, x):
        first, _, _, second = layer.feed_forward
        return second(torch.relu(first(layer.feed_forward_norm(x))))

    x, y = embedded(source), embedded(target)
    for layer in model.encoder:
        normed = layer.attention_norm(x)
        x = x + attended(layer.attention, normed, normed)
        x = x + fed_forward(layer, x)
    memory = model.encoder_norm(x)
    later = torch.ones(TARGET, TARGET, dtype=torch.bool).triu(1)
    for layer in model.decoder:
        normed = layer.attention_norm(y)
        y = y + attended(layer.attention, normed, normed, later)
        y = y + attended(layer.cross, layer.cross_norm(y), memory)
        y = y + fed_forward(layer, y)
    return model.decoder_norm(y) @ model.embedding.weight.T


def test_logits_match_the_formula():
    model, (source, target) = make().float(), texts()
    with torch.no_grad():
        got = model(source, target)
        assert got.shape == (BATCH, TARGET, VOCABULARY)
        assert_agrees(got, plain, model, source, target)


def test_sizes_follow_the_configuration():
    config = ModelConfig(d_model=20, heads=5, encoder_layers=3, decoder_layers=1, feed_forward=13, positions="rope")
    model = Transformer(config, 11)
    assert (len(model.encoder), len(model.decoder)) == (3, 1)
    assert model.encoder[2].attention.heads == model.decoder[0].cross.heads == 5
    assert model.encoder[2].feed_forward[0].weight.shape == (13, 20)
    # source and target positions are not comparable: no RoPE in cross-attention
    assert model.encoder[0].attention.rope is not None
    assert model.decoder[0].attention.rope is not None
    assert model.decoder[0].cross.rope is None


def test_embeddings_and_output_projection_share_one_matrix():
    model = make()
    assert [name for name, p in model.named_parameters() if VOCABULARY in p.shape] == ["embedding.weight"]
    source, target = texts()
    model(source, target)  # creates the table of positions, which is not a buffer
    assert model.state_dict().keys() == dict(model.named_parameters()).keys()


def test_initial_embeddings_have_a_standard_deviation_of_one():
    model = Transformer(ModelConfig(d_model=256), 307)
    scaled = model.embedding.weight * 16
    assert scaled.std().item() == pytest.approx(1, rel=0.02)


@every_position
def test_a_token_does_not_attend_to_later_tokens(positions):
    model, (source, target) = make(positions=positions), texts()
    other = target.clone()
    other[:, 3] = (other[:, 3] - 3) % (VOCABULARY - 4) + 4
    with torch.no_grad():
        before, after = model(source, target), model(source, other)
    torch.testing.assert_close(before[:, :3], after[:, :3], rtol=0, atol=1e-12)
    for position in (3, 4):
        assert not torch.allclose(before[:, position], after[:, position], atol=1e-3)


@every_position
@pytest.mark.parametrize("side", ["source", "target"])
def test_the_order_of_tokens_changes_the_logits(positions, side):
    model, (source, target) = make(positions=positions), texts()
    with torch.no_grad():
        before = model(source, target)
        if side == "source":
            after = model(source.flip(1), target)
        else:
            after = model(source, torch.cat([target[:, :-1].flip(1), target[:, -1:]], dim=1))
    assert not torch.allclose(before[:, -1], after[:, -1], atol=1e-3)


class TestPadding:
    @every_position
    def test_a_padded_batch_gives_the_logits_of_each_sentence_alone(self, positions):
        model, (source, target) = make(positions=positions), texts()
        with torch.no_grad():
            together = model(source, target, LENGTHS)
            for row, length in enumerate(LENGTHS.tolist()):
                alone = model(source[row : row + 1, :length], target[row : row + 1])
                torch.testing.assert_close(together[row : row + 1], alone)
            assert not torch.allclose(model(source, target)[1], together[1], atol=1e-3)

    def test_padding_tokens_do_not_change_the_logits(self):
        model, (source, target) = make(), texts()
        other = source.clone()
        other[1, 4:] = 0
        assert not torch.equal(source, other)
        with torch.no_grad():
            torch.testing.assert_close(model(source, target, LENGTHS), model(other, target, LENGTHS))

    def test_padding_of_a_target_does_not_change_earlier_logits(self):
        model, (source, target) = make(), texts()
        longer = torch.nn.functional.pad(target, (0, 3))
        with torch.no_grad():
            torch.testing.assert_close(model(source, longer)[:, :TARGET], model(source, target))


class TestCaches:
    @every_position
    @padded_or_not
    @pytest.mark.parametrize("cuts", [(1, 2, 3, 4), (2,), (1, 3), ()], ids=str)
    def test_decoding_in_chunks_equals_one_pass(self, positions, lengths, cuts):
        model, (source, target) = make(positions=positions), texts()
        with torch.no_grad():
            got = in_chunks(model, target, model.encode(source, lengths), cuts)
            torch.testing.assert_close(got, model(source, target, lengths))

    @every_position
    def test_tables_and_buffers_grow(self, positions):
        model = make(positions=positions, encoder_layers=1, decoder_layers=1)
        source, target = draw(1, 71), draw(1, 307)
        with torch.inference_mode():
            got = in_chunks(model, target, model.encode(source), (61, 255, 256, 257, 260))
        with torch.no_grad():
            torch.testing.assert_close(got.clone(), model(source, target))

    @padded_or_not
    def test_select_continues_with_other_sequences(self, lengths):
        """Sequences are dropped, reordered and repeated, as in beam search."""
        model, (source, target) = make(), texts()
        rows = torch.tensor([1, 1, 0])
        with torch.no_grad():
            memory, caches = model.encode(source, lengths), model.caches()
            model.decode(target[:, :2], memory, caches=caches)
            caches.select(rows.tolist())
            got = model.decode(target[rows, 2:], memory.select(rows), caches=caches)
            expected = model(source[rows], target[rows], None if lengths is None else lengths[rows])
        torch.testing.assert_close(got, expected[:, 2:])

    def test_memory_select_reorders_states_and_mask(self):
        model, (source, _) = make(), texts()
        with torch.no_grad():
            memory = model.encode(source, LENGTHS)
            chosen = memory.select(torch.tensor([1, 0, 1]))
            assert torch.equal(chosen.states, memory.states[[1, 0, 1]])
            assert chosen.mask.lengths.tolist() == [4, 7, 4]
            assert memory.mask.lengths.tolist() == [7, 4]
            assert model.encode(source).select(torch.tensor([1])).mask is None


class TestWeights:
    @every_position
    def test_weights_of_all_layers_are_returned(self, positions):
        model, (source, target) = make(positions=positions, encoder_layers=3), texts()
        with torch.no_grad():
            logits, attentions = model(source, target, return_weights=True)
            torch.testing.assert_close(logits, model(source, target))
        assert {stack: len(layers) for stack, layers in attentions.items()} == {"encoder": 3, "decoder": 2, "cross": 2}
        sides = {"encoder": (SOURCE, SOURCE), "decoder": (TARGET, TARGET), "cross": (TARGET, SOURCE)}
        for stack, layers in attentions.items():
            for weights in layers:
                assert weights.shape == (BATCH, 3, *sides[stack])
                assert torch.allclose(weights.dense().sum(dim=-1), torch.ones((), dtype=torch.float64))
        for weights in attentions["decoder"]:
            assert (weights.dense().triu(1) == 0).all()
            assert (weights.dense().tril() > 0).sum() == BATCH * 3 * TARGET * (TARGET + 1) // 2

    def test_weights_times_values_are_the_head_outputs(self):
        """The weights at index 1 reproduce the head outputs of the second layer."""
        model, (source, target) = make(), texts()
        seen = {}
        for stack in STACKS:
            attention_of(model, stack, 1).output.register_forward_pre_hook(
                lambda module, args, stack=stack: seen.__setitem__(stack, args[0])
            )
        with torch.no_grad():
            _, attentions = model(source, target, return_weights=True)
            for stack in STACKS:
                weights = attentions[stack][1]
                together = (weights.dense() @ weights.value).transpose(1, 2).flatten(2)
                torch.testing.assert_close(together, seen[stack])

    def test_weights_of_padding_are_zero(self):
        model, (source, target) = make(), texts()
        with torch.no_grad():
            _, attentions = model(source, target, LENGTHS, return_weights=True)
        for stack in ("encoder", "cross"):
            for weights in attentions[stack]:
                assert (weights.dense()[1, ..., 4:] == 0).all()
                assert (weights.dense()[1, ..., :4] > 0).all()
                assert (weights.dense()[0] > 0).all()

    def test_with_caches_weights_have_a_row_for_each_new_token(self):
        model, (source, target) = make(), texts()
        with torch.no_grad():
            _, full = model(source, target, LENGTHS, return_weights=True)
            memory, caches, last = model.encode(source, LENGTHS), model.caches(), {}
            model.decode(target[:, :3], memory, caches=caches)
            model.decode(target[:, 3:], memory, caches=caches, attentions=last)
        for stack in ("decoder", "cross"):
            torch.testing.assert_close(last[stack][1].dense(), full[stack][1].dense()[:, :, 3:])


class TestAblate:
    def without_columns(self, model: Transformer, *addresses: tuple[str, int, int]) -> Transformer:
        """Return a copy of the model with the columns of W_O for these heads set to 0."""
        cut = copy.deepcopy(model)
        with torch.no_grad():
            for stack, layer, head in addresses:
                attention_of(cut, stack, layer).output.weight[:, head * 10 : (head + 1) * 10] = 0
        return cut

    @every_stack
    @pytest.mark.parametrize(("layer", "head"), [(0, 2), (1, 0)])
    def test_ablation_equals_zeros_in_the_output_projection(self, stack, layer, head):
        model, (source, target) = make(), texts()
        address = stack, layer, head
        with torch.no_grad():
            intact = model(source, target, LENGTHS)
            cut = model(source, target, LENGTHS, ablate=[address])
            torch.testing.assert_close(cut, self.without_columns(model, address)(source, target, LENGTHS))
            assert not torch.allclose(cut, intact, atol=1e-3)
            assert torch.equal(model(source, target, LENGTHS), intact)

    def test_several_heads_are_ablated_with_weights_and_caches(self):
        model, (source, target) = make(), texts()
        ablate = {("encoder", 1, 0), ("encoder", 1, 2), ("decoder", 0, 1), ("cross", 0, 1)}
        with torch.no_grad():
            expected = self.without_columns(model, *ablate)(source, target)
            torch.testing.assert_close(model(source, target, ablate=ablate, return_weights=True)[0], expected)
            memory, caches = model.encode(source, ablate=ablate), model.caches()
            parts = [model.decode(target[:, n : n + 1], memory, caches=caches, ablate=ablate) for n in range(TARGET)]
        torch.testing.assert_close(torch.cat(parts, dim=1), expected)

    def test_rejects_a_missing_head_or_layer(self):
        model, (source, target) = make(), texts()
        with pytest.raises(ValueError, match="ablate has head 3, but there are 3"):
            model(source, target, ablate=[("cross", 0, 3)])
        for address in (("cross", 2, 0), ("encoder", -1, 0), ("between", 0, 0)):
            with pytest.raises(ValueError, match="but the model has these layers: encoder 2, decoder 2") as error:
                model(source, target, ablate=[address])
            assert str(address) in str(error.value)


@every_position
def test_gradients_reach_every_parameter(positions):
    model, (source, target) = make(positions=positions), texts()
    model(source, target, LENGTHS).logsumexp(dim=-1).sum().backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        # a bias shared by all keys shifts all scores of a row equally, except with RoPE, which rotates it by position
        if name.endswith("key.bias") and (positions == "sinusoidal" or "cross" in name):
            assert parameter.grad.abs().max() < 1e-9, name
        else:
            assert parameter.grad.abs().max() > 1e-6, name


def test_training_works_after_inference_mode():
    """Tensors created in inference mode, such as the table of positions, must not break the backward pass."""
    model, (source, target) = make(), texts()
    with torch.inference_mode():
        model(source, target)
    model.train()
    model(source, target).sum().backward()
    assert model.embedding.weight.grad.isfinite().all()
    assert torch.equal(copy.deepcopy(model).eval()(source, target), model.eval()(source, target))


def test_dropout_is_active_only_in_training():
    model, (source, target) = make(), texts()
    with torch.no_grad():
        still = model(source, target)
        assert torch.equal(model(source, target), still)
        model.train()
        assert not torch.allclose(model(source, target), model(source, target), atol=1e-3)
        torch.manual_seed(5)
        first = model(source, target)
        torch.manual_seed(5)
        assert torch.equal(model(source, target), first)
        without = Transformer(ModelConfig(**SIZES | {"dropout": 0.0}), VOCABULARY).double()
        without.load_state_dict(model.state_dict())
        torch.testing.assert_close(without.train()(source, target), still)
