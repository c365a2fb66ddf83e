"""Tests of the words that a page shows: windows of long texts, written tokens, next tokens, languages."""

import dataclasses

import pytest
import torch

from clearhead import Recording
from clearhead.recording.next_tokens import NextTokens
from clearhead.recording.row_labels import row_label
from clearhead.viewer import _words_payload
from clearhead.viewer._heatmap import HeatmapWindow
from clearhead.viewer._recording_cache import RecordingCache
from clearhead.viewer._words_payload import (
    next_tokens_payload,
    row_payload,
    stack_languages,
    word_window,
    words_payload,
)
from support.recordings import decoder, translation

SHORT = RecordingCache(decoder("abcdefghijkl"))
LONG = RecordingCache(decoder([f"t{index}" for index in range(300)], sharpness=4.0))
HEAD = ("decoder", 1, 2)


def test_short_text_is_shown_as_a_whole_in_any_window():
    shown = word_window(SHORT, HEAD, HeatmapWindow(2, 5, 1, 4), (3, 2))
    assert shown.queries == shown.keys == tuple(range(12))
    payload = words_payload(SHORT, HEAD, shown)
    assert payload["query_tokens"] == payload["key_tokens"] == list("abcdefghijkl")
    assert payload["written"] is None
    weights = torch.from_numpy(payload["weights"]).view(4, 12, 12)
    assert torch.equal(weights, SHORT.recording["decoder"].layers[1].dense()[0])


@pytest.mark.parametrize(
    ("window", "cursor", "first", "count"),
    [
        ((0, 300, 0, 300), (150, 3), 138, 20),  # around the cursor, in steps of 8
        ((0, 300, 0, 300), (151, 3), 138, 20),
        ((0, 300, 0, 300), (299, 3), 280, 20),
        ((0, 300, 0, 300), (2, 3), 0, 20),
        ((0, 300, 0, 300), None, 0, 20),
        ((100, 140, 90, 130), (120, 110), 100, 40),  # the window of the heatmap
        ((100, 140, 90, 130), (200, 110), 194, 20),  # whose cursor is elsewhere
    ],
)
def test_long_text_is_shown_around_the_cursor(window, cursor, first, count):
    shown = word_window(LONG, HEAD, HeatmapWindow(*window), cursor)
    assert shown.queries == tuple(range(first, first + count))
    if cursor is None:
        return
    distant = set(shown.keys) - set(range(first - 10, first + count))
    strengths = LONG.recording["decoder"].layers[1][0, :, cursor[0]].amax(dim=0)
    assert int(strengths.argmax()) in shown.keys
    assert len(distant) <= 6


def test_layers_with_many_heads_send_fewer_tokens(monkeypatch):
    monkeypatch.setattr(_words_payload, "MAX_WEIGHTS", 4 * 18**2)
    shown = word_window(LONG, HEAD, HeatmapWindow(0, 300, 0, 300), (150, 3))
    assert len(shown.queries) == 12
    assert len(words_payload(LONG, HEAD, shown)["weights"]) <= 4 * 18**2


def test_written_tokens_label_rows_and_next_tokens_follow_the_query():
    probabilities = torch.tensor([[0.5, 0.25], [0.75, 0.125]])
    next_tokens = NextTokens((("e", "\n"), ("f", "g")), probabilities, (0, 2))
    recording = translation("abc", ["d", "e", "f", "x" * 30], written=["e", "f", "", "y" * 30])
    cache = RecordingCache(dataclasses.replace(recording, next_tokens=next_tokens))
    shown = word_window(cache, ("cross", 0, 0), HeatmapWindow(0, 4, 0, 3), None)
    assert words_payload(cache, ("cross", 0, 0), shown)["written"] == ["e", "f", "", "y" * 30]
    cross = recording["cross"]
    assert [row_label(cross, query, 14) for query in range(4)] == ["d → e", "e → f", "f", "xxxxx… → yyyy…"]
    assert next_tokens_payload(cache, "cross", 0) == {
        "stack": "cross",
        "query": 0,
        "tokens": [["e", 0.5], ["\\n", 0.25]],
    }
    assert next_tokens_payload(cache, "cross", 1) is None
    assert next_tokens_payload(cache, "encoder", 0) is None
    assert next_tokens_payload(SHORT, "decoder", 0) is None


def test_rows_of_wide_windows_are_not_sent(monkeypatch):
    row = row_payload(SHORT, HEAD, 7, HeatmapWindow(0, 12, 3, 9))
    assert row is not None
    assert (row["query"], row["start"]) == (7, 3)
    assert row["row"].tolist() == SHORT.recording.weights(HEAD)[0, 0, 7, 3:9].tolist()
    monkeypatch.setattr(_words_payload, "MAX_ROW_TOKENS", 5)
    assert row_payload(SHORT, HEAD, 7, HeatmapWindow(0, 12, 3, 9)) is None


@pytest.mark.parametrize(
    ("model", "cross"),
    [("en-ja", ["ja", "en"]), ("Helsinki-NLP/opus-mt-en-de", ["de", "en"]), ("a translator", None), ("gpt-2", None)],
)
def test_languages_come_from_the_name_of_the_model(model, cross):
    recording = Recording(model, translation("ab", "cd").stacks)
    assert stack_languages(recording, "cross") == cross
    assert stack_languages(Recording("en-ja", decoder("ab").stacks), "decoder") is None
