"""Smoke test of an installed clearhead: every command once, and Python code for each extra.

`make release-check` runs it in an environment for each extra, and tests/test_extras.py in one without extras.
"""

from __future__ import annotations

import json
import shlex
import shutil
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path

from support.recordings import decoder
from support.toy_training import TOML, written_columns
from support.viewer_client import fetch
from support.viewer_process import read_link, start, stop
from support.virtual_environments import VirtualEnvironment


@dataclass(frozen=True)
class Step:
    """One command and its result.

    Attributes:
        line: the arguments of `clearhead`, or Python code.
        extra: the extra that it requires, or "".
        status: the exit status.
        writes: a file that it writes.
        prints: a part of its standard output.
    """

    line: str
    extra: str = ""
    status: int = 0
    writes: str = ""
    prints: str = ""


# in this order: later commands read files of earlier ones
COMMANDS = (
    Step("--help", prints="doctor"),
    Step("doctor", prints="torch"),
    Step("explain song", prints="song"),
    Step("explain song --format html --output song.html", "explain", writes="song.html"),
    Step("explain song --format xlsx --output song.xlsx", "explain", writes="song.xlsx"),
    Step("check song", status=1, prints="song"),
    Step("exercise song --output sheet.toml", writes="sheet.toml"),
    Step("mark sheet.toml", status=1),
    Step("learn --no-browser --output course", "explain", writes="course/index.html"),
    Step("stats kept.safetensors", prints="decoder"),
    Step("roles kept.safetensors", prints="decoder"),
    Step("view kept.safetensors --output report.html", "view", writes="report.html"),
    Step("record 'The dog barked.' --output seen.safetensors", "translate", writes="seen.safetensors"),
    Step("translate 'I read a book.'", "translate", prints="本"),
    Step("train --data copies.tsv --config tiny.toml --output run", "translate", writes="run/best.safetensors"),
    Step("stats --model model 'the dogs run.'", "hf", prints="encoder"),
    Step("record --engine vllm --model model 'the dog' --output none.safetensors", "vllm"),
)
CODE = (
    Step(
        "import torch, clearhead; x = torch.randn(1, 2, 5, 4);"
        "output, weights = clearhead.attention(x, x, x, mask=clearhead.Causal(), return_weights=True);"
        "print(*output.shape, *weights.entropy().shape)",
        prints="1 2 5 4 1 2 5",
    ),
    Step(
        "import clearhead, clearhead.plot;"
        "clearhead.plot.plot_heads(clearhead.Recording.load('kept.safetensors')['decoder']).savefig('heads.png')",
        "plot",
        writes="heads.png",
    ),
)


def write_inputs(folder: Path) -> None:
    """Write the files that the commands read: a recording, a tiny model, and a small corpus."""
    import transformers

    from support.tiny_models import make
    from support.tiny_tokenizer import tokenizer

    transformers.logging.disable_progress_bar()
    decoder(["the", "old", "dog"]).save(folder / "kept.safetensors")
    make("bert").save_pretrained(folder / "model")
    tokenizer().save_pretrained(folder / "model")
    written_columns(folder / "copies.tsv")
    (folder / "tiny.toml").write_text(TOML.replace("steps = 12", "steps = 2"))


def smoke_problems(
    environment: VirtualEnvironment, folder: Path, inputs: Path, version: str, extras: Collection[str]
) -> Iterator[str]:
    """Yield what goes wrong in an environment with these extras.

    Without extras, commands that require one must fail with one line that names it.
    """
    shutil.copytree(inputs, folder)
    shown = environment.run(folder, "clearhead", "--version").stdout
    if shown != f"clearhead {version}\n":
        yield f"clearhead --version prints {shown!r}; expected version {version}"
    location = environment.run(folder, "python", "-c", "import clearhead; print(clearhead.__file__)").stdout
    if not location.startswith(str(environment.programs.parent)):
        yield f"clearhead is imported from {location.strip() or 'nowhere'}; expected the new environment"
    listed = json.loads(environment.run(folder, "clearhead", "doctor", "--json").stdout)["extras"]
    for extra in listed:
        if extra in extras and not listed[extra]["installed"]:
            yield f"clearhead doctor misses {', '.join(listed[extra]['missing'])} of the extra {extra}"
    for step in (*COMMANDS, *CODE):
        if not step.extra or not extras or step.extra in extras:
            yield from _step_problems(environment, folder, step, is_usable=not step.extra or step.extra in extras)
    if "view" in extras:
        yield from _serving_problems(environment, folder)


def _step_problems(environment: VirtualEnvironment, folder: Path, step: Step, *, is_usable: bool) -> Iterator[str]:
    is_code = step in CODE
    arguments = ("python", "-c", step.line) if is_code else ("clearhead", *shlex.split(step.line))
    name = f"the code for {step.extra or 'the base'}" if is_code else f"clearhead {step.line}"
    result = environment.run(folder, *arguments)
    if not is_usable:
        advice = f"pip install 'clearhead[{step.extra}]'"
        expected_status, lines = (1, None) if is_code else (2, 1)
        if result.returncode != expected_status or advice not in result.stderr:
            yield f"{name} exits with {result.returncode}; expected an error with {advice}: {result.stderr[-300:]}"
        elif lines and result.stderr.count("\n") != lines:
            yield f"{name} prints an error of several lines: {result.stderr[-300:]}"
        return
    if result.returncode != step.status or "Traceback" in result.stderr:
        yield f"{name} exits with {result.returncode}; expected {step.status}: {result.stderr[-300:]}"
    elif step.writes and not (folder / step.writes).is_file():
        yield f"{name} does not write {step.writes}"
    elif step.prints not in result.stdout:
        yield f"{name} does not print {step.prints!r}: {result.stdout[:300]}"


def _serving_problems(environment: VirtualEnvironment, folder: Path) -> Iterator[str]:
    """Serve the viewer, open its page with the link, and stop it with Ctrl-C."""
    command = [str(environment.programs / "clearhead"), "view", "kept.safetensors", "--no-browser"]
    process = start(command, environment=environment.variables, folder=folder)
    link, _ = read_link(process)
    _, headers, _ = fetch(link)
    cookie = headers["Set-Cookie"].split(";")[0]
    status, _, page = fetch(f"{link.partition('/enter')[0]}/", Cookie=cookie)
    if status != 200 or "clearhead" not in page:
        yield f"clearhead view serves its page with status {status}: {page[:300]}"
    status, _, errors = stop(process)
    if status or errors:
        yield f"clearhead view exits with {status} after Ctrl-C: {errors[-300:]}"
