"""Tests of the order in which a page's tasks run."""

import asyncio
from concurrent.futures import ThreadPoolExecutor

from clearhead.viewer.server._tasks import PageTasks


class LoopDocument:
    """Document whose callbacks run in the event loop."""

    def __init__(self):
        self.running = []

    def add_next_tick_callback(self, callback):
        asyncio.get_running_loop().call_soon(self._call, callback)

    def _call(self, callback):
        result = callback()
        if asyncio.iscoroutine(result):
            self.running.append(asyncio.ensure_future(result))


def test_tasks_run_by_rank_and_a_canceled_one_blocks_none():
    order, errors = [], []

    def steps(name):
        for _ in range(4):
            order.append(name)
            yield None

    async def run(executor):
        tasks = PageTasks(LoopDocument(), executor, errors.append)
        tasks.start("canceled", steps("canceled"))
        tasks.cancel("canceled")  # before its first step
        tasks.start("thumbnails", steps("last"), last=True)
        tasks.start("lists", steps("background"), background=True)
        tasks.start("cell", steps("foreground"))
        while len(order) < 12:
            await asyncio.sleep(0.001)

    with ThreadPoolExecutor(1) as executor:
        asyncio.run(asyncio.wait_for(run(executor), 60))
    # tasks of higher ranks may take one step before the others have started
    ends = [len(order) - 1 - order[::-1].index(name) for name in ("foreground", "background", "last")]
    assert ends == sorted(ends)
    assert order[-3:] == ["last"] * 3
    assert "canceled" not in order
    assert errors == []
