"""Tests of the words in a real browser: lines between tokens, heads as colors, the caption, typed texts."""

import threading

import pytest
import torch
from selenium.webdriver import ActionChains
from selenium.webdriver.common.keys import Keys

from clearhead.recording.example_texts import EXAMPLE_SENTENCE
from clearhead.viewer.server._texts import Texts
from support.browser import resize
from support.recordings import AWKWARD, decoder
from support.viewer_page import showing

MIN_WEIGHT = 0.02  # of a drawn line


def hover(page, element):
    ActionChains(page.browser, duration=20).move_to_element(element).perform()


def pressed_heads(page):
    return [int(chip.text.split()[0]) for chip in page.all("#word-heads [aria-pressed=true]")]


def key_words(page):
    return page.script("return [...document.querySelectorAll('#lines .keys .word')].map((word) => word.textContent)")


def drawn_weights(page, group="every"):
    """Return the weights of the drawn lines, by their widths."""
    widths = page.script(
        "return [...document.querySelectorAll(arguments[0])].map((path) => Number(path.getAttribute('stroke-width')))",
        f"#lines .{group} path",
    )
    return sorted(width / 7 for width in widths)


def emphasized_queries(page):
    """Return the queries whose lines are drawn darker than the others of the same weight."""
    return page.script(
        """
        const paths = [...document.querySelectorAll("#lines .every path")];
        const step = parseFloat(getComputedStyle(document.getElementById("lines")).getPropertyValue("--step"));
        const dark = paths.filter((path) => Number(path.getAttribute("stroke-opacity")) >=
          0.398 + 0.6 * Number(path.getAttribute("stroke-width")) / 7 - 0.06);
        return [...new Set(dark.map((path) => Math.floor(Number(path.getAttribute("d").split(" ")[1]) / step)))];
        """
    )


def expected_weights(recording, layer, heads, query=None, key=None):
    cells = recording["decoder"].layers[layer].dense()[0, heads]
    cells = cells if query is None else cells[:, query]
    cells = cells if key is None else cells[:, :, key]
    return sorted(cells[cells >= MIN_WEIGHT].clamp(min=0.6 / 7).tolist())


def test_first_screen_shows_the_translation_its_lines_and_a_caption(page, translator, browser):
    resize(browser, 1280, 720)
    page.open(translator.url)
    bottoms = page.script(
        "return ['output', 'word-heads', 'caption', 'lines', 'next'].map((name) =>"
        " document.getElementById(name).getBoundingClientRect().bottom)"
    )
    assert bottoms == sorted(bottoms)
    assert bottoms[-1] <= 720
    output = page.find("#output").text.replace("\n", " ")
    assert output.startswith(f"EN {EXAMPLE_SENTENCE} → JA ")
    assert "帰" in output
    caption = page.find("#caption").text.replace("\u00a0", " ")
    assert caption.startswith("Head ")
    assert caption.endswith("%, when it writes 帰")
    assert " (cross-attention) finds home, 9" in caption
    assert [word.text for word in page.all("#lines .word.chosen")] == ["から → 帰", "home"]
    assert page.script("return document.querySelectorAll('#lines .keys bdi[lang=en]').length") == 17
    assert page.script("return document.querySelectorAll('#lines .queries .read bdi[lang=ja]').length") == 15
    assert page.text("next").replace("\u00a0", " ").startswith("After から the model expects 帰 ")
    assert len(page.all("#next .key")) == 5
    labels = page.module_script(
        "return [...figures.map.left[0].major_label_overrides.values()].map((label) => label.text ?? label)"
    )
    assert labels[3] == "\u2068から → 帰\u2069"
    assert page.text("readout").startswith("query 3 から (writes 帰) → key 11 home: weight 0.9")
    assert page.text("from-heading") == "What から → 帰 attends to"


def test_next_tokens_of_the_decoder_are_not_those_of_the_encoder(page, translator):
    page.open(translator.url, "#head=decoder.2.5&cell=3-2")
    page.until(lambda: "the model expects" in page.text("next"))
    page.module_script("ask('go', { head: 'encoder.2.5', cursor: [3, 2] })")  # the same position of another text
    page.until(lambda: page.text("head-heading").startswith("Encoder"))
    page.settle()
    assert page.text("next") == ""


