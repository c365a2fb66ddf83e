"""Tests of the switches "value-weighted" and "hide sinks" in every view, of the live page and of reports."""

import numpy as np
import pytest
import torch

from clearhead import report
from clearhead._utils.color_scales import visible_shades
from clearhead.viewer._search import find_text
from support.browser import resize
from support.recordings import decoder, translation, with_values
from support.viewer_page import PLAIN_TOKENS, parse_number, showing

SINKS = [0, 5]  # the first token and a special one
HEAD, QUERY, KEY = ("decoder", 1, 2), 9, 1
SHOWN = """
    const { thumbnailOf } = await import("clearhead/grid.js");
    const { drawing } = await import("clearhead/word_lines.js");
    const { levels, rows, keys } = thumbnailOf("decoder.1.2");
    const { heads } = state.top_tokens.from;
    const { queries, keys: wordKeys } = drawing.words;
    return {
        map: [...figures.sources[1].data.image[0]].map((value) => value || 0),
        levels: [...new Uint8Array(levels)], rows, keys,
        lines: drawing.lines.map(({ query, key, weight }) => [queries[query], wordKeys[key], weight]),
        from: heads.find(([layer, head]) => layer === 1 && head === 2)[2].map(([key, , weight]) => [key, weight]),
        to: state.top_tokens.to?.heads.find(([layer, head]) => layer === 1 && head === 2)[2],
        mean: state.top_tokens.from.everywhere !== undefined,
        picture: state.picture.layers[1][2],
        strip: [...document.querySelectorAll("#strip .tok[title^=key]")].map((token) => token.title),
        received: [...figures.received.renderers[0].data_source.data.value],
    };
"""


def contributions(recording, added):
    """Return ‖A v W_O‖ of every cell of the head as a share of the largest ‖v W_O‖."""
    _, layer, head = HEAD
    vectors = added[layer][head]
    return (recording.weights(HEAD)[0, 0][..., None] * vectors).norm(dim=-1) / vectors.norm(dim=-1).max()


def check_shown(page, expected, *, precision):
    """Check the map, the thumbnail, the lines, the lists and the picture of a head whose cells are all shown."""
    kv_len = expected.shape[1]
    page.until(lambda: len(page.module_script(SHOWN)["from"]) >= 5)
    shown = page.module_script(SHOWN)
    np.testing.assert_allclose(shown["map"], expected.flatten(), rtol=precision, atol=1e-7)
    levels = visible_shades(expected.numpy(), kv_len)
    assert np.abs(np.array(shown["levels"]) - levels.flatten().astype(int)).max() <= 1
    assert not np.any(np.array(shown["levels"])[levels.flatten() == 0])
    lines = {(query, key): weight for query, key, weight in shown["lines"]}
    sure = expected >= 0.02 * (1 + precision)
    assert {tuple(cell) for cell in sure.nonzero().tolist()} <= set(lines)
    assert len(lines) <= int((expected >= 0.02 * (1 - precision)).sum())
    assert all(weight == pytest.approx(float(expected[cell]), rel=precision) for cell, weight in lines.items())
    top = expected[QUERY].topk(5)
    assert [key for key, _ in shown["from"]] == top.indices.tolist()
    assert [weight for _, weight in shown["from"]] == pytest.approx(top.values.tolist(), rel=precision)
    assert shown["picture"][0] == int(top.indices[0])
    assert shown["picture"][2] == pytest.approx(float(top.values[0]), rel=precision)
    return shown


@pytest.mark.parametrize("kind", ["live", "report"])
def test_switches_reach_every_view(page, tmp_path, kind):
    recording, added = with_values(decoder(PLAIN_TOKENS, special=SINKS[1:]))
    weights, weighted = recording.weights(HEAD)[0, 0], contributions(recording, added)
    visible = torch.ones(12).index_fill(0, torch.tensor(SINKS), 0)
    address = f"#head=decoder.1.2&cell={QUERY}-{KEY}"
    if kind == "report":
        report(recording, tmp_path / "report.html", view=f"{address}&weighted=values&hide=sinks")
        check_page(page, (tmp_path / "report.html").as_uri(), address, weights, weighted, visible, precision=2e-3)
        resize(page.browser, 400)
        page.open((tmp_path / "report.html").as_uri())  # opens on the sender's view
        check_shown(page, weighted * visible, precision=2e-3)
        assert page.script("return document.documentElement.scrollWidth") == 400  # also with the longer legend
    else:
        with showing(page, recording) as viewer:
            check_page(page, viewer.url, address, weights, weighted, visible, precision=1e-5)


def check_page(page, url, address, weights, weighted, visible, *, precision):
    page.open(url, address)
    plain = check_shown(page, weights, precision=precision)
    assert plain["mean"]
    page.click("#weighted")
    page.wait_for(weighted="values")
    shown = check_shown(page, weighted, precision=precision)
    assert shown["to"][0][0] == int(weighted[:, KEY].argmax())
    assert shown["to"][0][2] == pytest.approx(float(weighted[:, KEY].max()), rel=precision)
    assert not shown["mean"]  # the units of the heads differ
    assert shown["received"] == plain["received"]
    assert "received attention and statistics are those of the weights" in page.text("head-note")
    assert page.text("from-heading").endswith(", value-weighted")
    assert "Brightness is value-weighted." in page.text("heads-note")
    assert f" adds {PLAIN_TOKENS[KEY]}, " in page.text("caption")
    cell = float(weighted[QUERY, KEY])
    assert parse_number(page.text("caption").split(f"t{KEY},")[1]) == pytest.approx(100 * cell, abs=0.51)
    assert parse_number(page.text("readout").split("× value norm")[1]) == pytest.approx(cell, rel=5e-3)
    page.click("#hide")
    page.wait_for(hide="sinks")
    shown = check_shown(page, weighted * visible, precision=precision)
    assert [shown["received"][key] for key in SINKS] == [0, 0]
    assert shown["received"][KEY] == plain["received"][KEY]
    assert page.text("from-heading").endswith(", without the sink, value-weighted")
    assert page.point(5.5, 9.5).endswith(": hidden")
    page.open(url, "#" + page.browser.current_url.split("#")[1])  # the address has both
    check_shown(page, weighted * visible, precision=precision)
    page.click("#weighted")
    check_shown(page, weights * visible, precision=precision)


