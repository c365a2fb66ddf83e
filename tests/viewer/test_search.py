"""Tests of the search for text, of the strongest links of a query, and of the table of statistics."""

import pytest
import torch

from clearhead.recording import Tokens
from clearhead.viewer import _search
from clearhead.viewer._heatmap import HeatmapWindow
from clearhead.viewer._payloads import layer_payload, model_payload
from clearhead.viewer._recording_cache import RecordingCache
from clearhead.viewer._search import find_text, search_payload
from clearhead.viewer._statistics_table import COLUMNS, statistics_row, used_columns
from clearhead.viewer._token_links import MAX_LINKS, strongest_links, token_picture
from clearhead.viewer.server._page_state import PageState
from clearhead.viewer.server._panels.find import FindPanel
from clearhead.viewer.server._panels.panel import Selection
from support.recordings import decoder, translation


def ranges(texts, wanted, words=None):
    axis = Tokens(tuple(texts), (False,) * len(texts), tuple(range(len(texts)) if words is None else words))
    result = find_text(axis, wanted)
    assert result.count == len(result.ranges)
    return result.ranges


class TestSearch:
    TEXT = ("The", " secret", " pass", "word", " is", " 'blue", "bird", "'.", "\n", "\n", "BLUE", " BIRD")

    def test_words_that_are_split_into_tokens_are_matched(self):
        assert ranges(self.TEXT, "password") == [(2, 4)]
        assert ranges(self.TEXT, "bluebird") == [(5, 7)]
        assert ranges(self.TEXT, "Bird") == [(6, 7), (11, 12)]
        assert ranges(self.TEXT, "e") == [(0, 1), (1, 2), (5, 6), (10, 11)]  # once per token
        assert ranges(self.TEXT, "red") == []

    def test_white_space_is_one_space(self):
        assert ranges(self.TEXT, "secret\t  password") == [(1, 4)]
        assert ranges(self.TEXT, "'. blue") == [(7, 11)]
        assert ranges(self.TEXT, " is ") == [(4, 6)]
        assert ranges(self.TEXT, "thesecret") == []
        assert ranges(self.TEXT, "") == ranges(self.TEXT, " \n") == []

    def test_tokens_without_spaces_ignore_spaces(self):
        assert ranges(["my", "mother", "was"], "my mother") == [(0, 2)]
        assert ranges(["昨日", "学校", "から"], "学校から") == [(1, 3)]
        assert ranges(["un", "##bel", "##ie", "."], "unbelie", [0, 0, 0, 1]) == [(0, 3)]
        assert ranges(["a", "##", "b"], "##") == [(1, 2)]  # not a part of a word

    def test_letters_that_change_their_length_in_lower_case(self):
        assert ranges(["ﬃ", "İx", "ß", "y"], "SSY") == [(2, 4)]
        assert ranges(["ﬃ", "İx", "ß", "y"], "x") == [(1, 2)]

    def test_ranges_are_bounded_and_all_hits_are_counted(self, monkeypatch):
        monkeypatch.setattr(_search, "MAX_HITS", 3)
        payload = search_payload(decoder(["a", "b"] * 10)["decoder"], "keys", "A")
        assert payload == {"axis": "keys", "text": "A", "ranges": [[0, 1], [2, 3], [4, 5]], "count": 10}

    def test_wrong_requests_are_refused(self):
        stack = translation("abc", "xy")["cross"]
        assert search_payload(stack, "queries", "y")["ranges"] == [[1, 2]]
        with pytest.raises(ValueError, match="the search text has 201 characters; expected at most 200"):
            search_payload(stack, "keys", "a" * 201)
        with pytest.raises(ValueError, match="axis is 'rows'; expected 'queries' or 'keys'"):
            search_payload(stack, "rows", "a")


def last(steps):
    """Return the payload of a task, after one None per layer."""
    *nothing, payload = steps
    assert set(nothing) == {None}
    return payload


class TestLinks:
    RECORDING = decoder("abcdefghijklmnop", special=(3,))

    def rows(self, query, hidden):
        cells = torch.stack([weights[0, :, query] for weights in self.RECORDING["decoder"].layers])
        cells[..., hidden] = 0
        return cells

    @pytest.mark.parametrize(("query", "options", "hidden"), [(None, {}, [0, 3]), (9, {"hide": False}, [])])
    def test_links_are_the_largest_weights_over_all_heads(self, query, options, hidden):
        payload = last(strongest_links(RecordingCache(self.RECORDING), "decoder", query, limit=6, **options))
        query = 15 if query is None else query
        cells = self.rows(query, hidden)
        values, positions = cells.flatten().topk(6)
        assert payload["query"] == query
        assert [link["weight"] for link in payload["links"]] == pytest.approx(values.tolist())
        for link, position in zip(payload["links"], positions.tolist(), strict=True):
            assert ((link["layer"] * 4) + link["head"]) * 16 + link["key"] == position
            assert link["distance"] == query - link["key"]
            assert link["token"] == "abcdefghijklmnop"[link["key"]]

    def test_near_keys_can_be_left_out(self):
        cache = RecordingCache(self.RECORDING)
        far = last(strongest_links(cache, "decoder", min_distance=5, limit=1000))["links"]
        assert min(link["distance"] for link in far) == 5
        assert len(far) <= MAX_LINKS
        everything = last(strongest_links(cache, "decoder", limit=1000))["links"]
        assert min(link["distance"] for link in everything) == 0
        assert last(strongest_links(RecordingCache(translation("abc", "xy")), "cross"))["links"][0]["distance"] is None

    def test_picture_has_the_top_key_of_each_head(self):
        payload = last(token_picture(RecordingCache(self.RECORDING), "decoder", 9))
        top = self.rows(9, [0, 3]).max(dim=-1)
        assert [[cell[0] for cell in layer] for layer in payload["layers"]] == top.indices.tolist()
        assert [cell[2] for layer in payload["layers"] for cell in layer] == pytest.approx(
            top.values.flatten().tolist()
        )
        assert payload["layers"][1][2][1] == "abcdefghijklmnop"[payload["layers"][1][2][0]]
        first = last(token_picture(RecordingCache(self.RECORDING), "decoder", 0))  # attends to the sink only
        assert first["layers"] == [[None] * 4] * 2


