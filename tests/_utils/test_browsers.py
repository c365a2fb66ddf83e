"""Tests of the browser of a machine: windows are opened, and browsers in the terminal are not."""

import webbrowser

import pytest

from clearhead._utils.browsers import is_remote, open_window


@pytest.fixture
def opened(monkeypatch):
    """Addresses passed to `webbrowser.open`."""
    addresses = []
    monkeypatch.setattr("webbrowser.open", lambda address: addresses.append(address) or True)
    monkeypatch.delenv("BROWSER", raising=False)
    return addresses


@pytest.mark.parametrize(
    ("browser", "is_started"),
    [
        (webbrowser.GenericBrowser("w3m"), False),
        (webbrowser.Elinks("elinks"), False),
        (webbrowser.BackgroundBrowser("xdg-open"), True),
        (webbrowser.Chromium("chromium"), True),
    ],
    ids=lambda value: getattr(value, "name", None),
)
def test_browsers_in_the_terminal_are_not_started(opened, monkeypatch, browser, is_started):
    monkeypatch.setattr("webbrowser.get", lambda: browser)
    assert open_window("file:///page.html") == is_started
    assert opened == ["file:///page.html"] * is_started


def test_variable_names_a_browser_in_the_terminal(opened, monkeypatch):
    monkeypatch.setattr("webbrowser.get", lambda: webbrowser.GenericBrowser("w3m"))
    monkeypatch.setenv("BROWSER", "w3m")
    assert open_window("file:///page.html")


def test_ssh_connections_are_recognized(monkeypatch):
    monkeypatch.delenv("SSH_CONNECTION", raising=False)
    assert not is_remote()
    monkeypatch.setenv("SSH_CONNECTION", "10.0.0.1 5000 10.0.0.2 22")
    assert is_remote()
