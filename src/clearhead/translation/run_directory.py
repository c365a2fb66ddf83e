"""A run's folder: its configuration, tokenizer, metrics and weights; written so that it can be killed at any moment."""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead._utils.checks import check_int
from clearhead._utils.files import write_text
from clearhead._utils.locks import locked
from clearhead.translation.config import Config
from clearhead.translation.model import Transformer
from clearhead.translation.tokenizer import Vocabulary
from clearhead.weights import serialization

WEIGHTS, CHECKPOINT, VERSION = "clearhead.Transformer", "clearhead.Checkpoint", 1
BEST, LAST, PREVIOUS = "best.safetensors", "last.safetensors", "previous.safetensors"
BROKEN = "broken.safetensors"
CONFIG, TOKENIZER, METRICS = "config.json", "tokenizer.json", "metrics.jsonl"
# temporary files: those of `files.replacing`, and those that earlier versions and safetensors have left
_WRITTEN = "|".join(map(re.escape, (CONFIG, TOKENIZER, METRICS, BEST, LAST, ".new.safetensors")))
TEMPORARY = re.compile(
    rf"\.({_WRITTEN})\.([a-z0-9_]{{8}}|[0-9a-f]{{8}}-\d+\.[a-z0-9_]{{8}}\.tmp)|\.new\.safetensors|\.tmp[A-Za-z0-9]{{6}}"
)


@dataclass(frozen=True)
class TrainerState:
    """Where a run stands. With the weights and the optimizer's state it is all that the next step follows from."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # how many of the epoch's batches are done
    bleu: float = -1.0  # of the best validation so far
    loss: float = float("inf")  # and its loss
    worse: int = 0  # validations since

    def __post_init__(self) -> None:
        for name in ("step", "epoch", "batch", "worse"):
            check_int(name, getattr(self, name), least=0)
        for name in ("bleu", "loss"):
            if type(getattr(self, name)) not in (float, int):
                raise TypeError(f"{name} is {getattr(self, name)!r}; expected a number")


class RunDirectory:
    """The folder of one run.

    `config.json`, `tokenizer.json`, `metrics.jsonl` (a line for each validation), `best.safetensors` (the weights that
    translate best), `last.safetensors` and `previous.safetensors` (what the run can be resumed from).
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    @property
    def exists(self) -> bool:
        return (self.folder / CONFIG).exists()

    @property
    def is_run(self) -> bool:
        """Whether it holds weights of ours; other models have a config.json too."""
        return self.exists and (self.folder / BEST).exists()

    @contextmanager
    def locked(self, *, resume: bool) -> Iterator[None]:
        """Hold the folder for training; refuse if another process trains in it. Leftover temporary files are removed.

        Args:
            resume: the folder must hold a run. Otherwise it must not, and is made.
        """
        if resume:
            self.read()
        else:
            self._make_folder()
        with locked(self.folder):
            for path in self.folder.iterdir():
                if TEMPORARY.fullmatch(path.name):
                    _remove(path)
            yield

    def begin(self, config: Config, vocabulary: Vocabulary, facts: dict[str, Any]) -> None:
        """Make the folder. Refused where it holds a run already: nothing that was trained is overwritten."""
        self._make_folder()
        self.describe(config, vocabulary, facts)

    def _make_folder(self) -> None:
        if self.exists:
            raise ValueError(f"{self.folder}: there is a run in it already; resume it, or choose another folder")
        if self.folder.exists() and not self.folder.is_dir():
            raise NotADirectoryError(f"{self.folder}: a file; expected a folder for the run")
        self.folder.mkdir(parents=True, exist_ok=True)

    def describe(self, config: Config, vocabulary: Vocabulary, facts: dict[str, Any]) -> list[str]:
        """Write tokenizer.json and config.json where they are missing; return the names of those written."""
        missing = [name for name in (TOKENIZER, CONFIG) if not (self.folder / name).exists()]
        if TOKENIZER in missing:
            vocabulary.save(self.folder / TOKENIZER)
        if CONFIG in missing:
            content = {"config": config.to_dict(), **facts}
            write_text(self.folder / CONFIG, json.dumps(content, indent=1, ensure_ascii=False) + "\n")
        return missing

    def read(self) -> tuple[Config, dict[str, Any]]:
        """The configuration, and what else was said of the run."""
        path = self.folder / CONFIG
        if not path.is_file():
            raise FileNotFoundError(f"{self.folder}: no run in it (there is no config.json)")
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            return Config.of(facts.pop("config")), facts
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise ValueError(f"{path}: not the configuration of a run ({error})") from None

    def vocabulary(self) -> Vocabulary:
        return Vocabulary.load(self.folder / TOKENIZER)

    def model(self, device: torch.device | str = "cpu") -> Transformer:
        """The best weights so far, ready to translate."""
        config, _ = self.read()
        model = Transformer(config.model, len(self.vocabulary())).to(device)
        self.load_best(model)
        return model.eval()

    def load_best(self, model: Transformer) -> None:
        path = self.folder / BEST
        tensors, _ = serialization.read(path, WEIGHTS, VERSION, "cpu")
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            said = " ".join(str(error).split())[:200]
            raise ValueError(f"{path}: weights that do not fit config.json ({said})") from None

    def check_best(self) -> None:
        """Raise FileNotFoundError or ValueError if the best weights are missing or damaged."""
        serialization.read(self.folder / BEST, WEIGHTS, VERSION, "cpu")

    def save_best(self, model: Transformer, dtype: torch.dtype | None = None) -> None:
        tensors = {name: tensor.to(dtype or tensor.dtype) for name, tensor in model.state_dict().items()}
        serialization.write(self.folder / BEST, tensors, {"format": WEIGHTS, "version": VERSION})

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def save(self, model: Transformer, optimizer: torch.optim.Optimizer, progress: TrainerState) -> None:
        """A checkpoint. The one before it stays until the new one is whole, and then beside it."""
        tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        for number, state in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{name}": value for name, value in state.items()}
        facts = {"format": CHECKPOINT, "version": VERSION, "progress": vars(progress)}
        serialization.write(self.folder / LAST, tensors, facts, backup=self.folder / PREVIOUS)

    def restore(
        self, model: Transformer, optimizer: torch.optim.Optimizer, say: Callable[[str], None]
    ) -> TrainerState | None:
        """Go back to the last checkpoint that is whole; None if there is none yet.

        A damaged one is named and kept under another name, so that the next checkpoint does not take it for whole.
        """
        broken: dict[str, str] = {}
        for name in (LAST, PREVIOUS):
            path = self.folder / name
            try:
                tensors, facts = serialization.read(path, CHECKPOINT, VERSION, "cpu")
                progress = TrainerState(**facts["progress"])
                _fill(model, optimizer, tensors)
            except FileNotFoundError:
                continue
            except (ValueError, KeyError, TypeError, RuntimeError, IsADirectoryError) as error:
                said = " ".join(str(error).removeprefix(f"{path}: ").split())[:200]
                broken[name] = f"{path}: {said}"
                continue
            for damaged, why in broken.items():
                kept = self._set_aside(damaged)
                say(f"{why}; it is kept as {kept}, and the run goes on from {name}, step {progress.step}")
            if (self.folder / PREVIOUS).is_dir():
                say(f"{self.folder / PREVIOUS}: a folder; it is kept as {self._set_aside(PREVIOUS)}")
            return progress
        if broken:
            raise ValueError(
                f"{'; '.join(broken.values())}; no checkpoint is left to go on from ({BEST} can still translate)"
            )
        return None

    def _set_aside(self, name: str) -> str:
        """Rename a checkpoint that cannot be used; return its new name, which nothing had before."""
        free = BROKEN
        for number in itertools.count(2):
            if not (self.folder / free).exists():
                break
            free = f"broken-{number}.safetensors"
        (self.folder / name).replace(self.folder / free)
        return free

    # -- metrics -------------------------------------------------------------------------------------------------

    def metrics(self) -> list[dict[str, Any]]:
        """Everything that was measured, validation by validation."""
        path = self.folder / METRICS
        if not path.exists():
            return []
        try:
            *lines, torn = path.read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not UTF-8 ({error.reason}); repair or remove it") from None
        found = []
        for number, line in enumerate(lines, start=1):
            measured = _validation(line)
            if measured is None:
                raise ValueError(
                    f"{path}, line {number}: {line[:40]!r} is not a validation; expected an object with a step."
                    " Remove the line, or the file"
                )
            found.append(measured)
        last = _validation(torn)  # not ended: an earlier version was killed while it wrote the line
        return found if last is None else [*found, last]

    def add_metrics(self, measured: dict[str, Any]) -> None:
        """One line more; what was measured at this step or later, before the run was set back, is dropped."""
        kept = [line for line in self.metrics() if line["step"] < measured["step"]]
        write_text(
            self.folder / METRICS,
            "".join(json.dumps(line, allow_nan=False) + "\n" for line in [*kept, measured]),
        )


