"""The compute thread: order, hand-over, errors."""

import asyncio
import threading

from services.model_runtime.worker import Raised, Worker


async def test_jobs_run_in_order_on_one_other_thread_and_answer_on_the_loop() -> None:
    """Submitted first, run first; `done` is called by the loop's thread."""
    loop = asyncio.get_running_loop()
    ended = loop.create_future()
    ran: list[tuple[int, int]] = []
    answered: list[tuple[int, int]] = []
    worker = Worker("test", lambda: None)

    def job(number: int) -> int:
        ran.append((number, threading.get_ident()))
        return number

    def done(number: int) -> None:
        answered.append((number, threading.get_ident()))
        if number == 9:
            ended.set_result(None)

    for number in range(10):
        worker.submit(lambda number=number: job(number), done)
    assert worker.pending == 10
    await ended
    worker.close()
    assert worker.pending == 0
    assert [number for number, _ in ran] == [number for number, _ in answered] == list(range(10))
    threads = {thread for _, thread in ran}
    assert len(threads) == 1
    assert {thread for _, thread in answered} == {threading.get_ident()} != threads


async def test_a_job_that_raises_is_handed_over_and_the_thread_goes_on() -> None:
    """The error arrives as a result; the next job runs."""
    results: asyncio.Queue[object] = asyncio.Queue()
    worker = Worker("test", lambda: None)
    worker.submit(lambda: 1 // 0, results.put_nowait)
    worker.submit(lambda: "next", results.put_nowait)
    first = await results.get()
    assert isinstance(first, Raised)
    assert isinstance(first.error, ZeroDivisionError)
    assert await results.get() == "next"
    worker.close()


async def test_the_thread_is_prepared_before_its_first_job() -> None:
    """torch keeps its thread count per thread."""
    results: asyncio.Queue[object] = asyncio.Queue()
    prepared: list[int] = []
    worker = Worker("test", lambda: prepared.append(threading.get_ident()))
    worker.submit(threading.get_ident, results.put_nowait)
    assert await results.get() == prepared[0]
    worker.close()
