"""Tests of writing: files are complete or unchanged, and JSON lines survive crashes."""

import errno
import json
import os
import stat
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from clearhead._utils.files import append_json_line, replacing, resolve_target, write_text


def test_written_files_have_default_permissions(tmp_path):
    path = tmp_path / "page.html"
    write_text(path, "héllo")
    assert path.read_bytes() == "héllo".encode()
    plain = tmp_path / "plain"
    plain.write_text("")
    assert path.stat().st_mode == plain.stat().st_mode


def test_an_error_keeps_the_old_file_and_removes_the_temporary_one(tmp_path):
    path = tmp_path / "kept"
    path.write_text("old")
    with pytest.raises(UnicodeEncodeError):
        write_text(path, "half \ud800")
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_the_target_of_a_symbolic_link_is_replaced(tmp_path):
    (tmp_path / "real").write_text("old")
    link = tmp_path / "link"
    link.symlink_to("real")
    write_text(link, "new")
    assert link.is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_a_pipe_is_written_to_directly(tmp_path):
    path = tmp_path / "pipe"
    os.mkfifo(path)
    read: list[str] = []
    reader = threading.Thread(target=lambda: read.append(path.read_text()))
    reader.start()
    write_text(path, "through")
    reader.join()
    assert read == ["through"]
    assert path.is_fifo()


@pytest.mark.parametrize("write", ["write_text", "append_json_line"])
def test_standard_output_may_be_a_pipe(write):
    content = {"write_text": "'through'", "append_json_line": "{'a': 1}"}[write]
    code = f"from clearhead._utils.files import resolve_target, {write} as write\n"
    code += f"write(resolve_target('/dev/stdout'), {content}); write('/dev/stdout', {content})"
    process = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert process.stdout == {"write_text": "throughthrough", "append_json_line": '{"a": 1}\n' * 2}[write]


@pytest.mark.parametrize("targets", [{"loop": "loop"}, {"loop": "other", "other": "loop"}], ids=len)
def test_a_symbolic_link_to_itself_is_rejected(tmp_path, targets):
    for name, target in targets.items():
        (tmp_path / name).symlink_to(target)
    with pytest.raises(OSError, match="a symbolic link that points to itself"):
        write_text(tmp_path / "loop", "x")
    assert (tmp_path / "loop").is_symlink()


def test_existing_and_missing_folders_are_rejected(tmp_path):
    with pytest.raises(IsADirectoryError, match="a folder; expected the name of a file"):
        write_text(tmp_path, "x")
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        write_text(tmp_path / "none" / "file", "x")


def test_the_file_is_flushed_before_the_rename_and_the_folder_after_it(tmp_path, monkeypatch):
    calls, flush, rename = [], os.fsync, Path.replace

    def fsync(handle):
        calls.append("folder" if stat.S_ISDIR(os.fstat(handle).st_mode) else "file")
        flush(handle)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(Path, "replace", lambda self, to: (calls.append("rename"), rename(self, to))[1])
    write_text(tmp_path / "file", "x")
    assert calls == ["file", "rename", "folder"]


def test_backup_keeps_the_previous_file(tmp_path):
    path, old = tmp_path / "file", tmp_path / "old"
    for text in ("1", "2", "3"):
        with replacing(path, backup=old) as temporary:
            temporary.write_text(text)
    assert (path.read_text(), old.read_text()) == ("3", "2")


def test_an_error_names_the_target_not_the_temporary_file(tmp_path, monkeypatch):
    path = tmp_path / "page.html"

    def full(self, *arguments, **options):
        raise OSError(errno.ENOSPC, "No space left on device", str(self))

    with monkeypatch.context() as patch:
        patch.setattr(Path, "write_text", full)
        with pytest.raises(OSError, match="No space") as caught:
            write_text(path, "x")
    assert caught.value.filename == str(path)

    def read_only(self, target):
        raise OSError(errno.EROFS, "Read-only file system", str(self), None, str(target))

    monkeypatch.setattr(Path, "replace", read_only)
    with pytest.raises(OSError, match=f"Read-only file system: '{path}'$"):
        write_text(path, "x")
    assert not list(tmp_path.iterdir())


def test_resolve_target_rejects_a_folder_without_write_permission(tmp_path, monkeypatch):
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(PermissionError, match=f"page.html: no permission to write to the folder {tmp_path}"):
        resolve_target(tmp_path / "page.html")


def test_a_folder_without_read_permission_can_be_written_to(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "iterdir", lambda self: (_ for _ in ()).throw(PermissionError(errno.EACCES, "no")))
    write_text(tmp_path / "page.html", "x")
    assert (tmp_path / "page.html").read_text() == "x"


