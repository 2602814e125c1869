"""The application: what each address answers."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Sequence
from concurrent.futures import Future
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any, TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse

from coscap import __version__
from coscap.serve.errors import answer_errors
from coscap.serve.guard import Guard
from coscap.serve.intake import Refused, read_form, read_json
from coscap.serve.limits import Limits
from coscap.serve.pages import api_page, example_photos, main_page
from coscap.serve.store import Recent
from coscap.serve.telemetry import Telemetry
from coscap.serve.wire import (
    Captioned,
    CaptionFields,
    Problem,
    VariationFields,
    Variations,
    caption_fields,
    checked,
)
from coscap.serve.worker import Closed, Worker

if TYPE_CHECKING:
    from coscap.captioner import Captioner, PhotoCaption, PhotoCaptions

R = TypeVar("R")
TEXT = "text/plain; version=0.0.4; charset=utf-8"  # what Prometheus expects
_PROBLEMS: dict[int | str, dict[str, Any]] = {
    status: {"model": Problem, "description": told}
    for status, told in {
        400: "The body cannot be understood.",
        401: "The token is missing or wrong.",
        413: "The body is too large.",
        415: "The body is of another type.",
        422: "A field or a photograph is not as it must be.",
        503: "Too many requests wait; try again after the seconds in Retry-After.",
        504: "The captions were not ready in time.",
    }.items()
}
_GONE: dict[int | str, dict[str, Any]] = {
    404: {"model": Problem, "description": "No such caption, or it was given too long ago."}
}


class Service:
    """The state of a running server."""

    def __init__(self, captioner: "Captioner", limits: Limits) -> None:
        self.limits = limits
        self.telemetry = Telemetry()
        self.worker = Worker(captioner, limits, self.telemetry.batch)
        self.recent: Recent[PhotoCaption] = Recent(limits.kept, limits.kept_seconds)
        self.waiting = 0

    async def admitted(self, work: Callable[[], Awaitable[R]]) -> R:
        """Do the work of a request, unless too many are under way."""
        if self.waiting >= self.limits.waiting:
            raise Refused(503, "Too many requests wait; try again in a few seconds.", {"Retry-After": "5"})
        self.waiting += 1
        try:
            return await work()
        except Closed:
            raise Refused(503, "The server is shutting down.", {"Retry-After": "30"}) from None
        finally:
            self.waiting -= 1

    async def in_time(self, future: "Future[R]") -> R:
        """The result of the worker. A job that is out of time is cancelled: the worker skips it."""
        try:
            return await asyncio.wait_for(asyncio.wrap_future(future), self.limits.seconds)
        except TimeoutError:
            seconds = self.limits.seconds
            raise Refused(
                504, f"The captions were not ready within {seconds:g} seconds; ask for less."
            ) from None

    def check_n(self, n: int) -> None:
        if n > self.limits.captions:
            raise Refused(422, f"The field n is {n}, and at most {self.limits.captions} can be asked for.")

    def remember(self, captions: "Sequence[PhotoCaption]") -> list[dict[str, Any]]:
        """The captions of one photograph as JSON, each with an id by which it can be varied."""
        ids = self.recent.put(captions)
        self.telemetry.captions.inc(len(captions))
        return [{"id": id, **caption.to_json()} for id, caption in zip(ids, captions, strict=True)]

    def tell(self, found: "Sequence[PhotoCaptions]") -> list[dict[str, Any]]:
        """The JSON of `coscap caption --json`, with an id for each caption."""
        self.telemetry.photos.inc(len(found))
        return [{"photo": result.photo, "captions": self.remember(result.captions)} for result in found]


def create_app(
    captioner: "Captioner",
    limits: Limits | None = None,
    *,
    token: str | None = None,
    hosts: Collection[str] = (),
) -> FastAPI:
    """The application around a captioner. `hosts` are the names that it answers to; empty for all."""
    service = Service(captioner, limits or Limits())

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(service.worker.close)

    app = FastAPI(
        title="coscap",
        version=__version__,
        summary="Several captions for a photograph, all true and truly different.",
        docs_url=None,
        redoc_url=None,
        lifespan=lifespan,
    )
    page = main_page()
    app.add_middleware(Guard, telemetry=service.telemetry, policy=page.policy, token=token, hosts=hosts)
    answer_errors(app)
    _add_api(app, service)
    _add_pages(app, page.html)
    return app


def _add_api(app: FastAPI, service: Service) -> None:
    fields = CaptionFields.model_json_schema()
    photos = {
        "type": "array",
        "items": {"type": "string", "format": "binary"},
        "description": "One or more photographs, as files.",
    }
    form = {
        "type": "object",
        "required": ["photos"],
        "properties": {"photos": photos, **fields["properties"]},
    }
    variation = VariationFields.model_json_schema()

    @app.post(
        "/captions",
        response_model=list[Captioned],
        response_description="The captions of each photograph, in the order of the files.",
        responses=_PROBLEMS,
        openapi_extra={
            "requestBody": {"required": True, "content": {"multipart/form-data": {"schema": form}}}
        },
    )
    async def captions(request: Request) -> Response:
        """Several captions for each photograph, the best first."""

        async def work() -> list[dict[str, Any]]:
            uploads, pairs = await read_form(request, service.limits)
            taken = False
            try:
                wish = caption_fields(pairs).wish()
                service.check_n(wish.n)
                future = service.worker.caption(uploads, wish)
                taken = True  # from here on the worker closes the files
            finally:
                if not taken:
                    for upload in uploads:
                        upload.file.close()
            found = await service.in_time(future)
            return service.tell(found)

        return JSONResponse(await service.admitted(work))

    @app.post(
        "/variations",
        response_model=Variations,
        response_description="The other captions; fewer than n where fewer differ.",
        responses={**_PROBLEMS, **_GONE},
        openapi_extra={
            "requestBody": {"required": True, "content": {"application/json": {"schema": variation}}}
        },
    )
    async def variations(request: Request) -> Response:
        """Other captions of the same photograph that keep one half of a caption: its context or its objects."""

        async def work() -> list[dict[str, Any]]:
            asked = checked(VariationFields, await read_json(request, service.limits))
            service.check_n(asked.n)
            caption = service.recent.get(asked.id)
            if caption is None:
                raise Refused(
                    404, "No caption has that id, or it was given too long ago; caption the photograph again."
                )
            future = service.worker.vary(caption, asked.keep, asked.n, asked.seed)
            found = await service.in_time(future)
            return service.remember(found)

        return JSONResponse({"captions": await service.admitted(work)})

    @app.get("/health", response_description="The server answers.")
    async def health() -> dict[str, Any]:
        """Whether the server can answer, and how many requests it works on."""
        return {"status": "ok", "version": __version__, "waiting": service.waiting}

    @app.get("/metrics", response_class=Response, response_description="Prometheus text.")
    async def metrics() -> Response:
        """Figures for Prometheus."""
        service.telemetry.waiting.set(service.waiting)
        service.telemetry.kept.set(len(service.recent))
        return Response(service.telemetry.text(), media_type=TEXT)


def _add_pages(app: FastAPI, page: str) -> None:
    examples = example_photos()

    @app.get("/", response_class=HTMLResponse, include_in_schema=False)
    async def home() -> HTMLResponse:
        return HTMLResponse(page)

    @app.get("/docs", response_class=HTMLResponse, include_in_schema=False)
    async def docs() -> HTMLResponse:
        return HTMLResponse(api_page(app.openapi()))

    @app.get("/examples", response_description="File names.")
    async def list_examples() -> list[str]:
        """The names of the example photographs."""
        return list(examples)

    @app.get("/examples/{name}", response_class=Response, response_description="The photograph, a JPEG.")
    async def example(name: str) -> Response:
        """An example photograph."""
        if name not in examples:
            raise Refused(404, "There is no such example; GET /examples lists them.")
        return Response(examples[name], media_type="image/jpeg", headers={"Cache-Control": "max-age=86400"})
