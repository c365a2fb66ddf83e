"""Benchmark of the traffic between ranks against `clearhead.distributed.cost_model`.

`python benchmarks/scaling.py`. 2 and 4 local processes communicate by gloo over the loopback device, whose byte counter
is read before and after. Times are not compared, because all processes share this machine's cores. The table for up to
8 GPUs comes from the cost model alone.
"""

from __future__ import annotations

import multiprocessing
import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import distributed
from torch.distributed.device_mesh import init_device_mesh
from torch.multiprocessing.spawn import spawn

from clearhead import Causal, MultiHeadAttention
from clearhead.distributed import ZigzagLayout, context_parallel_attention, parallelize_heads
from clearhead.distributed.cost_model import Cost, LayerShape, context_parallel_cost, tensor_parallel_cost
from measuring import write

SHAPE = LayerShape(tokens=2048, d_model=512, heads=8, kv_heads=4, key_dim=64, itemsize=4)
REPEATS = 3
FLOPS = 480e12  # one causal head of 1,048,576 tokens takes 0.59 s on an H200: results/gpu-million.md
BANDWIDTH = 450e9  # NVLink 4, one way


def loopback() -> int:
    """Return the number of bytes that the loopback device has received."""
    [line] = [line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:")]
    return int(line.split(":")[1].split()[0])


def sent(job: Callable[[], object]) -> float:
    """Return the bytes sent by all ranks: the minimum of several runs, because other programs may use the device."""
    differences = []
    for _ in range(REPEATS):
        distributed.barrier()
        time.sleep(0.2)
        before = loopback()
        job()
        distributed.barrier()
        time.sleep(0.2)
        differences.append(loopback() - before)
    return min(differences)


def heads() -> tuple[float, float]:
    torch.manual_seed(0)
    layer = MultiHeadAttention(SHAPE.d_model, SHAPE.heads, kv_heads=SHAPE.kv_heads, bias=False)
    parallelize_heads(layer, init_device_mesh("cpu", (distributed.get_world_size(),)))
    x = torch.randn(1, SHAPE.tokens, SHAPE.d_model, requires_grad=True)
    output = layer(x, mask=Causal())
    gradient = torch.randn_like(output)
    forward = sent(lambda: layer(x, mask=Causal()))
    both = sent(lambda: layer(x, mask=Causal()).backward(gradient))
    return forward, both - forward


def sequence() -> tuple[float, float]:
    layout = ZigzagLayout(SHAPE.tokens, distributed.get_world_size())
    shard_len = layout.count(distributed.get_rank())
    counts = (SHAPE.heads, SHAPE.kv_heads, SHAPE.kv_heads)
    query, key, value = (torch.randn(1, count, shard_len, SHAPE.key_dim, requires_grad=True) for count in counts)

    def attend() -> torch.Tensor:
        return context_parallel_attention(query, key, value, layout, mask=Causal())

    gradient = torch.randn_like(attend())
    forward = sent(attend)
    both = sent(lambda: attend().backward(gradient))
    return forward, both - forward


def work(rank: int, ranks: int, port: int, results: dict) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    distributed.init_process_group("gloo", rank=rank, world_size=ranks)
    measured = {"heads": heads(), "sequence": sequence()}
    if rank == 0:
        results.update(measured)
    distributed.destroy_process_group()


def projected() -> None:
    """Write the cost model's times for one layer and a million tokens on H200s.

    The compute speed is measured on one GPU; the link bandwidth is from the data sheet.
    """
    shape = LayerShape(tokens=2**20, d_model=4096, heads=32, kv_heads=8, key_dim=128)
    rows: list[dict[str, object]] = []
    for name, model in (("heads", tensor_parallel_cost), ("sequence", context_parallel_cost)):
        for ranks in (1, 2, 4, 8):
            passes = [model(shape, ranks, backward=way) for way in (False, True)]
            taken = [cost.seconds(FLOPS, BANDWIDTH) for cost in passes]
            alone = [model(shape, 1, backward=way).seconds(FLOPS, BANDWIDTH) for way in (False, True)]
            rows.append(
                {
                    "over": name,
                    "GPUs": ranks,
                    "forward: PFLOP": f"{passes[0].flops / 1e15:.1f}",
                    "GB sent": f"{passes[0].bytes_sent / 1e9:.1f}",
                    "s": f"{taken[0]:.2f}",
                    "backward: GB sent": f"{passes[1].bytes_sent / 1e9:.1f}",
                    "s, backward": f"{taken[1]:.2f}",
                    "speed of both": f"{sum(alone) / sum(taken):.2f} ×",
                }
            )
    about = f"{FLOPS / 1e12:.0f} TFLOP/s and {BANDWIDTH / 1e9:.0f} GB/s out of each GPU, nothing overlapped"
    title = f"By the model: one causal layer, 1,048,576 tokens, 32 heads of 128, 8 key heads, bf16; {about}"
    write("scaling-model", title, rows)


def main() -> None:
    projected()
    rows: list[dict[str, object]] = []
    for ranks in (2, 4):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        results = multiprocessing.get_context("spawn").Manager().dict()
        spawn(work, (ranks, port, results), ranks)
        for name, model in (("heads", tensor_parallel_cost), ("sequence", context_parallel_cost)):
            for way, measured in zip(("forward", "backward"), results[name], strict=True):
                cost: Cost = model(SHAPE, ranks, backward=way == "backward")
                modeled = ranks * cost.bytes_sent
                rows.append(
                    {
                        "over": name,
                        "ranks": ranks,
                        "pass": way,
                        "modeled, MB": f"{modeled / 1e6:.2f}",
                        "measured, MB": f"{measured / 1e6:.2f}",
                        "measured / modeled": f"{measured / modeled:.3f}",
                    }
                )
    size = f"{SHAPE.tokens:,} tokens, {SHAPE.heads} heads of {SHAPE.key_dim}, {SHAPE.kv_heads} key heads"
    write(
        "scaling-traffic", f"Bytes that all ranks together send: {size}, d_model {SHAPE.d_model}, float32, gloo", rows
    )


if __name__ == "__main__":
    main()
