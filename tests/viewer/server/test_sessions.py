"""Sessions of pages that were left are discarded without stopping the server."""

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
    """Sizes of the full garbage collections in this block: how many objects each of them traverses."""
    sizes = []

    def watch(phase, about):
        if phase == "start" and about["generation"] == 2:
            sizes.append(len(gc.get_objects()))

    gc.callbacks.append(watch)
    try:
        yield sizes
    finally:
        gc.callbacks.remove(watch)


async def discard(texts, beside=None):
    """Open some pages and leave all of them at once; return weak references to their documents."""
    context = ApplicationContext(Application(SessionHandler(texts)))
    sessions = [await context.create_session_if_needed(f"page {index}") for index in range(PAGES)]
    documents = [weakref.ref(session.document) for session in sessions]
    for session in sessions:
        session.request_expiration()
    del session, sessions
    if beside is not None:
        asyncio.get_running_loop().create_task(beside())
    await context._cleanup_sessions(0)
    assert list(context.sessions) == []
    return documents


def test_a_sweep_makes_at_most_one_collection_of_the_whole_heap():
    heap = len(gc.get_objects())
    with full_collections() as sizes:
        asyncio.run(discard(Texts(decoder("abc"))))
    assert len([size for size in sizes if size > heap // 2]) <= 1


def test_the_server_runs_between_two_discards():
    turns = 0

    async def beside():
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    asyncio.run(discard(Texts(decoder("abc")), beside))
    assert turns >= PAGES


def test_nothing_keeps_a_discarded_page():
    documents = asyncio.run(discard(Texts(decoder("abc"))))
    gc.collect()
    assert [document() for document in documents] == [None] * PAGES


def test_collections_go_on_as_before():
    frozen = gc.get_freeze_count()
    asyncio.run(discard(Texts(decoder("abc"))))
    assert gc.isenabled()
    assert gc.get_freeze_count() <= frozen
