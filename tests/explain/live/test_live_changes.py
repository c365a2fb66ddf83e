"""Tests of changes of a layer in JavaScript, their history, and links that carry them."""

import pytest
import torch

from clearhead.explain import parse
from clearhead.explain.live._layer_json import live_layer
from support.live_layers import call, python_trace, start_layers

IMPORTS = """
import * as change from "clearhead/change_layer.js";
import { calculate } from "clearhead/calculate.js";
import { changeList, History } from "clearhead/history.js";
import { readState, stateText } from "clearhead/state_link.js";
const [layers, ...rest] = given;
"""


@pytest.fixture(scope="module")
def layers():
    return start_layers()


def output(layer):
    return python_trace(layer).output


def test_slices_become_block_diagonal_projections_with_the_same_output(layers):
    code = "answer(change.setSplit(layers['two-heads'], 'project'))"
    projected = call(IMPORTS + code, layers)
    assert projected["weights"]["query"][1][:2] == [[0, 0], [0, 0]]
    torch.testing.assert_close(output(projected), output(layers["two-heads"]))


def test_heads_are_cut_from_the_same_matrices(layers):
    code = """
    const wide = change.setHeads(layers["causal-decoder"], 1);
    answer([wide, change.setHeads(wide, 4), change.setHeads(change.setHeads(wide, 4), 2)]);
    """
    wide, narrow, again = call(IMPORTS + code, layers)
    start = layers["causal-decoder"]
    assert again["weights"] == start["weights"]
    for name in ("query", "key", "value"):
        whole = torch.cat(list(torch.tensor(start["weights"][name])), dim=1)
        assert torch.tensor(wide["weights"][name])[0].equal(whole)
        assert torch.tensor(narrow["weights"][name]).squeeze(-1).T.equal(whole)
    assert [python_trace(layer).step("concat").shape for layer in (wide, narrow)] == [(4, 4), (4, 4)]


def test_key_heads_are_copied_without_a_change_of_the_output(layers):
    code = "answer(change.setKeyHeads(layers['grouped-heads'], 4))"
    copied = call(IMPORTS + code, layers)
    assert len(copied["weights"]["key"]) == 4
    torch.testing.assert_close(output(copied), output(layers["grouped-heads"]))


def test_cross_attention_to_the_same_tokens_is_self_attention(layers):
    starts = {name: layer for name, layer in layers.items() if not layer["memory"]}
    code = """
    const entries = Object.entries(layers).map(([name, layer]) => [name, change.setCross(layer, true)]);
    answer(Object.fromEntries(entries));
    """
    for name, layer in call(IMPORTS + code, starts).items():
        assert layer["memory"]["tokens"] == layer["tokens"]
        if starts[name]["mask"]["kind"] == "causal":  # a mask of one text
            assert layer["mask"]["kind"] == "none"
        else:
            torch.testing.assert_close(output(layer), output(starts[name]))


def test_words_that_stay_keep_their_rows_and_masks(layers):
    code = """
    const start = change.toggleMaskCell(layers.song, 1, 5);
    const shuffled = change.setTokens(start, ["song", "new", "List", "song"]);
    const further = change.setTokens(shuffled, ["new", "tea", "tea", "song"]);
    answer([start, shuffled, further, change.drawnRow("tea", 4), change.drawnRow("tea", 7)]);
    """
    start, shuffled, further, row, wide_row = call(IMPORTS + code, layers)
    rows = dict(zip(start["tokens"], start["x"], strict=True))
    assert shuffled["x"] == [rows[word] for word in ("song", "new", "List", "song")]
    assert shuffled["mask"]["hidden"] == [[query == 1 and key in (0, 3) for key in range(4)] for query in range(4)]
    keys = dict(zip(start["tokens"], start["given"]["key-1"], strict=True))
    assert shuffled["given"]["key-1"] == [keys[word] for word in ("song", "new", "List", "song")]
    assert further["x"] == [rows["new"], row, row, rows["song"]]
    assert further["given"] == {}
    assert wide_row[:4] == row  # a row depends only on the word and the column
    assert all(-1 <= cell <= 1 and round(cell, 1) == cell for cell in wide_row)
    assert further["mask"]["hidden"] == [[query == 0 and key == 3 for key in range(4)] for query in range(4)]


