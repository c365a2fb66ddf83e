"""Film of a training run: the attention of every head on one sentence, at several steps.

The file `film.json` in the run directory has one frame per recorded step. A frame contains the weights of every head in
thousandths, and the accuracies of every head on the probe. Rows of "cross" and "decoder" belong to the token that the
model writes.
"""

from __future__ import annotations

import json
from typing import Any

import torch

from clearhead._utils.evaluating import evaluating
from clearhead._utils.files import write_text
from clearhead.translation.config import Config, TrainingConfig
from clearhead.translation.data._batching import collate
from clearhead.translation.data.dataset import Dataset, encode_pair
from clearhead.translation.data.grammar.annotate import annotate
from clearhead.translation.data.grammar.generate import split_of
from clearhead.translation.heads.probes import RELATION_STACKS, AccuracyTable, head_accuracies
from clearhead.translation.model import Transformer
from clearhead.translation.run_directory import FILM_FILE, RunDirectory
from clearhead.translation.tokenizer import END, SPECIAL_TOKENS, START

FILM_FORMAT, FILM_VERSION = "clearhead.Film", 1
DEFAULT_FILM_TEXT = "did the old man wear a hat ?"  # in the probe: no run trains on it
WEIGHT_UNITS = 1000  # weights are stored as whole thousandths
EARLY_VALIDATIONS, FRAMES_PER_EARLY_VALIDATION = 4, 5  # heads change most in the first steps
EARLY_PROBE_SIZE = 200  # sentences that measure accuracies between validations
MAX_VALIDATION_FRAMES = 40
MAX_CELLS = 50_000  # weights of one frame


class FilmRecorder:
    """Recorder of a run's film. Every frame is written at once, so that a killed run loses none.

    Args:
        text: English sentence of the grammar.
        data: dataset of the run, with a probe.
        config: configuration of the run. It determines the recorded steps and the number of heads.
        run: directory of the run.
        resume: continue the film in the run directory.
    """

    def __init__(self, text: str, data: Dataset, config: Config, run: RunDirectory, *, resume: bool = False) -> None:
        if not data.probe:
            raise ValueError(f"a film needs annotated sentences, but the data ({data.name}) has none")
        self.data, self.run = data, run
        self.text = " ".join(text.split())
        self.pair = annotate(self.text)
        settings, model = config.training, config.model
        self.steps = film_steps(settings)
        read, written = [SPECIAL_TOKENS[START], *self.pair.target], [*self.pair.target, SPECIAL_TOKENS[END]]
        source = [*self.pair.source, SPECIAL_TOKENS[END]]
        decoder_cells = len(written) * (len(read) + len(source))
        cells = model.heads * (model.encoder_layers * len(source) ** 2 + model.decoder_layers * decoder_cells)
        if cells > MAX_CELLS:
            raise ValueError(
                f"a frame of the film has {cells:,} weights; expected at most {MAX_CELLS:,}; use a shorter --film-text"
            )
        self.film: dict[str, Any] = {
            "format": FILM_FORMAT,
            "version": FILM_VERSION,
            "text": self.text,
            "translation": " ".join(self.pair.target),
            "held_out": split_of(self.pair.source) != "train",
            "seed": settings.seed,
            "steps": settings.steps,
            "stacks": {
                "encoder": {"rows": source, "columns": source},
                "decoder": {"rows": written, "columns": read},
                "cross": {"rows": written, "columns": source},
            },
            "relations": RELATION_STACKS,
            "links": [list(link) for link in self.pair.links],
            "frames": [],
        }
        if resume and (run.folder / FILM_FILE).exists():
            film = read_film(run)
            if film["text"] != self.text:
                raise ValueError(f"{run.folder / FILM_FILE}: the film of {film['text']!r}; expected {self.text!r}")
            self.film["frames"] = film["frames"]

    def add(self, model: Transformer, step: int, metrics: dict[str, Any] | None = None) -> None:
        """Add a frame and write the film. Drop frames of this step or later, left from before the run was resumed.

        Args:
            model: the model after this step.
            step: step of training.
            metrics: metrics of a validation at this step (default: accuracies are measured on a part of the probe).
        """
        frame: dict[str, Any] = {"step": step}
        if metrics is None:
            probe = self.data.probe[:EARLY_PROBE_SIZE]
            frame |= {"sentences": len(probe), "accuracy": head_accuracies(model, self.data.vocabulary, probe)}
        else:
            frame |= {"sentences": len(self.data.probe), "accuracy": metrics["heads"]}
            frame |= {"exact": metrics["validation"]["exact"], "loss": metrics["validation"]["loss"]}
        frame["maps"] = self.maps(model)
        earlier = [frame for frame in self.film["frames"] if frame["step"] < step]
        self.film["frames"] = [*earlier, frame]
        text = json.dumps(self.film, ensure_ascii=False, allow_nan=False, separators=(",", ":"))
        write_text(self.run.folder / FILM_FILE, text + "\n")

    @torch.inference_mode()
    def maps(self, model: Transformer) -> dict[str, list[list[int]]]:
        """Return the weights of every head in thousandths, by name such as "cross 2.3"."""
        batch = collate([encode_pair(self.data.vocabulary, self.pair)]).to(model.embedding.weight.device)
        with evaluating(model):
            _, attentions = model(batch.source, batch.target, batch.lengths, return_weights=True)
        return {
            f"{stack} {index}.{head}": weights.tolist()
            for stack, layers in attentions.items()
            for index, layer in enumerate(layers)
            for head, weights in enumerate((layer.dense()[0].double() * WEIGHT_UNITS).round().int())
        }


