"""How every error is answered."""

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from coscap.errors import UserError
from coscap.serve.intake import Refused

_FAULT = "The server met a fault of its own; its log says more."


def answer_errors(app: FastAPI, where: str) -> None:
    """Every error is JSON with one sentence, and none reveals the inside of the server.

    `where` ends the sentence about an address that does not exist.
    """
    missing = f"There is no such address; {where}"

    @app.exception_handler(Refused)
    async def refused(request: Request, error: Refused) -> JSONResponse:
        return JSONResponse({"error": str(error)}, error.status, error.headers)

    @app.exception_handler(UserError)
    async def bad_input(request: Request, error: UserError) -> JSONResponse:
        return JSONResponse({"error": str(error)}, 422)

    @app.exception_handler(RequestValidationError)
    async def bad_address(request: Request, error: RequestValidationError) -> JSONResponse:
        return JSONResponse({"error": missing}, 404)

    @app.exception_handler(HTTPException)
    async def no_such(request: Request, error: HTTPException) -> JSONResponse:
        sentences = {404: missing, 405: "This address wants another method."}
        return JSONResponse(
            {"error": sentences.get(error.status_code, "Bad request.")}, error.status_code, error.headers
        )

    @app.exception_handler(Exception)
    async def fault(request: Request, error: Exception) -> JSONResponse:
        return JSONResponse({"error": _FAULT}, 500)