def test_positions_tell_shuffled_tokens_apart(layers):
    code = """
    const off = change.setPositions(layers.embeddings, false);
    const shuffle = (layer) => change.setTokens(layer, ["dog", "the", "saw", "cat"]);
    answer([off, shuffle(off), shuffle(layers.embeddings), change.setTokens(off, ["cat", "yes"])]);
    """
    off, shuffled, placed, further = call(IMPORTS + code, layers)
    assert off["x"] == layers["embeddings"]["x"]
    without = output(change_of(layers["embeddings"], ["the", "cat", "saw", "dog"]))
    torch.testing.assert_close(output(shuffled), without[[3, 0, 2, 1]])  # the output is shuffled in the same way
    assert not torch.allclose(output(placed)[[1, 3, 2, 0]], output(shuffled)[[1, 3, 2, 0]])
    assert further["embedding"]["vocabulary"] == ["the", "cat", "dog", "saw", "ran", "yes"]


def change_of(layer, tokens):
    code = "answer(change.setTokens(change.setPositions(layers.one, false), rest[0]))"
    return call(IMPORTS + code, {"one": layer}, tokens)


REFUSED = {
    "change.setCell(layer, ['x'], 0, 0, 1e7)": "the cell is 10000000; expected a number from −1,000,000 to 1,000,000",
    "change.setCell(layer, ['x'], 0, 0, NaN)": "the cell is NaN; expected a number from −1,000,000 to 1,000,000",
    "change.setCell(layer, ['x'], 9, 0, 1)": "there is no cell in row 10 and column 1",
    "change.setCell(layer, ['__proto__', 'x'], 0, 0, 1)": "there is no cell in row 1 and column 1",
    "change.setCell(layer, ['mask', 'hidden'], 0, 0, 2)": "a cell of M is 2; expected 0 or −∞",
    "change.setTokens(layer, [])": "there are no tokens; expected at least one",
    "change.setTokens(layer, Array(13).fill('a'))": "there are 13 tokens; expected at most 12",
    "change.setTokens(layer, ['a'.repeat(41)])": "a token has 41 letters; expected at most 40",
    "change.setTokens(layer, ['a', ''])": "a token is empty; expected at least one letter",
    "change.setHeads(layer, 3)": "the number of heads is 3; expected one of 1, 2, 4",
    "change.setKeyHeads(layer, 3)": "the number of key heads is 3; expected one of 1",
    "change.setMask(layer, 'padding', 7)": "the padding is 7; expected 0 to 6 keys",
    "change.setMask(change.setCross(layer, true), 'causal')": "the mask is causal, but the keys are of another text;"
    " expected none, padding or custom cells",
    "change.setScaling(layer, true, 0)": "the scale is 0; expected more than 0",
    "change.setSplit(change.setHeads(other, 3), 'slice')": "X has 4 columns; 3 heads cannot slice them equally",
}


def test_refused_changes_give_a_message_and_the_old_layer(layers):
    calls = ", ".join(f"(layer) => {change}" for change in REFUSED)
    code = f"""
    const other = layers["three-by-four"];
    const results = [{calls}].map((refused) => change.attempt(layers.song, refused));
    answer(results.map(({{ layer, message }}) => [message, layer === layers.song]));
    """
    assert call(IMPORTS + code, layers) == [[message, True] for message in REFUSED.values()]


def test_history_undoes_and_lists_changes(layers):
    code = """
    const history = new History(layers.song);
    const edit = (row, value, key) => history.push(change.setCell(history.layer, ["x"], row, 2, value), key);
    edit(1, 0.5); edit(1, 0.7, "drag"); edit(1, 0.9, "drag");
    history.push(change.setMask(history.layer, "causal"));
    const log = [history.changes()];
    history.undo();
    log.push(history.changes(), history.canRedo);
    history.undo();
    log.push(history.changes());
    history.redo();
    history.reset();
    log.push(history.changes(), history.canRedo, history.undo().x[1][2]);
    const changed = change.setSplit(change.setHeads(layers.song, 2), "slice");
    const words = change.setTokens(change.dropGiven(changed), ["List", "song"]);
    log.push(changeList(layers.song, words));
    answer(log);
    """
    one = "X row 2 column 3: -0.9 → 0.9"
    assert call(IMPORTS + code, layers) == [
        ["mask: none → causal", one],
        [one],
        True,
        ["X row 2 column 3: -0.9 → 0.5"],
        [],
        False,
        0.9,
        ["tokens: List new ideas for a song → List song", "heads: 1 → 2", "split: project → slice",
         "given matrices: key-1 → none"],
    ]  # fmt: skip


