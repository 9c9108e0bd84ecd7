"""A real Chromium without a window, driven through its DevTools protocol over a pipe: no further package is needed."""

import base64
import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

SECONDS = 60.0  # until something that was asked for must have happened; the machine may be busy


def chromium() -> str | None:
    """The program, if it is installed."""
    return next(
        (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
    )


class Browser:
    """One page of a browser: what it logged and requested, and what is done to it."""

    def __init__(self, reading: int, writing: int) -> None:
        self._reading, self._writing, self._buffer, self._number = reading, writing, b"", 0
        self.complaints: list[str] = []
        self.requests: list[str] = []
        target = self._ask("Target.createTarget", {"url": "about:blank"})["targetId"]
        self._session = self._ask("Target.attachToTarget", {"targetId": target, "flatten": True})["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "DOM"):
            self.ask(f"{domain}.enable")

    def ask(self, method: str, **parameters: Any) -> dict[str, Any]:
        return self._ask(method, parameters, self._session)

    def open(self, address: str) -> None:
        self.ask("Page.navigate", url=address)
        self.wait_for("document.readyState === 'complete' && location.href !== 'about:blank'")

    def run(self, script: str) -> Any:
        """The value of an expression on the page; one that fails is an error."""
        found = self.ask("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in found, found["exceptionDetails"]
        return found["result"].get("value")

    def wait_for(self, script: str) -> Any:
        """Wait until an expression on the page is true, and return its value."""
        until = time.monotonic() + SECONDS
        while not (found := self.run(script)):
            assert time.monotonic() < until, f"still not true: {script}"
            time.sleep(0.05)
        return found

    def click(self, selector: str) -> None:
        """Click into the middle of an element, with the mouse."""
        place = json.dumps(selector)
        self.run(f"document.querySelector({place}).scrollIntoView({{block: 'center'}})")
        box = self.run(f"(() => {{ const b = document.querySelector({place}).getBoundingClientRect(); "
                       "return [b.x + b.width / 2, b.y + b.height / 2]; })()")  # fmt: skip
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=box[0] - 5, y=box[1])
        self.ask("Input.dispatchMouseEvent", type="mouseMoved", x=box[0], y=box[1])
        for kind in ("mousePressed", "mouseReleased"):
            self.ask("Input.dispatchMouseEvent", type=kind, x=box[0], y=box[1], button="left", clickCount=1)

    def type(self, selector: str, text: str) -> None:
        self.run(f"document.querySelector({json.dumps(selector)}).focus()")
        self.ask("Input.insertText", text=text)

    def show(self, *, width: int, dark: bool = False, height: int = 900) -> None:
        """The size of the window, and the colours that its user prefers."""
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", features=[scheme])

    def picture(self, *, whole: bool = True) -> bytes:
        found = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(found["data"])

    def printed(self) -> bytes:
        """The page as a PDF."""
        return base64.b64decode(self.ask("Page.printToPDF", printBackground=False)["data"])

    def _ask(self, method: str, parameters: dict[str, Any], session: str | None = None) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": parameters}
        if session:
            message["sessionId"] = session
        os.write(self._writing, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, (method, answer["error"])
                return dict(answer["result"])
            self._notice(answer)

    def _next(self) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            read = os.read(self._reading, 1 << 20)
            assert read, "the browser ended"
            self._buffer += read
        line, _, self._buffer = self._buffer.partition(b"\0")
        return dict(json.loads(line))

    def _notice(self, event: dict[str, Any]) -> None:
        parameters = event.get("params", {})
        match event.get("method"):
            case "Runtime.exceptionThrown":
                self.complaints.append(str(parameters["exceptionDetails"]))
            case "Runtime.consoleAPICalled" if parameters["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(parameters["args"]))
            case "Log.entryAdded" if parameters["entry"]["level"] in ("error", "warning"):
                self.complaints.append(str(parameters["entry"]))
            case "Network.requestWillBeSent":
                self.requests.append(parameters["request"]["url"])


@contextmanager
def browser(folder: Path) -> Iterator[Browser]:
    """A browser with an empty profile in this folder; it ends with the block."""
    program = chromium()
    assert program, "no Chromium"
    (to_read, answers), (commands, to_write) = os.pipe(), os.pipe()
    switches = (
        "headless=new no-sandbox disable-gpu no-first-run disable-extensions disable-background-networking "
        "disable-component-update disable-sync hide-scrollbars disable-dev-shm-usage remote-debugging-pipe"
    )
    options = [f"--{switch}" for switch in switches.split()]
    command = [program, *options, f"--user-data-dir={folder}"]
    shell = f'exec "$@" 3<&{commands} 4>&{answers}'
    process = subprocess.Popen(
        ["bash", "-c", shell, "bash", *command],
        pass_fds=(commands, answers),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(commands)
    os.close(answers)
    try:
        yield Browser(to_read, to_write)
    finally:
        os.close(to_write)
        os.close(to_read)
        process.terminate()
        process.wait(timeout=SECONDS)
