"""The viewer in a real browser: every part of the page, used as a reader uses it."""

import math

import pytest
import torch
from bokeh.palettes import Greys256, Viridis256
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from browser import browser, complaints, emulate, requested, resize
from clearhead.recording.example_texts import EXAMPLE_SENTENCE
from clearhead.viewer.server._texts import Texts
from recordings import AWKWARD, decoder, translation
from viewer_page import number, page, served, showing, violations

__all__ = ["browser", "page"]
PLAIN = [f"t{place}" for place in range(12)]


@pytest.fixture(scope="module")
def translator():
    with served("en-ja") as found:
        yield found


@pytest.fixture(scope="module")
def small():
    """A small causal model with grouped heads, and its page."""
    recording = decoder(PLAIN)
    with served(recording) as found:
        yield recording, found.url


def test_the_first_page_explains_itself_without_a_network(page, translator, browser):
    page.open(translator.url)
    assert browser.title == "clearhead: en-ja"
    assert "code" not in browser.current_url
    assert page.find("#text").get_attribute("value") == EXAMPLE_SENTENCE
    assert len(page.all(".thumb")) == 3 * 4 * 8
    assert page.text("head-heading").startswith("Cross-attention, layer ")
    assert "15 × 17 tokens · entropy" in page.text("head-facts")
    assert "first token" in {label.text for label in page.all("#filter option")}
    assert page.place["head"].startswith("cross.")
    addresses = requested(browser) - {"about:blank"}
    assert addresses
    assert all(address.startswith((f"http://127.0.0.1:{translator.port}/", "data:", "blob:")) for address in addresses)


def test_the_file_handed_to_a_browser_opens_the_page_for_all_tabs_and_reloads(page, browser, tmp_path, monkeypatch):
    opened = []
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("webbrowser.open", lambda address: opened.append(address) or True)
    with showing(page, decoder(PLAIN)) as found:
        assert found.open()
        page.open(opened[0])
        assert page.place["head"].startswith("decoder.")
        assert list(tmp_path.iterdir()) == []
        browser.refresh()
        page.until(lambda: page.text("readout"))
        address, first = browser.current_url, browser.current_window_handle
        browser.switch_to.new_window("tab")
        page.open(address)
        browser.get("about:blank")
        browser.close()
        browser.switch_to.window(first)
        browser.delete_all_cookies()  # as another browser
        browser.get("about:blank")
        browser.get(address)
        assert "This address needs a link" in page.find("main").text
        complaints(browser)  # that the page was refused


def test_small_maps_are_drawn(page, small):
    recording, url = small
    page.open(url)
    pixels = page.script(
        "return [...document.querySelectorAll('.thumb canvas')].map((canvas) =>"
        " [...canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height).data])"
    )
    assert len(pixels) == len(list(recording.heads())) == 8
    lightness = torch.tensor(pixels[5], dtype=torch.float).view(12, 12, 4)[..., :3].sum(dim=-1)
    weights = recording.weights(("decoder", 1, 1)).dense()[0, 0]
    assert lightness[weights == 0].max() == lightness.min()
    assert lightness[weights > 0.5].min() > lightness[weights < 0.1].max()
    entropy = float(recording["decoder"].layers[1].entropy()[0, 1].mean())
    assert page.all(".thumb")[5].get_attribute("aria-label") == f"Decoder, layer 1, head 1, entropy {entropy:.2f} nats"


def test_grouped_heads_are_drawn_together(page, small):
    page.open(small[1])
    groups = page.all(".group.shared")
    assert [len(group.find_elements(By.CSS_SELECTOR, ".thumb")) for group in groups] == [2] * 4
    assert groups[1].get_attribute("title") == "These heads share key head 1"


@pytest.mark.parametrize("width", [1280, 800])
def test_nothing_is_wider_than_the_window(page, translator, browser, width):
    resize(browser, width)
    page.open(translator.url)
    assert page.script("return document.documentElement.scrollWidth") <= width
    left, right = page.script(
        "const box = document.querySelector('.map').getBoundingClientRect(); return [box.left, box.right]"
    )
    assert right - left > 0.4 * width
    assert page.find("#calculation").is_displayed()


def test_pointing_at_a_cell_reads_its_weight_and_score(page, small):
    recording, url = small
    page.open(url, "#head=decoder.1.2")
    weights = recording.weights(("decoder", 1, 2))
    for query, key in ((11, 3), (5, 5), (2, 9)):
        said = page.point(key + 0.5, query + 0.5)
        before, weight, score = said.partition(": ")[0], *said.partition(": ")[2].split(", ")
        assert before == f"query {query} t{query} → key {key} t{key}"
        assert number(weight) == pytest.approx(float(weights[0, 0, query, key]), rel=1e-3)
        expected = float(weights.scores[0, 0, query, key])
        assert ("−∞" in score) if expected == -torch.inf else number(score) == pytest.approx(expected, rel=1e-3)


