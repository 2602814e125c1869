"""What comes over the network: a file from an address, bounded in bytes and in time and never led astray into a
private network, and the names of models on a hub.
"""

import ipaddress
import socket
import threading
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

from coscap.errors import UserError, reason

SECONDS = 60.0  # for all of it: a server that sends a byte now and then does not hold us
SILENCE = 20.0  # seconds without a byte


def fetch(address: str, most: int, *, seconds: float = SECONDS, private: bool | None = None) -> bytes:
    """The content behind an http or https address, at most `most` bytes; everything that fails is a UserError.

    A redirect to a private or loopback address is refused unless `private`, or unless the address that the user
    gave is one itself: a page of the web must not make us read what only this machine can reach.
    """
    if urlsplit(address).scheme not in ("http", "https"):
        raise UserError(f"{address} is not an http or https address.")
    if private is None:
        private = _is_private(urlsplit(address).hostname)
    answer: dict[str, Any] = {}

    def work() -> None:
        try:
            answer["content"] = _read(address, most, private)
        except UserError as error:
            answer["error"] = error
        except HTTPError as error:
            answer["error"] = _failed(
                address, f"the server says {error.code} {reason(Exception(error.reason))}"
            )
        except (OSError, ValueError, HTTPException) as error:
            answer["error"] = _failed(address, reason(getattr(error, "reason", None) or error))

    thread = threading.Thread(target=work, name="coscap-fetch", daemon=True)
    thread.start()
    thread.join(seconds)
    if "error" in answer:
        raise answer["error"]
    if "content" not in answer:
        raise _failed(address, f"it took more than {seconds:g} s")
    content: bytes = answer["content"]
    return content


def _read(address: str, most: int, private: bool) -> bytes:
    opener = build_opener(_Redirects(private))
    with opener.open(Request(address, headers={"User-Agent": "coscap"}), timeout=SILENCE) as answer:
        claimed = answer.headers.get("Content-Length", "")
        size = int(claimed[:20]) if claimed.isdecimal() else None
        content: bytes = b"" if size is not None and size > most else answer.read(most + 1)
        if len(content) > most or (size is not None and size > most):
            raise UserError(f"{address} is larger than {most // 1_000_000} MB; make it smaller.")
        if size is not None and len(content) < size:
            raise _failed(address, f"it ended after {len(content):,} of {size:,} bytes")
        return content


class _Redirects(HTTPRedirectHandler):
    max_redirections = 5

    def __init__(self, private: bool) -> None:
        self.private = private

    def redirect_request(self, req: Any, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Any:
        if urlsplit(newurl).scheme not in ("http", "https"):
            raise _failed(req.full_url, "it leads to what is no http or https address")
        if not self.private and _is_private(urlsplit(newurl).hostname):
            raise UserError(
                f"{req.full_url} leads to {newurl}, which is in a private network; give that address itself if you "
                "trust it."
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def _is_private(host: str | None) -> bool:
    """Is any of the host's addresses not one of the open internet? A host that is not found is none of either."""
    try:
        found = socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return False
    return any(not ipaddress.ip_address(str(each[4][0]).split("%")[0]).is_global for each in found)


def _failed(address: str, why: str) -> UserError:
    return UserError(f"{address} could not be fetched ({why}).")


RUNS = "runs"  # where the examples keep what they train: never the name of an owner


def hub_name(name: str) -> tuple[str, str | None]:
    """`owner/name` on a hub, and the revision in `owner/name@revision`, which pins what is downloaded.

    A name that can only be meant as a path ("runs/mine", or "trained/mine" where there is a folder trained) is a
    UserError: nobody should wait for a hub to hear of a slip.
    """
    repository, _, revision = name.partition("@")
    owner, _, rest = repository.partition("/")
    if Path(name).is_file():
        raise UserError(f"{name} is a file, and the folder of a model was expected; check the path.")
    if not rest or "/" in rest or name.startswith((".", "/", "~")):
        raise UserError(f"{name} is no folder with a model, and no name of one on the hub (owner/name).")
    if owner == RUNS and not Path(owner).is_dir():
        raise UserError(f"{name} does not exist, and there is no folder {owner} here; check the path.")
    if Path(owner).is_dir():
        there = sorted(path.name for path in Path(owner).iterdir() if path.is_dir())[:8]
        held = f"it has {', '.join(there)}" if there else "it has none"
        raise UserError(
            f"{name} does not exist: {owner} is a folder without a model {rest} ({held}); check the path."
        )
    return repository, revision or None
