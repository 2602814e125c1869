"""The study as a web application: a page that rates, a page that shows what came of it, and what both ask for.

The browser of an annotator learns places in their own order, pictures and captions; never the name of a method.
"""

import csv
import io
import logging
import sqlite3
from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from dataclasses import asdict
from functools import lru_cache
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel, ConfigDict, Field

from coscap import __version__
from coscap.serve.errors import answer_errors
from coscap.serve.guard import Guard
from coscap.serve.intake import Refused, read_json
from coscap.serve.limits import Limits
from coscap.serve.pages import study_pages
from coscap.serve.study.answers import HIGHEST, LOWEST, NAME_LENGTH, Answers, Rating
from coscap.serve.study.figure import draw
from coscap.serve.study.material import Item, Study
from coscap.serve.study.results import results
from coscap.serve.telemetry import Telemetry
from coscap.serve.wire import checked
from coscap.vision.pictures import open_picture

LARGEST_SIDE = 1200  # pixels of a picture as it is shown
log = logging.getLogger("coscap.serve")
_STRICT = ConfigDict(frozen=True, extra="forbid", str_strip_whitespace=True)


class Joining(BaseModel):
    model_config = _STRICT

    annotator: str = Field(min_length=1, max_length=NAME_LENGTH, pattern=r"^[^\x00-\x1f\x7f]+$")


class GivenRating(BaseModel):
    model_config = _STRICT

    annotator: str = Field(max_length=NAME_LENGTH)
    place: int = Field(ge=0, strict=True)
    accuracy: int = Field(ge=LOWEST, le=HIGHEST, strict=True)
    diversity: int = Field(ge=LOWEST, le=HIGHEST, strict=True)


class Desk:
    """The study and its answers, from an annotator's point of view."""

    def __init__(self, study: Study, answers: Answers) -> None:
        self.study = study
        self.answers = answers
        self.order = lru_cache(256)(study.order)

    def join(self, name: str) -> dict[str, Any]:
        annotator = self.answers.join(" ".join(name.split()))
        return {"annotator": annotator, "captions": self._captions(), **self._progress(annotator)}

    def item(self, annotator: str, place: int) -> dict[str, Any]:
        annotator = self._known(annotator)
        item = self._at(annotator, place)
        given = self.answers.of(annotator).get(self._key(item))
        return {
            "place": place,
            "picture": f"pictures/{item.picture}",
            "captions": item.captions,
            "accuracy": given.accuracy if given else None,
            "diversity": given.diversity if given else None,
        }

    def rate(self, given: GivenRating) -> dict[str, Any]:
        annotator = self._known(given.annotator)
        picture, method = self._key(self._at(annotator, given.place))
        self.answers.rate(Rating(annotator, picture, method, given.accuracy, given.diversity))
        return self._progress(annotator)

    def results(self) -> dict[str, Any]:
        ratings = self.answers.ratings()
        found = asdict(results(ratings, self.study.methods))
        rated: dict[str, int] = dict.fromkeys(self.answers.annotators(), 0)
        for rating in ratings:
            rated[rating.annotator] += 1
        people = [
            {"name": name, "rated": count, **found["annotators"].get(name, {})}
            for name, count in rated.items()
        ]
        return {**found, "annotators": people, "items": len(self.study), "pictures": len(self.study.pictures)}

    def figure(self) -> str:
        ratings = self.answers.ratings()
        return draw(ratings, results(ratings, self.study.methods), self.study.methods)

    def table(self) -> str:
        """CSV, a rating a line."""
        text = io.StringIO()
        rows = csv.writer(text, lineterminator="\n")
        rows.writerow(["annotator", "image_id", "method", "accuracy", "diversity", "given"])
        for one in self.answers.ratings():
            name = _harmless(one.annotator)
            rows.writerow([name, one.picture, one.method, one.accuracy, one.diversity, one.given])
        return text.getvalue()

    def _progress(self, annotator: str) -> dict[str, Any]:
        rated = self.answers.of(annotator)
        left = [place for place, item in enumerate(self.order(annotator)) if self._key(item) not in rated]
        return {"items": len(self.study), "rated": len(rated), "next": left[0] if left else None}

    def _captions(self) -> int:
        return len(next(iter(self.study.captions.values()))[0])

    def _known(self, annotator: str) -> str:
        known = self.answers.known(annotator)
        if known is None:
            raise Refused(404, "No annotator has that name; begin with the name on the first page.")
        return known

    def _at(self, annotator: str, place: int) -> Item:
        order = self.order(annotator)
        if not 0 <= place < len(order):
            raise Refused(404, f"There are {len(order)} items, and place counts them from 0.")
        return order[place]

    def _key(self, item: Item) -> tuple[str, str]:
        return self.study.pictures[item.picture], item.method


