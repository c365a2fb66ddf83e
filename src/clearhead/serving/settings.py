"""`Settings` of the observation of a server, and `RequestOptions` that a client sends with one request."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from clearhead._utils.bounded_reads import read_text
from clearhead._utils.checks import check_bool, check_float, check_int, check_path, describe, list_items
from clearhead._utils.parsing import parse_bytes, parse_indices, shortened
from clearhead.serving.plugin import VARIABLE
from clearhead.serving.spans import SpanLike, checked_spans
from clearhead.serving.statistics import StatisticsWanted

_OFF = ("", "0")
_UNCLEAR = ("1", "true", "false", "yes", "no", "on", "off")  # would be odd names of a folder
_EXPECTED = "the folder for results, a .toml or .json file, JSON in braces, or 0 to observe nothing"
MAX_BYTES = 2**50
_MAX_INDEX = 10_000  # above the layers and heads of any model
_MAX_JSON = 2**23  # characters of the options of one request
_MAX_MESSAGE = 300  # characters of an error that a client causes


class Choice(NamedTuple):
    """Choice of one request: observed or not, and recorded or not."""

    observed: bool
    recorded: bool


@dataclass(frozen=True)
class Settings:
    """Settings of the observation of a server.

    Attributes:
        output: folder of the results, as an absolute path.
        entropy: compute the entropy of each query row.
        received: compute the attention that each key receives.
        distance: compute the mean distance of the keys of each query row.
        peak: compute the largest score of each query row.
        sink: compute the weight of each query row on the first key.
        top: number of largest weights of each query row to keep.
        spans: spans of tokens of all requests by name: (start, end), or a text of the prompt.
        layers: observed layers; None for all. Also a text such as "0,3-5".
        heads: observed heads of each layer; None for all. Also a text such as "0,3-5".
        share: share of the requests to observe, from 0 to 1.
        record: share of the observed requests to record, from 0 to 1. True is 1.
        values: store the values in recordings.
        arrays: write the statistics of each query row and head too.
        memory: bytes for the requests under way and for the queue of the writer. Also a text such as "2 GiB".
        max_disk: bytes that the output folder may take; the oldest results are deleted. Also a text such as "50 GiB".
            None for no limit.
        metrics: export metrics for Prometheus.
        layer_groups: number of groups of layers that the metrics distinguish.
        compile: compile the C++ functions that compute statistics on a CPU.
        client_options: follow all options that clients send with their requests, not only refusals.
    """

    output: Path
    entropy: bool = True
    received: bool = True
    distance: bool = False
    peak: bool = False
    sink: bool = True
    top: int = 0
    spans: Mapping[str, SpanLike] = field(default_factory=dict)
    layers: tuple[int, ...] | None = None
    heads: tuple[int, ...] | None = None
    share: float = 1.0
    record: float = 0.0
    values: bool = True
    arrays: bool = False
    memory: int = 2**30
    max_disk: int | None = None
    metrics: bool = True
    layer_groups: int = 4
    compile: bool = True
    client_options: bool = False

    def __post_init__(self) -> None:
        checked: dict[str, Any] = {
            "output": _folder(self.output),
            "top": check_int("top", self.top, 0, 1024),
            "spans": checked_spans("spans", self.spans),
            "layers": _indices("layers", self.layers),
            "heads": _indices("heads", self.heads),
            "share": _share("share", self.share),
            "record": _share("record", float(self.record) if isinstance(self.record, bool) else self.record),
            "memory": _bytes("memory", self.memory),
            "max_disk": None if self.max_disk is None else _bytes("max_disk", self.max_disk, 2**20),
            "layer_groups": check_int("layer_groups", self.layer_groups, 1, 1000),
        }
        flags = (
            "entropy",
            "received",
            "distance",
            "peak",
            "sink",
            "values",
            "arrays",
            "metrics",
            "compile",
            "client_options",
        )
        checked |= {name: check_bool(name, getattr(self, name)) for name in flags}
        for name, value in checked.items():
            object.__setattr__(self, name, value)

    @classmethod
    def from_environment(cls) -> Settings | None:
        """Return the settings of the environment variable CLEARHEAD_OBSERVE; None if it is unset, empty or 0.

        Its value is a folder for the results, a .toml or .json file, or JSON in braces.
        """
        value = os.environ.get(VARIABLE, "").strip()
        if value in _OFF:
            return None
        if value.lower() in _UNCLEAR:
            raise ValueError(f"{VARIABLE} is {value!r}; expected {_EXPECTED}")
        try:
            return cls.from_mapping(_read(value))
        except OSError as error:
            raise ValueError(f"{VARIABLE}: {shortened(value)} cannot be read ({error.strerror})") from None
        except (TypeError, ValueError) as error:
            raise ValueError(f"{VARIABLE}: {error}") from None

    @classmethod
    def from_mapping(cls, value: Mapping[str, Any]) -> Settings:
        """Return the settings of a dict, such as one that was read from a file."""
        keys = [entry.name for entry in dataclasses.fields(cls)]
        _check_keys("settings", value, keys)
        if "output" not in value:
            raise ValueError("output is missing; expected a folder for the results")
        return cls(**value)

    @property
    def wanted(self) -> StatisticsWanted:
        """Statistics to compute."""
        return StatisticsWanted(self.entropy, self.received, self.distance, self.peak, self.sink, self.top)

    def to_json(self) -> str:
        """Return the settings as JSON, which `from_mapping` reads."""
        return json.dumps({entry.name: _plain(getattr(self, entry.name)) for entry in dataclasses.fields(self)})

    def chooses(self, request_id: str, options: RequestOptions | None = None) -> Choice:
        """Return whether to observe and to record a request.

        The choice depends on the id only, so all processes of a server agree. Options of the request override it.
        """
        digest = hashlib.sha256(request_id.encode("utf-8", "surrogatepass")).digest()
        options = options or RequestOptions()
        observed = _fraction(digest[:8]) < self.share if options.observe is None else options.observe
        recorded = _fraction(digest[8:16]) < self.record if options.record is None else options.record
        observed = observed or options.record is True
        return Choice(observed, observed and recorded)


@dataclass(frozen=True)
class RequestOptions:
    """Options of one request, which its client sends in `extra_args` or `vllm_xargs` as "clearhead".

    Attributes:
        observe: observe the request; None: as the settings choose.
        record: record the request, which includes its observation; None: as the settings choose.
        spans: spans of tokens by name, in addition to those of the settings.
    """

    observe: bool | None = None
    record: bool | None = None
    spans: Mapping[str, SpanLike] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("observe", "record"):
            if getattr(self, name) is not None:
                check_bool(name, getattr(self, name))
        if self.record and self.observe is False:
            raise ValueError("observe is False, but record is True; expected True or None for both")
        object.__setattr__(self, "spans", checked_spans("spans", self.spans))

    @property
    def refusals(self) -> RequestOptions:
        """The options that refuse an observation or a recording, which every server follows."""
        observe, record = (False if wish is False else None for wish in (self.observe, self.record))
        return RequestOptions(observe, record)

    @classmethod
    def parse(cls, value: object) -> RequestOptions:
        """Return the options of a request. The value may come from a client that is not trusted.

        Args:
            value: a dict with the fields of the class or such a dict as JSON; True to observe the request, False to
                skip it, "record" to record it. 1 and 0 are True and False, as HTTP servers of vLLM pass them.

        Raises:
            ValueError or TypeError: with a short message, if the value is anything else.
        """
        try:
            return cls._parse(value)
        except (TypeError, ValueError) as error:
            message = str(error)
            short = message if len(message) <= _MAX_MESSAGE else f"{message[:_MAX_MESSAGE]}…"
            raise type(error)(short) from None

    @classmethod
    def _parse(cls, value: object) -> RequestOptions:
        if isinstance(value, str):
            if value == "record":
                return cls(record=True)
            if len(value) > _MAX_JSON:
                raise ValueError(f"clearhead has {len(value):,} characters; expected at most {_MAX_JSON:,}")
            value = _json("clearhead", value)
        if isinstance(value, int) and value in (0, 1):
            return cls(observe=bool(value))
        if not isinstance(value, Mapping):
            raise TypeError(f'clearhead is {describe(value)}; expected a dict, JSON, True, False or "record"')
        _check_keys("clearhead", value, [entry.name for entry in dataclasses.fields(cls)])
        return cls(**value)


def _read(value: str) -> Mapping[str, Any]:
    """Return the settings in JSON, in a file, or with a folder."""
    if value.startswith("{"):
        return _json("the JSON in braces", value)
    path = Path(value)
    if path.suffix == ".json":
        return _json(value, read_text(path))
    if path.suffix != ".toml":
        return {"output": value}
    try:
        return tomllib.loads(read_text(path))
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ValueError(f"{value} is not TOML ({error})") from None


def _json(name: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name} is not JSON ({error})") from None


def _check_keys(name: str, value: object, keys: list[str]) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"{name} is {describe(value)}; expected a dict")
    for key in value:
        if key not in keys:
            raise ValueError(f"{name} has the key {describe(key)}; expected {', '.join(keys)}")


def _folder(output: object) -> Path:
    """Return the absolute path of a folder, because processes of a server may change their directory."""
    text = os.fspath(check_path("output", output))
    if "\0" in text:
        raise ValueError(f"output is {shortened(text)}; expected a folder for the results")
    path = os.path.abspath(os.path.expanduser(text))
    if os.path.exists(path) and not os.path.isdir(path):
        raise ValueError(f"output is {shortened(text)}, which is a file; expected a folder for the results")
    return Path(path)


def _indices(name: str, value: object) -> tuple[int, ...] | None:
    if value is None:
        return None
    if isinstance(value, str):
        outside = f"; expected indices below {_MAX_INDEX} and the smaller one of a range first"
        return tuple(sorted(parse_indices(name, value, _MAX_INDEX, outside)))
    chosen = {check_int(name, index, 0, _MAX_INDEX - 1) for index in list_items(name, value)}
    if not chosen:
        raise ValueError(f"{name} is empty; expected at least one index, or None for all")
    return tuple(sorted(chosen))


def _share(name: str, value: object) -> float:
    expected = "a number from 0 to 1"
    share = check_float(name, value, expected)
    if not 0 <= share <= 1:
        raise ValueError(f"{name} is {describe(value)}; expected {expected}")
    return share


def _bytes(name: str, value: object, least: int = 1) -> int:
    return check_int(name, parse_bytes(name, value) if isinstance(value, str) else value, least, MAX_BYTES)


def _plain(value: object) -> object:
    return str(value) if isinstance(value, Path) else value


def _fraction(digest: bytes) -> float:
    """Return a number in [0, 1) of 53 bits, which float64 represents exactly."""
    return (int.from_bytes(digest, "big") >> 11) / 2**53
