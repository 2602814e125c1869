"""Threads that take jobs from a queue, some together, and that are replaced when they do not come back.

A job is abandoned when its future is cancelled: its time is over, or its client is gone. Work whose jobs are all
abandoned is ended in three ways, each for what the one before could not end:

1. the work calls `check`, which raises `Abandoned` (every step of a search does so);
2. after `grace` seconds `Abandoned` is raised in the thread from outside, which ends a loop in Python;
3. after `grace` more (a call into a library that does not return), another thread takes the place of this one.
"""

import ctypes
import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, InvalidStateError
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from coscap.errors import UserError

TICK = 0.25  # seconds between two looks at the threads
MOST_LOST = 4  # threads that may be given up before the process should be started again
log = logging.getLogger("coscap.serve")


class Closed(Exception):
    """The server is shutting down and takes nothing more."""


class Abandoned(BaseException):
    """Nobody waits for this work any more. Not an Exception, so that no handler of errors takes it for one."""


@dataclass
class Job:
    """Work for one request. `key` is equal for jobs that can be done together."""

    request_id: str = ""
    future: "Future[Any]" = field(default_factory=Future, kw_only=True)

    @property
    def key(self) -> Hashable:
        return id(self)

    @property
    def photos(self) -> int:
        return 1

    @property
    def wanted(self) -> bool:
        return not self.future.cancelled()

    def release(self) -> None:
        """Let go of files and the like."""

    def settle(self, result: object) -> None:
        with suppress(InvalidStateError):  # it was abandoned in this moment
            self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        if not isinstance(error, UserError | Closed):
            log.error("Request %s failed by a fault of the server.", self.request_id, exc_info=error)
        with suppress(InvalidStateError):
            self.future.set_exception(error)


J = TypeVar("J", bound=Job)
Check = Callable[[], None]


class Place:
    """One thread of a stage, and what it works on."""

    def __init__(self) -> None:
        self.thread: threading.Thread | None = None
        self.jobs: Sequence[Job] = ()
        self.abandoned_at: float | None = None
        self.interrupted_at: float | None = None
        self.lost = False


class Stage(Generic[J]):
    """`handle(jobs, check)` is called in one of `threads` threads, with jobs of equal keys in their order."""

    def __init__(
        self, name: str, handle: Callable[[list[J], Check], None], most: int, threads: int, grace: float
    ) -> None:
        self.lost = 0
        self._name = name
        self._handle = handle
        self._most = most  # photographs taken together, unless one job alone has more
        self._grace = grace
        self._jobs: deque[J] = deque()
        self._changed = threading.Condition()
        self._closed = False
        self._lock = (
            threading.Lock()
        )  # of the places; a plain lock, which an interruption cannot leave locked
        self._places = [self._start() for _ in range(threads)]

    @property
    def stuck(self) -> int:
        """Threads that have been interrupted and have not come back."""
        with self._lock:
            return sum(place.interrupted_at is not None for place in self._places)

    @property
    def threads(self) -> int:
        return len(self._places)

    def put(self, job: J) -> None:
        with self._changed:
            if self._closed:
                raise Closed
            self._jobs.append(job)
            self._changed.notify()

    def close(self, until: float) -> bool:
        """Finish what was taken, up to this time of the monotonic clock; whether all of it was finished."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        threads = [place.thread for place in self._places if place.thread]
        for thread in threads:
            thread.join(max(0.0, until - time.monotonic()))
        return not any(thread.is_alive() for thread in threads)

    def supervise(self, now: float) -> None:
        """Interrupt and replace threads whose work nobody waits for."""
        with self._lock:
            for at, place in enumerate(self._places):
                if not place.jobs or any(job.wanted for job in place.jobs):
                    place.abandoned_at = None
                elif place.abandoned_at is None:
                    place.abandoned_at = now
                elif place.interrupted_at is None and now - place.abandoned_at > self._grace:
                    place.interrupted_at = now
                    _interrupt(place.thread)
                elif place.interrupted_at is not None and now - place.interrupted_at > self._grace:
                    place.lost = True
                    self.lost += 1
                    self._places[at] = self._start()
                    log.error("A thread of stage %s does not come back; another one takes over.", self._name)

    def _start(self) -> Place:
        place = Place()
        place.thread = threading.Thread(
            target=self._run, args=(place,), name=f"coscap-{self._name}", daemon=True
        )
        place.thread.start()
        return place

    def _run(self, place: Place) -> None:
        while not place.lost:
            try:
                jobs = self._take()
                if not jobs:
                    return
                self._work(place, jobs)
            except Abandoned:
                pass
            finally:
                with self._lock:
                    place.jobs, place.abandoned_at, place.interrupted_at = (), None, None

    def _work(self, place: Place, jobs: list[J]) -> None:
        with self._lock:
            place.jobs = jobs

        def check() -> None:
            if not any(job.wanted for job in jobs):
                raise Abandoned

        try:
            self._handle(jobs, check)
        except Exception as error:
            for job in jobs:
                job.fail(error)
        finally:
            with self._lock:
                place.jobs = ()
            # From here on nobody interrupts this thread; what was raised before arrives at this call at the latest.
            _nothing()

    def _take(self) -> list[J]:
        """The first job that waits and others with its key, as many as fit together; none when all is done."""
        with self._changed:
            while True:
                self._changed.wait_for(lambda: self._jobs or self._closed)
                for job in [job for job in self._jobs if not job.wanted]:
                    self._jobs.remove(job)
                    job.release()
                if self._jobs or self._closed:
                    break
            taken: list[J] = []
            photos = 0
            for job in [job for job in self._jobs if job.key == self._jobs[0].key]:
                if taken and photos + job.photos > self._most:
                    break
                photos += job.photos
                taken.append(job)
                self._jobs.remove(job)
            return taken


class Supervisor:
    """A thread that looks after the threads of some stages."""

    def __init__(self, stages: Sequence[Stage[Any]]) -> None:
        self._stages = stages
        self._ended = threading.Event()
        threading.Thread(target=self._run, name="coscap-supervisor", daemon=True).start()

    def close(self) -> None:
        self._ended.set()

    def _run(self) -> None:
        while not self._ended.wait(TICK):
            for stage in self._stages:
                stage.supervise(time.monotonic())


def _interrupt(thread: threading.Thread | None) -> None:
    """Raise Abandoned in a thread as soon as it runs Python code."""
    if thread is not None and thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Abandoned))


def _nothing() -> None:
    pass
