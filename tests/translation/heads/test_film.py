"""Tests of films: their frames equal the model's weights, the run does not change, and a killed run loses no frame."""

import json
import signal

import pytest
import torch

from clearhead.translation import RunDirectory, TrainingCallbacks, TrainingConfig, _trainer, from_grammar, train
from clearhead.translation._evaluation import ValidationMetrics
from clearhead.translation.data import dataset
from clearhead.translation.data._batching import collate
from clearhead.translation.data.dataset import encode_pair
from clearhead.translation.data.grammar.annotate import annotate
from clearhead.translation.data.grammar.generate import sentences, split_of
from clearhead.translation.heads import DEFAULT_FILM_TEXT, read_film
from clearhead.translation.heads.film import FilmRecorder, film_steps
from clearhead.translation.model import Transformer
from clearhead.weights import serialization
from support.toy_training import assert_same, changed, copying

CONFIG = changed(steps=5, validate_every=4)
STEPS = [0, 1, 2, 3, 4, 5]


@pytest.fixture(scope="module")
def grammar():
    """Dataset of the grammar with few sentences."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(dataset, "GRAMMAR_EPOCH_SIZE", 60)
        patch.setattr(dataset, "PROBE_SIZE", 60)
        yield from_grammar(CONFIG)


@pytest.fixture(scope="module")
def filmed(tmp_path_factory, grammar):
    """Finished run with a film."""
    run = RunDirectory(tmp_path_factory.mktemp("filmed") / "run")
    train(grammar, CONFIG, run, film=DEFAULT_FILM_TEXT)
    return run


def weights_of(checkpoint, grammar, pair):
    """Return the attention weights of a checkpoint on a sentence, by stack."""
    tensors, facts = serialization.read(checkpoint, "clearhead.Checkpoint", 1, "cpu")
    model = Transformer(CONFIG.model, len(grammar.vocabulary)).eval()
    model.load_state_dict(
        {name.removeprefix("model."): tensor for name, tensor in tensors.items() if name.startswith("model.")}
    )
    batch = collate([encode_pair(grammar.vocabulary, pair)])
    with torch.no_grad():
        _, attentions = model(batch.source, batch.target, None, return_weights=True)
    return facts["progress"]["step"], {
        stack: [layer.dense()[0] for layer in layers] for stack, layers in attentions.items()
    }


def test_frames_equal_the_weights_of_the_checkpoints(filmed, grammar):
    film = read_film(filmed)
    assert [frame["step"] for frame in film["frames"]] == STEPS
    frames = {frame["step"]: frame for frame in film["frames"]}
    for name in ("previous", "last"):
        step, stacks = weights_of(filmed.folder / f"{name}.safetensors", grammar, annotate(film["text"]))
        maps = frames[step]["maps"]
        assert {name.split()[0] for name in maps} == set(stacks) == {"encoder", "decoder", "cross"}
        assert len(maps) == 6
        for stack, layers in stacks.items():
            tokens = film["stacks"][stack]
            for head in range(2):
                shown = torch.tensor(maps[f"{stack} 0.{head}"]) / 1000
                assert shown.shape == (len(tokens["rows"]), len(tokens["columns"]))
                assert float((shown - layers[0][head]).abs().max()) <= 0.0005 + 1e-6
        metrics = next(line for line in filmed.metrics() if line["step"] == step)
        assert frames[step]["accuracy"] == metrics["heads"]
        assert frames[step]["exact"] == metrics["validation"]["exact"]
    assert frames[0]["maps"] != frames[5]["maps"]
    assert "exact" not in frames[1]
    assert film["held_out"]


def test_rows_are_the_written_tokens_and_links_point_to_the_auxiliary(filmed):
    film = read_film(filmed)
    cross = film["stacks"]["cross"]
    assert cross["columns"] == [*DEFAULT_FILM_TEXT.split(), "</s>"]
    assert cross["rows"] == [*film["translation"].split(), "</s>"]
    [[row, column]] = [[at, to] for relation, at, to in film["links"] if relation == "tense"]
    assert (cross["rows"][row], cross["columns"][column]) == ("mashita", "did")


def test_film_does_not_change_the_run(filmed, grammar, tmp_path):
    plain = RunDirectory(tmp_path / "plain")
    train(grammar, CONFIG, plain)
    assert_same(filmed, plain)
    assert [line["heads"] for line in filmed.metrics()] == [line["heads"] for line in plain.metrics()]
    assert not (plain.folder / "film.json").exists()


def test_resumed_run_continues_the_film(filmed, grammar, tmp_path, monkeypatch):
    run, batches = RunDirectory(tmp_path / "run"), []

    def collate_and_signal(pairs):
        batches.append(pairs)
        if len(batches) == 3:
            signal.raise_signal(signal.SIGINT)
        return collate(pairs)

    with monkeypatch.context() as patch:
        patch.setattr(_trainer, "collate", collate_and_signal)
        with pytest.raises(KeyboardInterrupt):
            train(grammar, CONFIG, run, film=f" {DEFAULT_FILM_TEXT} ")
    assert [frame["step"] for frame in read_film(run)["frames"]] == STEPS[:4]
    train(grammar, CONFIG, run, resume=True)
    assert_same(run, filmed)
    assert read_film(run) == read_film(filmed)


def test_run_killed_before_its_first_frame_continues_with_a_film(filmed, grammar, tmp_path, monkeypatch):
    run = RunDirectory(tmp_path / "run")

    def fail(self, model, step, metrics=None):
        raise RuntimeError("the lights went out")

    with monkeypatch.context() as patch:
        patch.setattr(FilmRecorder, "add", fail)
        with pytest.raises(RuntimeError, match="lights"):
            train(grammar, CONFIG, run, film=DEFAULT_FILM_TEXT)
    assert not (run.folder / "film.json").exists()
    train(grammar, CONFIG, run, resume=True)
    assert read_film(run) == read_film(filmed)


def test_rejects_other_sentences_and_data_before_training(filmed, grammar, tmp_path):
    run = RunDirectory(tmp_path / "run")
    never = TrainingCallbacks(on_validation=lambda metrics: pytest.fail("training has started"))
    for message, data, text in (
        ("has words that the grammar does not have: 'robot', 'moon'", grammar, "did the robot wear the moon ?"),
        ("has 0 words; expected 1 to 12", grammar, "  "),
        ("has 13 words; expected 1 to 12", grammar, "the " * 13),
        (r"a film needs annotated sentences, but the data \(copying\) has none", copying(), DEFAULT_FILM_TEXT),
    ):
        with pytest.raises(ValueError, match=message):
            train(data, CONFIG, run, film=text, callbacks=never)
    assert not run.folder.exists()
    with pytest.raises(TypeError, match="film is 3; expected a sentence"):
        train(grammar, CONFIG, run, film=3)
    with pytest.raises(ValueError, match="film is 'usually we dance .'; expected 'did the old man wear a hat"):
        train(grammar, CONFIG, filmed, film="usually we dance .", resume=True)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('"format":"clearhead.Film"', '"format":"film"', "format is 'film', version 1; expected 'clearhead.Film', 1"),
        ('"version":1,', "", "KeyError: 'version'"),
        ('"rows":["did",', '"rows":[', "the map of encoder 0.0 has the shape"),
        ('"step":0', '"step":"x"', "a step is 'x'; expected a whole number"),
        ('{"format"', '{"format', "JSONDecodeError"),
        ('"text":"did', '"text":"does', "the film of 'does the old man wear a hat"),
    ],
)
def test_damaged_film_is_named(filmed, grammar, tmp_path, old, new, message):
    run = RunDirectory(tmp_path)
    text = (filmed.folder / "film.json").read_text()
    assert old in text
    (tmp_path / "film.json").write_text(text.replace(old, new, 1))
    with pytest.raises(ValueError, match=f"film.json: .*{message}"):
        FilmRecorder(DEFAULT_FILM_TEXT, grammar, CONFIG, run, resume=True)


def test_missing_film_is_named(tmp_path):
    with pytest.raises(FileNotFoundError, match="film.json: there is no such file; `clearhead train --film` writes it"):
        read_film(RunDirectory(tmp_path))


def test_steps_of_a_film_are_dense_at_first_and_bounded():
    assert sorted(film_steps(TrainingConfig())) == [*range(0, 601, 30), 750, 900, 1050, 1200, 1350, 1500]
    assert sorted(film_steps(TrainingConfig(steps=70, validate_every=50))) == [*range(0, 71, 10)]
    long = sorted(film_steps(TrainingConfig(steps=100_007, validate_every=100)))
    assert len(long) <= 65
    assert long[-1] == 100_007
    assert film_steps(TrainingConfig(steps=1, validate_every=1)) == {0, 1}


def test_frames_are_bounded_before_training(filmed, grammar, tmp_path, monkeypatch):
    maps = read_film(filmed)["frames"][0]["maps"].values()
    cells = sum(len(rows) * len(rows[0]) for rows in maps)
    limit = "clearhead.translation.heads.film.MAX_CELLS"
    monkeypatch.setattr(limit, cells)
    FilmRecorder(DEFAULT_FILM_TEXT, grammar, CONFIG, RunDirectory(tmp_path / "run"))
    monkeypatch.setattr(limit, cells - 1)
    with pytest.raises(
        ValueError, match=f"has {cells} weights; expected at most {cells - 1}; use a shorter --film-text"
    ):
        train(grammar, CONFIG, RunDirectory(tmp_path / "run"), film=DEFAULT_FILM_TEXT)
    assert not list(tmp_path.iterdir())


def test_run_that_ends_early_has_a_last_frame(grammar, tmp_path, monkeypatch):
    monkeypatch.setattr("clearhead.translation.heads.film.film_steps", lambda settings: frozenset((0, 8)))
    monkeypatch.setattr(_trainer, "validate", lambda *arguments: ValidationMetrics(loss=1.0, bleu=0.0, exact=0.0))
    run, config = RunDirectory(tmp_path / "run"), changed(steps=8, validate_every=1, patience=2)
    for resume in (False, True):
        train(grammar, config, run, film=DEFAULT_FILM_TEXT, resume=resume)
        assert [frame["step"] for frame in read_film(run)["frames"]] == [0, 2]
    assert run.metrics()[-1]["step"] == 2


def test_film_is_compact(filmed):
    text = (filmed.folder / "film.json").read_text()
    assert json.loads(text)["steps"] == 5
    assert len(text) < 40_000


class TestAnnotating:
    def test_search_reproduces_sentences_of_the_grammar(self):
        short = [pair for pair, _ in zip(sentences(3), range(40), strict=False) if len(pair.source) <= 7]
        assert len(short) >= 3
        for pair in short[:3]:
            assert annotate(" ".join(pair.source)) == pair

    @pytest.mark.slow
    @pytest.mark.parametrize(
        ("text", "translation"),
        [
            ("i was opening the book that is old quietly .", "watashi wa sotto furui hon o hiraite i mashita ."),
            (
                "a child opened a book that is quite old on friday .",
                "kodomo ga kinyoubi ni kanari furui hon o hiraki mashita .",
            ),
        ],
    )
    def test_search_finds_long_sentences(self, text, translation):
        assert 10 <= len(text.split()) <= 12
        pair = annotate(text)
        assert " ".join(pair.source) == text
        assert " ".join(pair.target) == translation

    def test_default_sentence_is_held_out_and_has_relations(self):
        pair = annotate(DEFAULT_FILM_TEXT)
        assert split_of(pair.source) == "probe"
        assert {"tense", "noun", "adjective", "verb", "object of the verb"} <= {link.relation for link in pair.links}

    def test_sentence_outside_the_grammar_is_refused(self, monkeypatch):
        monkeypatch.setattr("clearhead.translation.data.grammar.annotate.MAX_DRAWS", 500)
        with pytest.raises(ValueError, match="'the hat wore the man .' was not found among the sentences"):
            annotate("the hat wore the man .")