def test_lines_are_the_weights_of_the_heads_that_are_on(page, small):
    recording, url = small
    page.open(url, "#head=decoder.1.2")
    assert pressed_heads(page) == [2]
    assert drawn_weights(page) == pytest.approx(expected_weights(recording, 1, [2]), abs=1e-3)
    page.click("#heads-all")
    assert pressed_heads(page) == [0, 1, 2, 3]
    assert drawn_weights(page) == pytest.approx(expected_weights(recording, 1, [0, 1, 2, 3]), abs=1e-3)
    assert (
        page.script("return new Set([...document.querySelectorAll('#lines .every path')].map(getColor)).size;" + COLOR)
        == 4
    )
    page.click("#heads-none")
    assert drawn_weights(page) == []
    assert page.text("caption") == "No head is on: choose one to see its lines."
    page.click("#word-heads button:nth-child(4)")
    page.click("#word-heads button:nth-child(1)")
    assert drawn_weights(page) == pytest.approx(expected_weights(recording, 1, [0, 3]), abs=1e-3)
    assert page.fragment["lines"] == "3.0"
    page.open(url, "#head=decoder.1.2&lines=3.0")
    assert pressed_heads(page) == [0, 3]
    page.click("#layer-before")
    assert page.fragment["head"] == "decoder.0.2"
    assert pressed_heads(page) == [0, 2, 3]  # the head that was opened is on
    page.choose("word-layer", "1")
    assert page.fragment["head"] == "decoder.1.2"
    page.click("#hide")
    kept = recording["decoder"].layers[1].dense()[0, [0, 2, 3]][..., 1:]
    expected = sorted(kept[kept >= MIN_WEIGHT].clamp(min=0.6 / 7).tolist())
    assert drawn_weights(page) == pytest.approx(expected, abs=1e-3)


COLOR = "function getColor(path) { return getComputedStyle(path).stroke; }"


def test_hovering_or_focusing_a_word_isolates_its_lines(page, small):
    recording, url = small
    page.open(url, "#head=decoder.1.0&cell=9-4")
    page.click("#heads-all")
    assert emphasized_queries(page) == [9]
    page.keys(Keys.ARROW_UP)
    assert emphasized_queries(page) == [8]
    weights = recording["decoder"].layers[1].dense()[0]
    for side, index, choice in (("queries", 7, {"query": 7}), ("keys", 3, {"key": 3})):
        hover(page, page.find(f"#lines .{side} .word:nth-child({index + 1})"))
        page.until(lambda: "isolating" in page.find("#lines").get_attribute("class"))
        assert drawn_weights(page, "isolated") == pytest.approx(
            expected_weights(recording, 1, [0, 1, 2, 3], **choice), abs=1e-3
        )
        assert not page.find("#lines .every").is_displayed()
        assert page.script("return getComputedStyle(document.querySelector('#lines .every')).visibility") == "hidden"
    shares = page.script(
        "return [...document.querySelectorAll('#lines .queries .share')].map((share) => share.textContent)"
    )
    largest = [float(cells.max()) for cells in weights[:, :, 3].T if float(cells.max()) >= MIN_WEIGHT]
    assert sorted(shares) == sorted(percent(weight) for weight in largest)
    hover(page, page.find("#caption"))
    page.until(lambda: "isolating" not in page.find("#lines").get_attribute("class"))
    assert drawn_weights(page, "isolated") == []
    page.click("#word-heads button:nth-child(2)")
    page.script("document.querySelector('#lines .queries .word:nth-child(9)').focus({focusVisible: true})")
    page.find("#lines .queries .word:nth-child(9)").send_keys(Keys.ARROW_UP)
    weight, key = weights[[0, 2, 3], 7].max(dim=1)
    caption = page.text("caption")
    best = int(weight.argmax())
    assert caption.startswith(
        f"For t7: head 1.{[0, 2, 3][best]} finds t{int(key[best])} {percent(float(weight[best]))}"
    )
    label = page.script("return document.activeElement.getAttribute('aria-label')")
    assert label.startswith(f"query t7: head 1.{[0, 2, 3][best]} finds t{int(key[best])}, ")


def percent(weight):
    return f"{100 * weight:.{1 if weight < 0.0995 else 0}f}\u00a0%"