def test_an_error_without_a_filename_gets_the_target(tmp_path):
    with pytest.raises(OSError, match="page.html") as raised, replacing(tmp_path / "page.html"):
        raise OSError(errno.ENOSPC, "No space left on device")
    assert raised.value.filename == str(tmp_path / "page.html")


class TestLeftovers:
    """Temporary folders that killed processes left behind."""

    @pytest.fixture
    def left(self, tmp_path):
        """Create the temporary folder of a killed process."""
        code = (
            "import os, sys; from clearhead._utils.files import replacing\n"
            "with replacing(sys.argv[1]) as file: file.write_text('half'); os._exit(9)"
        )
        subprocess.run([sys.executable, "-c", code, str(tmp_path / "page.html")], check=False)
        (left,) = tmp_path.iterdir()
        assert left.name.startswith(".page.html.")
        return left

    def test_the_next_write_of_the_same_file_removes_them(self, tmp_path, left):
        write_text(tmp_path / "other.html", "x")
        assert left.exists()
        write_text(tmp_path / "page.html", "x")
        assert sorted(path.name for path in tmp_path.iterdir()) == ["other.html", "page.html"]

    def test_folders_of_running_processes_and_other_hosts_are_kept(self, tmp_path, left):
        host, suffix = left.name.removeprefix(".page.html.").split("-", 1)
        _, ending = suffix.split(".", 1)
        names = [
            f".page.html.{host}-{os.getppid()}.{ending}",
            f".page.html.00000000-{suffix}",
            ".page.html.backup",
            ".page.html.abcdefgh",
        ]
        for name in names:
            (tmp_path / name).mkdir()
        write_text(tmp_path / "page.html", "x")
        assert sorted(path.name for path in tmp_path.iterdir()) == sorted([*names, "page.html"])

    def test_a_folder_of_an_earlier_process_with_the_same_id_is_removed(self, tmp_path, left):
        host, suffix = left.name.removeprefix(".page.html.").split("-", 1)
        left.rename(tmp_path / f".page.html.{host}-{os.getpid()}.{suffix.split('.', 1)[1]}")
        with replacing(tmp_path / "page.html") as first, replacing(tmp_path / "page.html") as second:
            first.write_text("1")
            second.write_text("2")
        assert [path.name for path in tmp_path.iterdir()] == ["page.html"]


class TestJsonLines:
    def test_each_record_is_one_line(self, tmp_path):
        path = tmp_path / "log.jsonl"
        records = [{"step": step, "text": "é\n"} for step in range(3)]
        for record in records:
            append_json_line(path, record)
        assert [json.loads(line) for line in path.read_text().splitlines()] == records
        with pytest.raises(ValueError, match="not JSON compliant"):
            append_json_line(path, {"step": 3, "loss": float("nan")})
        assert len(path.read_text().splitlines()) == 3

    @pytest.mark.parametrize("block", [3, 2**16])
    def test_line_that_is_cut_anywhere_is_removed(self, tmp_path, monkeypatch, block):
        monkeypatch.setattr("clearhead._utils.files.BLOCK_BYTES", block)
        path = tmp_path / "log.jsonl"
        append_json_line(path, {"step": 1, "values": [1, 2]})
        first = path.read_bytes()
        append_json_line(path, {"step": 2, "values": [3, 4]})
        complete = path.read_bytes()
        for length in range(len(complete) + 1):
            path.write_bytes(complete[:length])
            append_json_line(path, {"step": 3})
            kept = b"" if length < len(first) - 1 else first if length < len(complete) - 1 else complete
            assert path.read_bytes() == kept + b'{"step": 3}\n'

    def test_other_texts_are_kept(self, tmp_path):
        path = tmp_path / "log.jsonl"
        for text in (b"a note", b'{"loss": 1', b'{"step": 1}\n\xff\x00'):
            path.write_bytes(text)
            append_json_line(path, {"step": 3})
            assert path.read_bytes() == text + b'\n{"step": 3}\n'

    def test_pipes_are_written_to(self, tmp_path):
        path = tmp_path / "pipe"
        os.mkfifo(path)
        writing = threading.Thread(target=append_json_line, args=(path, {"step": 3}))
        writing.start()
        assert path.read_bytes() == b'{"step": 3}\n'
        writing.join()


def test_threads_may_replace_the_same_file(tmp_path):
    """Each thread removes folders that killed processes left behind, but not those of other threads."""

    def replace(text):
        for _ in range(50):
            with replacing(tmp_path / "file") as temporary:
                temporary.write_text(text)

    with ThreadPoolExecutor(4) as pool:
        list(pool.map(replace, "abcd"))
    assert (tmp_path / "file").read_text() in set("abcd")
    assert os.listdir(tmp_path) == ["file"]
