"""Tests of the files that the page offers: the same report as the command writes, for this page only."""

import json
import re
import socket
import threading
import urllib.parse
from dataclasses import replace

import pytest
import torch

from clearhead import report, view
from clearhead.recording.next_tokens import DeferredNextTokens, NextTokens
from clearhead.viewer._explain_page import explain_page
from clearhead.viewer._recording_cache import RecordingCache
from clearhead.viewer.report import _details
from clearhead.viewer.server import _downloads
from support.recordings import decoder
from support.viewer_client import cookie, fetch, home

RECORDING = decoder("abcdefghij")


@pytest.fixture(scope="module")
def viewer():
    with view(RECORDING, browser=False, wait=False) as viewer:
        yield viewer


def download(viewer, headers=None, name="report", **parameters):
    address = f"{home(viewer)}{name}.html?{urllib.parse.urlencode(parameters)}"
    return fetch(address, **{"Cookie": cookie(viewer), **(headers or {})})


def stored_model(page):
    return json.loads(re.search(r'id="stored-model">(.*)</script>', page)[1])


def arrays(page):
    return re.findall(r'id="layer-[^>]*>([^<]*)<', page)


def test_report_is_that_of_the_command(viewer, monkeypatch):
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "1700000000")
    details = {"note": "<script>1</script>\nSee あ.", "view": "head=decoder.1.2&cell=7-4", "title": "Ours"}
    status, headers, page = download(viewer, {"Sec_Fetch_Site": "same-origin"}, **details)
    assert status == 200
    assert headers["Content-Disposition"] == 'attachment; filename="clearhead-report.html"'
    assert headers["Content-Type"] == "text/html; charset=UTF-8"
    assert headers["Cache-Control"] == "no-store"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    written = report(RECORDING, **details).html
    assert stored_model(page) == stored_model(written)
    assert arrays(page) == arrays(written)
    assert (
        page[page.index("<header>") : page.index("<main>")]
        == written[written.index("<header>") : written.index("<main>")]
    )
    assert "<script>1" not in page[page.index("<header>") : page.index("<main>")]


@pytest.mark.parametrize(
    ("site", "status"),
    [("none", 200), ("same-site", 403), ("cross-site", 403), ("", 403), ("same-origin, cross-site", 403)],
)
def test_other_pages_cannot_load_it(viewer, site, status):
    assert download(viewer, {"Sec_Fetch_Site": site})[0] == status  # "none": typed by the user


@pytest.mark.parametrize("value", ["", "clearhead-{port}=", "clearhead-{port}=wrong", "clearhead-1={secret}"])
def test_the_cookie_is_required(viewer, value):
    secret = cookie(viewer).partition("=")[2]
    status, headers, text = download(viewer, {"Cookie": value.format(port=viewer.port, secret=secret)})
    assert status == 403
    assert "Content-Disposition" not in headers
    assert "stored-model" not in text


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"note": "x" * 10_001}, "note has 10,001 characters; expected at most 10,000"),
        ({"title": "x" * 201}, "title has 201 characters"),
        ({"view": "head=a b"}, "view is 'head=a b'; expected a URL fragment"),
        ({"given": "first"}, "invalid literal for int"),
        ({"given": "9" * 5000}, "Exceeds the limit"),
        ({"text": "another"}, "this is a recording; expected a model to run on another text"),
        ({"text": "x" * 20_001}, "the text has 20,001 characters; expected at most 20,000"),
        ({"text": ""}, None),  # the text of a recording
        ({"given": "99"}, None),
        ({"view": "head=none.9.9&cell=999999999-1", "other": "x"}, None),
        ({"note": "あ" * 10_000}, None),  # an address of 90,000 bytes
        ({"text": "あ" * 20_000}, "this is a recording"),
    ],
)
def test_wrong_parameters_are_refused_as_plain_text(viewer, parameters, message, caplog):
    status, headers, text = download(viewer, **parameters)
    assert status == (200 if message is None else 400)
    if message is not None:
        assert headers["Content-Type"] == "text/plain; charset=utf-8"
        assert message in text
    assert caplog.records == []


def test_next_tokens_of_a_report_are_computed_in_the_worker_thread():
    threads = []

    def predict(positions):
        threads.append(threading.current_thread().name)
        return NextTokens((("a",),) * len(positions), torch.ones(len(positions), 1), tuple(positions))

    recording = replace(RECORDING, next_tokens=DeferredNextTokens(predict, range(10)))
    with view(recording, browser=False, wait=False) as viewer:
        assert download(viewer)[0] == 200
    assert [name.partition("_")[0] for name in threads] == ["clearhead"]


def test_explanation_is_that_of_the_cell(viewer):
    status, headers, page = download(viewer, name="explain", head="decoder.1.2", cell="7-4")
    assert status == 200
    assert "Content-Disposition" not in headers  # shown in a tab
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert page == explain_page(RecordingCache(RECORDING), ("decoder", 1, 2), 7, 4)


@pytest.mark.parametrize(
    ("headers", "parameters", "status"),
    [
        ({"Cookie": ""}, {"head": "decoder.1.2", "cell": "7-4"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, {"head": "decoder.1.2", "cell": "7-4"}, 403),
        ({}, {"head": "decoder.1.2"}, 400),
        ({}, {"head": "decoder.1.2", "cell": "7-4-1"}, 400),
        ({}, {"head": "decoder.1.2", "cell": "10-4"}, 400),
        ({}, {"head": "decoder.1.2", "cell": f"{10**12}-4"}, 400),
        ({}, {"head": "<script>.1.2", "cell": "7-4"}, 400),
        ({}, {"cell": "7-4"}, 400),
    ],
)
def test_wrong_requests_for_an_explanation_are_refused(viewer, headers, parameters, status, caplog):
    got, answered, text = download(viewer, headers, "explain", **parameters)
    assert got == status
    assert "<script>" not in text
    assert status == 403 or answered["Content-Type"] == "text/plain; charset=utf-8"
    assert caplog.records == []


@pytest.mark.parametrize("path", ["report.html/", "report.htm", "Report.html", "report.html%00", "x/report.html"])
def test_similar_paths_are_not_found(viewer, path):
    assert fetch(home(viewer) + path, Cookie=cookie(viewer))[0] == 404


@pytest.mark.parametrize("method", ["POST", "HEAD", "PUT", "DELETE", "OPTIONS"])
def test_other_methods_are_refused(viewer, method):
    request = f"{method} /report.html HTTP/1.1\r\nHost: 127.0.0.1:{viewer.port}\r\nCookie: {cookie(viewer)}\r\n"
    with socket.create_connection(("127.0.0.1", viewer.port), timeout=60) as connection:
        connection.sendall(f"{request}Content-Length: 0\r\nConnection: close\r\n\r\n".encode())
        assert connection.recv(100).startswith((b"HTTP/1.1 405", b"HTTP/1.1 403"))


def test_the_number_of_reports_at_a_time_is_bounded(viewer, monkeypatch):
    monkeypatch.setattr(_downloads, "MAX_DOWNLOADS", 0)
    assert download(viewer)[0] == 429
    monkeypatch.setattr(_downloads, "MAX_DOWNLOADS", 1)
    monkeypatch.setitem(_details.MAX_LETTERS, "note", 1)
    assert download(viewer, note="12")[0] == 400  # and the next request is served
    assert download(viewer, note="1")[0] == 200
