"""Threads of the server: abandoned work ends, stuck threads are replaced, budgets and rates hold."""

import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from coscap.serve.limits import Budget, Clients, Exhausted, Limits
from coscap.serve.stage import MOST_LOST, Abandoned, Check, Job, Stage, Supervisor
from coscap.serve.worker import Worker
from serving import PATIENCE, until

GRACE = 10.0


class Work(Job):
    def __init__(self, do: Callable[[Check], Any], key: object = None) -> None:
        super().__init__()
        self.do = do
        self.own_key = key

    @property
    def key(self) -> Any:
        return self.own_key or id(self)


def handle(jobs: list[Work], check: Check) -> None:
    for job in jobs:
        job.settle(job.do(check))


def run(stage: Stage[Work], job: Work) -> Work:
    stage.put(job)
    return job


def test_abandoned_work_ends_at_its_next_check() -> None:
    stage = Stage("test", handle, 4, 1, grace=60)
    steps: list[float] = []

    def search(check: Check) -> None:
        while True:
            check()
            steps.append(time.monotonic())
            time.sleep(0.005)

    job = run(stage, Work(search))
    until(lambda: steps)
    job.future.cancel()
    assert run(stage, Work(lambda check: "next")).future.result(PATIENCE) == "next"
    assert stage.lost == 0 and stage.close(time.monotonic() + PATIENCE)


def test_a_loop_in_python_without_checks_is_interrupted() -> None:
    stage = Stage("test", handle, 4, 1, GRACE)
    ended: list[str] = []
    began = threading.Event()

    def endless(check: Check) -> None:
        began.set()
        try:
            while True:
                sum(range(100))
        except Exception:
            ended.append("swallowed")  # what a careless `except Exception` must not do
        finally:
            ended.append("ended")

    job = run(stage, Work(endless))
    assert began.wait(PATIENCE)
    job.future.cancel()
    for now in (0, GRACE - 1, GRACE + 1):
        assert not ended
        stage.supervise(now)
    assert run(stage, Work(lambda check: "next")).future.result(PATIENCE) == "next"
    assert ended == ["ended"] and stage.lost == 0 and stage.stuck == 0
    assert stage.close(time.monotonic() + PATIENCE)


def test_a_thread_that_does_not_return_is_replaced_and_does_not_hold_up_the_end() -> None:
    stage = Stage("test", handle, 4, 1, GRACE)
    let = threading.Event()
    job = run(stage, Work(lambda check: let.wait()))  # a call that does not return to Python
    until(lambda: stage._places[0].jobs)
    job.future.cancel()
    for now, stuck in ((0, 0), (GRACE - 1, 0), (GRACE + 1, 1), (2 * GRACE, 1)):
        stage.supervise(now)
        assert (stage.stuck, stage.lost) == (stuck, 0)
    stage.supervise(2 * GRACE + 2)
    assert run(stage, Work(lambda check: "next")).future.result(PATIENCE) == "next"
    assert stage.lost == 1 and stage.stuck == 0
    again = run(stage, Work(lambda check: let.wait()))
    until(lambda: stage._places[0].jobs)
    assert not stage.close(time.monotonic() + 0.2)
    again.future.cancel()
    let.set()


def test_a_supervisor_looks_at_its_stages_again_and_again() -> None:
    looks: list[float] = []

    class Looked:
        supervise = staticmethod(looks.append)

    supervisor = Supervisor([Looked()])  # type: ignore[list-item]
    until(lambda: len(looks) >= 3)
    supervisor.close()
    assert looks == sorted(looks) and time.monotonic() - looks[0] < PATIENCE


def test_work_that_somebody_waits_for_is_never_interrupted() -> None:
    stage = Stage("test", handle, 4, 1, grace=0.1)
    supervisor = Supervisor([stage])

    def slow(check: Check) -> str:
        end = time.monotonic() + 1.5
        while time.monotonic() < end:
            check()
        return "done"

    assert run(stage, Work(slow)).future.result(PATIENCE) == "done"
    supervisor.close()
    assert stage.close(time.monotonic() + PATIENCE)


def test_jobs_with_equal_keys_go_together_up_to_the_most() -> None:
    sizes: list[int] = []
    let = threading.Event()

    def record(jobs: list[Work], check: Check) -> None:
        let.wait(PATIENCE)
        sizes.append(len(jobs))
        handle(jobs, check)

    stage = Stage("test", record, 3, 1, grace=60)
    first = run(stage, Work(lambda check: 0))
    until(lambda: stage._places[0].jobs)
    jobs = [run(stage, Work(lambda check: 0, key)) for key in "aabaa"]
    let.set()
    for job in [first, *jobs]:
        assert job.future.result(PATIENCE) == 0
    assert sizes == [1, 3, 1, 1]
    assert stage.close(time.monotonic() + PATIENCE)


def test_a_worker_that_lost_too_many_threads_asks_for_a_new_start() -> None:
    class Captioner:
        class detector:
            batch, least_side = 4, 0

    worker = Worker(Captioner(), Limits())  # type: ignore[arg-type]
    assert worker.problem is None and worker.broken is None
    worker._captions.lost = MOST_LOST
    assert "start the server again" in (worker.broken or "")
    assert worker.close(5) and worker.problem == "The server is shutting down."


def test_abandoned_is_no_exception() -> None:
    assert not issubclass(Abandoned, Exception)


def test_a_budget_is_given_back() -> None:
    budget = Budget(10)
    with budget.share() as one, budget.share() as other:
        one.take(4)
        one.take(2)
        with pytest.raises(Exhausted):
            other.take(5)
        other.take(4)
        assert budget.left == 0
    assert budget.left == 10


def test_a_client_that_asks_too_often_waits_and_others_do_not() -> None:
    now = [0.0]
    clients = Clients(Limits(client_rate=60), clock=lambda: now[0])  # one a second, ten at once

    def ask(client: str) -> float:
        with clients.request(client) as wait:
            return wait

    assert [ask("a") for _ in range(10)] == [0.0] * 10
    assert ask("a") == pytest.approx(1.0)
    assert ask("b") == 0.0
    now[0] = 0.75
    assert ask("a") == pytest.approx(0.25)
    now[0] = 1.0
    assert ask("a") == 0.0
    assert ask("a") > 0.0


def test_a_client_has_only_so_many_requests_in_work() -> None:
    clients = Clients(Limits(client_waiting=2))
    with clients.request("a") as one, clients.request("a") as two:
        assert (one, two) == (0.0, 0.0)
        with clients.request("a") as three, clients.request("b") as other:
            assert three > 0 and other == 0.0
    with clients.request("a") as again:
        assert again == 0.0
    assert not clients._waiting
