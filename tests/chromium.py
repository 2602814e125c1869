"""A real browser for tests: Chromium over the two pipes of its DevTools protocol, with the standard library alone."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
KEYS = {
    "Tab": ("Tab", 9, ""),
    "Enter": ("Enter", 13, "\r"),
    "Escape": ("Escape", 27, ""),
    "Backspace": ("Backspace", 8, ""),
    " ": ("Space", 32, " "),
    "ArrowLeft": ("ArrowLeft", 37, ""),
    "ArrowRight": ("ArrowRight", 39, ""),
}


def find_chromium() -> str | None:
    given = os.environ.get("CHROMIUM")
    return given or next((found for name in NAMES if (found := shutil.which(name))), None)


class Browser:
    """One tab. What the page complains of is in `complaints`."""

    def __init__(self, program: str, width: int = 1200, height: int = 800, *options: str) -> None:
        self._profile = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
        to_read, self._to = os.pipe()
        self._from, to_write = os.pipe()
        sandbox = () if os.geteuid() else ("--no-sandbox",)
        command = [program, "--headless=new", "--remote-debugging-pipe", "--no-first-run", "--disable-gpu"]
        command += [
            "--disable-background-networking",
            f"--user-data-dir={self._profile.name}",
            *sandbox,
            *options,
        ]

        def as_chromium_expects() -> None:  # it reads from 3 and writes to 4
            high_read, high_write = os.dup(to_read), os.dup(to_write)
            os.dup2(high_read, 3)
            os.dup2(high_write, 4)

        quiet = subprocess.DEVNULL
        self._running = subprocess.Popen(
            command, stdin=quiet, stdout=quiet, stderr=quiet, close_fds=False, preexec_fn=as_chromium_expects
        )
        os.close(to_read)
        os.close(to_write)
        self._buffer = b""
        self._number = 0
        self._session = ""
        self._asked: list[str] = []
        self.complaints: list[str] = []
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")
        self.resize(width, height)

    def close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._to)  # Chromium ends with its pipe
            os.close(self._from)
        try:
            self._running.wait(10)
        except subprocess.TimeoutExpired:
            self._running.kill()
            self._running.wait(10)
        self._profile.cleanup()

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._receive(60)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']['message']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._hear(answer)

    def _receive(self, seconds: float) -> dict[str, Any]:
        until = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._from], [], [], max(0.0, until - time.monotonic()))
            part = os.read(self._from, 1 << 20) if ready else b""
            if not part:
                raise TimeoutError("Chromium does not answer.")
            self._buffer += part
        line, _, self._buffer = self._buffer.partition(b"\0")
        message: dict[str, Any] = json.loads(line)
        return message

    def _hear(self, message: dict[str, Any]) -> None:
        told = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            details = told["exceptionDetails"]
            self.complaints.append(details.get("exception", {}).get("description", details["text"]))
        elif message.get("method") == "Runtime.consoleAPICalled" and told["type"] in ("error", "warning"):
            self.complaints.append(str([one.get("value") for one in told["args"]]))
        elif message.get("method") == "Log.entryAdded" and told["entry"]["level"] in ("error", "warning"):
            self.complaints.append(told["entry"]["text"])
        elif message.get("method") == "Network.requestWillBeSent":
            self._asked.append(told["request"]["url"])

    @property
    def asked(self) -> list[str]:
        """The addresses that the page has asked for."""
        self.run("0")
        return self._asked

    def forget(self) -> None:
        self._asked.clear()
        self.complaints.clear()

    # ---- what a person does ----

    def open(self, address: str) -> None:
        self.send("Page.navigate", url=address)
        self.until(f"document.readyState === 'complete' && location.href === {json.dumps(address)}")

    def resize(self, width: int, height: int, phone: bool = False, scale: float = 1) -> None:
        metrics = {"width": width, "height": height, "deviceScaleFactor": scale, "mobile": phone}
        self.send("Emulation.setDeviceMetricsOverride", **metrics)
        self.send("Emulation.setTouchEmulationEnabled", enabled=phone)

    def prefer(self, **features: str) -> None:
        """Media features, such as prefers_color_scheme="dark"."""
        told = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        self.send("Emulation.setEmulatedMedia", features=told)

    def run(self, script: str) -> Any:
        """The value of an expression in the page; promises are awaited."""
        found = self.send(
            "Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True, userGesture=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(f"{script}: {found['exceptionDetails']}")
        return found["result"].get("value")

    def until(self, condition: str, seconds: float = 60) -> None:
        """Wait until an expression in the page is true."""
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if self.run(f"Boolean({condition})"):
                return
            time.sleep(0.05)
        raise TimeoutError(f"It did not come to be: {condition}")

    def press(self, key: str, shift: bool = False) -> None:
        code, number, text = KEYS.get(key, (f"Digit{key}", ord(key[0]), key))
        event = {"key": key, "code": code, "windowsVirtualKeyCode": number, "modifiers": 8 if shift else 0}
        self.send("Input.dispatchKeyEvent", type="keyDown", **event, **({"text": text} if text else {}))
        self.send("Input.dispatchKeyEvent", type="keyUp", **event)

    def write(self, text: str) -> None:
        self.send("Input.insertText", text=text)

    def point(self, selector: str, click: bool = False) -> None:
        """Move the mouse to the middle of an element."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{found}.scrollIntoView({{block: 'center'}})")
        box = self.run(f"(r => [r.x + r.width / 2, r.y + r.height / 2])({found}.getBoundingClientRect())")
        where = {"x": box[0], "y": box[1]}
        self.send("Input.dispatchMouseEvent", type="mouseMoved", **where)
        if click:
            for kind in ("mousePressed", "mouseReleased"):
                self.send("Input.dispatchMouseEvent", type=kind, button="left", clickCount=1, **where)

    def drop(self, selector: str, *paths: Path) -> None:
        """Drag files from the desktop onto an element."""
        box = self.run(
            "(r => [r.x + r.width / 2, r.y + r.height / 2])"
            f"(document.querySelector({json.dumps(selector)}).getBoundingClientRect())"
        )
        data = {"items": [], "files": [str(path) for path in paths], "dragOperationsMask": 1}
        for kind in ("dragEnter", "dragOver", "drop"):
            self.send("Input.dispatchDragEvent", type=kind, x=box[0], y=box[1], data=data)

    def screenshot(self, path: Path, whole: bool = False) -> None:
        found = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))