def test_what_is_pointed_at_is_the_very_number(page, small):
    recording, url = small
    page.open(url, "#head=decoder.0.3")
    sent = page.script("return [...sources[1].data.image[0]].map((value) => Number.isNaN(value) ? 0 : value)")
    assert torch.equal(torch.tensor(sent).view(12, 12), recording.weights(("decoder", 0, 3)).dense()[0, 0])


def test_the_wheel_zooms_where_it_points(page, small):
    page.open(small[1], "#head=decoder.0.0")
    assert page.window() == [0, 12, 0, 12]
    page.wheel(3.5, 8.5, 3)
    row, row_end, key, key_end = page.window()
    assert row <= 8 < row_end
    assert key <= 3 < key_end
    assert row_end - row < 12
    assert page.place["rows"] == f"{row}-{row_end}"
    assert page.place["keys"] == f"{key}-{key_end}"
    assert number(page.point(3.5, 8.5).split(":")[1]) == pytest.approx(
        float(small[0].weights(("decoder", 0, 0))[0, 0, 8, 3]), rel=1e-3
    )
    page.click("#all")
    assert page.window() == [0, 12, 0, 12]
    page.wheel(3.5, 8.5, -3)  # there is nothing beyond
    assert page.window() == [0, 12, 0, 12]


def test_heads_are_chosen_and_back_reload_and_bookmarks_work(page, small, browser):
    page.open(small[1], "#head=decoder.1.3")
    page.click("#closer")
    zoomed = page.place
    assert "rows" in zoomed
    page.click("[data-head='decoder.0.2']")
    assert page.text("head-heading") == "Decoder, layer 0, head 2"
    assert page.find("[data-head='decoder.0.2']").get_attribute("aria-current") == "true"
    assert page.place["head"] == "decoder.0.2"
    browser.back()
    page.until(lambda: page.text("head-heading") == "Decoder, layer 1, head 3")
    page.settle()
    assert page.place == zoomed
    browser.back()  # from the window to all of it
    page.until(lambda: "rows" not in page.place)
    page.settle()
    assert page.window() == [0, 12, 0, 12]
    browser.forward()
    page.until(lambda: page.place == zoomed)
    browser.refresh()
    page.until(lambda: page.text("head-heading") == "Decoder, layer 1, head 3")
    page.settle()
    assert page.place == zoomed
    assert page.window() == [*map(int, zoomed["rows"].split("-")), *map(int, zoomed["keys"].split("-"))]


@pytest.mark.parametrize(
    "fragment",
    [
        "#head=nothing.9.9",
        "#head=decoder",
        "#rows=5-900&keys=4-1",
        "#cell=99-99",
        "#given=7",
        "#%%%",
        "#head=decoder.0.0&rows=x",
    ],
)
def test_an_address_that_makes_no_sense_still_shows_something(page, small, fragment):
    page.open(small[1], fragment)
    assert page.text("head-heading").startswith("Decoder, layer ")
    assert "weight" in page.text("readout")


def test_another_text_is_run(page, translator, browser):
    page.open(translator.url)
    first = page.place
    box = page.find("#text")
    box.clear()
    box.send_keys("She plays the piano.", Keys.ENTER)
    page.until(lambda: "6 tokens" in page.text("head-facts"))
    page.settle()
    assert page.place["text"] == "She plays the piano."
    assert "piano" in page.find("#lines").text
    bookmark = browser.current_url.partition("#")[2]
    browser.back()
    page.until(lambda: "17 tokens" in page.text("head-facts"))
    page.settle()
    assert page.place == first
    assert page.find("#text").get_attribute("value") == EXAMPLE_SENTENCE
    page.open(translator.url, f"#{bookmark}")
    assert page.find("#text").get_attribute("value") == "She plays the piano."


def test_a_text_that_cannot_be_run_is_said_and_nothing_is_lost(page, translator):
    page.open(translator.url)
    before = page.text("head-facts")
    box = page.find("#text")
    box.clear()
    box.send_keys("  ", Keys.ENTER)
    page.until(lambda: page.text("status") == "the text is empty")
    assert page.text("head-facts") == before
    box.clear()
    box.send_keys("I like ☃.", Keys.ENTER)
    page.until(lambda: page.text("notes") == "text: never seen in training: '☃'")


