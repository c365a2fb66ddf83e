"""Tests of session cleanup: closed pages are discarded without blocking the server."""

import asyncio
import gc
import weakref
from contextlib import contextmanager

from bokeh.application import Application
from bokeh.server.contexts import ApplicationContext

from clearhead.viewer.server._session_handler import SessionHandler
from clearhead.viewer.server._texts import Texts
from support.recordings import decoder

PAGES = 7


@contextmanager
def full_collections():
    """Record the number of objects that each full garbage collection in this block traverses."""
    sizes = []

    def watch(phase, about):
        if phase == "start" and about["generation"] == 2:
            sizes.append(len(gc.get_objects()))

    gc.callbacks.append(watch)
    try:
        yield sizes
    finally:
        gc.callbacks.remove(watch)


async def discard(texts, concurrent=None):
    """Open some pages, close all of them at once, and return weak references to their documents."""
    context = ApplicationContext(Application(SessionHandler(texts)))
    sessions = [await context.create_session_if_needed(f"page {index}") for index in range(PAGES)]
    documents = [weakref.ref(session.document) for session in sessions]
    for session in sessions:
        session.request_expiration()
    del session, sessions
    if concurrent is not None:
        asyncio.get_running_loop().create_task(concurrent())
    await context._cleanup_sessions(0)
    assert list(context.sessions) == []
    return documents


def test_cleanup_runs_at_most_one_full_garbage_collection():
    heap = len(gc.get_objects())
    with full_collections() as sizes:
        asyncio.run(discard(Texts(decoder("abc"))))
    assert len([size for size in sizes if size > heap // 2]) <= 1


def test_event_loop_runs_between_two_discards():
    turns = 0

    async def count_turns():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    asyncio.run(discard(Texts(decoder("abc")), count_turns))
    assert turns >= PAGES


def test_discarded_pages_are_freed():
    documents = asyncio.run(discard(Texts(decoder("abc"))))
    gc.collect()
    assert [document() for document in documents] == [None] * PAGES


def test_garbage_collection_stays_enabled():
    frozen = gc.get_freeze_count()
    asyncio.run(discard(Texts(decoder("abc"))))
    assert gc.isenabled()
    assert gc.get_freeze_count() <= frozen
