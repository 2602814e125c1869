"""Reading a request's body, with every limit checked while it comes in."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import PurePosixPath
from typing import Any

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.types import Message

from coscap.serve.limits import FIELD_BYTES, FORM_FIELDS, JSON_BYTES, NAME_LENGTH, Exhausted, Limits, Share
from coscap.serve.worker import Upload

PHOTO_FIELDS = ("photos", "photo", "files", "file")  # whatever the field of a file is called in the wild
_NO_FORM = "The body is not valid multipart/form-data; let an HTTP library write it."


class Refused(Exception):
    """A request that is answered with a status and one sentence."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = headers or {}


async def read_form(
    request: Request, limits: Limits, share: Share | None = None
) -> tuple[list[Upload], list[tuple[str, str]]]:
    """The photographs of a multipart body, and its text fields. `share` is charged with the bytes."""
    kind, charset = _content_type(request)
    if kind != "multipart/form-data":
        raise Refused(
            415,
            "The body must be multipart/form-data with a field photos, for example: curl -F photos=@cat.jpg.",
        )
    if charset not in ("", "utf-8", "utf8", "us-ascii"):
        raise Refused(415, "The form must be UTF-8; leave out the charset.")
    parts = _limited(request, limits.bytes, limits, share)

    async def receive() -> Message:
        try:
            return {"type": "http.request", "body": await anext(parts), "more_body": True}
        except StopAsyncIteration:
            return {"type": "http.request", "body": b"", "more_body": False}

    scope = {key: value for key, value in request.scope.items() if key != "state"}
    try:
        form = await Request({**scope, "app": request.scope.get("app")}, receive).form(
            max_files=limits.photos, max_fields=FORM_FIELDS, max_part_size=FIELD_BYTES
        )
    except HTTPException as error:
        if "Too many files" in error.detail:
            raise Refused(413, f"At most {limits.photos} photographs can be sent at once.") from None
        if "Too many fields" in error.detail or "exceeded maximum size" in error.detail:
            raise Refused(413, "The form has too many fields, or one that is too long.") from None
        raise Refused(400, _NO_FORM) from None
    except (ValueError, LookupError, AssertionError):  # what the parser meets broken headers with
        raise Refused(400, _NO_FORM) from None
    try:
        return _photos(form), [
            (_text(name), _text(value)) for name, value in form.multi_items() if isinstance(value, str)
        ]
    except Refused:
        close(form)
        raise


async def read_json(request: Request, limits: Limits, share: Share | None = None) -> Any:
    if _content_type(request)[0] != "application/json":
        raise Refused(415, "The body must be application/json.")
    body = b"".join([part async for part in _limited(request, JSON_BYTES, limits, share)])
    try:
        value = json.loads(body)
        json.dumps(value, ensure_ascii=False).encode()  # no lone surrogates, no number that cannot be written
        return value
    except (ValueError, RecursionError):
        raise Refused(400, "The body is not valid JSON.") from None


def close(form: FormData) -> None:
    for _, value in form.multi_items():
        if isinstance(value, UploadFile):
            value.file.close()


def _photos(form: FormData) -> list[Upload]:
    uploads: list[Upload] = []
    for field, value in form.multi_items():
        if not isinstance(value, UploadFile):
            if field in PHOTO_FIELDS:
                raise Refused(422, f"The field {field} must be a file, with a file name.")
            continue
        if field not in PHOTO_FIELDS:
            raise Refused(422, "A file was sent in an unknown field; photographs belong in the field photos.")
        uploads.append(Upload(_name(value.filename, len(uploads)), value.file))
    if not uploads:
        raise Refused(422, "No photograph was sent; send one or more files in the field photos.")
    return uploads


def _name(given: str | None, place: int) -> str:
    """The last part of the name that a photograph was sent with, without what a terminal would obey."""
    last = PurePosixPath((given or "").replace("\\", "/")).name
    printable = "".join(c for c in last if c.isprintable()).strip()
    return printable[:NAME_LENGTH] or f"photo {place + 1}"


def _text(value: str) -> str:
    """A text that can be written as UTF-8."""
    if any("\ud800" <= c <= "\udfff" for c in value):
        raise Refused(422, "A field has half of a surrogate pair; send UTF-8.")
    return value


def _content_type(request: Request) -> tuple[str, str]:
    """The media type and the charset, in lower case."""
    kind, *parameters = request.headers.get("content-type", "").lower().split(";")
    charsets = [
        value for part in parameters for name, _, value in [part.partition("=")] if name.strip() == "charset"
    ]
    return kind.strip(), (charsets or [""])[-1].strip().strip('"')


async def _limited(
    request: Request, most: int, limits: Limits, share: Share | None
) -> AsyncGenerator[bytes, None]:
    """The parts of a body; refused as soon as they are more than `most` bytes, or come too slowly."""
    too_large = Refused(
        413, f"The body is larger than {most:,} bytes; send less at once.", {"Connection": "close"}
    )
    claimed = request.headers.get("content-length", "0")
    if claimed.isascii() and claimed.isdigit() and (len(claimed) > 15 or int(claimed) > most):
        raise too_large
    began = asyncio.get_running_loop().time()
    parts = request.stream().__aiter__()
    size = 0
    while True:
        allowed = min(limits.seconds, limits.header_seconds + size / limits.body_rate)
        try:
            async with asyncio.timeout_at(began + allowed):
                part = await anext(parts)
        except StopAsyncIteration:
            return
        except TimeoutError:
            sentence = f"The body came too slowly: {size:,} bytes in {allowed:.0f} seconds."
            raise Refused(408, sentence, {"Connection": "close"}) from None
        except ClientDisconnect:
            raise Refused(400, "The connection ended before the body did.") from None
        size += len(part)
        if size > most:
            raise too_large
        if share is not None:
            try:
                share.take(len(part))
            except Exhausted:
                sentence = (
                    "The server holds as many bytes of other requests as it may; try again in a few seconds."
                )
                raise Refused(503, sentence, {"Retry-After": "5", "Connection": "close"}) from None
        yield part
