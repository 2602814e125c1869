"""The application: what each address answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from pydantic import BaseModel

from coscap import __version__
from coscap.serve.errors import answer_errors
from coscap.serve.guard import Guard
from coscap.serve.intake import Refused, read_form, read_json
from coscap.serve.limits import Budget, Exhausted, Limits, Share
from coscap.serve.pages import api_page, example_photos, main_page
from coscap.serve.stage import Closed
from coscap.serve.store import Recent
from coscap.serve.telemetry import Telemetry
from coscap.serve.wire import (
    ErrorJson,
    HealthJson,
    PhotoJson,
    PhotoTagsJson,
    TagFields,
    VariationsJson,
    caption_model,
    caption_options,
    checked,
    form_schema,
    tag_options,
    variation_model,
)
from coscap.serve.worker import Upload, Worker, count_pixels

if TYPE_CHECKING:
    from coscap.captioner import Captioner
    from coscap.photos import PhotoCaption, PhotoCaptions

R = TypeVar("R")
Options = TypeVar("Options")
Responses = dict[int | str, dict[str, Any]]
CLOSING = 3.0  # seconds in which a worker must notice that nobody waits for its work
PROMETHEUS = "text/plain; version=0.0.4; charset=utf-8"
_ERRORS = {
    400: "The body cannot be understood.",
    401: "The token is missing or wrong.",
    403: "A page of another site asks.",
    404: "No such caption or address, or the caption was given too long ago.",
    408: "The body came too slowly.",
    413: "The body is too large, or has too many photographs or pixels.",
    415: "The body is of another type.",
    421: "The server is not known by that name.",
    422: "A field or a photograph is not as it must be.",
    429: "The client asks too often; try again after the seconds in Retry-After.",
    500: "The server met a fault of its own.",
    503: "Too many requests wait; try again after the seconds in Retry-After.",
    504: "The captions were not ready in time.",
}


def _errors(*statuses: int) -> Responses:
    """The errors that an address can answer with, besides those that hold for all."""
    return {status: {"model": ErrorJson, "description": _ERRORS[status]} for status in (*statuses, 421, 500)}


class Service:
    """The state of a running server."""

    def __init__(self, captioner: "Captioner", limits: Limits) -> None:
        self.limits = limits
        self.telemetry = Telemetry()
        self.worker = Worker(captioner, limits, self.telemetry.batch)
        self.recent: Recent[PhotoCaption] = Recent(limits.kept, limits.kept_seconds)
        self.waiting = 0
        self.bytes = Budget(limits.total_bytes)
        self.pixels = Budget(limits.total_pixels)

    async def admitted(self, work: Callable[[Share, Share], Awaitable[R]]) -> R:
        """Do the work of a request with its shares of bytes and pixels, unless too many are under way."""
        if self.waiting >= self.limits.waiting:
            raise _busy("Too many requests wait")
        self.waiting += 1
        try:
            with self.bytes.share() as size, self.pixels.share() as pixels:
                return await work(size, pixels)
        except Closed:
            raise Refused(503, "The server is shutting down.", {"Retry-After": "30"}) from None
        finally:
            self.waiting -= 1

    async def charge_pixels(self, uploads: Sequence[Upload], share: Share) -> None:
        """Refuse photographs that have more pixels than a request may have, or than the server has left."""
        count = await asyncio.to_thread(count_pixels, uploads)
        most = self.limits.request_pixels
        if count > most:
            raise Refused(
                413,
                f"The photographs have {count:,} pixels together, and {most:,} is the most; send fewer at once.",
            )
        try:
            share.take(count)
        except Exhausted:
            raise _busy("Photographs of other requests take all the pixels that the server has") from None

    async def ask(
        self,
        request: Request,
        read: Callable[[list[tuple[str, str]]], Options],
        put: Callable[[Sequence[Upload], Options, str], "Future[R]"],
        share: Share,
        pixels: Share,
    ) -> tuple[list[str], R]:
        """The names of a form's photographs, and what the worker found in them."""
        uploads, pairs = await read_form(request, self.limits, share)
        future = None
        try:
            options = read(pairs)
            await self.charge_pixels(uploads, pixels)
            future = put(uploads, options, request.state.request_id)
        finally:
            if future is None:  # otherwise the worker closes the files
                for upload in uploads:
                    upload.file.close()
        return [upload.name for upload in uploads], await self.result(request, future)

    async def result(self, request: Request, future: "Future[R]") -> R:
        """The result of the worker. Without anyone who waits for it, by time or by choice, the job is cancelled."""
        answer = asyncio.wrap_future(future)
        gone = asyncio.ensure_future(_disconnect(request))
        waiting: set[asyncio.Future[Any]] = {answer, gone}
        try:
            await asyncio.wait(waiting, timeout=self.limits.seconds, return_when=asyncio.FIRST_COMPLETED)
            if answer.done():
                return answer.result()
            if gone.done():
                raise Refused(499, "The client went away.")
            seconds = self.limits.seconds
            raise Refused(504, f"The captions were not ready within {seconds:g} seconds; ask for less.")
        finally:
            answer.cancel()
            gone.cancel()

    def remember(self, captions: "Sequence[PhotoCaption]") -> list[dict[str, Any]]:
        """The captions of one photograph as JSON, each with an id by which it can be varied."""
        ids = self.recent.put(captions)
        self.telemetry.captions.inc(len(captions))
        return [{"id": id, **caption.to_json()} for id, caption in zip(ids, captions, strict=True)]

    def to_json(self, found: "Sequence[PhotoCaptions]") -> list[dict[str, Any]]:
        """The JSON of `coscap caption --json`, with an id for each caption."""
        self.telemetry.photos.inc(len(found))
        return [{"photo": result.photo, "captions": self.remember(result.captions)} for result in found]


