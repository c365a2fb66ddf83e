"""Command `doctor`."""

from __future__ import annotations

import dataclasses

import typer
from rich.table import Table
from rich.text import Text

from clearhead._utils.consoles import console_for_output
from clearhead._utils.text import json_text
from clearhead.cli.options import JsonOption


def doctor(as_json: JsonOption = False) -> None:
    """Show versions, devices, and the attention calls that each backend supports on this machine.

    Two lines show whether the functions in C++ for the CPU and the kernels for Hopper GPUs are available. On a GPU,
    also show the tiles of the Triton kernels. A tile is smaller than the preferred one if that would not fit into
    shared memory.
    """
    from clearhead.cli.diagnosis import diagnose

    diagnosis = diagnose()
    if as_json:
        typer.echo(json_text(dataclasses.asdict(diagnosis), indent=2))
        return
    console = console_for_output()
    console.print(Text("  ").join(Text(name, "bold") + f" {version}" for name, version in diagnosis.versions.items()))
    for device in diagnosis.devices:
        console.print(device)
    compiled = {"functions for the CPU (C++)": diagnosis.native, "kernels for Hopper GPUs (CUDA C++)": diagnosis.hopper}
    for name, kernels in compiled.items():
        state = "available" if kernels.available else f"not available: {'; '.join(kernels.reasons)}"
        console.print(Text(f"{name}: {state}"))
    for name, extra in diagnosis.extras.items():
        missing = f"missing {', '.join(extra.missing)}: pip install 'clearhead[{name}]'"
        console.print(Text(f"extra {name}: {'installed' if extra.installed else missing}"))
    table = Table("call", "device", "backends, fastest first", "unsupported, and why", title="Backends for each call")
    for case in diagnosis.cases:
        reasons = "\n".join(f"{backend}: {'; '.join(why)}" for backend, why in case.refusals.items())
        table.add_row(case.name, case.device, ", ".join(case.able), reasons)
    console.print(table)
    if diagnosis.tiles:
        table = Table(
            "call", "kernel", "tile", "preferred", title="Tiles of the Triton kernels, bfloat16, heads of 128"
        )
        for choice in diagnosis.tiles:
            table.add_row(choice.call, choice.kernel, choice.tile, choice.preferred)
        console.print(table)
