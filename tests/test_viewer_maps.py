"""What the viewer computes: windows in bins, overviews, small maps, where tokens look, the calculation of a row."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from clearhead import Causal, Dense, attention
from clearhead._utils import color_scales
from clearhead._utils.text import short_token
from clearhead.analysis.roles import Roles
from clearhead.functional import keeping_vectors
from clearhead.recording.recording import Stack
from clearhead.viewer import _heatmap, _thumbnails
from clearhead.viewer import _recording_cache as gallery_module
from clearhead.viewer._calculation import calculate
from clearhead.viewer._heatmap import Overview, Picture, Window
from clearhead.viewer._recording_cache import Gallery
from clearhead.viewer._top_tokens import looks
from clearhead.weights.indexing import evenly_spaced
from recordings import decoder, layer, tokens, translation

REDUCE = {"max": np.max, "mean": np.mean}


def filled(picture):
    count = 0
    while not picture.finished:
        picture.advance()
        count += 1
    return count


def check(plate, dense, reduce):
    """Each bin of a picture against the cells it says it holds."""
    row, row_end, key, key_end = plate.window
    down, across = plate.steps
    for i, start in enumerate(range(row, row_end, down)):
        for j, first in enumerate(range(key, key_end, across)):
            cells = dense[start : min(start + down, row_end), first : min(first + across, key_end)]
            # the exponent of a score of some size, in float32, is off by as many units in the last place
            assert plate.values[i, j] == pytest.approx(REDUCE[reduce](cells), abs=1e-5)
    assert plate.values.shape == (math.ceil((row_end - row) / down), math.ceil((key_end - key) / across))


@given(data=st.data())
def test_a_picture_is_the_matrix_in_bins(data):
    q_len, kv_len = data.draw(st.integers(1, 40)), data.draw(st.integers(1, 40))
    reduce, side = data.draw(st.sampled_from(["mean", "max"])), data.draw(st.integers(1, 16))
    row, key = data.draw(st.integers(0, q_len - 1)), data.draw(st.integers(0, kv_len - 1))
    window = Window(row, data.draw(st.integers(row + 1, q_len)), key, data.draw(st.integers(key + 1, kv_len)))
    weights = layer(q_len, kv_len, heads=1, kv_heads=1, mask=data.draw(st.sampled_from([None, Causal()])))
    picture = Picture(weights, window, side, (reduce,))
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(_heatmap.BAND, "cpu", 50)
        filled(picture)
    plate, dense = picture.plate(reduce), weights.dense()[0, 0].numpy()
    check(plate, dense, reduce)
    assert plate.window.row <= window.row
    assert plate.window.row_end >= window.row_end
    assert plate.window.key <= window.key
    assert plate.window.key_end >= window.key_end
    assert max(plate.values.shape) <= side + 1  # the lattice may add one
    assert plate.window.row % plate.steps.rows == plate.window.key % plate.steps.keys == 0


@given(data=st.data())
def test_coarser_and_cropped(data):
    reduce, side = data.draw(st.sampled_from(["mean", "max"])), data.draw(st.integers(1, 30))
    weights = layer(37, 29, heads=1, kv_heads=1)
    dense = weights.dense()[0, 0].numpy()
    picture = Picture(weights, Window(0, 37, 0, 29), data.draw(st.integers(1, 30)), (reduce,))
    filled(picture)
    coarse = picture.plate(reduce).coarser(reduce, side)
    check(coarse, dense, reduce)
    assert max(coarse.values.shape) <= side
    row, key = data.draw(st.integers(0, 36)), data.draw(st.integers(0, 28))
    window = Window(row, data.draw(st.integers(row + 1, 37)), key, data.draw(st.integers(key + 1, 29)))
    cropped = picture.plate(reduce).crop(window)
    check(cropped, dense, reduce)
    assert cropped.window.row <= row
    assert cropped.window.key_end >= window.key_end


def test_single_cells_are_the_numbers_that_indexing_gives():
    weights = layer(23, 31, heads=1, kv_heads=1, mask=Causal())
    picture = Picture(weights, Window(4, 20, 3, 9), 512, ("max",))
    filled(picture)
    assert (picture.plate("max").values == weights[0, 0, 4:20, 3:9].numpy()).all()
    assert (picture.plate("max").scores == weights.scores[0, 0, 4:20, 3:9].numpy()).all()
    assert Picture(weights, Window(0, 23, 0, 31), 16, ("max",)).plate("max").scores is None


def test_pictures_come_in_bands_that_can_be_left_off(monkeypatch):
    monkeypatch.setitem(_heatmap.BAND, "cpu", 2**10)
    weights = layer(128, 128, heads=1, kv_heads=1)
    assert filled(Picture(weights, Window(0, 128, 0, 128), 64, ("max",))) == 128 * 128 / 2**10


def test_an_overview_holds_both_maps_and_both_profiles(monkeypatch):
    monkeypatch.setattr(_heatmap, "OVERVIEW", 16)
    monkeypatch.setitem(_heatmap.BAND, "cpu", 500)
    weights = layer(61, 53, heads=1, kv_heads=1, mask=Causal())
    overview = Overview(weights)
    seen = []
    while not overview.finished:
        overview.advance()
        seen.append(overview.progress)
    assert len(seen) > 4
    assert seen == sorted(seen)
    assert seen[-1] == 1
    for reduce in ("mean", "max"):
        check(overview.picture.plate(reduce), weights.dense()[0, 0].numpy(), reduce)
    np.testing.assert_allclose(overview.entropy, weights.entropy()[0, 0], atol=1e-5)
    np.testing.assert_allclose(overview.received, weights.received()[0, 0], atol=1e-5)


def test_hidden_keys_leave_the_maps_but_not_the_profiles():
    weights = layer(12, 12, heads=1, kv_heads=1)
    overview = Overview(weights, hidden=[0, 5])
    filled(overview)
    expected = weights.dense()[0, 0].clone()
    expected[:, [0, 5]] = 0
    np.testing.assert_allclose(overview.picture.plate("max").values, expected, atol=1e-6)
    np.testing.assert_allclose(overview.received, weights.received()[0, 0], atol=1e-5)


def test_only_windows_that_are_not_too_large_are_computed_at_once():
    weights = layer(4, 4, heads=1, kv_heads=1)
    assert _heatmap.is_exact(weights, Window(0, 8192, 0, 8192))
    assert not _heatmap.is_exact(weights, Window(0, 8193, 0, 8192))


class TestThumbnails:
    def test_of_short_texts_they_are_exact(self):
        stack = decoder("abcdefghijklmnopqrs", special=(0,))["decoder"]
        found = _thumbnails.thumbnails("decoder", stack, 1)
        assert len(found) == 4
        weights = stack.layers[1]
        for head, own in enumerate(found):
            np.testing.assert_allclose(own.values, weights.dense()[0, head], atol=1e-6)
            assert own.statistics.entropy == pytest.approx(float(weights.entropy()[0, head].mean()), abs=1e-5)
            assert own.statistics.delimiter is not None
            assert not own.sampled

    def test_of_long_texts_they_come_from_exact_rows(self, monkeypatch):
        monkeypatch.setattr(_thumbnails, "EXACT", 100)
        monkeypatch.setattr(_thumbnails, "ROWS", 20)
        monkeypatch.setattr(_thumbnails, "SIDE", 16)
        stack = decoder([str(place) for place in range(210)])["decoder"]
        rows = torch.cat([torch.arange(210)[part] for part in evenly_spaced(210, 20)])
        for head, own in enumerate(_thumbnails.thumbnails("decoder", stack, 0)):
            dense = stack.layers[0].dense()[0, head, rows]
            assert own.sampled
            assert own.statistics.queries == 20
            pooled = torch.nn.functional.adaptive_max_pool1d(dense, 16)
            np.testing.assert_allclose(own.values, pooled, atol=1e-6)
            assert own.statistics.entropy == pytest.approx(float(torch.special.entr(dense).sum(-1).mean()), abs=1e-4)
            assert own.statistics.sink == pytest.approx(float(dense[:, 0].mean()), abs=1e-6)
            diagonal = torch.stack([dense[i, row] for i, row in enumerate(rows)])
            assert own.statistics.self == pytest.approx(float(diagonal.mean()), abs=1e-6)
            assert own.statistics.keys == pytest.approx(float((rows + 1).float().mean()))

    @given(length=st.integers(1, 20_000), count=st.integers(1, 200))
    def test_rows_are_spread_evenly_to_the_end(self, length, count):
        places = [place for part in evenly_spaced(length, count) for place in range(length)[part]]
        assert len(places) == min(length, count)
        assert places == sorted(set(places))
        edges = [-1, *places, length]
        gaps = {later - earlier for earlier, later in itertools.pairwise(places)}
        assert max(gaps, default=0) - min(gaps, default=0) <= 1
        assert edges[1] - edges[0] <= length / count + 1
        assert edges[-1] - edges[-2] <= length / count + 1.5

    def test_a_clear_role_is_found_in_either_way(self, monkeypatch):
        """Queries that are the key before them: previous-token heads."""
        key = torch.nn.functional.normalize(torch.randn(1, 1, 300, 32), dim=-1)
        query = 60 * key.roll(1, dims=2)
        _, weights = attention(query, key, key, mask=Causal(), return_weights=True)
        stack = Stack((weights,), tokens(["x"] * 300), tokens(["x"] * 300))
        exact = _thumbnails.thumbnails("decoder", stack, 0)[0].statistics
        monkeypatch.setattr(_thumbnails, "EXACT", 100)
        sampled = _thumbnails.thumbnails("decoder", stack, 0)[0].statistics
        for found in (exact, sampled):
            labels = Roles("", {("decoder", 0, 0): found}).labels(("decoder", 0, 0))
            assert {"previous token", "positional −1", "sharp"} <= set(labels)
        assert sampled.previous == pytest.approx(exact.previous, abs=0.05)

    def test_shades_are_logarithmic(self):
        values = np.array([[1.0, 0.1 / 100, 0.0], [10**-1.5, 0.5, 1e-9]], np.float32)
        levels = color_scales.log_shades(values, 100)
        assert levels.dtype == np.uint8
        assert levels.tolist() == [[255, 0, 0], [128, levels[1, 1], 0]]
        assert 200 < levels[1, 1] < 255

    def test_text_that_repeats_itself_still_has_its_entropy(self):
        stack = decoder("abcdefghabcdefgh")["decoder"]
        assert _thumbnails.thumbnails("decoder", stack, 0)[0].statistics.entropy is not None


class TestGallery:
    def test_what_is_hidden(self):
        made = Gallery(translation("abcde", "xyz"))
        assert made.hidden_keys("encoder") == [0]
        assert made.hidden_keys("cross") == []
        assert Gallery(decoder("abcde", special=(0, 4))).hidden_keys("decoder") == [0, 4]
        assert Gallery(decoder("ab", special=(0, 1))).hidden_keys("decoder") == []  # nothing would be left
        assert made.weights(("encoder", 0, 1), hide=True).dense()[..., 0].sum() == 0
        assert made.weights(("encoder", 0, 1)).dense()[..., 0].sum() > 0

    def test_overviews_are_kept_until_there_are_too_many(self, monkeypatch):
        made = Gallery(decoder("abcdefghij"))
        first = made.overview(("decoder", 0, 0))
        assert made.overview(("decoder", 0, 0)) is first
        assert made.overview(("decoder", 0, 0), hide=True) is not first
        monkeypatch.setattr(gallery_module, "KEPT", 2 * first.bytes)
        made.overview(("decoder", 0, 0))  # used last, stays
        made.overview(("decoder", 0, 1))
        assert made.overview(("decoder", 0, 0)) is first
        made.overview(("decoder", 0, 2))
        made.overview(("decoder", 0, 3))
        assert made.overview(("decoder", 0, 0)) is not first

    def test_labels_are_those_of_the_file_where_there_is_one(self):
        recording = decoder("abcdefghijklmnopqrstuvwxyz")
        statistics = _thumbnails.thumbnails("decoder", recording["decoder"], 0)[0].statistics
        found = Roles("a model", {("decoder", 0, 0): type(statistics)(4, induction=0.9, sink=0.5, keys=50.0)})
        made = Gallery(recording, found)
        assert made.labels(("decoder", 0, 0)) == ("induction", "first token")
        assert made.labels(("decoder", 1, 3)) == ()
        assert "induction" not in Gallery(recording).labels(("decoder", 0, 0))

    def test_the_first_head_and_cell_to_look_at_say_something(self):
        made = Gallery(translation("abcdefgh", "uvwxyz"))
        stack, _, head = made.clearest()
        assert stack == "cross"
        entropies = made.recording["cross"].layers[0].entropy()[0].mean(dim=-1)
        assert head == int(entropies.argmin())
        query, key = made.strongest((stack, 0, head))
        dense = made.recording["cross"].layers[0].dense()[0, head]
        assert dense[query, key] == dense.max()


@pytest.mark.parametrize("direction", ["from", "to"])
def test_where_a_token_looks_and_who_looks_at_it(direction):
    stack = decoder("abcdefghijk")["decoder"]
    *_, found = looks(stack, direction, 6)
    assert [(at, head) for at, head, _ in found.heads] == [(at, head) for at in range(2) for head in range(4)]
    mean = torch.zeros(11)
    for at, head, top in found.heads:
        dense = stack.layers[at].dense()[0, head]
        cells = dense[6] if direction == "from" else dense[:, 6]
        mean += cells / 8
        values, places = cells.topk(5)
        assert [place for place, _ in top] == places[values > 0].tolist()
        assert [weight for _, weight in top] == pytest.approx(values[values > 0].tolist(), abs=1e-6)
    assert [place for place, _ in found.everywhere] == mean.topk(5).indices.tolist()


class TestCalculation:
    def test_every_number_follows_from_the_one_before(self):
        weights = layer(9, 13, heads=1, kv_heads=1)
        found = calculate(weights, 4, 7)
        row = weights[0, 0, 4]
        assert [term.key for term in found.terms][:5] == row.topk(5).indices.tolist()
        assert 7 in [term.key for term in found.terms]
        total = np.zeros(8)
        for term in found.terms:
            assert term.product == pytest.approx(float(np.dot(found.query, term.vector)), rel=1e-4)
            assert term.scaled == pytest.approx(term.product * found.scale, rel=1e-5)
            assert term.score == pytest.approx(term.capped, rel=1e-4)
            assert term.weight == pytest.approx(math.exp(term.score - found.lse), rel=1e-4)
            np.testing.assert_allclose(
                term.contribution, term.weight * weights.value[0, 0, term.key].numpy(), rtol=1e-4, atol=1e-6
            )
            total += term.contribution
        assert found.others == pytest.approx(1 - sum(term.weight for term in found.terms), abs=1e-5)
        np.testing.assert_allclose(found.output, (row @ weights.value[0, 0]).numpy(), atol=1e-5)

    def test_with_a_softcap_a_bias_and_a_mask(self):
        query, key = torch.randn(1, 1, 5, 8), torch.randn(1, 1, 11, 8)
        bias, seen = torch.randn(1, 1, 5, 11), torch.ones(1, 1, 5, 11, dtype=torch.bool)
        seen[..., 3] = False
        with keeping_vectors():
            _, weights = attention(
                4 * query, key, key, softcap=2.0, bias=bias, mask=Dense(seen), scale=0.5, return_weights=True
            )
        found = calculate(weights, 2, 3)
        (closed,) = [term for term in found.terms if term.key == 3]
        assert closed.score == -math.inf
        assert closed.weight == 0
        for term in found.terms:
            if term.key != 3:
                assert term.capped == pytest.approx(2 * math.tanh(term.scaled / 2), rel=1e-4)
                assert term.score == pytest.approx(term.capped + float(bias[0, 0, 2, term.key]), rel=1e-3, abs=1e-4)

    def test_where_only_scores_are_held(self):
        query, key = torch.randn(1, 1, 1, 8), torch.randn(1, 1, 11, 8)
        _, weights = attention(query, key, key, return_weights=True)
        found = calculate(weights.without_values(), 0, 3)
        assert found.query is None
        assert found.output is None
        assert all(term.vector is term.product is term.contribution is None for term in found.terms)
        assert found.terms[0].weight == pytest.approx(float(weights[0, 0, 0].max()))


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
def test_tokens_can_be_seen_and_fit(token, columns, expected):
    assert short_token(token, columns) == expected
