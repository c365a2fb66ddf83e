"""Nothing a user made is lost: files appear whole or not at all."""

import os
import threading

import pytest

from clearhead.files import write_text


def test_written_whole_with_the_rights_of_a_new_file(tmp_path):
    path = tmp_path / "page.html"
    write_text(path, "héllo")
    assert path.read_bytes() == "héllo".encode()
    plain = tmp_path / "plain"
    plain.write_text("")
    assert path.stat().st_mode == plain.stat().st_mode


def test_an_error_leaves_the_old_file_and_no_other(tmp_path):
    path = tmp_path / "kept"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "half \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_stays_a_link(tmp_path):
    (tmp_path / "real").write_text("old")
    link = tmp_path / "link"
    link.symlink_to("real")
    write_text(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_pipe_is_written_to(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    write_text(path, "through")
    reader.join()
    assert read == ["through"]
    assert path.is_fifo()


def test_a_link_that_leads_to_itself_is_refused(tmp_path):
    (tmp_path / "loop").symlink_to("loop")
    with pytest.raises(OSError, match="a link that leads to itself"):
        write_text(tmp_path / "loop", "x")


def test_folders_are_refused(tmp_path):
    with pytest.raises(IsADirectoryError, match="a folder; expected the name of a file"):
        write_text(tmp_path, "x")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        write_text(tmp_path / "none" / "file", "x")
