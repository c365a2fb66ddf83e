"""Tests of corpus statistics: the result does not depend on the number of processes or on crashes."""

import json
import subprocess
import sys

import pytest
import torch
from typer.testing import CliRunner

from clearhead.analysis.accumulate import HeadSums
from clearhead.analysis.corpus import corpus_statistics
from clearhead.analysis.resumable import Job, discard_results, run_jobs
from clearhead.analysis.roles import head_roles
from clearhead.analysis.statistics import measure_heads, statistics_from_sums, sum_statistics
from clearhead.analysis.summary import AttentionSummary, summarize
from clearhead.cli import app
from clearhead.distributed.process_group import ProcessGroup
from clearhead.translation import Translator
from support.paths import ROOT
from support.ranks import started
from support.recordings import decoder, translation

CRASHING_RANK = ROOT / "tests" / "support" / "crashing_rank.py"
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node"]
SENTENCES = ["I read a book.", "She plays the piano.", "The old dog barked.", "Why?", "He went home yesterday."]


def recordings(count):
    return [decoder([f"{text}.{position}" for position in range(7 + text)], special=(0,)) for text in range(count)]


def torchrun(count, *arguments):
    return subprocess.run([*TORCHRUN, str(count), *map(str, arguments)], capture_output=True, text=True, timeout=200)


def test_sums_of_single_texts_give_the_statistics_of_all_texts(tmp_path):
    texts = recordings(4)
    total = HeadSums.empty()
    for index, recording in enumerate(texts):
        sum_statistics(recording).save(tmp_path / f"{index}.safetensors")
        total += HeadSums.load(tmp_path / f"{index}.safetensors")
    assert statistics_from_sums(total) == measure_heads(texts)[1]
    assert total.model == "a model"


def test_sums_of_summaries_give_the_means_over_all_queries():
    summaries = [corpus_statistics(recording) for recording in recordings(3)]
    total = summaries[0].to_sums("m") + summaries[1].to_sums("m") + summaries[2].to_sums("m")
    result = AttentionSummary.from_sums(total)
    layers = [summary[1] for summary in summaries]
    queries = sum(layer.queries for layer in layers)
    expected = sum(layer.sums["entropy"] for layer in layers) / queries
    assert result[1].queries == queries
    torch.testing.assert_close(result[1].means["entropy"], expected)


def test_spans_of_a_recording_are_those_of_the_matrix():
    recording = decoder("abcdefg", special=(0,))
    spans = {"a": (0, 2), "b": (1, 7)}
    summary = summarize(recording, spans=spans)
    for layer, weights in enumerate(recording["decoder"].layers):
        torch.testing.assert_close(summary[layer].means["mass"], weights.mass(spans)[0].mean(dim=1).double())
    again = AttentionSummary.from_sums(summary.to_sums("m") + summary.to_sums("m"), spans=("a", "b"))
    assert again[1].queries == 14
    assert list(again.to_dict()) == ["stack", "layer", "head", "queries", "entropy", "distance", "largest", "a", "b"]
    torch.testing.assert_close(again[1].means["mass"], summary[1].means["mass"])


def test_a_span_must_lie_within_the_keys_of_a_stack():
    recording = translation("abcdef", "ghi")
    summary = corpus_statistics(recording, spans={"*": {"a": (2, 6)}})
    torch.testing.assert_close(summary["decoder", 0].means["mass"][:, 0], mass_of(recording["decoder"], (2, 3)))
    torch.testing.assert_close(summary["cross", 0].means["mass"][:, 0], mass_of(recording["cross"], (2, 6)))
    with pytest.raises(ValueError, match=r"spans\['a'\] is \(2, 7\); expected an end of at most 6"):
        corpus_statistics(recording, spans={"*": {"a": (2, 7)}})
    with pytest.raises(ValueError, match=r"spans\['a'\] is \(2, 6\); expected an end of at most 3"):
        corpus_statistics(recording, spans={"decoder": {"a": (2, 6)}})
    with pytest.raises(ValueError, match="spans has no stack, but attention runs in 'encoder', 'decoder' and 'cross'"):
        corpus_statistics(recording, spans={"a": (2, 3)})


