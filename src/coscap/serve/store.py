"""The captions that were given lately, by the ids that their receivers may vary them with."""

import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

T = TypeVar("T")


class Recent(Generic[T]):
    """Groups of things (the captions of one photograph), forgotten after some time or when there are too many.

    An id is a random name of the group and a place in it. It is only ever looked up here.
    """

    def __init__(self, most: int, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._most = most
        self._seconds = seconds
        self._clock = clock
        self._groups: OrderedDict[str, tuple[float, Sequence[T]]] = OrderedDict()  # the oldest first

    def __len__(self) -> int:
        return len(self._groups)

    def put(self, group: Sequence[T]) -> list[str]:
        """Keep a group; an id for each of its things."""
        self._forget()
        name = secrets.token_urlsafe(16)
        self._groups[name] = (self._clock() + self._seconds, group)
        while len(self._groups) > self._most:
            self._groups.popitem(last=False)
        return [f"{name}.{place}" for place in range(len(group))]

    def get(self, id: str) -> T | None:
        self._forget()
        name, _, place = id.partition(".")
        _, group = self._groups.get(name, (0.0, ()))
        if not place.isascii() or not place.isdigit() or len(place) > 3 or int(place) >= len(group):
            return None
        return group[int(place)]

    def _forget(self) -> None:
        now = self._clock()
        while self._groups and next(iter(self._groups.values()))[0] <= now:
            self._groups.popitem(last=False)