def create_study_app(
    study: Study,
    answers: Answers,
    limits: Limits | None = None,
    *,
    tokens: Sequence[str] = (),
    hosts: Collection[str] = (),
) -> FastAPI:
    limits = limits or Limits()

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        answers.close()

    app = FastAPI(title="coscap study", version=__version__, docs_url=None, redoc_url=None, lifespan=lifespan)
    rating, found, policy = study_pages()
    app.add_middleware(
        Guard,
        telemetry=Telemetry(),
        limits=limits,
        policy=policy,
        tokens=tokens,
        hosts=hosts,
        free={"/", "/results", "/health", "/ready"},
    )
    answer_errors(app, "annotators begin at / and the results are at /results.")

    @app.exception_handler(sqlite3.Error)
    async def no_database(request: Request, error: sqlite3.Error) -> JSONResponse:
        log.error("The study's database failed.", exc_info=error)
        return JSONResponse({"error": "The ratings cannot be reached now; try again."}, 503)

    desk = Desk(study, answers)
    _add_rating(app, desk, rating, limits)
    _add_results(app, desk, found)

    @app.get("/health")
    @app.get("/ready")
    async def health() -> dict[str, Any]:
        """Whether the server answers."""
        return {"status": "ok", "version": __version__}

    return app


def _add_rating(app: FastAPI, desk: Desk, page: str, limits: Limits) -> None:
    @lru_cache(64)
    def jpeg(place: int) -> bytes:
        """A picture without its metadata, which may tell more than the picture."""
        picture = open_picture(desk.study.files[place], least_side=LARGEST_SIDE)
        picture.thumbnail((LARGEST_SIDE, LARGEST_SIDE))
        buffer = io.BytesIO()
        picture.save(buffer, "JPEG", quality=90)
        return buffer.getvalue()

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def home() -> HTMLResponse:
        return HTMLResponse(page)

    @app.post("/annotators")
    async def join(request: Request) -> Response:
        """Begin or go on: how many items there are, how many are rated, and the first that is not."""
        joining = checked(Joining, await read_json(request, limits))
        return JSONResponse(await run_in_threadpool(desk.join, joining.annotator))

    @app.get("/items/{place}")
    def item(place: int, annotator: str = "") -> Response:
        """An item in the annotator's own order, with the ratings that it has already."""
        return JSONResponse(desk.item(annotator, place))

    @app.post("/ratings")
    async def rate(request: Request) -> Response:
        """Rate an item, or rate it again."""
        given = checked(GivenRating, await read_json(request, limits))
        return JSONResponse(await run_in_threadpool(desk.rate, given))

    @app.get("/pictures/{place}", response_class=Response)
    def picture(place: int) -> Response:
        if not 0 <= place < len(desk.study.files):
            raise Refused(404, "There is no such picture.")
        headers = {"Cache-Control": "private, max-age=86400"}
        return Response(jpeg(place), media_type="image/jpeg", headers=headers)


def _add_results(app: FastAPI, desk: Desk, page: str) -> None:
    @app.get("/results", response_class=HTMLResponse, include_in_schema=False)
    async def shown() -> HTMLResponse:
        return HTMLResponse(page)

    @app.get("/results.json")
    def found() -> Response:
        """Means, intervals, differences, agreement, progress."""
        return JSONResponse(desk.results())

    @app.get("/results.svg", response_class=Response)
    def figure() -> Response:
        """The paper's figure."""
        return Response(desk.figure(), media_type="image/svg+xml")

    @app.get("/results.csv", response_class=Response)
    def table() -> Response:
        """Every rating."""
        headers = {"Content-Disposition": 'attachment; filename="ratings.csv"'}
        return Response(desk.table(), media_type="text/csv; charset=utf-8", headers=headers)


def _harmless(name: str) -> str:
    """A spreadsheet would run a name that begins as a formula does."""
    return f"'{name}" if name[:1] in "=+-@" else name