def test_a_line_opens_its_head_and_cell(page, small, browser):
    recording, url = small
    page.open(url, "#head=decoder.0.1&cell=5-5")
    page.click("#heads-none")
    page.click("#word-heads button:nth-child(4)")
    page.script("scrollTo(0, 0)")
    weight, index = recording["decoder"].layers[0].dense()[0, 3].flatten().max(dim=0)
    query, key = divmod(int(index), 12)
    x, y = page.script(
        """
        const path = document.querySelector("#lines .every path:last-child");
        const box = path.ownerSVGElement.getBoundingClientRect();
        const { x, y } = path.getPointAtLength(0.02 * path.getTotalLength());
        return [box.left + (x * box.width) / 300, box.top + y];
        """
    )
    actions = ActionChains(browser, duration=20)
    actions.w3c_actions.pointer_action.move_to_location(round(x) - 1, round(y))
    actions.w3c_actions.pointer_action.move_to_location(round(x), round(y))
    actions.perform()
    page.until(lambda: page.text("caption").startswith("Head 0.3 (decoder) finds "))
    assert page.text("caption").endswith(f"finds t{key}, {percent(float(weight))}, for t{query}")
    actions = ActionChains(browser, duration=20)
    actions.w3c_actions.pointer_action.click()
    actions.perform()
    page.until(lambda: page.text("head-heading") == "Decoder, layer 0, head 3")
    page.settle()
    assert page.fragment["head"] == "decoder.0.3"
    assert page.fragment["cell"] == f"{query}-{key}"
    top = page.script("return document.getElementById('head').getBoundingClientRect().top")
    assert abs(top) < 300 or page.script("return scrollY + innerHeight >= document.body.scrollHeight - 2")


def test_words_are_reached_and_selected_by_keys(page, small):
    page.open(small[1], "#head=decoder.1.0&cell=6-2")
    stops = page.all("#lines .word[tabindex='0']")
    assert [stop.text for stop in stops] == ["t6", "t2"]  # one tab stop per side
    page.find("#heads-none").send_keys(Keys.TAB)
    for _ in range(4):  # the chips are one stop, as is the head in the caption
        if page.script("return document.activeElement.matches('#lines .word')"):
            break
        page.browser.switch_to.active_element.send_keys(Keys.TAB)
    assert page.script("return document.activeElement.textContent") == "t6"
    focused = page.browser.switch_to.active_element
    focused.send_keys(Keys.ARROW_DOWN)
    page.browser.switch_to.active_element.send_keys(Keys.ARROW_RIGHT)
    assert page.script("return document.activeElement.closest('.column').className") == "column keys"
    page.browser.switch_to.active_element.send_keys(Keys.END)
    page.browser.switch_to.active_element.send_keys(Keys.ENTER)
    page.settle()
    assert page.fragment["cell"] == "11-11"
    assert page.script("return document.activeElement.firstChild.textContent") == "t11"


def test_at_most_twelve_heads_are_on_and_awkward_tokens_are_text(page):
    with showing(page, decoder(AWKWARD, heads=32, kv_heads=32)) as viewer:
        page.open(viewer.url, "#head=decoder.0.25&cell=11-0")
        page.click("#heads-all")
        assert sorted(pressed_heads(page)) == [*range(5), *range(25, 32)]
        slots = page.script(
            "return [...document.querySelectorAll('#word-heads [aria-pressed=true]')].map((chip) => chip.className)"
        )
        assert len(set(slots)) == 12
        page.click("#word-heads button:nth-child(13)")
        assert len(pressed_heads(page)) == 12
        assert 12 in pressed_heads(page)
        assert page.text("heads-on") == "at most 12 of 32 heads at once"
        assert page.all("#words b, #words script") == []
        hover(page, page.find("#lines .keys .word"))
        assert "</script>" in page.text("caption")
        resize(page.browser, 400, 850)
        page.settle()
        assert page.script("return document.documentElement.scrollWidth") <= 400


def test_single_token_and_single_head(page):
    with showing(page, decoder(["x"], heads=1, kv_heads=1)) as viewer:
        page.open(viewer.url)
        assert drawn_weights(page) == [1.0]
        assert page.text("caption").replace("\u00a0", " ") == "Head 0.0 (decoder) finds x, 100 %, for x"