def _validation(line: str) -> dict[str, Any] | None:
    """Parse a line of the metrics; None if it is something else."""
    try:
        measured = json.loads(line)
        json.dumps(measured, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return measured if isinstance(measured, dict) and type(measured.get("step")) is int else None


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _fill(model: Transformer, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    """Load a checkpoint's tensors after checking that they are this model's and finite."""
    weights = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    states: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if tensor.is_floating_point() and not bool(tensor.isfinite().all()):
            raise ValueError(f"{name} has values that are not finite")
        if name.startswith("optimizer."):
            _, number, key = name.split(".", 2)
            states.setdefault(int(number), {})[key] = tensor
    _check_states(states, [parameter for group in optimizer.param_groups for parameter in group["params"]])
    model.load_state_dict(weights)
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})


def _check_states(states: dict[int, dict[str, Tensor]], parameters: list[Tensor]) -> None:
    """Check that the states are those of AdamW, which loads them unchecked and uses them by name."""
    for number, state in states.items():
        if not 0 <= number < len(parameters):
            raise ValueError(f"optimizer.{number} is the state of no parameter; expected 0 to {len(parameters) - 1}")
        shape = tuple(parameters[number].shape)
        expected = {"step": (), "exp_avg": shape, "exp_avg_sq": shape}
        found = {name: tuple(tensor.shape) for name, tensor in state.items()}
        if found != expected:
            raise ValueError(f"optimizer.{number} is {found}; expected {expected}")
