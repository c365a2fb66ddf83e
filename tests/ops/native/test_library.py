"""Tests of the compilation of C++ sources: the cache on disk, missing compilers and failing ones."""

import subprocess
import threading

import pytest

from clearhead.ops.native import library
from clearhead.ops.native.library import load_library

ANSWER = '#include "exponential.h"\nextern "C" int answer() { return %d; }\n'


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """Return the folder of compiled libraries, in a new cache."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "clearhead" / "native"


@pytest.fixture
def compilations(monkeypatch):
    """Count the commands of the compiler that run."""
    commands = []
    run = subprocess.run

    def counted(command, **options):
        commands.append(command)
        return run(command, **options)

    monkeypatch.setattr(library.subprocess, "run", counted)
    return commands


@pytest.fixture
def source(tmp_path):
    path = tmp_path / "answer.cpp"
    path.write_text(ANSWER % 42)
    return path


def test_a_source_is_compiled_once(cache, source, compilations):
    assert load_library(source).answer() == 42
    count = len(compilations)
    assert count >= 2  # compiled and linked
    assert load_library(source).answer() == 42
    assert len(compilations) == count
    (file,) = cache.iterdir()
    assert file.name.startswith("answer-")
    assert cache.stat().st_mode & 0o077 == 0


def test_a_changed_source_or_processor_is_compiled_again(cache, source, monkeypatch):
    load_library(source)
    source.write_text(ANSWER % 43)
    assert load_library(source).answer() == 43
    monkeypatch.setattr(library, "_processor", lambda: "another one")
    load_library(source)
    monkeypatch.setattr(library, "FLAGS", (*library.FLAGS, "-DOTHER"))
    load_library(source)
    assert len(list(cache.iterdir())) == 4


def test_a_damaged_library_is_compiled_again(cache, source):
    load_library(source)
    (file,) = cache.iterdir()
    file.unlink()  # not overwritten: this process has it mapped
    file.write_bytes(b"not a library")
    assert load_library(source).answer() == 42


def test_a_folder_that_others_can_write_to_is_not_used(cache, source):
    cache.mkdir(parents=True)
    cache.chmod(0o777)
    assert library.cache_folder() is None
    assert load_library(source).answer() == 42
    assert list(cache.iterdir()) == []


def test_a_library_that_others_can_write_to_is_compiled_again(cache, source, compilations):
    load_library(source)
    (file,) = cache.iterdir()
    assert file.stat().st_mode & 0o077 == 0
    count = len(compilations)
    file.chmod(0o666)
    assert load_library(source).answer() == 42
    assert len(compilations) > count


def test_libraries_are_compiled_without_a_cache_folder(tmp_path, source, monkeypatch):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "file"))
    assert library.cache_folder() is None
    assert load_library(source).answer() == 42


def test_several_threads_may_compile_the_same_source(cache, source):
    answers = []
    threads = [threading.Thread(target=lambda: answers.append(load_library(source).answer())) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert answers == [42] * 4
    assert len(list(cache.iterdir())) == 1


@pytest.mark.usefixtures("cache")
def test_missing_and_failing_compilers_are_named(source, monkeypatch):
    for compiler, reason in [("/missing/cc", "'/missing/cc'"), ("false", "^false failed: ")]:
        monkeypatch.setenv("CXX", compiler)
        with pytest.raises(OSError, match=reason):
            load_library(source)
    monkeypatch.delenv("CXX")
    monkeypatch.setattr(library.shutil, "which", lambda name: None)
    with pytest.raises(OSError, match=r"^none of g\+\+, c\+\+, clang\+\+ was found$"):
        load_library(source)


def test_other_systems_compile_nothing(source, monkeypatch):
    for name, machine in (("system", "Darwin"), ("machine", "s390x")):
        with monkeypatch.context() as patched:
            patched.setattr(library.platform, name, lambda machine=machine: machine)
            with pytest.raises(OSError, match=f"are compiled for Linux on x86-64 or ARM64, not for .*{machine}"):
                load_library(source)


@pytest.mark.usefixtures("cache")
def test_a_command_that_cannot_be_split_is_an_error(source, monkeypatch):
    monkeypatch.setenv("CXX", '"g++')
    with pytest.raises(OSError, match="^CXX is '\"g\\+\\+'; expected the command of a compiler: No closing quotation$"):
        load_library(source)
    monkeypatch.setenv("CXX", " ")
    assert load_library(source).answer() == 42


@pytest.mark.usefixtures("cache")
def test_messages_of_a_compiler_may_have_any_encoding(source, tmp_path, monkeypatch):
    noisy = tmp_path / "a noisy compiler"
    noisy.write_text("#!/bin/sh\nprintf '\\377' >&2\nexec g++ \"$@\"\n")
    noisy.chmod(0o755)
    monkeypatch.setenv("CXX", f"'{noisy}'")
    assert load_library(source).answer() == 42


@pytest.mark.usefixtures("cache")
def test_errors_of_the_compiler_are_shown(source):
    source.write_text("int answer() { return nothing; }")
    with pytest.raises(OSError, match="nothing"):
        load_library(source)


@pytest.mark.usefixtures("cache")
def test_slow_compilers_are_ended(source, tmp_path, monkeypatch):
    slow = tmp_path / "slow"
    slow.write_text("#!/bin/sh\nexec sleep 60\n")
    slow.chmod(0o755)
    monkeypatch.setenv("CXX", f"{slow} --an-option")
    monkeypatch.setattr(library, "SECONDS_TO_COMPILE", 0.1)
    with pytest.raises(TimeoutError, match="slow did not end within 0 seconds"):
        load_library(source)