def test_a_recording_with_nan_names_the_layer():
    recording = decoder("abc")
    recording["decoder"].layers[1].lse[:] = torch.nan
    with pytest.warns(UserWarning, match="^layer 1 of 'decoder': the statistics of call 0 are NaN, so") as warned:
        summarize(recording).to_dict()
    assert len(warned) == 1


def test_roles_of_recordings_with_nan_name_the_recording_and_the_layer():
    given = recordings(4)
    given[2]["decoder"].layers[1].lse[:] = torch.nan
    given[3]["decoder"].layers[0].lse[:] = torch.nan
    with pytest.warns(UserWarning, match="^recording 2: the statistics of layer 1 of 'decoder' are NaN, so") as warned:
        head_roles(given)
    assert len(warned) == 1


def test_stored_results_with_nan_are_a_warning(tmp_path):
    recording = decoder("abc")
    recording["decoder"].layers[1].lse[:] = torch.nan
    for _ in range(2):
        with pytest.warns(UserWarning, match="^text 0: the statistics of layer 1 of 'decoder' are NaN, so"):
            run_jobs([Job("nan", lambda: sum_statistics(recording), "text 0")], results_folder=tmp_path / "parts")


def mass_of(stack, span):
    return stack.layers[0].mass([span])[0, :, :, 0].double().mean(dim=-1)


def test_stored_results_of_other_spans_are_not_used(tmp_path):
    translator = Translator.load()
    options = {"results_folder": tmp_path / "parts"}
    choices = (None, {"a": (0, 2)}, {"a": (0, 3)}, [(0, 3)], {"a": (0, 3)})
    for spans, count in zip(choices, (1, 2, 3, 4, 4), strict=True):
        given = None if spans is None else {"encoder": spans}
        summary = corpus_statistics(translator, SENTENCES[:1], spans=given, **options)
        assert len(list((tmp_path / "parts").iterdir())) == count
        assert ("mass" in summary["encoder", 0].means) == (spans is not None)
        assert "mass" not in summary["decoder", 0].means
    assert summary.to_dict()["a"].count(None) == 2 * sum(len(layer.sums["entropy"]) for layer in summary) // 3


def jobs_of(count):
    return [
        Job(f"text {index}", lambda recording=recording: sum_statistics(recording))
        for index, recording in enumerate(recordings(count))
    ]


def statistics_over(mesh, count):
    process_group = ProcessGroup(mesh.get_local_rank(), mesh.size())
    total = run_jobs(jobs_of(count), process_group=process_group)
    return total.model, statistics_from_sums(total)


# with 3 ranks and 2 texts, one rank has no jobs
@pytest.mark.parametrize(("count", "texts"), [(2, 5), pytest.param(3, 2, marks=pytest.mark.slow)])
def test_the_result_does_not_depend_on_the_number_of_processes(count, texts):
    expected = measure_heads(recordings(texts))
    with started(count) as ranks:  # jobs are split over all processes of the default group
        for model, result in ranks.run(count, statistics_over, texts):
            assert model == expected[0]
            assert result.keys() == expected[1].keys()
            for address, statistics in result.items():
                for name, value in vars(expected[1][address]).items():
                    wanted = value if value is None else pytest.approx(value, rel=1e-12)
                    assert getattr(statistics, name) == wanted, name


def test_stacks_have_separate_statistics():
    recording = translation(["a", "b", "c"], ["d", "e"])
    assert statistics_from_sums(sum_statistics(recording)) == measure_heads([recording])[1]


def test_finished_jobs_do_not_run_again_until_results_are_discarded(tmp_path):
    done = []

    def job(index):
        def count():
            done.append(index)
            if index == 2 and done.count(2) == 1:
                raise KeyboardInterrupt
            return HeadSums("m", {"encoder": [1]}, {"x": torch.tensor([1.0 * index]).double()})

        return Job(f"job {index}", count)

    keep = tmp_path / "parts"
    with pytest.raises(KeyboardInterrupt):
        run_jobs([job(index) for index in range(4)], results_folder=keep)
    total = run_jobs([job(index) for index in range(4)], results_folder=keep)
    assert done == [0, 1, 2, 2, 3]
    assert total.sums["x"].item() == 6
    discard_results(keep)
    assert list(tmp_path.iterdir()) == []


