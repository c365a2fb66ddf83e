"""Tests of the translator with the bundled model: translating, warnings, recording and loading."""

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
def recording(translator):
    return translator.record(BOOK)


@pytest.fixture
def copied(tmp_path):
    """Copy of the bundled model's folder, to be damaged."""
    return Path(shutil.copytree(BUNDLED, tmp_path / "copied"))


class TestTranslating:
    def test_a_sentence_is_translated(self, translator):
        assert translator.translate(BOOK) == HON

    @pytest.mark.parametrize(
        ("typed", "variants"),
        [
            (BOOK, ["i read a book in the library yesterday .", "  I READ a book\tin the library   yesterday.\n"]),
            ("I can't swim.", ["I can’t swim.", "i can 't swim .", "I can't swim .", "ｉ ｃａｎ't ｓｗｉｍ."]),
        ],
    )
    def test_spelling_variants_have_the_same_translation(self, translator, typed, variants):
        expected = translator.translate(typed)
        assert expected.endswith("。")
        assert [translator.translate(variant) for variant in variants] == [expected] * len(variants)

    def test_many_sentences_are_translated_in_order(self, translator):
        texts = ["", BOOK, "Thank you.", "   ", "She is a doctor, and her brother teaches music at a school.", ""]
        translations = translator.translate(texts)
        assert translations == [translator.translate(text) for text in texts]
        assert [bool(text) for text in translations] == [False, True, True, False, True, False]
        assert len(set(translations)) == 4
        assert translator.translate(tuple(texts)) == translations
        assert translator.translate([BOOK]) == [HON]
        assert translator.translate([]) == []
        assert translator.translate("") == ""

    def test_stream_yields_translations_batch_by_batch(self, translator, monkeypatch):
        monkeypatch.setattr(translating, "SENTENCES_PER_BATCH", 2)
        read, encode = [], translator._encode_source
        monkeypatch.setattr(
            translator, "_encode_source", lambda text, *location: read.append(text) or encode(text, *location)
        )
        translations = translator.stream([BOOK, "", "Thank you."])
        assert next(translations) == HON
        assert "Thank you." not in read
        assert list(translations) == ["", translator.translate("Thank you.")]

    @pytest.mark.parametrize("text", [None, 3, b"x"])
    def test_rejects_arguments_that_are_not_texts(self, translator, text):
        with pytest.raises(TypeError, match="text is .*; expected a string or a list of strings"):
            translator.translate(text)

    def test_one_beam_translates_greedily(self, translator):
        assert translator.translate(BOOK, beams=1) == HON
        with pytest.raises(ValueError, match="beams is 0"):
            translator.translate(BOOK, beams=0)

    def test_unknown_characters_are_named_in_a_warning(self, translator):
        with pytest.warns(UserWarning, match=r"^text: never seen in training: '☃'$"):
            assert translator.translate("I like ☃ and ☃.")
        with pytest.warns(UserWarning, match=r"^line 2: never seen in training: '☃', '♞'$"):
            translator.translate([BOOK, "☃ is not ♞."])

    def test_long_sentences_give_a_warning(self, translator):
        with pytest.warns(UserWarning, match="^text: 201 tokens, but the model was trained on at most 128; the trans"):
            translator.translate("I read a book. " * 40, beams=1)

    def test_rejects_a_list_that_contains_a_number(self, translator):
        with pytest.raises(TypeError, match="text is 3; expected a string"):
            translator.translate([BOOK, 3])


