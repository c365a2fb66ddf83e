"""Tests of the settings of a server's observation, and of the options of one request."""

import dataclasses
import json
import re
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clearhead.serving.settings import RequestOptions, Settings
from clearhead.serving.spans import MAX_NAME, MAX_SPANS, MAX_TEXT
from clearhead.serving.statistics import StatisticsWanted
from support.hostile_input import ARGUMENTS, NAMES

MINIMAL = {"output": "/results"}
PAIRS = st.tuples(st.integers(0, 1000), st.integers(1, 1000)).map(lambda pair: (pair[0], pair[0] + pair[1]))
PRINTABLE = st.characters(categories=["L", "N", "P", "S"])
SPANS = st.dictionaries(st.text(PRINTABLE, min_size=1, max_size=20), PAIRS | st.text(min_size=1), max_size=5)
INDICES = st.none() | st.sets(st.integers(0, 200), min_size=1).map(lambda chosen: tuple(sorted(chosen)))
SHARES = st.floats(0, 1)
FOLDERS = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]), min_size=1).map(
    "/results/{}".format
)


few = settings(max_examples=30, deadline=None)


@few
@given(
    st.builds(
        Settings,
        output=FOLDERS,
        **{name: st.booleans() for name in ("entropy", "received", "distance", "peak", "sink", "values", "arrays")},
        **{name: st.booleans() for name in ("metrics", "compile")},
        top=st.integers(0, 50),
        spans=SPANS,
        layers=INDICES,
        heads=INDICES,
        share=SHARES,
        record=SHARES,
        memory=st.integers(1, 2**40),
        layer_groups=st.integers(1, 100),
    )
)
def test_json_round_trip(written):
    text = written.to_json()
    assert text.isascii()
    assert Settings.from_mapping(json.loads(text)) == written


def test_wanted_statistics_are_those_of_the_fields():
    for field in dataclasses.fields(StatisticsWanted):
        default = getattr(Settings("/results"), field.name)
        changed = Settings("/results", **{field.name: 7 if field.name == "top" else not default})
        assert changed.wanted == dataclasses.replace(
            Settings("/results").wanted, **{field.name: getattr(changed, field.name)}
        )
        assert changed.wanted != Settings("/results").wanted


@pytest.fixture
def observe(monkeypatch):
    """Return a function that sets the environment variable and returns the settings."""

    def read(value):
        monkeypatch.setenv("CLEARHEAD_OBSERVE", str(value))
        return Settings.from_environment()

    return read


def test_nothing_is_observed_by_default(monkeypatch, observe):
    monkeypatch.delenv("CLEARHEAD_OBSERVE", raising=False)
    assert Settings.from_environment() is None
    for off in ("", "0", " "):
        assert observe(off) is None


def test_environment_names_a_folder(monkeypatch, tmp_path, observe):
    monkeypatch.chdir(tmp_path)
    seen = observe("seen")
    assert seen == Settings(tmp_path / "seen")
    monkeypatch.chdir("/")
    assert seen.output == tmp_path / "seen"
    assert observe("~/seen").output == Path.home() / "seen"