def test_stored_results_of_other_parameters_are_not_used(tmp_path):
    translator = Translator.load()
    first = corpus_statistics(translator, SENTENCES[:1], results_folder=tmp_path / "parts")
    with torch.no_grad():
        translator.model.encoder[0].attention.query.weight.mul_(3)
    second = corpus_statistics(translator, SENTENCES[:1], results_folder=tmp_path / "parts")
    assert len(list((tmp_path / "parts").iterdir())) == 2
    assert not torch.equal(first["encoder", 0].means["entropy"], second["encoder", 0].means["entropy"])


def test_a_damaged_result_is_computed_again(tmp_path):
    keep = tmp_path / "parts"
    first = run_jobs(jobs_of(2), results_folder=keep)
    for path in keep.iterdir():
        path.write_bytes(b"")
    with pytest.warns(UserWarning, match="not a complete safetensors file .*; it is computed again"):
        assert statistics_from_sums(run_jobs(jobs_of(2), results_folder=keep)) == statistics_from_sums(first)


@pytest.mark.parametrize("name", ["missing/deep/x.json", "."])
def test_commands_reject_an_unwritable_output_before_loading_the_model(tmp_path, name, monkeypatch):
    monkeypatch.setattr("clearhead.cli.heads.load_source", lambda *given: pytest.fail("the model was loaded"))
    for command in ("stats", "roles"):
        done = CliRunner().invoke(app, [command, "--model", "en-ja", "Why?", "--output", str(tmp_path / name)])
        assert done.exit_code == 2
        assert str(tmp_path) in done.output
    assert list(tmp_path.iterdir()) == []


@pytest.mark.slow
def test_after_a_killed_rank_only_unfinished_jobs_run_again(tmp_path):
    first = torchrun(2, CRASHING_RANK, tmp_path)
    assert first.returncode != 0
    assert "rank      : 1 (local_rank: 1)" in first.stderr
    assert "SIGKILL" in first.stderr
    assert not (tmp_path / "result").exists()
    kept = len(list((tmp_path / "parts").glob("*.safetensors")))
    assert kept == 4  # three of the surviving rank, one of the killed rank
    before = {path.name for path in tmp_path.glob("done-*")}
    second = torchrun(2, CRASHING_RANK, tmp_path)
    assert second.returncode == 0, second.stderr
    assert (tmp_path / "result").read_text() == "15.0"
    again = {path.name.split("-")[1] for path in tmp_path.glob("done-*")} - {name.split("-")[1] for name in before}
    assert again == {"3", "5"}
    assert len(list(tmp_path.glob("done-*"))) == 6
    assert not (tmp_path / "parts").exists()


@pytest.mark.slow
@pytest.mark.parametrize("command", ["stats", "roles"])
def test_commands_give_the_same_result_under_torchrun(tmp_path, command):
    files = []
    for index, sentence in enumerate(SENTENCES):
        (tmp_path / f"{index}.txt").write_text(sentence)
        files += ["--file", str(tmp_path / f"{index}.txt")]
    given = [command, "--model", "en-ja", *files, "--output"]
    assert CliRunner().invoke(app, [*given, str(tmp_path / "alone.json")]).exit_code == 0
    done = torchrun(2, "-m", "clearhead", *given, tmp_path / "together.json")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count("wrote") == 1
    assert {path.name for path in tmp_path.iterdir() if path.suffix != ".txt"} == {"alone.json", "together.json"}
    one, other = (json.loads((tmp_path / f"{name}.json").read_text())["heads"] for name in ("alone", "together"))
    if command == "stats":  # columns, not rows
        one, other = [one], [other]
    for row, same in zip(one, other, strict=True):
        for name, value in row.items():
            exact = value is None or name in ("stack", "labels")
            assert same[name] == (value if exact else pytest.approx(value, rel=1e-9, abs=1e-12)), name