class DirectTasks:
    """Tasks that run at once."""

    def __init__(self):
        self.waiting = set()  # kinds that would wait for other tasks

    def start(self, kind, steps, *, background=False):
        if background:
            self.waiting.add(kind)
        for update in steps:
            if update is not None:
                update()


class TestPanel:
    def panel(self, cursor=None):
        recording = decoder("abcdefghijklmnop", special=(3,))
        shown = Selection(RecordingCache(recording), ("decoder", 1, 2), HeatmapWindow(0, 16, 0, 16), cursor)
        return FindPanel(PageState(), DirectTasks(), lambda: shown, texts=None)

    def ask(self, kind, cursor=None, **request):
        panel = self.panel(cursor)
        panel.handlers[kind](request)
        return getattr(panel.state, kind)

    def test_answers_are_those_of_the_shown_stack(self):
        assert self.ask("search", axis="keys", text="cd")["ranges"] == [[2, 4]]
        assert self.ask("search", axis="keys", text="cd")["stack"] == "decoder"
        assert self.ask("links")["query"] == 15
        assert self.ask("links", cursor=(4, 2))["query"] == 15
        assert all(link["key"] not in (0, 3) for link in self.ask("links")["links"])
        assert any(link["key"] == 0 for link in self.ask("links", hide=False)["links"])
        assert min(link["distance"] for link in self.ask("links", min_distance=4)["links"]) >= 4
        assert self.ask("picture")["query"] == 15
        assert self.ask("picture", cursor=(4, 2))["query"] == 4

    def test_where_a_token_looks_is_answered_before_the_thumbnails(self):
        panel = self.panel()
        for kind in ("links", "picture"):
            panel.handlers[kind]({})
        assert panel.tasks.waiting == {"picture"}

    @pytest.mark.parametrize("kind", ["links", "picture"])
    @pytest.mark.parametrize("query", [-5, 10**30, 7.9, "9"])
    def test_queries_are_clamped(self, kind, query):
        assert 0 <= self.ask(kind, query=query)["query"] <= 15

    @pytest.mark.parametrize(
        ("kind", "request_fields"),
        [
            ("search", {}),
            ("search", {"axis": [], "text": "a"}),
            ("search", {"axis": "keys", "text": "a" * 201}),
            ("links", {"query": "x"}),
            ("links", {"query": [3]}),
            ("links", {"min_distance": {}, "query": float("nan")}),
            ("picture", {"query": float("inf")}),
        ],
    )
    def test_wrong_requests_raise_errors_that_the_page_shows(self, kind, request_fields):
        with pytest.raises((KeyError, TypeError, ValueError, OverflowError)):
            self.ask(kind, **request_fields)


def test_table_has_a_row_for_every_head_and_the_columns_that_have_values():
    recording = translation("abcdab", "xyzx")
    cache = RecordingCache(recording)
    statistics = {address: cache.thumbnails(*address[:2])[address[2]].statistics for address in recording.heads()}
    columns = used_columns(statistics)
    headings = [column.heading for column in columns]
    assert "induction" in headings
    assert "delimiter" not in headings  # there are no special tokens
    rows = [statistics_row(address, head, (), columns) for address, head in statistics.items()]
    assert all(len(row["cells"]) == len(headings) for row in rows)
    entropy = float(recording.weights(("cross", 0, 1)).entropy().mean())
    row = next(row for row in rows if row["id"] == "cross.0.1")
    assert float(row["cells"][headings.index("entropy")]) == pytest.approx(entropy, abs=1e-3)
    assert row["cells"][headings.index("induction")] == ""
    assert model_payload(cache)["columns"] == [list(column) for column in COLUMNS]
    values = layer_payload(cache, "encoder", 0)["heads"][1]["statistics"]
    assert list(values) == [column.name for column in COLUMNS]
    dense = recording.weights(("encoder", 0, 1)).dense()[0, 0]
    assert values["text_induction"] == pytest.approx(float(dense[4, 1] + dense[5, 2]) / 2, abs=1e-6)