def film_steps(settings: TrainingConfig) -> frozenset[int]:
    """Return the steps of a film: step 0, steps between the first validations, and at most 40 validations."""
    steps, every = settings.steps, settings.validate_every
    early = range(0, min(steps, EARLY_VALIDATIONS * every) + 1, max(1, every // FRAMES_PER_EARLY_VALIDATION))
    validations = [*range(every, steps + 1, every)]
    stride = -(-len(validations) // MAX_VALIDATION_FRAMES) or 1
    return frozenset((0, *early, *validations[::-1][::stride], steps))


def read_film(run: RunDirectory) -> dict[str, Any]:
    """Return the film of a run.

    Raises:
        FileNotFoundError: the run has no film.
        ValueError: the file is damaged.
    """
    path = run.folder / FILM_FILE
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file; `clearhead train --film` writes it")
    try:
        film = json.loads(path.read_text(encoding="utf-8"))
        check_film(film)
    except (ValueError, KeyError, TypeError, AttributeError, IndexError, RecursionError) as error:
        raise ValueError(f"{path}: not a film ({type(error).__name__}: {error}); repair or remove it") from None
    return film


def check_film(film: dict[str, Any]) -> None:
    """Raise an error if a film lacks an entry, or if a map does not have a row and a column for each token."""
    if (film["format"], film["version"]) != (FILM_FORMAT, FILM_VERSION):
        raise ValueError(f"format is {film['format']!r}, version {film['version']!r}; expected {FILM_FORMAT!r}, 1")
    if not isinstance(film["text"], str):
        raise TypeError(f"text is {film['text']!r}; expected a string")
    for frame in film["frames"]:
        if type(frame["step"]) is not int:
            raise TypeError(f"a step is {frame['step']!r}; expected a whole number")
        _check_accuracies(frame["accuracy"])
        for name, rows in frame["maps"].items():
            tokens, weights = film["stacks"][name.split()[0]], torch.tensor(rows)
            shape = (len(tokens["rows"]), len(tokens["columns"]))
            if weights.is_floating_point() or tuple(weights.shape) != shape:
                raise ValueError(f"the map of {name} has the shape {tuple(weights.shape)}; expected {shape}")


def _check_accuracies(table: AccuracyTable) -> None:
    for accuracies in table.values():
        for first, second in accuracies.values():
            if not 0 <= first <= 1 or not 0 <= second <= 1:
                raise ValueError(f"an accuracy is {first!r} or {second!r}; expected 0 to 1")