def test_changes_that_return_to_the_state_before_are_no_step(layers):
    code = """
    const history = new History(layers.song);
    const edit = (value, key) => history.push(change.setCell(history.layer, ["x"], 0, 0, value), key);
    edit(7, "typed"); edit(72, "typed"); edit(0.1, "typed");
    const log = [history.canUndo];
    edit(7, "typed"); edit(8, "other"); edit(7, "other"); edit(0.1, "third");
    answer([...log, history.canUndo, history.undo().x[0][0], history.undo().x[0][0], history.canUndo]);
    """
    assert call(IMPORTS + code, layers) == [False, True, 7, 0.1, False]


def test_history_forgets_the_oldest_of_many_states(layers):
    code = """
    const history = new History(layers.song);
    for (let index = 0; index < 300; index++) history.push(change.setCell(history.layer, ["x"], 0, 0, index));
    let count = 0;
    while (history.canUndo) { history.undo(); count += 1; }
    answer([count, history.layer.x[0][0], history.reset().x[0][0]]);
    """
    assert call(IMPORTS + code, layers) == [199, 100, 0.1]


def test_links_of_many_changes_are_short(layers):
    code = """
    const lengths = Object.values(layers).map((layer) => {
      const masked = change.setMask(layer, layer.memory ? "padding" : "causal");
      const edited = change.setCell(masked, ["weights", "query", 0], 0, 0, 0.123);
      const words = change.setTokens(edited, ["new", "words", "here"]);
      return stateText(layer, change.setHeads(words, change.possibleHeads(words).at(-1))).length;
    });
    const { song } = layers;
    answer([lengths, stateText(song, song), readState(song, "").message]);
    """
    lengths, unchanged, message = call(IMPORTS + code, layers)
    assert max(lengths) < 600
    assert (unchanged, message) == ("", "")


DAMAGED_CONTENTS = [
    None,
    [1],
    {"other": {}},
    {"s": {"other": {}}},
    {"c": {"other": [0, 0, 1]}},
    {"c": {"x": 5}},
    {"s": {"tokens": ["a"] * 50}},
    {"s": {"tokens": [5]}},
    {"s": {"tokens": "abc"}},
    {"s": {"heads": 3}},
    {"s": {"heads": 8}},
    {"s": {"heads": 1e9}},
    {"s": {"kv_heads": 0}},
    {"s": {"split": "wrong"}},
    {"s": {"mask": None}},
    {"s": {"mask": {"kind": "custom", "padding": 0, "hidden": [[True]]}}},
    {"s": {"mask": {"kind": "padding", "padding": 99, "hidden": None}}},
    {"s": {"scaling": {"on": True, "scale": -1, "d_k": None}}},
    {"s": {"softmax": "x"}},
    {"s": {"use_output": 1}},
    {"s": {"memory": {"tokens": ["a"], "width": 99}}},
    {"s": {"memory": {"tokens": ["a"], "width": 3}}},
    {"s": {"given": ["value-1"]}},
    {"s": {"given": ["__proto__"]}},
    {"s": {"positions": {"on": 1}}},
    {"s": {"vocabulary": 7}},
    {"s": {"vocabulary": ["a"]}},
    {"c": {"x": [0, 0, "1"]}},
    {"c": {"x": [0, 0]}},
    {"c": {"x": [9, 9, 1]}},
    {"c": {"x": [0, 0, 1e9]}},
    {"c": {"x": [0, "length", 3]}},
    {"c": {"x": ["__proto__", "map", 3]}},
    {"m": {"x": [[1]]}},
    {"m": {"x": "abcdef"}},
    {"m": {"weights.query.0": []}},
]


