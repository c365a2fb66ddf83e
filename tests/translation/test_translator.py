"""The bundled model: it translates what people type, says what it cannot read, and shows its attention."""

import shutil
from importlib import resources
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

import clearhead
from clearhead.models import load
from clearhead.recording.recording import Recording
from clearhead.translation import Translator
from clearhead.translation import translator as translating

BOOK, HON = "I read a book in the library yesterday.", "私は昨日図書館で本を読んだ。"
BUNDLED = Path(str(resources.files("clearhead.translation") / "en-ja"))


@pytest.fixture(scope="module")
def translator():
    return Translator.load()


@pytest.fixture(scope="module")
def made(translator):
    return translator.record(BOOK)


@pytest.fixture
def copied(tmp_path):
    """A copy of the bundled model's folder, to be harmed."""
    return Path(shutil.copytree(BUNDLED, tmp_path / "copied"))


class TestTranslating:
    def test_a_sentence(self, translator):
        assert translator.translate(BOOK) == HON

    @pytest.mark.parametrize(
        ("typed", "variants"),
        [
            (BOOK, ["i read a book in the library yesterday .", "  I READ a book\tin the library   yesterday.\n"]),
            ("I can't swim.", ["I can’t swim.", "i can 't swim .", "I can't swim .", "ｉ ｃａｎ't ｓｗｉｍ."]),
        ],
    )
    def test_however_it_is_typed(self, translator, typed, variants):
        expected = translator.translate(typed)
        assert expected.endswith("。")
        assert [translator.translate(variant) for variant in variants] == [expected] * len(variants)

    def test_many_in_their_order(self, translator):
        texts = ["", BOOK, "Thank you.", "   ", "She is a doctor, and her brother teaches music at a school.", ""]
        translations = translator.translate(texts)
        assert translations == [translator.translate(text) for text in texts]
        assert [bool(text) for text in translations] == [False, True, True, False, True, False]
        assert len(set(translations)) == 4
        assert translator.translate(tuple(texts)) == translations
        assert translator.translate([BOOK]) == [HON]
        assert translator.translate([]) == []
        assert translator.translate("") == ""

    def test_a_stream_gives_each_as_it_is_done(self, translator, monkeypatch):
        monkeypatch.setattr(translating, "SENTENCES_PER_BATCH", 2)
        read, encode = [], translator._encode_source
        monkeypatch.setattr(
            translator, "_encode_source", lambda text, *where: read.append(text) or encode(text, *where)
        )
        translations = translator.stream([BOOK, "", "Thank you."])
        assert next(translations) == HON
        assert "Thank you." not in read
        assert list(translations) == ["", translator.translate("Thank you.")]

    @pytest.mark.parametrize("text", [None, 3, b"x"])
    def test_neither_a_text_nor_several(self, translator, text):
        with pytest.raises(TypeError, match="text is .*; expected a string, or a list of them"):
            translator.translate(text)

    def test_greedily(self, translator):
        assert translator.translate(BOOK, beams=1) == HON
        with pytest.raises(ValueError, match="beams is 0"):
            translator.translate(BOOK, beams=0)

    def test_what_was_never_seen_is_named(self, translator):
        with pytest.warns(UserWarning, match=r"^text: never seen in training: '☃'$"):
            assert translator.translate("I like ☃ and ☃.")
        with pytest.warns(UserWarning, match=r"^line 2: never seen in training: '☃', '♞'$"):
            translator.translate([BOOK, "☃ is no ♞."])

    def test_what_is_longer_than_anything_learned(self, translator):
        with pytest.warns(UserWarning, match="^text: 201 tokens, but the model was trained on at most 128; the trans"):
            translator.translate("I read a book. " * 40, beams=1)

    def test_what_is_no_text(self, translator):
        with pytest.raises(TypeError, match="text is 3; expected a string"):
            translator.translate([BOOK, 3])