def test_several_texts_can_be_chosen_from(page):
    with showing(page, "en-ja", text=["She plays.", "He reads a long book."]) as found:
        page.open(found.url)
        assert page.find("#given").is_displayed()
        assert [option.text for option in page.all("#given option")] == ["1: She plays.", "2: He reads a long book."]
        facts = page.text("head-facts")
        page.choose("given", "1")
        page.until(lambda: page.text("head-facts") != facts)
        assert page.place["given"] == "1"


def test_arrows_move_a_cursor_that_is_read_out(page, small):
    recording, url = small
    page.open(url, "#head=decoder.1.0&cell=6-2")
    weights = recording.weights(("decoder", 1, 0))

    def expected(query, key):
        return f"query t{query}, key t{key}, weight ", float(weights[0, 0, query, key])

    for pressed, query, key in (
        (Keys.ARROW_DOWN, 7, 2),
        (Keys.ARROW_RIGHT, 7, 3),
        (Keys.ARROW_UP, 6, 3),
        (Keys.ARROW_LEFT, 6, 2),
        (Keys.SHIFT + Keys.ARROW_DOWN, 11, 2),
    ):
        said = page.keys(pressed)
        text, weight = expected(query, key)
        assert said.startswith(text)
        assert number(said.rpartition(" ")[2]) == pytest.approx(weight, rel=1e-3)
        assert page.place["cell"] == f"{query}-{key}"
    page.keys("+")
    row, row_end, key, key_end = page.window()
    assert row_end - row == key_end - key == 6
    page.keys(*[Keys.ARROW_UP] * 9)  # takes the window along
    assert page.place["cell"] == "2-2"
    assert page.window()[0] <= 2
    page.keys("0")
    assert page.window() == [0, 12, 0, 12]


def test_the_window_as_a_table(page, small):
    recording, url = small
    page.open(url, "#head=decoder.1.0&rows=4-8&keys=2-5")
    page.click("#window-table summary")
    cells = [
        [cell.text for cell in row.find_elements(By.CSS_SELECTOR, "th, td")] for row in page.all("#window-table tr")
    ]
    assert cells[0] == ["", "t2", "t3", "t4"]
    assert [row[0] for row in cells[1:]] == ["t4", "t5", "t6", "t7"]
    weights = recording.weights(("decoder", 1, 0))[0, 0, 4:8, 2:5]
    for row, own in zip(cells[1:], weights.tolist(), strict=True):
        assert [number(cell) for cell in row[1:]] == pytest.approx(own, rel=1e-2, abs=1e-9)


def test_bins_palettes_and_colours(page, small):
    recording, url = small
    page.open(url, "#head=decoder.0.1")
    query, key = 7, 3
    weight = float(recording.weights(("decoder", 0, 1))[0, 0, query, key])
    most = float(recording.weights(("decoder", 0, 1)).dense().max())
    assert page.colour(query, key) == near(Viridis256, 1 - math.log(weight) / math.log(0.1 / 12))
    page.click("[name=scale][value=linear]")
    assert page.colour(query, key) == near(Viridis256, weight / most)
    assert page.text("low") == "0"
    dark = page.script("return document.querySelector('.thumb canvas').toDataURL()")
    page.choose("palette", "greys")
    assert page.colour(query, key) == near(Greys256[::-1], weight / most)
    assert page.script("return document.querySelector('.thumb canvas').toDataURL()") != dark


def near(palette, share):
    """The colour of a share, or a neighbour's: what is drawn is in float32."""
    own = palette[min(255, int(256 * share))]
    return pytest.approx([int(own[at : at + 2], 16) for at in (1, 3, 5)], abs=4)


def test_the_sink_can_be_hidden(page, small):
    recording, url = small
    page.open(url, "#head=decoder.0.1")
    assert page.text("hide-label") == "hide the sink t0"
    page.click("#hide")
    sent = page.script("return [...sources[1].data.image[0]].map((value) => Number.isNaN(value) ? 0 : value)")
    expected = recording.weights(("decoder", 0, 1)).dense()[0, 0].clone()
    expected[:, 0] = 0
    torch.testing.assert_close(torch.tensor(sent).view(12, 12), expected, rtol=0, atol=1e-6)
    assert page.point(0.5, 5.5).endswith(": hidden")
    bars = page.script(
        "return [...Bokeh.documents[0].get_model_by_name('received').renderers[0].data_source.data.value]"
    )
    assert bars[0] == 0
    assert min(bars[1:]) > 0


