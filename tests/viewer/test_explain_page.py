"""Tests of the page that explains one row of a head."""

import html
import re
import subprocess
import sys

import pytest

from clearhead import Recording, record
from clearhead.explain import real_heads
from clearhead.viewer._explain_page import explain_page
from clearhead.viewer._recording_cache import RecordingCache
from support.recordings import AWKWARD, decoder


@pytest.fixture(scope="module")
def cache():
    return RecordingCache(record("en-ja", "The cat ate the fish.", values=True))


def text_of(page):
    return html.unescape(re.sub(r"<[^>]+>", " ", page))


def test_page_writes_out_the_cell_of_the_row(cache):
    weights = cache.recording.weights(("cross", 2, 5))
    key = int(weights[0, 0, 3].argmax())
    page = explain_page(cache, ("cross", 2, 5), 3)
    token = cache.recording["cross"].queries.texts[3]
    assert f"<title>Head cross.2.5 of en-ja, row 4 ({token})</title>" in page
    assert f"{float(weights[0, 0, 3, key]):.3f}" in text_of(page)
    assert f"A[4,{key + 1}]" in text_of(page)
    other = (key + 1) % weights.shape[3]
    assert f"A[4,{other + 1}]" in text_of(explain_page(cache, ("cross", 2, 5), 3, other))


def test_long_texts_show_the_row_and_its_strongest_keys():
    cache = RecordingCache(decoder([f"w{index}w" for index in range(700)], layers=1))
    page = text_of(explain_page(cache, ("decoder", 0, 1), 350, 123))
    top = cache.recording.weights(("decoder", 0, 1))[0, 0, 350].topk(6)
    for key in (350, 123, *top.indices.tolist()):
        assert f"w{key}w" in page
    assert "The only row is row 351 of the 700 rows of this head." in page
    assert f"{float(top.values[0]):.3f}" in page
    assert "w351w" not in page
    assert len(page) < 300_000


def test_tokens_and_names_are_escaped():
    made = decoder(AWKWARD, layers=1)
    made = Recording("<img src=x>", {"<b>.attn": made["decoder"]})
    page = explain_page(RecordingCache(made), ("<b>.attn", 0, 2), 0)
    assert "<img" not in page
    assert "<b>" not in page
    assert page.count("</script>") == page.count("<script>")


def test_texts_that_are_too_long_are_refused(cache, monkeypatch):
    long = RecordingCache(decoder("ab" * 50, layers=1))
    monkeypatch.setattr(real_heads, "MAX_SCORES", 10)
    for made, address, size in ((cache, ("cross", 2, 5), "7 × 7"), (long, ("decoder", 0, 1), "100 × 100")):
        name = re.escape(".".join(map(str, address)))
        with pytest.raises(ValueError, match=f"head {name} has {size} scores; expected at most 10: use a shorter text"):
            explain_page(made, address, 0)


def test_rejects_rows_and_keys_that_do_not_exist(cache):
    queries, keys = len(cache.recording["cross"].queries), len(cache.recording["cross"].keys)
    with pytest.raises(ValueError, match=f"query is {queries}; expected 0 to {queries - 1}"):
        explain_page(cache, ("cross", 2, 5), queries)
    with pytest.raises(ValueError, match=f"key is -1; expected 0 to {keys - 1}"):
        explain_page(cache, ("cross", 2, 5), 0, -1)
    scores = RecordingCache(record("en-ja", "A dog."))
    with pytest.raises(ValueError, match="holds scores instead of queries and keys; expected a recording with values"):
        explain_page(scores, ("encoder", 0, 0), 0)


@pytest.mark.slow
def test_a_missing_package_is_named():
    code = (
        "import sys; sys.modules['latex2mathml'] = None; sys.modules['latex2mathml.converter'] = None\n"
        "from clearhead.viewer._explain_page import explain_page\n"
        "from clearhead.viewer._recording_cache import RecordingCache\n"
        "from clearhead import record\n"
        "explain_page(RecordingCache(record('en-ja', 'A dog.', values=True)), ('cross', 0, 0), 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "ImportError: the HTML format needs latex2mathml: pip install 'clearhead[explain]'" in done.stderr