def test_environment_contains_json_or_names_a_file(tmp_path, observe):
    expected = Settings(
        "/results",
        layers=(0, 3, 4, 5),
        heads=(2,),
        share=0.5,
        record=1.0,
        memory=3 * 2**29,
        spans={"a": (2, 7), "b": "x"},
    )
    spans = {"a": [2, 7], "b": "x"}
    mapping = {
        **MINIMAL,
        "layers": "3-5,0",
        "heads": [2],
        "share": 0.5,
        "record": True,
        "memory": "1.5 GiB",
        "spans": spans,
    }
    assert observe(json.dumps(mapping)) == expected
    (tmp_path / "a.json").write_text(json.dumps(mapping))
    assert observe(tmp_path / "a.json") == expected
    lines = [
        'output = "/results"',
        'layers = "3-5,0"',
        "heads = 2",
        "share = 0.5",
        "record = true",
        'memory = "1.5 GiB"',
    ]
    (tmp_path / "a.toml").write_text("\n".join([*lines, "[spans]", "a = [2, 7]", 'b = "x"']))
    assert observe(tmp_path / "a.toml") == expected


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ('{"output": "x", "share": 2}', "CLEARHEAD_OBSERVE: share is 2; expected a number from 0 to 1"),
        ('{"output": "x", "share": "a"}', "CLEARHEAD_OBSERVE: share is 'a'; expected a number from 0 to 1"),
        ('{"share": 1}', "CLEARHEAD_OBSERVE: output is missing; expected a folder for the results"),
        ("{", "CLEARHEAD_OBSERVE: the JSON in braces is not JSON (Expecting property name"),
        ("true", "CLEARHEAD_OBSERVE is 'true'; expected the folder for results, a .toml or .json file, JSON in braces"),
        ("none.toml", "CLEARHEAD_OBSERVE: 'none.toml' cannot be read (No such file or directory)"),
        ("list.json", "CLEARHEAD_OBSERVE: settings is [1]; expected a dict"),
        ("broken.toml", "CLEARHEAD_OBSERVE: broken.toml is not TOML (Expected '=' after a key"),
        ("nested.toml", "CLEARHEAD_OBSERVE: nested.toml is not TOML ("),
        ("nested.json", "CLEARHEAD_OBSERVE: nested.json is not JSON ("),
        ("file", "CLEARHEAD_OBSERVE: output is 'file', which is a file; expected a folder"),
    ],
)
def test_errors_name_the_environment_variable(tmp_path, monkeypatch, observe, value, message):
    monkeypatch.chdir(tmp_path)
    files = {"list.json": "[1]", "broken.toml": "a b", "file": "", "nested.toml": "x = " + "[" * 5000}
    for name, text in {**files, "nested.json": "[" * 100_000}.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        observe(value)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"entropi": True}, "settings has the key 'entropi'; expected output, entropy, received, distance, peak, "),
        ({"entropy": 1}, "entropy is 1; expected True or False"),
        ({"top": -1}, "top is -1; expected a whole number of at least 0"),
        ({"top": 10**9}, "top is 1000000000; expected a whole number of at least 0 and at most 1024"),
        ({"record": float("nan")}, "record is nan; expected a number from 0 to 1"),
        ({"share": 10**400}, "share is an integer of 1329 bits; expected a number from 0 to 1"),
        ({"share": -0.5}, "share is -0.5; expected a number from 0 to 1"),
        ({"layers": "1-0"}, "layers is '1-0'; expected indices below 10000 and the smaller one of a range first"),
        ({"layers": "0-99999999"}, "layers is '0-99999999'; expected indices below 10000"),
        ({"layers": "a"}, "layers is 'a'; expected numbers and ranges such as 0,3-5"),
        ({"layers": []}, "layers is empty; expected at least one index, or None for all"),
        ({"heads": [-1]}, "heads is -1; expected a whole number of at least 0"),
        ({"heads": [1.5]}, "heads is 1.5; expected a whole number of at least 0"),
        ({"memory": "2 GB"}, "memory is '2 GB'; expected a size such as 500 MiB or 2 GiB"),
        ({"memory": "-1 GiB"}, "memory is '-1 GiB'; expected a size such as 500 MiB or 2 GiB"),
        ({"memory": 0}, "memory is 0; expected a whole number of at least 1"),
        ({"layer_groups": 0}, "layer_groups is 0; expected a whole number of at least 1"),
        ({"output": ""}, "output is ''; expected a path"),
        ({"output": "a\0b"}, r"output is 'a\x00b'; expected a folder for the results"),
        ({"output": 3}, "output is 3; expected a path, a str or os.PathLike"),
        ({"spans": {"a": (3, 3)}}, "spans['a'] is (3, 3); expected start < end"),
        ({"spans": {"a": ""}}, "spans['a'] has 0 characters; expected 1 to 100,000"),
        ({"spans": {"a": (1, 2, 3)}}, "spans['a'] is (1, 2, 3); expected (start, end) or a text of the prompt"),
        ({"spans": [(1, 2)]}, "spans is [(1, 2)]; expected (start, end) or a text of the prompt for each name"),
        ({"spans": {"": (1, 2)}}, "spans has the name ''; expected a printable name of 1 to 100 characters"),
    ],
)
def test_invalid_settings_are_refused_by_name(given, message):
    with pytest.raises((TypeError, ValueError)) as error:
        Settings.from_mapping({**MINIMAL, **given})
    assert str(error.value).startswith(message)


def test_shares_choose_requests_by_their_id():
    ids = [f"cmpl-{index}-810d6af8" for index in range(10_007)]
    some = Settings("/results", share=0.3, record=0.5)
    chosen = [some.chooses(request) for request in ids]
    assert abs(sum(choice.observed for choice in chosen) / len(ids) - 0.3) < 0.02  # 4 standard deviations
    assert abs(sum(choice.recorded for choice in chosen) / len(ids) - 0.15) < 0.02
    assert all(choice.observed for choice in chosen if choice.recorded)
    larger = Settings("/results", share=0.6, record=0.5)
    assert all(larger.chooses(request).observed for request, choice in zip(ids, chosen, strict=True) if choice.observed)
    # a fixed answer, because processes with other hash seeds must agree
    assert [index for index in range(20) if chosen[index].observed] == [8, 11]


