"""A run's folder: its configuration, tokenizer, metrics and weights; written so that it can be killed at any moment."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from clearhead import storage
from clearhead.files import write_text
from clearhead.transformer.config import Config
from clearhead.transformer.model import Transformer
from clearhead.transformer.tokens import Vocabulary

WEIGHTS, CHECKPOINT, VERSION = "clearhead.Transformer", "clearhead.Checkpoint", 1
BEST, LAST, PREVIOUS = "best.safetensors", "last.safetensors", "previous.safetensors"
BROKEN = "broken.safetensors"
NEW = ".new.safetensors"


@dataclass(frozen=True)
class Progress:
    """Where a run stands. With the weights and the optimizer's state it is all that the next step follows from."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # how many of the epoch's batches are done
    bleu: float = -1.0  # of the best validation so far
    loss: float = float("inf")  # and its loss
    worse: int = 0  # validations since


class Run:
    """The folder of one run.

    `config.json`, `tokenizer.json`, `metrics.jsonl` (a line for each validation), `best.safetensors` (the weights that
    translate best), `last.safetensors` and `previous.safetensors` (what the run can be resumed from).
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)

    @property
    def exists(self) -> bool:
        return (self.folder / "config.json").exists()

    @property
    def is_run(self) -> bool:
        """Whether it holds weights of ours; other models have a config.json too."""
        return self.exists and (self.folder / BEST).exists()

    def begin(self, config: Config, vocabulary: Vocabulary, facts: dict[str, Any]) -> None:
        """Make the folder. Refused where it holds a run already: nothing that was trained is overwritten."""
        if self.exists:
            raise ValueError(f"{self.folder}: there is a run in it already; resume it, or choose another folder")
        if self.folder.exists() and not self.folder.is_dir():
            raise NotADirectoryError(f"{self.folder}: a file; expected a folder for the run")
        self.folder.mkdir(parents=True, exist_ok=True)
        vocabulary.save(self.folder / "tokenizer.json")
        self._write_json("config.json", {"config": config.to_dict(), **facts})

    def read(self) -> tuple[Config, dict[str, Any]]:
        """The configuration, and what else was said of the run."""
        path = self.folder / "config.json"
        if not path.is_file():
            raise FileNotFoundError(f"{self.folder}: no run in it (there is no config.json)")
        try:
            facts = json.loads(path.read_text(encoding="utf-8"))
            return Config.of(facts.pop("config")), facts
        except (ValueError, KeyError, AttributeError, TypeError) as error:
            raise ValueError(f"{path}: not the configuration of a run ({error})") from None

    def vocabulary(self) -> Vocabulary:
        return Vocabulary.load(self.folder / "tokenizer.json")

    def model(self, device: torch.device | str = "cpu") -> Transformer:
        """The best weights so far, ready to translate."""
        config, _ = self.read()
        model = Transformer(config.model, len(self.vocabulary())).to(device)
        self.load_best(model)
        return model.eval()

    def load_best(self, model: Transformer) -> None:
        path = self.folder / BEST
        tensors, _ = storage.read(path, WEIGHTS, VERSION, "cpu")
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            said = " ".join(str(error).split())[:200]
            raise ValueError(f"{path}: weights that do not fit config.json ({said})") from None

    def save_best(self, model: Transformer, dtype: torch.dtype | None = None) -> None:
        tensors = {name: tensor.to(dtype or tensor.dtype) for name, tensor in model.state_dict().items()}
        storage.write(self.folder / BEST, tensors, {"format": WEIGHTS, "version": VERSION})

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def save(self, model: Transformer, optimizer: torch.optim.Optimizer, progress: Progress) -> None:
        """A checkpoint. The one before it stays until the new one is whole, and then beside it."""
        tensors = {f"model.{name}": tensor for name, tensor in model.state_dict().items()}
        for number, state in optimizer.state_dict()["state"].items():
            tensors |= {f"optimizer.{number}.{name}": value for name, value in state.items()}
        new, last = self.folder / NEW, self.folder / LAST
        storage.write(new, tensors, {"format": CHECKPOINT, "version": VERSION, "progress": vars(progress)})
        if last.exists():
            last.replace(self.folder / PREVIOUS)
        new.replace(last)

    def restore(
        self, model: Transformer, optimizer: torch.optim.Optimizer, say: Callable[[str], None]
    ) -> Progress | None:
        """Go back to the last checkpoint that can be read; None if there is none yet."""
        broken: list[str] = []
        for name in (LAST, PREVIOUS):
            path = self.folder / name
            try:
                tensors, facts = storage.read(path, CHECKPOINT, VERSION, "cpu")
                progress = Progress(**facts["progress"])
                _fill(model, optimizer, tensors)
            except FileNotFoundError:
                continue
            except (ValueError, KeyError, TypeError, RuntimeError) as error:
                said = " ".join(str(error).removeprefix(f"{path}: ").split())[:200]
                broken.append(f"{path}: {said}")
                continue
            if broken:
                say(f"{broken[0]}; it is kept as {BROKEN}, and the run goes on from {name}, step {progress.step}")
                with contextlib.suppress(FileNotFoundError):  # another process of the run was quicker
                    (self.folder / LAST).replace(self.folder / BROKEN)
            return progress
        if broken:
            raise ValueError(f"{'; '.join(broken)}; no checkpoint is left to go on from ({BEST} can still translate)")
        return None

    def tidy(self) -> None:
        """Remove what a process that was killed has left half-written."""
        for name in (NEW, f".{BEST}.*", ".metrics.jsonl.*", f"{NEW}.*", f".{NEW}.*"):
            for path in self.folder.glob(name):
                path.unlink(missing_ok=True)

    # -- metrics -------------------------------------------------------------------------------------------------

    def metrics(self) -> list[dict[str, Any]]:
        """Everything that was measured, validation by validation."""
        path = self.folder / "metrics.jsonl"
        if not path.exists():
            return []
        found = []
        for line in path.read_text(encoding="utf-8").splitlines():
            try:
                found.append(json.loads(line))
            except ValueError:  # the run was killed while it wrote this one
                break
        return found

    def add_metrics(self, measured: dict[str, Any]) -> None:
        """One line more; what was measured at this step or later, before the run was set back, is dropped."""
        kept = [line for line in self.metrics() if line["step"] < measured["step"]]
        write_text(
            self.folder / "metrics.jsonl",
            "".join(json.dumps(line, allow_nan=False) + "\n" for line in [*kept, measured]),
        )

    def _write_json(self, name: str, content: object) -> None:
        write_text(self.folder / name, json.dumps(content, indent=1, ensure_ascii=False) + "\n")


def _fill(model: Transformer, optimizer: torch.optim.Optimizer, tensors: dict[str, Tensor]) -> None:
    weights = {name.removeprefix("model."): t for name, t in tensors.items() if name.startswith("model.")}
    states: dict[int, dict[str, Tensor]] = {}
    for name, tensor in tensors.items():
        if name.startswith("optimizer."):
            _, number, key = name.split(".", 2)
            states.setdefault(int(number), {})[key] = tensor
    model.load_state_dict(weights)
    optimizer.load_state_dict({"state": states, "param_groups": optimizer.state_dict()["param_groups"]})
