"""Directory of a run: configuration, tokenizer, metrics and weights. Every file is replaced atomically.

`config.json` contains the identity of the run, the checksum of the tokenizer and its own checksum. Weights and
checkpoints contain the identity and their checksum. A run of an earlier clearhead has no identity.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import shutil
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from clearhead._utils import checksums
from clearhead._utils.checks import check_int
from clearhead._utils.files import write_text
from clearhead._utils.locks import locked
from clearhead._utils.text import one_line
from clearhead.translation._checkpoint import checkpoint_tensors, load_tensors
from clearhead.translation.config import Config, first_difference
from clearhead.translation.model import Transformer
from clearhead.translation.tokenizer import Vocabulary
from clearhead.weights import serialization

WEIGHTS_FORMAT, CHECKPOINT_FORMAT, FORMAT_VERSION = "clearhead.Transformer", "clearhead.Checkpoint", 1
BEST_FILE, LAST_FILE, PREVIOUS_FILE = "best.safetensors", "last.safetensors", "previous.safetensors"
BROKEN_FILE = "broken.safetensors"
CONFIG_FILE, TOKENIZER_FILE, METRICS_FILE = "config.json", "tokenizer.json", "metrics.jsonl"
FILM_FILE, FILM_PAGE_FILE = "film.json", "film.html"
# temporary files of `files.replacing`, of earlier versions and of safetensors
_WRITTEN_FILES = "|".join(
    re.escape(name)
    for name in (
        *(CONFIG_FILE, TOKENIZER_FILE, METRICS_FILE, FILM_FILE, FILM_PAGE_FILE, BEST_FILE, LAST_FILE),
        ".new.safetensors",
    )
)
TEMPORARY_NAME = re.compile(
    rf"\.({_WRITTEN_FILES})\.([a-z0-9_]{{8}}|[0-9a-f]{{8}}-\d+\.[a-z0-9_]{{8}}\.tmp)|\.new\.safetensors|\.tmp[A-Za-z0-9]{{6}}"
)


@dataclass(frozen=True)
class TrainerState:
    """Trainer state. Together with the weights and the optimizer state, it determines the next step."""

    step: int = 0
    epoch: int = 0
    batch: int = 0  # number of finished batches in the epoch
    bleu: float = -1.0  # BLEU of the best validation so far
    loss: float = float("inf")  # loss of the best validation so far
    worse: int = 0  # number of validations since the best one

    def __post_init__(self) -> None:
        for name in ("step", "epoch", "batch", "worse"):
            check_int(name, getattr(self, name), least=0)
        for name in ("bleu", "loss"):
            if type(getattr(self, name)) not in (float, int):
                raise TypeError(f"{name} is {getattr(self, name)!r}; expected a number")


class ChangedRunError(ValueError):
    """Error of a file that was changed since it was written, or that belongs to another run."""


class RunDirectory:
    """Directory of one run.

    It contains these files:

    - `config.json` and `tokenizer.json`
    - `metrics.jsonl`: one line per validation
    - `best.safetensors`: the weights with the best BLEU
    - `last.safetensors` and `previous.safetensors`: the last two checkpoints
    - `film.json` and `film.html`: the film of attention, if `train` records one

    Args:
        folder: the folder.
        force: accept changed files and files of another run, which otherwise raise an error. Resuming the run then
            makes them part of it.

    Attributes:
        identity: identity of the run, once `config.json` was read or written; None for a run of an earlier clearhead.
        accepted: the changes that were accepted because of `force`, as messages.
    """

    def __init__(self, folder: str | os.PathLike[str], *, force: bool = False) -> None:
        self.folder, self.force = Path(folder), force
        self.identity: str | None = None
        self.accepted: list[str] = []
        self._config: Config | None = None

    @property
    def exists(self) -> bool:
        """True if the folder contains a `config.json`."""
        return (self.folder / CONFIG_FILE).exists()

    @property
    def is_run(self) -> bool:
        """True if the folder contains a `config.json` and the weights of a run; other models have only the former."""
        return self.exists and (self.folder / BEST_FILE).exists()

    @contextmanager
    def locked(self, *, resume: bool) -> Iterator[None]:
        """Lock the folder for training, and remove leftover temporary files.

        Args:
            resume: require that the folder contains a run. If False, create the folder; it must not contain a run.

        Raises:
            BlockingIOError: another process has locked the folder.
        """
        if resume:
            self.read()
        else:
            self._make_folder()
        with locked(self.folder):
            for path in self.folder.iterdir():
                if TEMPORARY_NAME.fullmatch(path.name):
                    _remove(path)
            yield

    def create(self, config: Config, vocabulary: Vocabulary, facts: dict[str, Any], identity: str) -> None:
        """Create the folder and write `config.json` and `tokenizer.json`. Raise ValueError if it contains a run."""
        self._make_folder()
        vocabulary.save(self.folder / TOKENIZER_FILE)  # also replaces that of a run that was killed before config.json
        self.identity = identity
        self._write_config(config, facts)

    def _make_folder(self) -> None:
        if self.exists:
            raise ValueError(f"{self.folder}: already contains a run; resume it, or choose another folder")
        if self.folder.exists() and not self.folder.is_dir():
            raise NotADirectoryError(f"{self.folder}: a file; expected a folder for the run")
        self.folder.mkdir(parents=True, exist_ok=True)

    def write_description(self, config: Config, vocabulary: Vocabulary, facts: dict[str, Any]) -> list[str]:
        """Write `tokenizer.json` and `config.json` again if one is missing; return the names of the missing files."""
        missing = [name for name in (TOKENIZER_FILE, CONFIG_FILE) if not (self.folder / name).exists()]
        if TOKENIZER_FILE in missing:
            vocabulary.save(self.folder / TOKENIZER_FILE)
        if missing:
            self._write_config(config, facts)
        return missing

    def _write_config(self, config: Config, facts: dict[str, Any]) -> None:
        self._config = config
        digest = checksums.file_digest(self.folder / TOKENIZER_FILE)
        content = {"config": config.to_dict(), **facts, "tokenizer": digest, "run": self.identity}
        write_text(self.folder / CONFIG_FILE, checksums.sealed_json(content))

    def adopt(self, config: Config, vocabulary: Vocabulary, facts: dict[str, Any], identity: str) -> None:
        """Give all files of the run a new identity.

        `config.json` is written last: a process that is killed before leaves a run without an identity, or one that
        is still changed.
        """
        self.identity, self._config = identity, config
        formats = {PREVIOUS_FILE: CHECKPOINT_FORMAT, LAST_FILE: CHECKPOINT_FORMAT, BEST_FILE: WEIGHTS_FORMAT}
        for name, expected in formats.items():
            # damaged files keep what they have; files without a checksum were reported when the run was loaded
            with suppress(FileNotFoundError, IsADirectoryError, ValueError), warnings.catch_warnings(action="ignore"):
                tensors, stored = serialization.read(self.folder / name, expected, FORMAT_VERSION, "cpu")
                serialization.write(self.folder / name, tensors, {**stored, **self._run_facts()})
        if not (self.folder / TOKENIZER_FILE).exists():
            vocabulary.save(self.folder / TOKENIZER_FILE)
        self._write_config(config, facts)
        self.accepted.clear()

    def read(self) -> tuple[Config, dict[str, Any]]:
        """Return the configuration and the other entries of `config.json`.

        Raises:
            FileNotFoundError: the folder contains no run.
            ChangedRunError: the file was changed since it was written.
            ValueError: the file is not the configuration of a run.
        """
        path = self.folder / CONFIG_FILE
        if not path.is_file():
            raise FileNotFoundError(f"{self.folder}: contains no run (config.json is missing)")
        try:
            text = path.read_text(encoding="utf-8")
            facts = json.loads(text)
            config = Config.from_dict(facts.pop("config"))
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
            raise ValueError(f"{path}: not the configuration of a run ({one_line(error)})") from None
        if {"run", "sha256"} & facts.keys() and not checksums.json_matches(text):
            self._refuse(f"{path}: changed since it was written ({self._reason(config, facts.get('run'))})")
        facts.pop("sha256", None)
        self.identity, self._config = facts.pop("run", None), config
        return config, facts

    def _reason(self, config: Config, identity: object) -> str:
        """Return the setting that differs from that in the last checkpoint, if there is one."""
        with suppress(OSError, ValueError, KeyError, TypeError), warnings.catch_warnings(action="ignore"):
            _, facts = serialization.read(self.folder / LAST_FILE, CHECKPOINT_FORMAT, FORMAT_VERSION, "cpu")
            difference = first_difference(config, Config.from_dict(facts["config"]))
            if difference is not None and facts["run"] == identity:
                return difference
        return "its contents do not match its checksum"

    def _refuse(self, message: str) -> None:
        """Raise an error, or with `force` remember the message."""
        if not self.force:
            raise ChangedRunError(f"{message}; restore it, or accept it with `clearhead train --resume --force`")
        if message not in self.accepted:
            self.accepted.append(message)

    def _check_identity(self, path: Path, facts: dict[str, Any]) -> None:
        if self.identity is not None and facts.get("run") != self.identity:
            self._refuse(f"{path}: belongs to another run")

    def _run_facts(self) -> dict[str, Any]:
        """Return the metadata entries of the run: its identity, and its settings to name one that was changed."""
        if self.identity is None or self._config is None:
            return {}
        return {"run": self.identity, "config": self._config.to_dict()}

    def warn_without_identity(self) -> None:
        """Warn if `config.json`, which was read before, has no identity."""
        if self.identity is None:
            warnings.warn(
                f"{self.folder}: carries no identity (an earlier clearhead wrote it), so changes are not detected",
                stacklevel=3,
            )

    def check_tokenizer(self) -> None:
        """Raise ChangedRunError if `tokenizer.json` exists, but is not that of the run."""
        path, (_, facts) = self.folder / TOKENIZER_FILE, self.read()
        if "tokenizer" in facts and path.is_file() and checksums.file_digest(path) != facts["tokenizer"]:
            self._refuse(f"{path}: changed since it was written (config.json has another checksum)")

    def vocabulary(self) -> Vocabulary:
        """Load the vocabulary."""
        self.check_tokenizer()
        return Vocabulary.load(self.folder / TOKENIZER_FILE)

    def model(self, device: torch.device | str = "cpu") -> Transformer:
        """Load the model with the best weights so far, in evaluation mode."""
        config, _ = self.read()
        model = Transformer(config.model, len(self.vocabulary())).to(device)
        self.load_best(model)
        return model.eval()

    def load_best(self, model: Transformer) -> None:
        """Load the best weights into a model."""
        path = self.folder / BEST_FILE
        tensors, facts = serialization.read(path, WEIGHTS_FORMAT, FORMAT_VERSION, "cpu")
        self._check_identity(path, facts)
        try:
            model.load_state_dict(tensors)
        except RuntimeError as error:
            raise ValueError(f"{path}: the weights do not match config.json ({one_line(error)})") from None

    def check_best(self) -> None:
        """Raise FileNotFoundError or ValueError if the best weights are missing, damaged or of another run."""
        _, facts = serialization.read(self.folder / BEST_FILE, WEIGHTS_FORMAT, FORMAT_VERSION, "cpu")
        self._check_identity(self.folder / BEST_FILE, facts)

    def save_best(self, model: Transformer, dtype: torch.dtype | None = None) -> None:
        """Save the weights of a model as the best ones, in `dtype` (default: unchanged)."""
        tensors = {name: tensor.to(dtype or tensor.dtype) for name, tensor in model.state_dict().items()}
        facts = {"format": WEIGHTS_FORMAT, "version": FORMAT_VERSION, **self._run_facts()}
        serialization.write(self.folder / BEST_FILE, tensors, facts)

    # -- checkpoints ---------------------------------------------------------------------------------------------

    def save_checkpoint(self, model: Transformer, optimizer: torch.optim.Optimizer, state: TrainerState) -> None:
        """Write a checkpoint, and keep the one before it as `previous.safetensors`."""
        facts = {"format": CHECKPOINT_FORMAT, "version": FORMAT_VERSION, "progress": vars(state), **self._run_facts()}
        tensors = checkpoint_tensors(model, optimizer)
        serialization.write(self.folder / LAST_FILE, tensors, facts, backup=self.folder / PREVIOUS_FILE)

    def load_checkpoint(
        self, model: Transformer, optimizer: torch.optim.Optimizer, on_message: Callable[[str], None]
    ) -> TrainerState | None:
        """Load the last undamaged checkpoint and return its state; return None if the run has no checkpoint.

        Damaged checkpoints are renamed, so that they do not become the previous checkpoint, and reported to
        `on_message`.

        Raises:
            ChangedRunError: a checkpoint belongs to another run.
            ValueError: all checkpoints are damaged.
        """
        broken: dict[str, str] = {}
        for name in (LAST_FILE, PREVIOUS_FILE):
            path = self.folder / name
            try:
                tensors, facts = serialization.read(path, CHECKPOINT_FORMAT, FORMAT_VERSION, "cpu")
                self._check_identity(path, facts)
                state = TrainerState(**facts["progress"])
                load_tensors(model, optimizer, tensors)
            except FileNotFoundError:
                continue
            except ChangedRunError:
                raise
            except (ValueError, KeyError, TypeError, RuntimeError, IsADirectoryError) as error:
                broken[name] = f"{path}: {one_line(str(error).removeprefix(f'{path}: '))}"
                continue
            for broken_name, message in broken.items():
                new_name = self._set_aside(broken_name)
                on_message(f"{message}; renamed to {new_name}; the run continues from {name}, step {state.step}")
            if (self.folder / PREVIOUS_FILE).is_dir():
                on_message(f"{self.folder / PREVIOUS_FILE}: a folder; renamed to {self._set_aside(PREVIOUS_FILE)}")
            return state
        if broken:
            raise ValueError(
                f"{'; '.join(broken.values())}; no checkpoint is left to resume from ({BEST_FILE} can still translate)"
            )
        return None

    def _set_aside(self, name: str) -> str:
        """Rename a damaged checkpoint to an unused name; return this name."""
        new_name = BROKEN_FILE
        for suffix in itertools.count(2):
            if not (self.folder / new_name).exists():
                break
            new_name = f"broken-{suffix}.safetensors"
        (self.folder / name).replace(self.folder / new_name)
        return new_name

    # -- metrics -------------------------------------------------------------------------------------------------

    def metrics(self) -> list[dict[str, Any]]:
        """Return the metrics of every validation, in order."""
        path = self.folder / METRICS_FILE
        if not path.exists():
            return []
        try:
            *lines, torn = path.read_text(encoding="utf-8").split("\n")
        except UnicodeDecodeError as error:
            raise ValueError(f"{path}: not UTF-8 ({error.reason}); repair or remove it") from None
        validations = []
        for line_number, line in enumerate(lines, start=1):
            metrics = _parse_metrics(line)
            if metrics is None:
                raise ValueError(
                    f"{path}, line {line_number}: {line[:40]!r} is not a validation; expected an object with a step;"
                    " remove the line or the file"
                )
            validations.append(metrics)
        last = _parse_metrics(torn)  # a line without its end: an earlier version was killed while writing it
        return validations if last is None else [*validations, last]

    def add_metrics(self, metrics: dict[str, Any]) -> None:
        """Add the metrics of a validation; drop metrics of this step or later, left from before the run was resumed."""
        earlier = [line for line in self.metrics() if line["step"] < metrics["step"]]
        write_text(
            self.folder / METRICS_FILE,
            "".join(json.dumps(line, allow_nan=False) + "\n" for line in [*earlier, metrics]),
        )


def _parse_metrics(line: str) -> dict[str, Any] | None:
    """Parse a line of metrics; return None if it is not an object with a step."""
    try:
        metrics = json.loads(line)
        json.dumps(metrics, allow_nan=False)
    except (ValueError, RecursionError):
        return None
    return metrics if isinstance(metrics, dict) and type(metrics.get("step")) is int else None


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)
