"""Reading a request's body, with every limit checked while it comes in."""

import asyncio
import json
from collections.abc import AsyncGenerator
from pathlib import PurePosixPath
from typing import Any

from fastapi import Request
from starlette.datastructures import FormData, UploadFile
from starlette.formparsers import MultiPartException, MultiPartParser
from starlette.requests import ClientDisconnect

from coscap.serve.limits import FIELD_BYTES, FORM_FIELDS, JSON_BYTES, NAME_LENGTH, Limits
from coscap.serve.worker import Upload

PHOTO_FIELDS = ("photos", "photo", "files", "file")  # whatever the field of a file is called in the wild


class Refused(Exception):
    """A request that is answered with a status and one sentence."""

    def __init__(self, status: int, sentence: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.headers = headers or {}


async def read_form(request: Request, limits: Limits) -> tuple[list[Upload], list[tuple[str, str]]]:
    """The photographs of a multipart body, and its text fields."""
    if _content_type(request) != "multipart/form-data":
        raise Refused(
            415,
            "The body must be multipart/form-data with a field photos, for example: curl -F photos=@cat.jpg.",
        )
    parser = MultiPartParser(
        request.headers,
        _limited(request, limits.bytes, limits.seconds),
        max_files=limits.photos,
        max_fields=FORM_FIELDS,
        max_part_size=FIELD_BYTES,
    )
    try:
        form = await parser.parse()
    except MultiPartException as error:
        if "Too many files" in error.message:
            raise Refused(413, f"At most {limits.photos} photographs can be sent at once.") from None
        if "Too many fields" in error.message or "exceeded maximum size" in error.message:
            raise Refused(413, "The form has too many fields, or one that is too long.") from None
        raise Refused(
            400, "The body is not valid multipart/form-data; let an HTTP library write it."
        ) from None
    except (ValueError, LookupError, AssertionError):  # what the parser meets broken headers with
        raise Refused(
            400, "The body is not valid multipart/form-data; let an HTTP library write it."
        ) from None
    try:
        return _photos(form), [(name, value) for name, value in form.multi_items() if isinstance(value, str)]
    except Refused:
        close(form)
        raise


async def read_json(request: Request, limits: Limits) -> Any:
    if _content_type(request) != "application/json":
        raise Refused(415, "The body must be application/json.")
    body = b"".join([part async for part in _limited(request, JSON_BYTES, limits.seconds)])
    try:
        return json.loads(body)
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


def _content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def _limited(request: Request, most: int, seconds: float) -> AsyncGenerator[bytes, None]:
    """The parts of a body; refused as soon as they are more than `most` bytes or take longer than `seconds`."""
    refusal = Refused(
        413, f"The body is larger than {most:,} bytes; send less at once.", {"Connection": "close"}
    )
    claimed = request.headers.get("content-length", "0")
    if claimed.isascii() and claimed.isdigit() and (len(claimed) > 15 or int(claimed) > most):
        raise refusal
    deadline = asyncio.get_running_loop().time() + seconds
    parts = request.stream().__aiter__()
    size = 0
    while True:
        try:
            async with asyncio.timeout_at(deadline):
                part = await anext(parts)
        except StopAsyncIteration:
            return
        except TimeoutError:
            raise Refused(
                408, f"The body did not arrive within {seconds:g} seconds.", {"Connection": "close"}
            ) from None
        except ClientDisconnect:
            raise Refused(400, "The connection ended before the body did.") from None
        size += len(part)
        if size > most:
            raise refusal
        yield part
