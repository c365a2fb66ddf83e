"""Tests of the viewer's data: heatmaps, overviews, thumbnails, caching, top tokens, row calculations."""

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead import Causal, Dense, attention
from clearhead._utils import color_scales
from clearhead._utils.text import short_token
from clearhead.analysis import HeadStatistics, RelationScore, Roles
from clearhead.recording.recording import Stack
from clearhead.viewer import _heatmap, _payloads, _recording_cache, _thumbnails
from clearhead.viewer._heatmap import HeadOverview, HeatmapWindow, ProgressiveHeatmap
from clearhead.viewer._recording_cache import RecordingCache
from clearhead.viewer._row_calculation import calculate_row
from clearhead.viewer._top_tokens import top_tokens
from clearhead.weights.indexing import evenly_spaced
from support.crafted_recordings import looking_at, weights_of
from support.crafted_recordings import recording as crafted
from support.recordings import decoder, layer, tokens, translation

REDUCE = {"max": np.max, "mean": np.mean}


def compute(progressive):
    """Compute all bands and return their number."""
    count = 0
    while not progressive.finished:
        progressive.advance()
        count += 1
    return count


def check(heatmap, dense, reduce):
    """Compare each bin with the cells in its range."""
    row, row_end, key, key_end = heatmap.window
    down, across = heatmap.bin_size
    for i, start in enumerate(range(row, row_end, down)):
        for j, first in enumerate(range(key, key_end, across)):
            cells = dense[start : min(start + down, row_end), first : min(first + across, key_end)]
            # in float32 the error of exp(score) grows with |score|
            assert heatmap.values[i, j] == pytest.approx(REDUCE[reduce](cells), abs=1e-5)
    assert heatmap.values.shape == (math.ceil((row_end - row) / down), math.ceil((key_end - key) / across))