def test_heads_are_sorted_and_filtered(page, translator):
    page.open(translator.url)

    def entropies():
        return [number(own.text.split("·")[1]) for own in page.all(".thumb span:first-of-type")]

    page.choose("sort", "sharp")
    assert len(entropies()) == 96
    assert entropies() == sorted(entropies())
    page.choose("sort", "broad")
    assert entropies() == sorted(entropies(), reverse=True)
    page.choose("filter", "stack:cross")
    assert len(page.all(".thumb")) == 32
    page.choose("filter", "label:self")
    labels = [own.get_attribute("aria-label") for own in page.all(".thumb")]
    assert 0 < len(labels) < 32
    assert all("self" in label for label in labels)


def test_where_a_token_looks_and_who_looks_at_it(page, small):
    recording, url = small
    page.open(url, "#head=decoder.1.0&cell=6-2")
    assert len(page.all("#lines text")) == 24
    page.script("document.querySelectorAll('#lines text')[9].dispatchEvent(new MouseEvent('click', {bubbles: true}))")
    page.settle()
    assert page.place["cell"] == "9-9"  # the same token on both sides
    assert page.text("from-heading") == "t9 looks at"
    assert page.text("to-heading") == "t9 is looked at by"
    rows = page.all("#from tr")
    assert len(rows) == 1 + 8
    tops = {}
    for row in rows[1:]:
        layer, head = (int(part.split()[1]) for part in row.find_element(By.CSS_SELECTOR, "th").text.split(", "))
        tops[layer, head] = row.find_element(By.CSS_SELECTOR, ".key").text
    for (layer, head), said in tops.items():
        weight, key = recording.weights(("decoder", layer, head))[0, 0, 9].max(dim=0)
        token, shown = said.split()
        assert token == f"t{int(key)}"
        assert float(shown) == pytest.approx(float(weight), abs=0.006)
    page.click("#to tr:nth-child(3) button")
    assert page.place["head"] in {f"decoder.{layer}.{head}" for layer in range(2) for head in range(4)}
    assert page.place["cell"] == "9-9"


def test_the_lines_stay_whole_while_one_zooms(page, small):
    page.open(small[1], "#head=decoder.1.0&rows=2-8&keys=2-8&cell=3-2")
    assert len(page.all("#lines text")) == 24
    page.keys(Keys.ARROW_DOWN)
    assert [own.text for own in page.all("#lines text.chosen")] == ["t4", "t2"]


def test_in_cross_attention_the_two_sides_are_different_tokens(page):
    with showing(page, translation("abcde", "xyz")) as found:
        page.open(found.url, "#head=cross.0.1&cell=1-3")
        assert page.text("from-heading") == "y looks at"
        assert page.text("to-heading") == "d is looked at by"
        page.script("document.querySelector('#lines text').dispatchEvent(new MouseEvent('click', {bubbles: true}))")
        page.settle()
        assert page.place["cell"] == "0-3"


def test_the_calculation_is_worked_out(page, small):
    recording, url = small
    page.open(url, "#head=decoder.1.0&cell=9-4")
    weights = recording.weights(("decoder", 1, 0))
    rows = [[cell.text for cell in row.find_elements(By.CSS_SELECTOR, "th, td")] for row in page.all("#terms tr")]
    assert rows[0][:2] == ["key", "q · k"]
    top = weights[0, 0, 9].topk(5)
    for row, key, weight in zip(rows[1:6], top.indices.tolist(), top.values.tolist(), strict=True):
        assert row[0] == f"{key} t{key}"
        score = float(weights.scores[0, 0, 9, key])
        assert number(row[1]) == pytest.approx(score * 8**0.5, rel=1e-3)
        assert number(row[2]) == pytest.approx(score, rel=1e-3)
        assert number(row[3]) == pytest.approx(weight, rel=1e-3)
        contribution = weight * weights.value[0, 0, key].norm()
        assert number(row[4]) == pytest.approx(float(contribution), rel=1e-3)
    assert any(row[0] == "4 t4" for row in rows)
    vectors = [row.text for row in page.all("#vectors tr")]
    assert vectors[0].startswith("q t9 ")
    assert any(line.startswith("q × k t4") and "sum" in line for line in vectors)
    assert vectors[-1].startswith("Σ weight · v")