class TestRecording:
    def test_three_stacks_and_their_tokens(self, made):
        assert made.model == "en-ja"
        assert list(made.stacks) == ["encoder", "decoder", "cross"]
        source = made["encoder"].queries
        assert "".join(source.texts[:-1]) == BOOK.lower().replace(" ", "")
        assert source.texts[-1] == "</s>"
        assert source.special == (*[False] * (len(source) - 1), True)
        assert source.words[0] == 0
        assert source.words[-1] is None
        target = made["decoder"].queries
        assert target.texts[0] == "<s>"
        assert "".join(target.texts[1:]) == HON
        assert target.special == (True, *[False] * (len(target) - 1))
        assert made["encoder"].keys == made["cross"].keys == source
        assert made["decoder"].keys == made["cross"].queries == target

    def test_rows_are_distributions(self, made):
        for name, stack in made.stacks.items():
            assert len(stack.layers) == 4
            for weights in stack.layers:
                dense = weights.dense()
                assert dense.shape == (1, 8, len(stack.queries), len(stack.keys))
                torch.testing.assert_close(dense.sum(dim=-1), torch.ones(dense.shape[:-1]), rtol=0, atol=1e-5)
                if name == "decoder":
                    assert torch.equal(dense, dense.tril())

    def test_saved_and_loaded(self, made, tmp_path):
        made.save(tmp_path / "made.safetensors")
        again = Recording.load(tmp_path / "made.safetensors")
        assert again.model == made.model
        for name, stack in made.stacks.items():
            assert (again[name].queries, again[name].keys) == (stack.queries, stack.keys)
            for loaded, weights in zip(again[name].layers, stack.layers, strict=True):
                assert torch.equal(loaded.dense(), weights.dense())

    def test_words_that_are_given_are_numbered(self, translator):
        axis = translator.record(["I", "read", "unbelievably.", "", "books"])["encoder"].queries
        assert sorted(set(axis.words[:-1])) == [0, 1, 2, 4]
        assert axis.words.count(2) > 2
        assert axis.words[-1] is None
        pieces = dict.fromkeys(axis.words, "")
        for text, word in zip(axis.texts, axis.words, strict=True):
            pieces[word] += text
        assert pieces == {0: "i", 1: "read", 2: "unbelievably.", 4: "books", None: "</s>"}

    def test_values_where_they_are_asked_for(self, translator, made):
        assert not any(stack.has_values for stack in made.stacks.values())
        assert all(stack.has_values for stack in translator.record(BOOK, values=True).stacks.values())

    def test_a_target_of_ones_own(self, translator):
        target = translator.record(BOOK, target="本 を 読んだ 。")["cross"].queries
        assert "".join(target.texts[1:]) == "本を読んだ。"

    def test_by_name(self, made):
        again = clearhead.record("en-ja", BOOK)
        assert torch.equal(again["cross"].layers[3].dense(), made["cross"].layers[3].dense())

    def test_nothing_to_record(self, translator):
        for nothing in ("", " ", [], [""]):
            with pytest.raises(ValueError, match="text has no tokens"):
                translator.record(nothing)
        with pytest.raises(TypeError, match="text is 3; expected a string"):
            translator.record(["I", 3])


class TestLoading:
    def test_by_its_folder(self, copied):
        assert load(copied).translate(BOOK) == HON
        assert load(copied, dtype=torch.float32).name == "copied"

    def test_in_float32_only(self):
        with pytest.raises(ValueError, match="dtype is torch.bfloat16, but en-ja is a model of our own; expected"):
            load("en-ja", dtype=torch.bfloat16)

    def test_no_folder_and_no_run(self, tmp_path):
        with pytest.raises(
            FileNotFoundError, match="^nowhere: there is no such folder; expected one that .*, or en-ja$"
        ):
            Translator.load("nowhere")
        with pytest.raises(FileNotFoundError, match=r"no run in it \(there is no config.json\)$"):
            Translator.load(tmp_path)

    @pytest.mark.parametrize(
        ("file", "content", "message"),
        [
            ("best.safetensors", None, r"best.safetensors: there is no such file$"),
            ("best.safetensors", 1000, r"best.safetensors: not a whole safetensors file"),
            ("best.safetensors", -1000, r"best.safetensors: not a whole safetensors file"),
            ("config.json", 100, r"config.json: not the configuration of a run"),
            ("tokenizer.json", None, r"tokenizer.json: there is no such file$"),
            ("tokenizer.json", 1000, r"tokenizer.json: not a tokenizer"),
        ],
    )
    def test_files_that_are_missing_or_half_there(self, copied, file, content, message):
        """Cut after so many bytes."""
        path = copied / file
        contents = path.read_bytes()
        path.unlink()
        if content is not None:
            path.write_bytes(contents[:content])
        with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
            Translator.load(copied)
        assert "\n" not in str(error.value)

    def test_weights_of_other_sizes(self, copied):
        config = copied / "config.json"
        config.write_text(config.read_text().replace('"d_model": 256', '"d_model": 128'))
        with pytest.raises(ValueError, match="best.safetensors: weights that do not fit config.json") as error:
            Translator.load(copied)
        assert "\n" not in str(error.value)

    def test_a_config_of_somebody_else(self, tmp_path):
        (tmp_path / "config.json").write_text('{"model_type": "bert"}')
        with pytest.raises(ValueError, match="config.json: not the configuration of a run"):
            Translator.load(tmp_path)


def test_what_is_bundled_is_small():
    assert not {"last.safetensors", "previous.safetensors"} & {path.name for path in BUNDLED.iterdir()}
    assert (BUNDLED / "best.safetensors").stat().st_size <= 20_000_000
    with safe_open(BUNDLED / "best.safetensors", framework="pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F16"}  # noqa: SIM118