@pytest.mark.parametrize("identity", [*NAMES, "\ud800", "0-810d6af8"])
def test_shares_of_0_and_1_choose_none_and_all(identity):
    assert Settings("/results").chooses(identity) == (True, False)
    assert Settings("/results", record=1.0).chooses(identity) == (True, True)
    assert Settings("/results", share=0.0, record=1.0).chooses(identity) == (False, False)


@pytest.mark.parametrize(
    ("options", "choices"),
    [
        (RequestOptions(), [(True, True), (False, False)]),
        (RequestOptions(observe=False), [(False, False), (False, False)]),
        (RequestOptions(observe=True), [(True, True), (True, False)]),
        (RequestOptions(record=True), [(True, True), (True, True)]),
        (RequestOptions(record=False), [(True, False), (False, False)]),
    ],
)
def test_options_of_a_request_override_the_choice(options, choices):
    everything, nothing = Settings("/results", record=True), Settings("/results", share=0, record=0)
    assert [chosen.chooses("a", options) for chosen in (everything, nothing)] == choices


@pytest.mark.parametrize(
    ("options", "refusals"),
    [
        (RequestOptions(observe=False, spans={"a": (0, 1)}), RequestOptions(observe=False)),
        (RequestOptions(observe=True, record=False), RequestOptions(record=False)),
        (RequestOptions(record=True), RequestOptions()),
    ],
)
def test_refusals_are_the_options_that_cost_nothing(options, refusals):
    assert options.refusals == refusals


@pytest.mark.parametrize(
    ("value", "options"),
    [
        (True, RequestOptions(observe=True)),
        (1, RequestOptions(observe=True)),
        (0, RequestOptions(observe=False)),
        ("true", RequestOptions(observe=True)),
        ("record", RequestOptions(record=True)),
        ({}, RequestOptions()),
        ({"record": True, "spans": {"a": [2, 3]}}, RequestOptions(record=True, spans={"a": (2, 3)})),
        ('{"observe": false, "spans": {"日本": "text"}}', RequestOptions(observe=False, spans={"日本": "text"})),
    ],
)
def test_options_of_a_request_are_parsed(value, options):
    assert RequestOptions.parse(value) == options


def nested(levels):
    value = []
    for _ in range(levels):
        value = [value] * 6
    return value


HOSTILE = [
    None,
    2,
    1.0,
    float("nan"),
    [],
    b"record",
    "[" * 100_000,
    "9" * 5000,
    "x" * 2**23 + "x",
    nested(9),
    {"record": nested(9)},
    {"spans": nested(9)},
    {"spans": {"a": nested(9)}},
    {"spans": {"a": [nested(9), 1]}},
    {"record": "yes"},
    {"record": 1},
    {3: True},
    {("a",): True},
    {"unknown" * 1000: True},
    {"observe": False, "record": True},
    {"spans": None},
    {"spans": {3: (1, 2)}},
    {"spans": {"x" * (MAX_NAME + 1): (1, 2)}},
    {"spans": {"line\nbreak": (1, 2)}},
    {"spans": {"\u202e": (1, 2)}},
    {"spans": {"\ud800": (1, 2)}},
    {"spans": {"a": "x" * (MAX_TEXT + 1)}},
    {"spans": {"a": (1, 10**5000)}},
    {"spans": {"a": (-1, 3)}},
    {"spans": {"a": (True, 3)}},
    {"spans": {"a": (0.0, 3)}},
    {"spans": {"a": "12", "b": 12}},
    {"spans": {str(index): (1, 2) for index in range(MAX_SPANS + 1)}},
    *[name for name in (*NAMES, *ARGUMENTS) if name not in ("0", "1")],
]


@pytest.mark.parametrize("value", HOSTILE, ids=map(str, range(len(HOSTILE))))
def test_hostile_options_of_a_request_are_refused_in_few_words(value):
    with pytest.raises((ValueError, TypeError)) as error:
        RequestOptions.parse(value)
    assert type(error.value) in (ValueError, TypeError)
    assert 0 < len(str(error.value)) <= 301


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text() | st.sampled_from(["observe", "record", "spans"]), inner),
)


@few
@given(JSON | JSON.map(json.dumps) | st.text())
def test_any_options_of_a_request_are_parsed_or_refused(value):
    with suppress(ValueError, TypeError):
        assert isinstance(RequestOptions.parse(value), RequestOptions)