def test_tokens_are_shown_as_they_are(page, browser):
    with showing(page, decoder(AWKWARD)) as found:
        page.open(found.url, "#head=decoder.0.0")
        expected = ["\\n" if token == "\n" else token for token in AWKWARD]
        expected[7] = "x" * 79 + "…"
        assert page.script("return wire.tokens.keys") == expected
        lines = [own.text for own in page.all("#lines text")]
        assert lines[:7] == expected[:7]
        page.click("#window-table summary")
        assert [own.text for own in page.all("#window-table thead th")] == expected
        assert page.script("return document.querySelectorAll('script').length") == page.script(
            "return document.querySelectorAll('head script, body > script').length"
        )
        assert page.all("main b") == []
        labels = page.script(
            "return [...chart.above[0].major_label_overrides.values()].map((label) => [label.type, label.text])"
        )
        assert {kind for kind, _ in labels} == {"PlainText"}
        assert labels[2][1] == "\u2068$$x$$\u2069"
        for place in range(len(AWKWARD)):
            assert expected[place][:20] in page.point(place + 0.5, 11.5)
        assert page.script("return document.documentElement.scrollWidth") <= 1280
        assert browser.title == "clearhead: a model"


def test_labels_of_a_file_are_shown(page):
    from clearhead.analysis.roles import Roles
    from clearhead.analysis.statistics import HeadStatistics

    roles = Roles("a model", {("decoder", 1, 3): HeadStatistics(9, induction=0.8)})
    with showing(page, decoder(PLAIN), roles=roles) as found:
        page.open(found.url)
        page.choose("filter", "label:induction")
        assert [own.get_attribute("data-head") for own in page.all(".thumb")] == ["decoder.1.3"]


def test_whoever_goes_elsewhere_is_not_taken_back(page, translator, browser):
    """A head is clicked and another text run at once, over and over: nothing of the one is applied to the other."""
    page.open(translator.url)
    for number_of in range(4):
        page.script("document.querySelector(arguments[0]).click()", f"[data-head='encoder.{number_of}.3']")
        page.script("ask('go', {text: arguments[0]})", f"She has {number_of} books.")
        page.script("document.querySelector(arguments[0]).click()", f"[data-head='decoder.{number_of}.1']")
    page.settle()
    assert page.text("head-heading") == "Decoder, layer 3, head 1"
    assert page.script("return wire.model.text") == page.find("#text").get_attribute("value")
    assert page.text("status") == ""


def test_a_text_that_is_too_long_is_refused_by_the_page(page, translator):
    page.open(translator.url)
    page.script("document.getElementById('text').value = 'x'.repeat(2000000)")
    page.click("#run button")
    assert page.text("status") == "the text has 2,000,000 letters, and 20,000 can be typed here"


def test_a_recording_has_no_text_to_type(page, small):
    page.open(small[1])
    assert not page.find("#text").is_enabled()
    assert not page.find("#run button").is_enabled()


@pytest.mark.parametrize(("width", "theme"), [(1280, "light"), (800, "dark")])
def test_everyone_can_use_it(page, translator, browser, theme, width):
    resize(browser, width)
    emulate(browser, theme=theme)
    page.open(translator.url)
    page.click("#window-table summary")
    assert violations(browser) == []


def test_a_dark_page_has_light_letters_on_its_charts(page, small, browser):
    emulate(browser, theme="dark")
    page.open(small[1])
    assert page.script("return chart.left[0].major_label_text_color") == "rgb(236, 238, 242)"


def test_japanese_is_drawn_as_japanese(page, small):
    page.open(small[1])
    drawn = page.script(
        """
        return ["私", "本", "\uffff"].map((letter) => {
          const canvas = Object.assign(document.createElement("canvas"), {width: 40, height: 40});
          const context = canvas.getContext("2d");
          context.font = "30px " + getComputedStyle(document.body).fontFamily;
          context.fillText(letter, 2, 32);
          return canvas.toDataURL();
        })
        """
    )
    assert len(set(drawn)) == 3


def test_a_server_that_has_stopped_is_said(page, browser):
    with served(decoder(PLAIN)) as found:
        page.open(found.url)
    page.until(lambda: page.text("status") == "clearhead view has stopped: start it again and open its new link")
    browser.get("about:blank")
    complaints(browser)  # it said that it could not connect, too


def test_what_goes_wrong_while_computing_is_said(page, monkeypatch):
    texts = Texts(decoder(PLAIN))
    monkeypatch.setattr(texts.first.gallery, "overview", lambda *a, **k: 1 / 0)
    monkeypatch.setattr("clearhead.viewer.server.serve.Texts", lambda *a, **k: texts)
    with showing(page, decoder(PLAIN)) as found:
        page.open(found.url)
        page.until(lambda: page.text("status") == "division by zero")