def test_bins_of_a_report_follow_the_switches(page, tmp_path):
    recording, added = with_values(decoder([f"w{index}" for index in range(150)], special=[61]))
    report(recording, tmp_path / "report.html")
    weights, weighted = recording.weights(HEAD)[0, 0], contributions(recording, added)
    page.open((tmp_path / "report.html").as_uri(), f"#head=decoder.1.2&cell={QUERY}-{KEY}&weighted=values&hide=sinks")

    def read():
        page.until(lambda: page.module_script(SHOWN)["picture"] is not None)
        return page.module_script(SHOWN)

    def pooled(cells, reduce):
        return np.array(
            [
                [getattr(cells[row : row + 2, key : key + 2], reduce)() for key in range(0, 150, 2)]
                for row in range(0, 150, 2)
            ]
        )

    visible = torch.ones(150).index_fill(0, torch.tensor([0, 61]), 0)
    shade = np.log(1500) / 255 / 2  # half of the width of a shade
    for clicked, matrix, reduce in (
        (None, weighted * visible, "max"),
        ("[name=reduce][value=mean]", weighted * visible, "mean"),
        ("#hide", weighted, "mean"),
        ("#weighted", weights, "mean"),
    ):
        if clicked:
            page.click(clicked)
        shown = read()
        expected = pooled(matrix.numpy(), reduce)
        drawn = np.array(shown["map"]).reshape(75, 75)
        assert ((drawn == 0) == (expected == 0)).all()
        large = expected > 0.11 / 150  # the smallest weights have shade 1
        assert np.abs(np.log(drawn[large] / expected[large])).max() <= shade * 1.01
        listed = weights[QUERY].topk(8).indices  # stored keys
        order = listed[matrix[QUERY][listed].argsort(descending=True)]
        kept = [int(key) for key in order if matrix[QUERY][key] > 0][:5]
        assert [key for key, _ in shown["from"]] == kept
        assert [weight for _, weight in shown["from"]] == pytest.approx(matrix[QUERY][kept].tolist(), rel=2e-3)
        if reduce == "max":
            levels = visible_shades(expected, 150).astype(int)
            assert np.abs(np.array(shown["levels"]).reshape(75, 75) - levels).max() <= 1
            assert "value-weighted among its 8 largest weights" in page.text("from-heading")
            assert all(line[1] not in (0, 61) for line in shown["lines"])
            assert "without the sink, value-weighted" in page.text("strip")
    query = next(query for query in range(62, 150) if 61 in weights[query].topk(8).indices)
    page.open((tmp_path / "report.html").as_uri(), f"#head=decoder.1.2&cell={query}-61&hide=sinks")
    page.until(lambda: page.module_script(SHOWN)["picture"] is not None)
    on_sink = page.module_script("return state.picture.weights[1][2]")  # hidden in maps and lists, but asked for
    assert on_sink == pytest.approx(float(weights[query, 61]), rel=2e-3)


def test_report_finds_what_the_live_page_finds(page, tmp_path):
    spaced = [
        "The",
        " ＷＩＤＥ",
        " Straße",
        " ",
        "\tﬁ",
        "ne",
        "\u3000ΟΔΟΣ",
        "​x",
        " x\n",
        " İı",
        "🙂",
        " a" * 3,
        "##b",
        "\ufeff",
    ]
    joined = ["東", "京", "タワ", "ー", "ﾀﾜｰ", "x" * 200]
    recording = translation(spaced, joined)
    report(recording, tmp_path / "report.html")
    page.open((tmp_path / "report.html").as_uri(), "#head=cross.0.1")
    wanted = [
        "wide",
        "ｗｉｄｅ",
        " wide ",
        "STRASSE",
        "strasse  fi",
        "fine",
        "οδος",
        "ΟΔΟΣ",
        "x",
        " x",
        "x ",
        "\u00a0x",
        "i",
        "İ",
        "🙂",
        "a",
        "a a",
    ]
    wanted += ["b", "##b", "", " ", "\ufeff", "missing", "東京", "東 京", "タワー", "ﾀﾜｰ", "京タ", "x" * 150]
    counts = []
    for axis, tokens in (("keys", recording["cross"].keys), ("queries", recording["cross"].queries)):
        code = "return arguments[1].map((text) => (ask('search', { axis: arguments[0], text }), state.search))"
        for text, answer in zip(wanted, page.module_script(code, axis, wanted), strict=True):
            result = find_text(tokens, text)
            assert answer["count"] == result.count, text
            assert [tuple(hit) for hit in answer["ranges"]] == result.ranges, text
            counts.append(result.count)
    assert sum(map(bool, counts)) > 25
