"""A headless Chromium, controlled through the pipe of its DevTools protocol without a port, driver or package."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")


def find() -> str | None:
    """Return the path of an installed Chromium, or None."""
    return next(filter(None, map(shutil.which, NAMES)), None)


class Page:
    """A tab: commands are sent in order, and events received meanwhile are stored."""

    def __init__(self, to: int, back: int) -> None:
        self.to, self.back = to, os.fdopen(back, "rb")
        self.events: list[dict[str, Any]] = []
        self.number, self.session = 0, None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **params: Any) -> dict[str, Any]:
        """Send a command and return its result."""
        self.number += 1
        message: dict[str, Any] = {"id": self.number, "method": method, "params": params}
        message |= {"sessionId": self.session} if self.session else {}
        os.write(self.to, json.dumps(message).encode() + b"\0")
        while (answer := self._next()).get("id") != self.number:
            self.events.append(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']['message']}")
        return answer["result"]

    def _next(self) -> dict[str, Any]:
        read = bytearray()
        while (byte := self.back.read(1)) != b"\0":
            if not byte:
                raise RuntimeError("Chromium has ended")
            read += byte
        return json.loads(read)

    def open(self, file: Path, width: int = 1280, height: int = 900) -> None:
        """Load a file in a window of this size, and wait until it is complete."""
        self.send(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600
        )
        self.events.clear()
        self.send("Page.navigate", url=file.resolve().as_uri())
        while not self.of("Page.loadEventFired"):
            self.events.append(self._next())

    def of(self, method: str) -> list[dict[str, Any]]:
        """Return the parameters of the events of a kind since the page was opened."""
        return [event["params"] for event in self.events if event.get("method") == method]

    def run(self, expression: str) -> Any:
        """Return the value of a JavaScript expression; a promise is awaited. Raises RuntimeError if it throws."""
        done = self.send("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in done:
            raise RuntimeError(done["exceptionDetails"]["exception"].get("description", expression))
        return done["result"].get("value")

    def hover(self, selector: str) -> tuple[float, float]:
        """Move the mouse to the centre of the first matching element; return the position."""
        found = f"document.querySelector({json.dumps(selector)})"
        self.run(f"{found}.scrollIntoView({{block: 'center', inline: 'center', behavior: 'instant'}})")
        box = f"{found}.getBoundingClientRect()"
        x, y = self.run(f"{box}.x + {box}.width / 2"), self.run(f"{box}.y + {box}.height / 2")
        self.send("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)
        return x, y

    def click(self, selector: str) -> None:
        """Click the first matching element with the mouse."""
        x, y = self.hover(selector)
        for kind in ("mousePressed", "mouseReleased"):
            self.send("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)

    def press(self, key: str) -> None:
        """Press a key in the focused element: a letter, or a name such as Enter or ArrowRight."""
        text = {"Enter": "\r"}.get(key, key if len(key) == 1 else "")
        number = {"Enter": 13, "Escape": 27, "ArrowLeft": 37, "ArrowRight": 39, "Tab": 9}.get(key, ord(key.upper()[0]))
        for kind in ("keyDown", "keyUp"):
            given = {"key": key, "windowsVirtualKeyCode": number, **({"text": text} if text else {})}
            self.send("Input.dispatchKeyEvent", type=kind, **given)

    def write(self, text: str) -> None:
        """Write a text into the focused element, as an input method does."""
        self.send("Input.insertText", text=text)


@contextmanager
def browser(program: str, profile: Path) -> Iterator[Page]:
    """Yield a page of a Chromium that ends with the block."""
    commands, answers = os.pipe(), os.pipe()
    words = [program, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run"]
    words += ["--disable-background-networking", f"--user-data-dir={profile}", "--remote-debugging-pipe", "about:blank"]
    # It reads commands from its file descriptor 3 and answers on 4.
    shell = ["bash", "-c", f'exec "$@" 3<&{commands[0]} 4>&{answers[1]}', "bash", *words]
    process = subprocess.Popen(shell, pass_fds=(commands[0], answers[1]), stderr=subprocess.DEVNULL)
    os.close(commands[0])
    os.close(answers[1])
    try:
        page = Page(commands[1], answers[0])
        yield page
        page.session = None
        page.send("Browser.close")
    finally:
        os.close(commands[1])
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
