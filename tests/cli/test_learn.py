"""Tests of `clearhead learn`: written pages, the stored course, and the browser."""

from pathlib import Path

import pytest

from clearhead.cli import learn
from clearhead.explain.course import build
from support.command_line import error_of, run


@pytest.fixture
def opened(monkeypatch, tmp_path):
    """Collect the addresses that the browser would open; the cache is an empty folder."""
    addresses = []
    monkeypatch.setattr("webbrowser.open", lambda address: addresses.append(address) or True)
    monkeypatch.setattr(build, "course_files", lambda: iter([("index.html", "contents")]))
    monkeypatch.setattr(learn, "cache_folder", lambda: tmp_path / "cache")
    return addresses


def test_page_is_written_and_opened(opened, tmp_path):
    folder = tmp_path / "course"
    result = run("learn", "one-head", "--output", folder)
    assert result.stdout.strip() == str(folder / "03-one-head.html")
    assert opened == [(folder / "03-one-head.html").as_uri()]
    assert (folder / "index.html").read_text() == "contents"


def test_stored_course_is_written_once(opened, monkeypatch):
    written = []
    files = [("example-song.html", "song"), ("index.html", "contents")]
    monkeypatch.setattr(build, "course_files", lambda: written.append(1) or iter(files))
    first = run("learn", "--no-browser").stdout
    assert first.strip().endswith("index.html")
    assert not opened
    assert run("learn", "--no-browser").stdout == first
    assert run("learn", "song").stdout.strip().endswith("example-song.html")
    assert len(written) == 1


def test_cache_that_was_cleaned_is_written_again_and_old_courses_are_removed(opened, monkeypatch, tmp_path):
    files = [("example-song.html", "song"), ("index.html", "contents")]
    monkeypatch.setattr(build, "course_files", lambda: iter(files))
    for name in ("course-0.1-old", "models"):
        (tmp_path / "cache" / name).mkdir(parents=True)
        (tmp_path / "cache" / name / "index.html").touch()
    song = Path(run("learn", "song").stdout.strip())
    assert sorted(folder.name for folder in (tmp_path / "cache").iterdir()) == [song.parent.name, "models"]
    song.unlink()
    run("learn", "song")
    assert song.read_text() == "song"


def test_missing_browser_is_reported_with_the_address(opened, monkeypatch):
    monkeypatch.setattr("webbrowser.open", lambda address: False)
    result = run("learn")
    assert "No browser could be started. Open this file in one:  file:///" in result.stderr


def test_wrong_arguments_are_refused(opened, tmp_path):
    assert "PAGE is '13'; expected a page of the course, 1 (words)" in error_of("learn", "13")
    (tmp_path / "file").touch()
    assert "expected the name of a folder" in run("learn", "--output", tmp_path / "file", status=2).stderr
    assert not opened