def test_typing_updates_the_lines_and_keeps_the_choice(page, translator, browser):
    page.open(translator.url, "#head=encoder.1.6")
    page.choose("palette", "magma")
    page.choose("sort", "sharp")
    page.click("#word-heads button:nth-child(2)")
    entries = page.script("return history.length")
    box = page.find("#text")
    box.send_keys(Keys.CONTROL, "a")
    box.send_keys("She plays the piano.")
    page.until(lambda: key_words(page)[:2] == ["she", "plays"])
    page.settle()
    box.send_keys(Keys.BACKSPACE, " and reads.")
    page.until(lambda: "and" in key_words(page))
    page.settle()
    assert box.get_attribute("value") == "She plays the piano and reads."
    assert page.fragment["text"] == "She plays the piano and reads."
    assert page.fragment["head"] == "encoder.1.6"
    assert pressed_heads(page) == [1, 6]
    assert page.find("#sort").get_attribute("value") == "sharp"
    assert page.module_script("return settings.palette") == "magma"
    assert page.script("return history.length") == entries + 1
    browser.back()
    page.until(lambda: box.get_attribute("value") == EXAMPLE_SENTENCE)
    page.settle()
    assert page.fragment["head"] == "encoder.1.6"


def test_refused_text_says_which_text_is_shown(page, translator):
    page.open(translator.url)
    box = page.find("#text")
    page.script("arguments[0].value = 'dog '.repeat(400); arguments[0].dispatchEvent(new Event('input'))", box)
    page.until(lambda: page.text("notes").startswith("Not run: the text has 401 tokens; expected at most 256"))
    assert "Lines and maps still show: “My mother was" in page.text("notes")
    assert page.fragment["head"].startswith("cross.")
    page.script(
        "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input'))", box, EXAMPLE_SENTENCE
    )
    page.until(lambda: page.text("notes") == "")


def test_long_text_shows_a_window_with_distant_keys_and_its_strip(page):
    recording = decoder([f"t{index}" for index in range(512)], sharpness=4.0)
    with showing(page, recording) as viewer:
        page.open(viewer.url, "#head=decoder.0.2&cell=310-300")
        words = page.module_script("const { queries, keys } = state.words; return [queries, keys]")
        assert 310 in words[0]
        assert len(words[0]) == 20
        layer = recording["decoder"].layers[0]
        strengths = layer[0, :, 310].amax(dim=0)
        strengths[words[0]] = 0
        assert set(strengths.topk(6).indices.tolist()) == set(words[1]) - set(words[0])
        sent = page.module_script("return [...state.words.weights]")
        expected = layer[0, :, words[0][0] : words[0][-1] + 1, words[1]]
        assert torch.equal(torch.tensor(sent).view(expected.shape), expected)
        assert len(page.all("#lines .gap")) >= 4
        page.keys(*[Keys.ARROW_DOWN] * 20)
        assert 330 in page.module_script("return state.words.queries")
        for _ in range(5):
            page.keys("+")  # the strip follows the window
        row, row_end, key, key_end = page.window()
        assert page.module_script("return state.words.queries") == list(range(row, row_end))
        shown = page.all("#strip button.tok")
        assert [token.text for token in shown] == [f"t{index}" for index in range(key, key_end)]
        shares = page.script(
            "const tokens = [...document.querySelectorAll('#strip button.tok')];"
            " return tokens.map((token) => token.style.getPropertyValue('--share'))"
        )
        weights = layer[0, 2, 330, key:key_end]
        assert [float(share) for share in shares] == pytest.approx(weights.sqrt().tolist(), abs=2e-3)
        assert [token.text for token in page.all("#strip span.tok")] == ["0", "0.01", "0.1", "0.5", "1"]


def test_newest_of_many_typed_texts_is_run(page, monkeypatch):
    """Texts that are typed while the model runs are not queued: only the newest of them is recorded."""
    release, asked, recorded = threading.Event(), [], []
    record, chosen = Texts._record, Texts.chosen
    monkeypatch.setattr(Texts, "chosen", lambda texts, request: asked.append(request) or chosen(texts, request))
    with showing(page, "en-ja") as viewer:
        page.open(viewer.url)

        def slow(texts, text):
            recorded.append(text)
            assert release.wait(60)
            return record(texts, text)

        monkeypatch.setattr(Texts, "_record", slow)
        asked.clear()
        texts = [f"She has {count} books." for count in ("no", "two", "three", "four", "old")]
        for text in texts:
            page.module_script("ask('go', {text: arguments[0]})", text)
            page.until(lambda text=text: asked[-1:] and asked[-1]["text"] == text)
            page.until(lambda: recorded)
        release.set()
        page.until(lambda: page.module_script("return state.model.text") == texts[-1])
        assert recorded == [texts[0], texts[-1]]
