"""Tests of the cost model of distributed attention."""

from clearhead.distributed.cost_model import Cost, LayerShape, context_parallel_cost, tensor_parallel_cost


def test_costs_match_a_calculation_by_hand():
    """The layer has 1,000 tokens, 4 heads of 8 columns, 2 key heads, d_model 32, 4 bytes per value and no mask."""
    shape = LayerShape(1000, 32, 4, 2, 8, itemsize=4, causal=False)
    attention_flops = 4 * 4 * 8 * 1000**2
    projections = 2 * 1000 * 32 * (32 + 16 + 16 + 32)
    assert tensor_parallel_cost(shape, 1) == Cost(attention_flops + projections, 0)
    assert context_parallel_cost(shape, 1) == Cost(attention_flops + projections, 0)
    halves = tensor_parallel_cost(shape, 2)
    assert halves == Cost((attention_flops + projections) / 2, 1000 * 32 * 4)  # a ring all-reduce sends 2 halves
    shared = tensor_parallel_cost(shape, 4)  # each key head is computed by two ranks
    assert shared.flops == attention_flops / 4 + 2 * 1000 * 32 * (8 + 8 + 8 + 8)
    assert context_parallel_cost(shape, 4).bytes_sent == 0.75 * 1000 * (16 + 16) * 4
    assert tensor_parallel_cost(shape, 2, backward=True).bytes_sent == 3 * halves.bytes_sent
    assert context_parallel_cost(shape, 2, backward=True).flops == 2.5 * attention_flops / 2 + projections
    assert LayerShape(10, 1, 1, 1, 1).computed_cells == 55
    assert Cost(6.0, 10.0).seconds(2.0, 5.0) == 5.0