@given(data=st.data())
def test_heatmap_pools_the_matrix_in_bins(data):
    q_len, kv_len = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    reduce, max_bins = data.draw(st.sampled_from(["mean", "max"])), data.draw(st.integers(1, 16))
    row, key = data.draw(st.integers(0, q_len - 1)), data.draw(st.integers(0, kv_len - 1))
    window = HeatmapWindow(row, data.draw(st.integers(row + 1, q_len)), key, data.draw(st.integers(key + 1, kv_len)))
    weights = layer(q_len, kv_len, heads=1, kv_heads=1, mask=data.draw(st.sampled_from([None, Causal()])))
    progressive = ProgressiveHeatmap(weights, window, max_bins, (reduce,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_heatmap.BAND_CELLS, "cpu", 50)
        compute(progressive)
    heatmap, dense = progressive.heatmap(reduce), weights.dense()[0, 0].numpy()
    check(heatmap, dense, reduce)
    assert heatmap.window.row <= window.row
    assert heatmap.window.row_end >= window.row_end
    assert heatmap.window.key <= window.key
    assert heatmap.window.key_end >= window.key_end
    assert max(heatmap.values.shape) <= max_bins + 1  # aligned bin edges may add one
    assert heatmap.window.row % heatmap.bin_size.rows == heatmap.window.key % heatmap.bin_size.keys == 0


@given(data=st.data())
def test_downsampled_and_cropped_heatmaps_match_the_matrix(data):
    reduce, max_bins = data.draw(st.sampled_from(["mean", "max"])), data.draw(st.integers(1, 30))
    weights = layer(37, 29, heads=1, kv_heads=1)
    dense = weights.dense()[0, 0].numpy()
    progressive = ProgressiveHeatmap(weights, HeatmapWindow(0, 37, 0, 29), data.draw(st.integers(1, 30)), (reduce,))
    compute(progressive)
    coarse = progressive.heatmap(reduce).downsampled(reduce, max_bins)
    check(coarse, dense, reduce)
    assert max(coarse.values.shape) <= max_bins
    row, key = data.draw(st.integers(0, 36)), data.draw(st.integers(0, 28))
    window = HeatmapWindow(row, data.draw(st.integers(row + 1, 37)), key, data.draw(st.integers(key + 1, 29)))
    cropped = progressive.heatmap(reduce).crop(window)
    check(cropped, dense, reduce)
    assert cropped.window.row <= row
    assert cropped.window.key_end >= window.key_end


def test_single_cells_equal_indexing():
    weights = layer(23, 31, heads=1, kv_heads=1, mask=Causal())
    progressive = ProgressiveHeatmap(weights, HeatmapWindow(4, 20, 3, 9), 512, ("max",))
    compute(progressive)
    assert (progressive.heatmap("max").values == weights[0, 0, 4:20, 3:9].numpy()).all()
    assert (progressive.heatmap("max").scores == weights.scores[0, 0, 4:20, 3:9].numpy()).all()
    assert ProgressiveHeatmap(weights, HeatmapWindow(0, 23, 0, 31), 16, ("max",)).heatmap("max").scores is None


def test_heatmaps_are_computed_in_bands(monkeypatch):
    monkeypatch.setitem(_heatmap.BAND_CELLS, "cpu", 2**10)
    weights = layer(128, 128, heads=1, kv_heads=1)
    assert compute(ProgressiveHeatmap(weights, HeatmapWindow(0, 128, 0, 128), 64, ("max",))) == 128 * 128 / 2**10


def test_overview_has_both_heatmaps_and_both_profiles(monkeypatch):
    monkeypatch.setattr(_heatmap, "MAX_OVERVIEW_BINS", 16)
    monkeypatch.setitem(_heatmap.BAND_CELLS, "cpu", 500)
    weights = layer(61, 53, heads=1, kv_heads=1, mask=Causal())
    overview = HeadOverview(weights)
    progress = []
    while not overview.finished:
        overview.advance()
        progress.append(overview.progress)
    assert len(progress) > 4
    assert progress == sorted(progress)
    assert progress[-1] == 1
    for reduce in ("mean", "max"):
        check(overview.heatmaps.heatmap(reduce), weights.dense()[0, 0].numpy(), reduce)
    np.testing.assert_allclose(overview.entropy, weights.entropy()[0, 0], atol=1e-5)
    np.testing.assert_allclose(overview.received, weights.received()[0, 0], atol=1e-5)


def test_hidden_keys_are_excluded_from_heatmaps_but_not_from_profiles():
    weights = layer(12, 12, heads=1, kv_heads=1)
    overview = HeadOverview(weights, weights.hiding([0, 5]))
    compute(overview)
    expected = weights.dense()[0, 0].clone()
    expected[:, [0, 5]] = 0
    np.testing.assert_allclose(overview.heatmaps.heatmap("max").values, expected, atol=1e-6)
    np.testing.assert_allclose(overview.received, weights.received()[0, 0], atol=1e-5)


def test_overview_of_a_scaled_matrix_has_the_entropy_of_the_unscaled_one():
    weights = layer(9, 9, heads=1, kv_heads=1, mask=Causal())
    scaled = weights.scaled(torch.linspace(0, 2, 9))
    overview = HeadOverview(scaled)
    compute(overview)
    np.testing.assert_allclose(overview.entropy, weights.entropy()[0, 0].numpy(), rtol=1e-5)
    np.testing.assert_allclose(overview.received, scaled.received()[0, 0].numpy(), rtol=1e-5)


@pytest.mark.parametrize("limit", [1, 4096], ids=["sampled", "exact"])
def test_thumbnails_of_a_scaled_matrix_have_the_entropy_of_the_unscaled_one(monkeypatch, limit):
    monkeypatch.setattr(_thumbnails, "MAX_EXACT_TOKENS", limit)
    recording = decoder(["a", "b", "c", "d"], layers=1)
    stack = recording["decoder"]
    scaled = replace(stack, layers=(stack.layers[0].scaled(torch.tensor([0.0, 1, 2, 3])),))
    expected = _thumbnails.layer_thumbnails("decoder", stack, 0)
    for thumbnail, plain in zip(_thumbnails.layer_thumbnails("decoder", scaled, 0), expected, strict=True):
        assert thumbnail.statistics.entropy == pytest.approx(plain.statistics.entropy, rel=1e-5)
        assert thumbnail.values[0, 0] == 0


def test_only_small_windows_are_exact():
    weights = layer(4, 4, heads=1, kv_heads=1)
    assert _heatmap.is_exact(weights, HeatmapWindow(0, 8192, 0, 8192))
    assert not _heatmap.is_exact(weights, HeatmapWindow(0, 8193, 0, 8192))


class TestThumbnails:
    def test_short_texts_are_exact(self):
        stack = decoder("abcdefghijklmnopqrs", special=(0,))["decoder"]
        thumbnails = _thumbnails.layer_thumbnails("decoder", stack, 1)
        assert len(thumbnails) == 4
        weights = stack.layers[1]
        for head, thumbnail in enumerate(thumbnails):
            np.testing.assert_allclose(thumbnail.values, weights.dense()[0, head], atol=1e-6)
            assert thumbnail.statistics.entropy == pytest.approx(float(weights.entropy()[0, head].mean()), abs=1e-5)
            assert thumbnail.statistics.delimiter is not None
            assert not thumbnail.sampled

    def test_long_texts_use_sampled_rows(self, monkeypatch):
        monkeypatch.setattr(_thumbnails, "MAX_EXACT_TOKENS", 100)
        monkeypatch.setattr(_thumbnails, "SAMPLED_QUERIES", 20)
        monkeypatch.setattr(_thumbnails, "MAX_THUMBNAIL_BINS", 16)
        stack = decoder([str(index) for index in range(210)])["decoder"]
        rows = torch.cat([torch.arange(210)[part] for part in evenly_spaced(210, 20)])
        for head, thumbnail in enumerate(_thumbnails.layer_thumbnails("decoder", stack, 0)):
            dense = stack.layers[0].dense()[0, head, rows]
            assert thumbnail.sampled
            assert thumbnail.statistics.queries == 20
            pooled = torch.nn.functional.adaptive_max_pool1d(dense, 16)
            for row, ends in ((0, slice(0, 8)), (19, slice(202, 210))):  # the ends of a text are always drawn
                end_rows = torch.nn.functional.adaptive_max_pool1d(stack.layers[0].dense()[0, head, ends], 16)
                pooled[row] = torch.maximum(pooled[row], end_rows.amax(dim=0))
            np.testing.assert_allclose(thumbnail.values, pooled, atol=1e-6)
            assert thumbnail.statistics.entropy == pytest.approx(
                float(torch.special.entr(dense).sum(-1).mean()), abs=1e-4
            )
            assert thumbnail.statistics.sink == pytest.approx(float(dense[:, 0].mean()), abs=1e-6)
            diagonal = torch.stack([dense[i, row] for i, row in enumerate(rows)])
            assert thumbnail.statistics.self == pytest.approx(float(diagonal.mean()), abs=1e-6)
            assert thumbnail.statistics.keys == pytest.approx(float((rows + 1).float().mean()))

    @given(length=st.integers(1, 20_000), count=st.integers(1, 200))
    def test_sampled_rows_are_evenly_spaced(self, length, count):
        rows = [row for part in evenly_spaced(length, count) for row in range(length)[part]]
        assert len(rows) == min(length, count)
        assert rows == sorted(set(rows))
        edges = [-1, *rows, length]
        gaps = {later - earlier for earlier, later in itertools.pairwise(rows)}
        assert max(gaps, default=0) - min(gaps, default=0) <= 1
        assert edges[1] - edges[0] <= length / count + 1
        assert edges[-1] - edges[-2] <= length / count + 1.5

    def test_previous_token_heads_are_labeled_exact_and_sampled(self, monkeypatch):
        """Each query equals the previous key."""
        key = torch.nn.functional.normalize(torch.randn(1, 1, 300, 32), dim=-1)
        query = 60 * key.roll(1, dims=2)
        _, weights = attention(query, key, key, mask=Causal(), return_weights=True)
        stack = Stack((weights,), tokens(["x"] * 300), tokens(["x"] * 300))
        exact = _thumbnails.layer_thumbnails("decoder", stack, 0)[0].statistics
        monkeypatch.setattr(_thumbnails, "MAX_EXACT_TOKENS", 100)
        sampled = _thumbnails.layer_thumbnails("decoder", stack, 0)[0].statistics
        for statistics in (exact, sampled):
            labels = Roles("", {("decoder", 0, 0): statistics}).labels(("decoder", 0, 0))
            assert {"previous token", "positional −1", "sharp"} <= set(labels)
        assert sampled.previous == pytest.approx(exact.previous, abs=0.05)

    @pytest.mark.parametrize("longest", [4096, 20], ids=["exact", "sampled"])
    def test_hidden_keys_are_masked_and_statistics_stay(self, longest, monkeypatch):
        monkeypatch.setattr(_thumbnails, "MAX_EXACT_TOKENS", longest)
        cache = RecordingCache(decoder([str(index) for index in range(30)], special=(0, 4)))
        shown, hidden = (_payloads.layer_payload(cache, "decoder", 1, hide=hide)["heads"] for hide in (False, True))
        assert cache.thumbnails("decoder", 1, hide=True) is cache.thumbnails("decoder", 1, hide=True)
        for head, (before, after) in enumerate(zip(shown, hidden, strict=True)):
            assert (before["entropy"], before["labels"]) == (after["entropy"], after["labels"])
            levels, masked = (np.frombuffer(payload["levels"], np.uint8).reshape(30, 30) for payload in (before, after))
            visible = cache.recording["decoder"].layers[1].dense()[0, head].numpy() > 0
            assert (levels > 0).tolist() == visible.tolist()  # 0 only where the mask is
            assert not masked[:, [0, 4]].any()
            others = [key for key in range(30) if key not in (0, 4)]
            assert masked[:, others].tolist() == levels[:, others].tolist()
        without_sinks = RecordingCache(translation("abcde", "xyz"))
        assert without_sinks.thumbnails("cross", 0, hide=True) is without_sinks.thumbnails("cross", 0)

    def test_shades_are_logarithmic(self):
        values = np.array([[1.0, 0.1 / 100, 0.0], [10**-1.5, 0.5, 1e-9]], np.float32)
        levels = color_scales.log_shades(values, 100)
        assert levels.dtype == np.uint8
        assert levels.tolist() == [[255, 0, 0], [128, levels[1, 1], 0]]
        assert 200 < levels[1, 1] < 255

    def test_repetitive_text_has_an_entropy(self):
        stack = decoder("abcdefghabcdefgh")["decoder"]
        assert _thumbnails.layer_thumbnails("decoder", stack, 0)[0].statistics.entropy is not None


class TestRecordingCache:
    def test_hidden_keys_are_special_and_first_tokens(self):
        cache = RecordingCache(translation("abcde", "xyz"))
        assert cache.hidden_keys("encoder") == [0]
        assert cache.hidden_keys("cross") == []
        assert RecordingCache(decoder("abcde", special=(0, 4))).hidden_keys("decoder") == [0, 4]
        assert RecordingCache(decoder("ab", special=(0, 1))).hidden_keys("decoder") == []  # would hide every key
        assert cache.weights(("encoder", 0, 1), hide=True).dense()[..., 0].sum() == 0
        assert cache.weights(("encoder", 0, 1)).dense()[..., 0].sum() > 0

    def test_least_recently_used_overviews_are_evicted(self, monkeypatch):
        cache = RecordingCache(decoder("abcdefghij"))
        first = cache.overview(("decoder", 0, 0))
        assert cache.overview(("decoder", 0, 0)) is first
        assert cache.overview(("decoder", 0, 0), hide=True) is not first
        monkeypatch.setattr(_recording_cache, "OVERVIEW_CACHE_BYTES", 2 * first.bytes)
        cache.overview(("decoder", 0, 0))  # most recently used
        cache.overview(("decoder", 0, 1))
        assert cache.overview(("decoder", 0, 0)) is first
        cache.overview(("decoder", 0, 2))
        cache.overview(("decoder", 0, 3))
        assert cache.overview(("decoder", 0, 0)) is not first

    def test_labels_come_from_roles_if_given(self):
        recording = decoder("abcdefghijklmnopqrstuvwxyz")
        statistics = _thumbnails.layer_thumbnails("decoder", recording["decoder"], 0)[0].statistics
        roles = Roles("a model", {("decoder", 0, 0): type(statistics)(4, induction=0.9, sink=0.5, keys=50.0)})
        cache = RecordingCache(recording, roles)
        assert cache.labels(("decoder", 0, 0)) == ("induction", "first token")
        assert cache.labels(("decoder", 1, 3)) == ()
        assert "induction" not in RecordingCache(recording).labels(("decoder", 0, 0))

    def test_labels_are_shown_most_specific_first(self):
        address = ("decoder", 0, 0)
        scores = {"sink": 0.9, "previous": 0.5, "induction": 0.4, "delimiter": 0.8, "positional": 0.95, "spread": 0.05}
        relation = RelationScore("amod", "dependent → head", address, 0.9, 0.8, 0.95, 99, 0.2, 1)
        roles = Roles("a model", {address: HeadStatistics(99, keys=50.0, offset=-1, **scores)}, (relation,))
        assert roles.labels(address)[0] == "sink"
        assert _recording_cache.labels_of(roles, address) == (
            "induction",
            "amod: dependent → head",
            "previous token",
            "positional −1",
            "delimiter",
            "first token",
            "sharp",
        )

    def test_first_head_is_the_sharpest_and_its_cell_the_strongest(self):
        cache = RecordingCache(translation("abcdefgh", "uvwxyz"))
        stack, _, head = cache.clearest_head()
        assert stack == "cross"
        entropies = cache.recording["cross"].layers[0].entropy()[0].mean(dim=-1)
        assert head == int(entropies.argmin())
        query, key = cache.strongest_cell((stack, 0, head))
        dense = cache.recording["cross"].layers[0].dense()[0, head]
        assert dense[query, key] == dense.max()

    def test_first_head_and_cell_of_a_long_text_are_not_those_of_sinks_or_neighbors(self, monkeypatch):
        """The head is found from sampled queries, without the thumbnails of all heads."""
        monkeypatch.setattr(_recording_cache, "MAX_MEASURED_CELLS", 100)
        monkeypatch.setattr(_recording_cache, "MAX_SEARCHED_CELLS", 100)
        monkeypatch.setattr(_recording_cache, "layer_thumbnails", None)
        queries = range(60)
        sinks = [looking_at([key] * 60) for key in (0, 7)]
        nearby = [looking_at([max(0, query - offset) for query in queries]) for offset in (0, 1, 3)]
        far = 0.6 * looking_at([query // 2 for query in queries]) + 0.4 * sinks[0]
        layers = [
            weights_of(torch.stack(heads), Causal()) for heads in (sinks + nearby[:1], [nearby[1], far, nearby[2]])
        ]
        cache = RecordingCache(crafted(*layers, name="decoder"))
        assert cache.clearest_head() == ("decoder", 1, 1)
        query, key = cache.strongest_cell(("decoder", 1, 1))
        assert query >= 30
        assert key == query // 2
        short = RecordingCache(crafted(*layers, name="decoder"))
        monkeypatch.undo()
        assert short.clearest_head() in (("decoder", 1, 1), ("decoder", 1, 2))


@pytest.mark.parametrize("direction", ["from", "to"])
def test_top_tokens_have_the_largest_weights(direction):
    stack = decoder("abcdefghijk")["decoder"]
    *_, top = top_tokens(stack, direction, 6)
    assert [row[:2] for row in top.heads] == [(layer_index, head) for layer_index in range(2) for head in range(4)]
    mean = torch.zeros(11)
    for layer_index, head, tokens_of_head in top.heads:
        dense = stack.layers[layer_index].dense()[0, head]
        cells = dense[6] if direction == "from" else dense[:, 6]
        mean += cells / 8
        values, indices = cells.topk(5)
        assert [index for index, _ in tokens_of_head] == indices[values > 0].tolist()
        assert [weight for _, weight in tokens_of_head] == pytest.approx(values[values > 0].tolist(), abs=1e-6)
    assert [index for index, _ in top.everywhere] == mean.topk(5).indices.tolist()


def test_hidden_keys_are_left_out_of_token_lists():
    cache = RecordingCache(decoder("abcdefghijk", special=(0, 3)))
    *_, shown = _payloads.top_tokens_payload(cache, "decoder", 9, 2)
    *_, without = _payloads.top_tokens_payload(cache, "decoder", 9, 2, hide=True)
    assert without["to"] == shown["to"]
    mean = torch.cat([weights[0, :, 9] for weights in cache.recording["decoder"].layers]).mean(dim=0)
    mean[[0, 3]] = 0
    assert [index for index, _, _ in without["from"]["everywhere"]] == mean.topk(5).indices.tolist()
    listed = {index for _, _, tokens_of_head in without["from"]["heads"] for index, _, _ in tokens_of_head}
    assert not listed & {0, 3}
    assert {index for _, _, tokens_of_head in shown["from"]["heads"] for index, _, _ in tokens_of_head} & {0, 3}


class TestRowCalculation:
    def test_each_step_follows_from_the_previous_one(self):
        weights = layer(9, 13, heads=1, kv_heads=1)
        calculation = calculate_row(weights, 4, 7)
        row = weights[0, 0, 4]
        assert [term.key for term in calculation.terms][:5] == row.topk(5).indices.tolist()
        assert 7 in [term.key for term in calculation.terms]
        total = np.zeros(8)
        for term in calculation.terms:
            assert term.product == pytest.approx(float(np.dot(calculation.query, term.vector)), rel=1e-4)
            assert term.scaled == pytest.approx(term.product * calculation.scale, rel=1e-5)
            assert term.score == pytest.approx(term.capped, rel=1e-4)
            assert term.weight == pytest.approx(math.exp(term.score - calculation.lse), rel=1e-4)
            np.testing.assert_allclose(
                term.contribution, term.weight * weights.value[0, 0, term.key].numpy(), rtol=1e-4, atol=1e-6
            )
            total += term.contribution
        assert calculation.others == pytest.approx(1 - sum(term.weight for term in calculation.terms), abs=1e-5)
        np.testing.assert_allclose(calculation.output, (row @ weights.value[0, 0]).numpy(), atol=1e-5)

    def test_includes_softcap_bias_and_mask(self):
        query, key = torch.randn(1, 1, 5, 8), torch.randn(1, 1, 11, 8)
        bias, allowed = torch.randn(1, 1, 5, 11), torch.ones(1, 1, 5, 11, dtype=torch.bool)
        allowed[..., 3] = False
        options = {"softcap": 2.0, "bias": bias, "mask": Dense(allowed), "scale": 0.5}
        _, weights = attention(4 * query, key, key, return_weights="keep_qk", **options)
        calculation = calculate_row(weights, 2, 3)
        (masked,) = [term for term in calculation.terms if term.key == 3]
        assert masked.score == -math.inf
        assert masked.weight == 0
        for term in calculation.terms:
            if term.key != 3:
                assert term.capped == pytest.approx(2 * math.tanh(term.scaled / 2), rel=1e-4)
                assert term.score == pytest.approx(term.capped + float(bias[0, 0, 2, term.key]), rel=1e-3, abs=1e-4)

    def test_vectors_are_none_if_only_scores_are_stored(self):
        query, key = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 11, 8)
        _, weights = attention(query, key, key, return_weights=True)
        calculation = calculate_row(weights.without_values(), 0, 3)
        assert calculation.query is None
        assert calculation.output is None
        assert all(term.vector is term.product is term.contribution is None for term in calculation.terms)
        assert calculation.terms[0].weight == pytest.approx(float(weights[0, 0, 0].max()))


@pytest.mark.parametrize(
    ("token", "columns", "expected"),
    [
        ("plain", 14, "plain"),
        ("\n", 14, "\\n"),
        ("", 14, '""'),
        ("x" * 10_000, 14, "x" * 13 + "…"),
        ("日本語日本語日本語", 14, "日本語日本語…"),
        ("</script>", 14, "</script>"),
        ("\u202eabc", 14, "\\u202eabc"),
    ],
)
def test_short_token_escapes_and_truncates(token, columns, expected):
    assert short_token(token, columns) == expected
