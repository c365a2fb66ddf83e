"""Tensor and context parallelism: `torchrun --nproc-per-node 2 examples/over_ranks.py` (without torchrun: one rank)."""

import os

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh

from clearhead import Causal, MultiHeadAttention, attention
from clearhead.distributed import ZigzagLayout, context_parallel_attention, gather, parallelize_heads

for name, value in (("RANK", "0"), ("WORLD_SIZE", "1"), ("MASTER_ADDR", "127.0.0.1"), ("MASTER_PORT", "0")):
    os.environ.setdefault(name, value)
device = "cuda" if torch.cuda.is_available() else "cpu"
mesh = init_device_mesh(device, (int(os.environ["WORLD_SIZE"]),))
rank, ranks = mesh.get_local_rank(), mesh.size()
torch.manual_seed(0)  # the same layer and inputs on every rank

# tensor parallelism: each rank has some of the heads, and every rank gets the whole output
layer = MultiHeadAttention(d_model=64, heads=8, kv_heads=2, device=device)
x = torch.randn(1, 100, 64, device=device)
expected, _ = layer(x, mask=Causal(), return_weights=True)
parallelize_heads(layer, mesh)
output, weights = layer(x, mask=Causal(), return_weights=True)
entropy = gather(weights.entropy(), mesh)
assert torch.allclose(output, expected, atol=1e-5)

# context parallelism: each rank has some of the tokens, and every rank gets the statistics of all tokens
layout = ZigzagLayout(length=1001, ranks=ranks)
query, key, value = (torch.randn(1, heads, 1001, 16, device=device) for heads in (8, 2, 2))
query_shard, key_shard, value_shard = (layout.shard(tensor, rank) for tensor in (query, key, value))
output, rows = context_parallel_attention(
    query_shard, key_shard, value_shard, layout, mask=Causal(), return_weights=True
)
assert torch.allclose(output, layout.shard(attention(query, key, value, mask=Causal()), rank), atol=1e-5)
received = rows.received()

if rank == 0:
    print(f"{ranks} ranks: rank 0 has weights of shape {tuple(weights.shape)}, of {entropy.shape[1]} heads in all")
    print(rows)
    print(f"the most attended key of head 0 is {int(received[0, 0].argmax())}")
distributed.destroy_process_group()
