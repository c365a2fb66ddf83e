"""Reading of the files that a `Writer` wrote: JSON lines, statistics and recordings by request."""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clearhead._utils.text import one_line
from clearhead.ops.statistics import TopK
from clearhead.recording.recording import Recording, Tokens
from clearhead.serving.finished import FinishedRequest, phases_of
from clearhead.serving.head_means import head_means, means_of_heads
from clearhead.serving.output_files import EARLIER_REQUESTS, REQUESTS, recording_path, statistics_path
from clearhead.weights import serialization

FORMAT, VERSION = "clearhead.SeenRequest", 1
OPENING = '{"request"'  # of each line


@dataclass(frozen=True, eq=False)
class SeenRequest:
    """Statistics of one request, for each observed layer, head and row.

    Row r is the query at position `first_row + r`. Rows from position `prompt_len - 1` on predict the answer. Reading
    a statistic that was not observed raises an AttributeError.

    Attributes:
        id: id of the request in the engine, which is unique.
        model: name of the model.
        token_ids: tokens that the model read.
        tokens: their texts.
        prompt_len: number of tokens of the prompt.
        first_row: position of the first observed query.
        layers: indices of the observed layers.
        heads: indices of the observed heads; None for all.
        spans: spans of tokens by name, in the order of `mass`.
        statistics: tensors by name.
        recording_file: path of the recording, which may not exist; None if unknown.
        answer_tokens: number of tokens of the answer; None if unknown. Rows after it are of tokens that the model
            wrote and the server left out.
        finish_reason: "stop", "length" or "abort"; None if unknown.
    """

    id: str
    model: str
    token_ids: list[int]
    tokens: Tokens
    prompt_len: int
    first_row: int
    layers: tuple[int, ...]
    heads: tuple[int, ...] | None
    spans: dict[str, tuple[int, int]]
    statistics: dict[str, Tensor] = field(repr=False)
    recording_file: Path | None = None
    answer_tokens: int | None = None
    finish_reason: str | None = None

    @classmethod
    def of(cls, finished: FinishedRequest, model: str, tokens: Tokens) -> SeenRequest:
        """Return the statistics of a request that has just finished."""
        return cls(
            str(finished.id),
            model,
            finished.token_ids,
            tokens,
            finished.prompt_len,
            finished.first_row,
            finished.layers,
            finished.heads,
            dict(finished.spans),
            finished.statistics,
            answer_tokens=finished.answer_tokens,
            finish_reason=finished.finish_reason,
        )

    @property
    def entropy(self) -> Float[Tensor, "layers heads rows"]:
        """Entropy of each row in nats."""
        return self._statistic("entropy")

    @property
    def distance(self) -> Float[Tensor, "layers heads rows"]:
        """Mean distance of each row."""
        return self._statistic("distance")

    @property
    def peak(self) -> Float[Tensor, "layers heads rows"]:
        """Largest score of each row."""
        return self._statistic("peak")

    @property
    def sink(self) -> Float[Tensor, "layers heads rows"]:
        """Weight of each row on the first key."""
        return self._statistic("sink")

    @property
    def received(self) -> Float[Tensor, "layers heads kv_len"]:
        """Attention that each key receives from all observed rows."""
        return self._statistic("received")

    @property
    def mass(self) -> Float[Tensor, "layers heads rows spans"]:
        """Attention of each row on each span."""
        return self._statistic("mass")

    @property
    def top(self) -> TopK:
        """Largest weights of each row, with their keys."""
        return TopK(self._statistic("top_weights"), self._statistic("top_keys"))

    @property
    def first_answer_row(self) -> int:
        """Index of the first row that predicts a token of the answer."""
        rows = len(self.token_ids) - self.first_row
        return max(0, min(self.prompt_len - 1 - self.first_row, rows))

    @property
    def means(self) -> dict[str, Any]:
        """Means over all layers and heads, for the rows of the prompt and of the answer; as in the JSON lines."""
        phases = phases_of(len(self.token_ids) - self.first_row, self.first_answer_row, self.answer_tokens)
        return {phase: means_of_heads(head_means(self.statistics, rows), self.spans) for phase, rows in phases.items()}

    @cached_property
    def recording(self) -> Recording | None:
        """Recording of the request, read from its file; None if it was not recorded."""
        path = self.recording_file
        return Recording.load(path) if path is not None and path.is_file() else None

    def _statistic(self, name: str) -> Tensor:
        if name not in self.statistics:
            observed = ", ".join(self.statistics) or "no statistics"
            raise AttributeError(f"{name} was not observed; the request has {observed}")
        return self.statistics[name]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the statistics to one safetensors file, without the recording."""
        names = ("model", "prompt_len", "first_row", "layers", "heads", "spans", "answer_tokens", "finish_reason")
        facts = {name: getattr(self, name) for name in names} | {"request": self.id, "tokens": asdict(self.tokens)}
        tensors = {**self.statistics, "token_ids": torch.tensor(self.token_ids, dtype=torch.int64)}
        serialization.write(path, tensors, {"format": FORMAT, "version": VERSION, **facts})

    @classmethod
    def load(cls, path: str | os.PathLike[str], *, recording_file: Path | None = None) -> SeenRequest:
        """Read a file written by `save`."""
        tensors, facts = serialization.read(path, FORMAT, VERSION, "cpu")
        try:
            ids = tensors.pop("token_ids").tolist()
            heads, tokens = facts["heads"], facts["tokens"]
            return cls(
                facts["request"],
                facts["model"],
                ids,
                Tokens(*(tuple(tokens[name]) for name in ("texts", "special", "words"))),
                facts["prompt_len"],
                facts["first_row"],
                tuple(facts["layers"]),
                None if heads is None else tuple(heads),
                {name: (start, end) for name, (start, end) in facts["spans"].items()},
                tensors,
                recording_file,
                facts.get("answer_tokens"),  # files of clearhead 0.2 have neither
                facts.get("finish_reason"),
            )
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ValueError(f"{path}: saved by SeenRequest.save, but damaged ({one_line(error)})") from None


class SeenRequests(Mapping[str, SeenRequest]):
    """Requests whose statistics are in an output folder, in the order in which they finished.

    A request is found by the id that its client uses, or by its unique id in the engine. The folder may grow: each
    access reads what it contains now.

    Args:
        folder: output folder of a server with `arrays=True`.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(folder)
        self._ids: dict[str, str] = {}
        self._size = 0

    def __getitem__(self, request: str) -> SeenRequest:
        unique = self._unique_ids().get(request, request)
        path = statistics_path(self.folder, unique)
        if not path.is_file():
            raise KeyError(request)
        return SeenRequest.load(path, recording_file=recording_path(self.folder, unique))

    def __iter__(self) -> Iterator[str]:
        ids = self._unique_ids()
        return (request for request, unique in ids.items() if statistics_path(self.folder, unique).is_file())

    def _unique_ids(self) -> dict[str, str]:
        """Return the unique ids by those of the clients. If one repeats, it is that of the last request."""
        size = sum(path.stat().st_size for path in _files_of_lines(self.folder))
        if size != self._size:  # otherwise reading n requests would read the file n times
            self._ids = {line["request"]: line.get("id", line["request"]) for line in read_requests(self.folder)}
            self._size = size
        return self._ids

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __repr__(self) -> str:
        return f"SeenRequests({os.fspath(self.folder)!r}: {len(self)} requests)"


def read_requests(folder: str | os.PathLike[str]) -> Iterator[dict[str, Any]]:
    """Yield the JSON objects of a folder's `requests.jsonl`, one per request, after those of `requests.1.jsonl`.

    Lines that a killed process or a full disk left incomplete are skipped.
    """
    for path in _files_of_lines(Path(folder)):
        with path.open(encoding="utf-8", errors="replace") as file:
            yield from _requests_of(path, file)


def _files_of_lines(folder: Path) -> list[Path]:
    return [path for path in (folder / EARLIER_REQUESTS, folder / REQUESTS) if path.is_file()]


def _requests_of(path: Path, file: Iterable[str]) -> Iterator[dict[str, Any]]:
    for index, text in enumerate(file, 1):
        line = text.strip()
        if not line:
            continue
        try:
            record = json.loads(line)
        except (ValueError, RecursionError):
            if line.startswith(OPENING) or OPENING.startswith(line):
                continue
            raise ValueError(f"{path}: line {index} is not a JSON object; expected one request per line") from None
        if isinstance(record, dict) and "request" in record:
            yield record