class TestRecording:
    def test_a_recording_has_three_stacks_with_tokens(self, recording):
        assert recording.model == "en-ja"
        assert list(recording.stacks) == ["encoder", "decoder", "cross"]
        source = recording["encoder"].queries
        assert "".join(source.texts[:-1]) == BOOK.lower().replace(" ", "")
        assert source.texts[-1] == "</s>"
        assert source.special == (*[False] * (len(source) - 1), True)
        assert source.words[0] == 0
        assert source.words[-1] is None
        target = recording["decoder"].queries
        assert target.texts[0] == "<s>"
        assert "".join(target.texts[1:]) == HON
        assert target.special == (True, *[False] * (len(target) - 1))
        assert recording["encoder"].keys == recording["cross"].keys == source
        assert recording["decoder"].keys == recording["cross"].queries == target

    def test_a_recording_has_the_translation_and_the_written_tokens(self, translator, recording):
        assert (recording.input, recording.output) == (BOOK, HON)
        assert recording["encoder"].written is None
        for name in ("decoder", "cross"):
            written = recording[name].written
            assert written.texts == (*recording[name].queries.texts[1:], "</s>")
            assert written.special == (*[False] * (len(written) - 1), True)
            assert written.words == (*recording[name].queries.words[1:], None)
        for position, text in enumerate(recording["cross"].written.texts):
            probable = recording.next_tokens.at(position)
            assert text in [each for each, _ in probable]  # beam search differs from the greedy choice
            assert 0.5 < sum(probability for _, probability in probable) <= 1
        given = translator.record(BOOK.split(), target="本を読んだ。")
        assert (given.input, given.output) == (BOOK, "本を読んだ。")

    def test_rows_are_distributions(self, recording):
        for name, stack in recording.stacks.items():
            assert len(stack.layers) == 4
            for weights in stack.layers:
                dense = weights.dense()
                assert dense.shape == (1, 8, len(stack.queries), len(stack.keys))
                torch.testing.assert_close(dense.sum(dim=-1), torch.ones(dense.shape[:-1]), rtol=0, atol=1e-5)
                if name == "decoder":
                    assert torch.equal(dense, dense.tril())

    def test_save_and_load_round_trip(self, recording, tmp_path):
        recording.save(tmp_path / "recording.safetensors")
        again = Recording.load(tmp_path / "recording.safetensors")
        assert again.model == recording.model
        for name, stack in recording.stacks.items():
            assert (again[name].queries, again[name].keys) == (stack.queries, stack.keys)
            for loaded, weights in zip(again[name].layers, stack.layers, strict=True):
                assert torch.equal(loaded.dense(), weights.dense())

    def test_a_list_of_words_determines_the_word_indices(self, translator):
        axis = translator.record(["I", "read", "unbelievably.", "", "books"])["encoder"].queries
        assert sorted(set(axis.words[:-1])) == [0, 1, 2, 4]
        assert axis.words.count(2) > 2
        assert axis.words[-1] is None
        pieces = dict.fromkeys(axis.words, "")
        for text, word in zip(axis.texts, axis.words, strict=True):
            pieces[word] += text
        assert pieces == {0: "i", 1: "read", 2: "unbelievably.", 4: "books", None: "</s>"}

    def test_values_are_kept_on_request(self, translator, recording):
        assert not any(stack.has_values for stack in recording.stacks.values())
        assert all(stack.has_values for stack in translator.record(BOOK, values=True).stacks.values())

    def test_target_replaces_the_translation(self, translator):
        target = translator.record(BOOK, target="本 を 読んだ 。")["cross"].queries
        assert "".join(target.texts[1:]) == "本を読んだ。"

    def test_record_loads_the_model_by_name(self, recording):
        again = clearhead.record("en-ja", BOOK)
        assert torch.equal(again["cross"].layers[3].dense(), recording["cross"].layers[3].dense())

    def test_rejects_empty_texts_and_numbers(self, translator):
        for empty in ("", " ", [], [""]):
            with pytest.raises(ValueError, match="text has no tokens"):
                translator.record(empty)
        with pytest.raises(TypeError, match="text is 3; expected a string"):
            translator.record(["I", 3])


class TestLoading:
    def test_a_model_is_loaded_from_its_folder(self, copied):
        with pytest.warns(UserWarning, match="copied: carries no identity"):
            assert load(copied).translate(BOOK) == HON
        with pytest.warns(UserWarning, match="copied: carries no identity"):
            assert load(copied, dtype=torch.float32).name == "copied"

    def test_bfloat16_is_refused(self):
        with pytest.raises(ValueError, match="dtype is torch.bfloat16, but en-ja is a translator; expected"):
            load("en-ja", dtype=torch.bfloat16)

    def test_a_missing_folder_and_a_folder_without_a_run_are_refused(self, tmp_path):
        with pytest.raises(
            FileNotFoundError, match="^nowhere: there is no such folder; expected a folder that .*, or en-ja$"
        ):
            Translator.load("nowhere")
        with pytest.raises(FileNotFoundError, match=r"contains no run \(config.json is missing\)$"):
            Translator.load(tmp_path)

    @pytest.mark.parametrize(
        ("file", "size", "message"),
        [
            ("best.safetensors", None, r"best.safetensors: there is no such file$"),
            ("best.safetensors", 1000, r"best.safetensors: not a complete safetensors file"),
            ("best.safetensors", -1000, r"best.safetensors: not a complete safetensors file"),
            ("config.json", 100, r"config.json: not the configuration of a run"),
            ("tokenizer.json", None, r"tokenizer.json: there is no such file$"),
            ("tokenizer.json", 1000, r"tokenizer.json: not a tokenizer"),
        ],
    )
    def test_missing_and_truncated_files_are_refused(self, copied, file, size, message):
        path = copied / file
        content = path.read_bytes()
        path.unlink()
        if size is not None:
            path.write_bytes(content[:size])
        with pytest.raises((ValueError, FileNotFoundError), match=message) as error:
            Translator.load(copied)
        assert "\n" not in str(error.value)

    def test_weights_of_other_sizes_are_refused(self, copied):
        config = copied / "config.json"
        config.write_text(config.read_text().replace('"d_model": 256', '"d_model": 128'))
        with pytest.raises(ValueError, match="best.safetensors: the weights do not match config.json") as error:
            Translator.load(copied)
        assert "\n" not in str(error.value)

    def test_the_config_of_another_model_is_refused(self, tmp_path):
        (tmp_path / "config.json").write_text('{"model_type": "bert"}')
        with pytest.raises(ValueError, match="config.json: not the configuration of a run"):
            Translator.load(tmp_path)


def test_the_bundled_model_is_small():
    assert not {"last.safetensors", "previous.safetensors"} & {path.name for path in BUNDLED.iterdir()}
    assert (BUNDLED / "best.safetensors").stat().st_size <= 20_000_000
    with safe_open(BUNDLED / "best.safetensors", framework="pt") as file:
        assert {file.get_slice(name).get_dtype() for name in file.keys()} == {"F16"}  # noqa: SIM118