def test_damaged_links_give_a_message_and_the_start_layer(layers):
    code = """
    const link = stateText(layers.song, change.setMask(layers.song, "causal"));
    const [version, hash] = link.split(".");
    const packed = rest[0].map((content) => `${version}.${hash}.${btoa(JSON.stringify(content))}`);
    const texts = [link.slice(0, -5), link.slice(0, 9), "x", `2${link.slice(1)}`, "%%%", "1..", "a".repeat(60000)];
    const results = [...texts, ...packed].map((text) => readState(layers.song, text));
    const messages = results.map(({ layer, message }) => (layer === layers.song ? message : "another layer"));
    answer([messages, readState(layers["two-heads"], link).message]);
    """
    messages, other = call(IMPORTS + code, layers, DAMAGED_CONTENTS)
    for text, message in zip([*range(7), *DAMAGED_CONTENTS], messages, strict=True):
        assert message.startswith("The link cannot be read: "), f"{text}: {message}"
    assert "it belongs to another calculation" in other


def test_a_file_of_softmax_over_columns_gives_the_weights(layers):
    code = """
    const { tomlFile } = await import("clearhead/state_files.js");
    answer(tomlFile(change.setSoftmax(layers.song, "columns"), 'A "title"'));
    """
    example = parse(call(IMPORTS + code, layers))
    assert example.title == 'A "title"'
    assert ("weights", 0) in example.given
    torch.testing.assert_close(example.trace().step("weights").values.sum(dim=0), torch.ones(6, dtype=torch.float64))


def test_a_file_keeps_the_order_of_words_that_are_integers():
    layer = live_layer(parse('tokens = ["b"]\n[embedding]\nb = [1, 0]\n10 = [2, 0]\n2 = [3, 0]').trace())
    code = 'import { tomlFile } from "clearhead/state_files.js"; answer(tomlFile(given[0]))'
    assert parse(call(code, layer)).trace().vocabulary == ("b", "10", "2")


def test_tokens_survive_their_text():
    tokens = ["a", '"', 'a "b', 'say "hi there"', "\\", 'a\\"', "two  words", '""', '"a"b', "C:\\ d\\", "\u00a0", "🙂"]
    typed = 'one "two words" "C:\\temp x" "open end'
    code = """
    import { readTokens, tokensText } from "clearhead/token_list.js";
    const again = (tokens) => readTokens(tokensText(tokens));
    answer([again(given[0]), ...given[0].map((token) => again([token])), readTokens(given[1])]);
    """
    whole, *single, read = call(code, tokens, typed)
    assert whole == tokens
    assert single == [[token] for token in tokens]
    assert read == ["one", "two words", "C:\\temp x", '"open', "end"]


def test_numbers_are_read_with_thousands_or_a_decimal_comma():
    texts = {
        "1,000": 1000, "-12,345,678.5": -12345678.5, "0,5": 0.5, "1,5": 1.5, "0,500": 0.5, "1,0000": 1, " −2 ": -2,
        ",5": 0.5, "+3.": 3, "1e−2": 0.01, "1,000,5": None, "1,5.2": None, "7x": None, "": None, "-": None,
    }  # fmt: skip
    code = 'import { parseNumber } from "clearhead/number_format.js"; answer(given[0].map(parseNumber))'
    assert dict(zip(texts, call(code, list(texts)), strict=True)) == texts  # NaN is null in JSON


def test_an_empty_row_has_weights_of_0_and_large_scores_do_not_overflow():
    weights = "[weights]\nquery = [[9, 0], [0, 1]]\nkey = [[9, 0], [0, 1]]"
    layer = live_layer(parse(f"x = [[900, 0], [0, 1]]\n{weights}").trace())
    code = """
    const masked = change.setMask(layers.large, "padding", 2);
    answer([layers.large, masked].map((layer) => calculate(layer).matrices.get("weights-1").values));
    """
    large, empty = call(IMPORTS + code, {"large": layer})
    assert large[0] == [1, 0]
    assert sum(large[1]) == pytest.approx(1)
    assert empty == [[0, 0], [0, 0]]