def create_app(
    captioner: "Captioner",
    limits: Limits | None = None,
    *,
    tokens: Sequence[str] = (),
    hosts: Collection[str] = (),
) -> FastAPI:
    """The application around a captioner. `hosts` are the names that it answers to; empty for all."""
    limits = limits or Limits()
    service = Service(captioner, limits)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield  # by the end of this all requests are answered or cancelled
        await asyncio.to_thread(service.worker.close, CLOSING)

    app = FastAPI(
        title="coscap",
        version=__version__,
        summary="Several captions for a photograph, all true and truly different.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    page = main_page()
    app.add_middleware(
        Guard, telemetry=service.telemetry, limits=limits, policy=page.policy, tokens=tokens, hosts=hosts
    )
    answer_errors(app, "GET /docs lists them.")
    _add_captions(app, service)
    _add_tags(app, service)
    _add_variations(app, service)
    _add_status(app, service)
    _add_pages(app, page.html)
    return app


def _add_captions(app: FastAPI, service: Service) -> None:
    fields = caption_model(service.limits.captions)

    @app.post(
        "/captions",
        response_model=list[PhotoJson],
        response_description="The captions of each photograph, in the order of the files.",
        responses=_errors(400, 401, 403, 408, 413, 415, 422, 429, 503, 504),
        openapi_extra=_photo_form(fields, service.limits),
    )
    async def captions(request: Request) -> Response:
        """Several captions for each photograph."""

        async def work(size: Share, pixels: Share) -> list[dict[str, Any]]:
            read = partial(caption_options, fields)
            _, found = await service.ask(request, read, service.worker.caption, size, pixels)
            return service.to_json(found)

        return JSONResponse(await service.admitted(work))


def _add_tags(app: FastAPI, service: Service) -> None:
    @app.post(
        "/tags",
        response_model=list[PhotoTagsJson],
        response_description="The words of each photograph, in the order of the files.",
        responses=_errors(400, 401, 403, 408, 413, 415, 422, 429, 503, 504),
        openapi_extra=_photo_form(TagFields, service.limits),
    )
    async def tags(request: Request) -> Response:
        """The words that people would write about each photograph, with calibrated probabilities and places."""

        async def work(size: Share, pixels: Share) -> list[dict[str, Any]]:
            names, found = await service.ask(request, tag_options, service.worker.tag, size, pixels)
            service.telemetry.tagged.inc(len(names))
            return [
                {"photo": name, "tags": [tag.to_json() for tag in each]}
                for name, each in zip(names, found, strict=True)
            ]

        return JSONResponse(await service.admitted(work))


def _photo_form(fields: type[BaseModel], limits: Limits) -> dict[str, Any]:
    """The description of a form with photographs and text fields."""
    photos = {
        "type": "array",
        "items": {"type": "string", "format": "binary"},
        "minItems": 1,
        "maxItems": limits.photos,
        "description": "One or more photographs, as files.",
    }
    form = {
        "type": "object",
        "required": ["photos"],
        "properties": {"photos": photos, **form_schema(fields)},
        "additionalProperties": False,
    }
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": form}}}}


def _add_variations(app: FastAPI, service: Service) -> None:
    fields = variation_model(service.limits.captions)

    @app.post(
        "/variations",
        response_model=VariationsJson,
        response_description="The other captions; fewer than n where fewer differ.",
        responses=_errors(400, 401, 403, 404, 408, 413, 415, 422, 429, 503, 504),
        openapi_extra={
            "requestBody": {
                "required": True,
                "content": {"application/json": {"schema": fields.model_json_schema()}},
            }
        },
    )
    async def variations(request: Request) -> Response:
        """Other captions of the same photograph that keep one half of a caption: its context or its objects."""

        async def work(size: Share, pixels: Share) -> list[dict[str, Any]]:
            given = checked(fields, await read_json(request, service.limits, size))
            caption = service.recent.get(given.id)
            if caption is None:
                raise Refused(
                    404, "No caption has that id, or it was given too long ago; caption the photograph again."
                )
            id = request.state.request_id
            future = service.worker.vary(caption, given.keep, given.n, given.seed, id)
            return service.remember(await service.result(request, future))

        return JSONResponse({"captions": await service.admitted(work)})


def _add_status(app: FastAPI, service: Service) -> None:
    @app.get(
        "/health",
        response_model=HealthJson,
        response_description="The process is alive.",
        responses=_errors(503),
    )
    async def health() -> Response:
        """Liveness: 503 means that the process should be started again."""
        return _status(service.worker.broken)

    @app.get(
        "/ready",
        response_model=HealthJson,
        response_description="Captions can be had now.",
        responses=_errors(503),
    )
    async def ready() -> Response:
        """Readiness: 503 means that other servers should get the requests, for now."""
        return _status(service.worker.problem)

    def _status(problem: str | None) -> Response:
        if problem:
            raise Refused(503, problem, {"Retry-After": "5"})
        return JSONResponse({"status": "ok", "version": __version__, "waiting": service.waiting})

    @app.get(
        "/metrics",
        response_class=Response,
        response_description="Prometheus text.",
        responses={200: {"content": {"text/plain": {"schema": {"type": "string"}}}}, **_errors(401)},
    )
    async def metrics() -> Response:
        """Figures for Prometheus."""
        service.telemetry.waiting.set(service.waiting)
        service.telemetry.kept.set(len(service.recent))
        service.telemetry.lost.set(service.worker.lost)
        return Response(service.telemetry.text(), media_type=PROMETHEUS)


def _add_pages(app: FastAPI, page: str) -> None:
    examples = example_photos()

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def home() -> HTMLResponse:
        return HTMLResponse(page)

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(api_page(app.openapi()))

    @app.get("/examples", response_description="File names.", responses=_errors())
    async def list_examples() -> list[str]:
        """The names of the example photographs."""
        return list(examples)

    @app.get(
        "/examples/{name}",
        response_class=Response,
        response_description="The photograph.",
        responses={200: {"content": {"image/jpeg": {}}}, 422: {"description": "Not used."}, **_errors(404)},
    )
    async def example(name: str) -> Response:
        """An example photograph."""
        if name not in examples:
            raise Refused(404, "There is no such example; GET /examples lists them.")
        return Response(examples[name], media_type="image/jpeg", headers={"Cache-Control": "max-age=86400"})


def _busy(what: str) -> Refused:
    return Refused(503, f"{what}; try again in a few seconds.", {"Retry-After": "5"})


async def _disconnect(request: Request) -> None:
    """Returns when the client has closed the connection. The body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
