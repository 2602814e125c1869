"""What one request, one client and all requests together may take."""

import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

FORM_FIELDS = 60  # fields of a form besides its photographs
FIELD_BYTES = 10_000  # of one such field
JSON_BYTES = 10_000  # of a JSON body
NAME_LENGTH = 200  # characters of a photograph's name that are given back
CLIENTS = 10_000  # clients whose rate is remembered


@dataclass(frozen=True)
class Limits:
    """Most of them are options of `coscap serve`."""

    photos: int = 16
    """Photographs in a request."""
    bytes: int = 32_000_000
    """Bytes of a request's body."""
    pixels: int = 50_000_000
    """Pixels of a photograph."""
    request_pixels: int = 200_000_000
    """Pixels of all photographs in a request."""
    total_pixels: int = 1_000_000_000
    """Pixels of all photographs that wait or are in work."""
    total_bytes: int = 512_000_000
    """Bytes of all bodies that are read, wait or are in work."""
    captions: int = 20
    """Captions of a photograph."""
    seconds: float = 60.0
    """Time to read a request, and again to answer it."""
    header_seconds: float = 10.0
    """Time until the header of a request is complete, from the connection or the last answer on it."""
    body_rate: int = 10_000
    """Bytes a second that a body must bring on average, after `header_seconds` of grace."""
    connections: int = 512
    """Open connections; a further one closes the connection that has waited longest without a whole request."""
    waiting: int = 128
    """Requests that are read, wait or are in work at once."""
    client_waiting: int = 96
    """Of these, requests of one client."""
    client_rate: float = 0.0
    """Requests for captions or variations that a client may send a minute; 0 for any number."""
    batch: int = 16
    """Photographs that are captioned together."""
    workers: int = 2
    """Such batches at once: two small batches use two cores better than one batch with two threads does."""
    grace: float = 10.0
    """Seconds after which a worker that does not end abandoned work is stopped, and again until it is replaced."""
    kept: int = 512
    """Photographs whose captions can still be varied."""
    kept_seconds: float = 3600.0
    """How long they can be."""


class Exhausted(Exception):
    """There is not enough of a budget left; it may be there again in some seconds."""


class Budget:
    """An amount that all requests share: pixels, bytes. Used on the event loop's thread only."""

    def __init__(self, total: int) -> None:
        self.left = total

    @contextmanager
    def share(self) -> Iterator["Share"]:
        """What one request takes; given back when the block ends."""
        share = Share(self)
        try:
            yield share
        finally:
            self.left += share.taken


class Share:
    def __init__(self, budget: Budget) -> None:
        self._budget = budget
        self.taken = 0

    def take(self, amount: int) -> None:
        if amount > self._budget.left:
            raise Exhausted
        self._budget.left -= amount
        self.taken += amount


class Clients:
    """How many requests each client has in work, and how many it sent lately (a token bucket for each).

    A client is a token, or an address where the server has no tokens.
    """

    def __init__(self, limits: Limits, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = limits.client_waiting
        self._per_second = limits.client_rate / 60
        self._burst = max(1.0, limits.client_rate / 6)  # what may come at once: ten seconds' worth
        self._clock = clock
        self._waiting: dict[str, int] = {}
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()  # (requests left, at this time)

    @contextmanager
    def request(self, client: str) -> Iterator[float]:
        """Count a request of a client as in work; yields 0, or the seconds after which it may try again."""
        wait = 1.0 if self._waiting.get(client, 0) >= self._most else self._seconds_to_wait(client)
        self._waiting[client] = self._waiting.get(client, 0) + 1
        try:
            yield wait
        finally:
            self._waiting[client] -= 1
            if not self._waiting[client]:
                del self._waiting[client]

    def _seconds_to_wait(self, client: str) -> float:
        if not self._per_second:
            return 0.0
        now = self._clock()
        left, since = self._buckets.pop(client, (self._burst, now))
        left = min(self._burst, left + (now - since) * self._per_second)
        allowed = left >= 1
        self._buckets[client] = (left - 1 if allowed else left, now)
        while len(self._buckets) > CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self._per_second
