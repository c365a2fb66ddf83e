"""Tests of search, positions and the links of the last token, in a real browser, live and in a report."""

import pytest
import torch
from selenium.webdriver.common.keys import Keys

from clearhead import report
from clearhead.recording import Recording
from support.recordings import decoder
from support.viewer_page import parse_number, served

WORDS = ["The", " pass", "word", " is", " blue", ".", " A", " cat", " and", " a", " pass", "word", " <b>", " blue", "?"]
LENGTH = 600  # tokens; more than a window whose tokens are shown


@pytest.fixture(scope="module")
def recordings() -> dict[str, Recording]:
    torch.manual_seed(3)
    texts = [WORDS[index % len(WORDS)] for index in range(LENGTH)]
    return {"short": decoder(WORDS), "long": decoder(texts)}


@pytest.fixture(scope="module")
def urls(recordings, tmp_path_factory):
    """Yield the URLs of the live page and of the report of each recording."""
    folder = tmp_path_factory.mktemp("reports")
    for name, recording in recordings.items():
        report(recording, folder / f"{name}.html")
    with served(recordings["short"]) as short, served(recordings["long"]) as long:
        yield {
            ("live", "short"): short.url,
            ("live", "long"): long.url,
            **{("report", name): (folder / f"{name}.html").as_uri() for name in recordings},
        }


def search(page, text, *keys):
    box = page.find("#wanted")
    box.clear()
    box.send_keys(text)
    page.until(lambda: page.module_script("return state.search?.text") == text)
    box.send_keys(*keys)
    page.settle()
    return page.text("find-count")


@pytest.mark.parametrize("source", ["live", "report"])
def test_search_marks_all_occurrences_and_steps_through_them(page, urls, source):
    page.open(urls[source, "short"], "#head=decoder.1.0&cell=9-2")
    assert search(page, "PASSWORD") == "2 found"
    assert len(page.all(".matches span")) == 2
    assert [word.text for word in page.all(".word.match")] == ["pass", "word"] * 2
    page.wait_for(cell="9-2")
    page.find("#wanted").send_keys(Keys.ENTER)
    page.settle()
    page.until(lambda: page.text("find-count") == "2 of 2")
    page.wait_for(cell="9-10")
    page.find("#wanted").send_keys(Keys.ENTER)
    page.settle()
    page.until(lambda: page.text("find-count") == "1 of 2")
    page.wait_for(cell="9-1")
    page.find("#wanted").send_keys(Keys.SHIFT + Keys.ENTER)
    page.settle()
    page.wait_for(cell="9-10")
    page.choose("find-side", "queries")
    page.click("#find-next")
    page.wait_for(cell="10-10")
    assert search(page, "<b>") == "1 found"
    assert search(page, "no such word") == "not in the text"
    assert page.all(".matches span") == []
    assert not page.find("#find-next").is_enabled()
    page.find("#wanted").clear()
    page.find("#wanted").send_keys(Keys.SPACE)
    page.until(lambda: page.text("find-count") == "")
    assert search(page, "no such word") == "not in the text"  # the same answer again
    page.find("#wanted").clear()
    page.find("#wanted").send_keys("cat", Keys.ENTER)  # before the answer has come
    page.until(lambda: page.text("find-count").startswith("1 of"))
    page.find("#position").send_keys("7", Keys.ENTER)
    page.settle()
    page.wait_for(cell="7-10")


@pytest.mark.parametrize("source", ["live", "report"])
def test_positions_and_hits_of_a_long_text_are_zoomed_to(page, urls, source):
    page.open(urls[source, "long"], "#head=decoder.0.0&cell=599-0")
    page.find("#position").send_keys("321", Keys.ENTER)
    page.settle()
    page.wait_for(cell="599-321")
    row, row_end, key, key_end = page.window()
    assert (row, row_end) == (0, LENGTH)
    assert key_end - key == 64
    assert key <= 321 < key_end
    assert search(page, "password") == "80 found"
    page.find("#find-next").click()
    page.settle()
    page.until(lambda: page.text("find-count") == "44 of 80")
    page.wait_for(cell="599-325")
    if source == "live":
        assert {token.text for token in page.all("#strip .tok.match")} == {"pass", "word"}


@pytest.mark.parametrize("source", ["live", "report"])
@pytest.mark.parametrize("name", ["short", "long"])
def test_last_token_opens_its_strongest_link(page, recordings, urls, source, name):
    stack = recordings[name]["decoder"]
    last, nearest = len(stack.queries) - 1, 2 if name == "short" else 64
    rows = torch.stack([layer[0, :, last] for layer in stack.layers]).clone()
    rows[..., 0] = 0
    rows[..., last - nearest + 1 :] = 0
    weight, (layer, head, key) = (
        float(rows.max()),
        [int(index) for index in torch.unravel_index(rows.argmax(), rows.shape)],
    )
    page.open(urls[source, name])
    page.click("#last-token")
    page.until(lambda: "puts" in page.text("links"))
    page.settle()
    sentence = page.find("#links p").text
    assert f"head {layer}.{head} puts " in sentence
    assert parse_number(sentence.split("puts ")[1]) == pytest.approx(weight, abs=0.006)
    assert f"on {stack.keys.texts[key].strip()}, {last - key:,} tokens back." in sentence.replace("  ", " ")
    page.wait_for(head=f"decoder.{layer}.{head}")
    page.wait_for(cell=f"{last}-{key}")
    row, row_end, first, end = page.window()
    assert row <= last < row_end
    assert first <= key < end
    assert end - first <= 64
    second = page.all("#links ol button")[0]
    page.script("arguments[0].scrollIntoView({block: 'center'})", second)
    name_of_head = second.text.split(":")[0]
    second.click()
    page.settle()
    page.wait_for(head=f"decoder.{name_of_head}")
    assert page.fragment["cell"].startswith(f"{last}-")
    page.click("#last-token")  # the same answer again
    page.wait_for(cell=f"{last}-{key}")
