"""Set-up of an environment: paths with spaces, the choice of torch's build."""

import http.server
import importlib.util
import socket
import subprocess
import sys
import threading
import zipfile
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from support.paths import ROOT


@pytest.fixture
def set_up(monkeypatch, tmp_path):
    """Return tools/set_up.py as a module, as on a machine without a GPU and without configuration of pip."""
    spec = importlib.util.spec_from_file_location("set_up", ROOT / "tools" / "set_up.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    monkeypatch.setattr(module, "has_nvidia_gpu", lambda: False)
    monkeypatch.setattr(module.platform, "system", lambda: "Linux")
    for name, value in {"PIP_CONFIG_FILE": "/dev/null", "PIP_FIND_LINKS": "", "PIP_EXTRA_INDEX_URL": ""}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    return module


@pytest.fixture
def installed(set_up, monkeypatch):
    """Return the list of the calls of pip, which install nothing and succeed."""
    calls = []
    monkeypatch.setattr(set_up, "has_torch", lambda python: False)
    monkeypatch.setattr(set_up, "finds_cpu_build", lambda python: False)
    monkeypatch.setattr(set_up, "install", lambda python, *arguments: calls.append(arguments) or 0)
    return calls


@contextmanager
def index(folder):
    """Serve a folder as a package index, and yield its address."""
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(folder))
    handler.log_message = lambda *arguments: None
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


@contextmanager
def silent_index():
    """Yield the address of a server that accepts connections and never answers."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"http://127.0.0.1:{server.getsockname()[1]}"


def test_cpu_build_is_installed_where_its_index_answers(set_up, installed, tmp_path, capsys):
    (tmp_path / "torch").mkdir()
    with index(tmp_path) as url:
        assert set_up.install_torch("python", "", url) == 0
        assert installed == [("--no-deps", "--retries", "0", "--index-url", url, f"torch=={set_up.pinned_torch()}")]
        assert "no NVIDIA GPU" in capsys.readouterr().out


def test_index_without_torch_is_reported_with_the_size_of_the_default_build(set_up, installed, tmp_path, capsys):
    with index(tmp_path) as url:
        assert set_up.install_torch("python", "", url) == 0
    printed = capsys.readouterr().out
    assert installed == []
    assert "File not found" in printed
    assert "about 2.7 GB" in printed


def test_indices_that_never_answer_are_given_up(set_up, monkeypatch):
    assert set_up.INDEX_SECONDS <= 5
    with silent_index() as url:
        assert set_up.index_error(url, seconds=0.1) in ("no answer in 0.1 seconds", "timed out")
        monkeypatch.setattr(set_up, "INDEX_SECONDS", 0.1)
        monkeypatch.setenv("PIP_INDEX_URL", url)
        assert not set_up.finds_cpu_build(Path(sys.executable))


def test_pip_and_the_index_are_asked_at_the_same_time(set_up, installed, monkeypatch, capsys):
    both = threading.Barrier(2, timeout=60)  # breaks if one waits for the other
    monkeypatch.setattr(set_up, "index_error", lambda url: f"no answer {min(both.wait(), 0)}")
    monkeypatch.setattr(set_up, "finds_cpu_build", lambda python: both.wait() < 0)
    assert set_up.install_torch("python", "", "http://index") == 0
    assert "no answer 0" in capsys.readouterr().out


def test_gpu_is_found_by_its_program(set_up, monkeypatch, tmp_path):
    monkeypatch.undo()  # the replacement of the fixture
    (tmp_path / "nvidia-smi").write_text("")
    (tmp_path / "nvidia-smi").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert set_up.has_nvidia_gpu()


def test_index_that_cannot_be_reached_is_reported(set_up):
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    assert "refused" in set_up.index_error(f"http://127.0.0.1:{port}")
    assert "unknown url type" in set_up.index_error("no-url")


@pytest.mark.parametrize("reason", ["gpu", "cpu build", "macOS", "installed"])
def test_torch_is_left_to_pip_where_its_choice_is_right(set_up, installed, monkeypatch, reason):
    if reason == "gpu":
        monkeypatch.setattr(set_up, "has_nvidia_gpu", lambda: True)
    elif reason == "cpu build":
        monkeypatch.setattr(set_up, "finds_cpu_build", lambda python: True)
    elif reason == "macOS":
        monkeypatch.setattr(set_up.platform, "system", lambda: "Darwin")
    else:
        monkeypatch.setattr(set_up, "has_torch", lambda python: True)
    monkeypatch.setattr(set_up, "index_error", lambda url: pytest.fail("the index is not needed"))
    assert set_up.install_torch("python", "") == 0
    assert installed == []


def test_chosen_index_is_used_and_its_failure_ends_the_set_up(set_up, installed, monkeypatch):
    set_up.install_torch("python", "http://chosen")
    assert installed == [("--no-deps", "--index-url", "http://chosen", f"torch=={set_up.pinned_torch()}")]
    monkeypatch.setattr(set_up, "install", lambda python, *arguments: 1)
    assert set_up.install_torch("python", "http://chosen") == 1


@pytest.mark.slow
def test_cpu_wheel_of_a_local_index_is_installed_in_a_folder_with_a_space(set_up, tmp_path, capfd):
    folder = tmp_path / "my folder"
    subprocess.run([sys.executable, "-m", "venv", str(folder / "venv")], check=True)
    python = folder / "venv" / "bin" / "python"
    name = f"torch-{set_up.pinned_torch()}+cpu"
    (folder / "torch").mkdir()
    with zipfile.ZipFile(folder / "torch" / f"{name}-py3-none-any.whl", "w") as wheel:
        information = f"{name}.dist-info"
        wheel.writestr(f"{information}/METADATA", f"Metadata-Version: 2.1\nName: torch\nVersion: {name[6:]}\n")
        wheel.writestr(f"{information}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{information}/RECORD", "")
    assert not set_up.has_torch(python)
    (folder / "constraints.txt").write_text((ROOT / "constraints.txt").read_text())
    set_up.CONSTRAINTS = folder / "constraints.txt"
    with index(folder) as url:
        assert set_up.install_torch(python, "", url) == 0
    assert "cannot be used" not in capfd.readouterr().out
    assert set_up.has_torch(python)


def test_failed_pip_names_its_log_and_prints_its_errors(set_up, tmp_path, capfd):
    for name in ("bin", "lib", "pyvenv.cfg"):
        (tmp_path / name).symlink_to(Path(sys.prefix) / name)
    python = tmp_path / "bin" / "python"
    assert set_up.install(python, "--no-index", "no-such-package") == 1
    error = capfd.readouterr().err
    assert "No matching distribution found for no-such-package" in error
    assert str(tmp_path / "pip.log") in error
