"""Chromium for tests, driven over a pipe: no port, no driver, no dependency."""

from __future__ import annotations

import base64
import json
import os
import select
import subprocess
import time
from collections.abc import Mapping
from pathlib import Path
from typing import cast

from deploy.local import chromium
from tests.support.deadline import PATIENCE

Answer = Mapping[str, object]
CHROMIUM = chromium.find()
OPTIONS = (
    "--headless",
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
    "--disable-component-update", "--disable-sync", "--disable-dev-shm-usage", "--remote-debugging-pipe",
)  # fmt: skip
PHONE, SMALL_PHONE, DESKTOP = 390, 360, 1280
"""Widths of windows, in pixels."""

_LOOK_AGAIN = 0.05


class Browser:
    """One Chromium with one page.

    Args:
        profile: an empty directory for its files.
    """

    def __init__(self, profile: Path) -> None:
        reads, self._commands = os.pipe()
        self._answers, writes = os.pipe()
        # Chromium expects its commands on descriptor 3 and answers on 4.
        start = f'exec "$0" "$@" 3<&{reads} 4>&{writes}'
        assert CHROMIUM
        with (profile / "log").open("wb") as log:
            self._process = subprocess.Popen(
                ["bash", "-c", start, CHROMIUM, *OPTIONS, f"--user-data-dir={profile / 'profile'}"],
                pass_fds=(reads, writes), stdout=log, stderr=log,
            )  # fmt: skip
        os.close(reads)
        os.close(writes)
        self._number = 0
        self._unread = b""
        self._session: str | None = None
        self.events: list[Answer] = []
        target = self.ask("Target.createTarget", url="about:blank")["targetId"]
        self._session = str(self.ask("Target.attachToTarget", targetId=target, flatten=True)["sessionId"])
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.ask(f"{domain}.enable")
        self.ask("Page.setLifecycleEventsEnabled", enabled=True)

    def ask(self, method: str, **parameters: object) -> Answer:
        """Send a command and wait for its answer; events in between are kept."""
        self._number += 1
        command: dict[str, object] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            command["sessionId"] = self._session
        os.write(self._commands, json.dumps(command).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer["error"]
                return cast(Answer, answer["result"])
            self.events.append(answer)

    def open(self, page: Path | str, width: int, *, dark: bool = False, height: int = 900) -> None:
        """Load a page from disk or an address into a window so many pixels wide."""
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.ask("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.ask("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1,
                 mobile=width < DESKTOP)  # fmt: skip
        # From elsewhere, since another fragment of the same address would not load the page again.
        for url in ("about:blank", page.as_uri() if isinstance(page, Path) else page):
            self.events.clear()
            # The page before may tell only now that it has loaded.
            loader = self.ask("Page.navigate", url=url)["loaderId"]
            while not any(_is_load(event, loader) for event in self.events):
                self.events.append(self._next())

    def value(self, expression: str) -> object:
        """The value of an expression in the page; of a promise, its result."""
        answer = self.ask("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return cast(dict[str, object], answer["result"]).get("value")

    def until(self, expression: str) -> object:
        """Wait until an expression in the page is true, and return its value.

        Raises:
            AssertionError: it did not become so in time; the message has the text of the page.
        """
        deadline = time.monotonic() + PATIENCE
        while not (found := self.value(expression)):
            if time.monotonic() > deadline:
                raise AssertionError(f"not so: {expression}\n{self.value('document.body.innerText')}")
            time.sleep(_LOOK_AGAIN)
        return found

    @property
    def complaints(self) -> list[Answer]:
        """Exceptions and console messages since the page was opened."""
        methods = ("Log.", "Runtime.exception", "Runtime.console")
        return [event for event in self.events if str(event["method"]).startswith(methods)]

    @property
    def requested(self) -> list[str]:
        """Addresses that were asked for since the page was opened."""
        events = [event for event in self.events if event["method"] == "Network.requestWillBeSent"]
        return [cast(dict[str, dict[str, str]], event["params"])["request"]["url"] for event in events]

    def picture(self, *, whole: bool = True) -> bytes:
        """The page as PNG, or only what the window shows of it."""
        answer = self.ask("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        return base64.b64decode(str(answer["data"]))

    def paper(self) -> bytes:
        """The page as PDF."""
        return base64.b64decode(str(self.ask("Page.printToPDF", preferCSSPageSize=True)["data"]))

    def close(self) -> None:
        """Close the browser."""
        self._session = None
        self.ask("Browser.close")
        os.close(self._commands)
        os.close(self._answers)
        self._process.wait(20)

    def _next(self) -> Answer:
        while b"\0" not in self._unread:
            assert select.select([self._answers], [], [], 60)[0], "Chromium does not answer"
            data = os.read(self._answers, 1 << 20)
            assert data, "Chromium is gone"
            self._unread += data
        line, self._unread = self._unread.split(b"\0", 1)
        return cast(Answer, json.loads(line))


def _is_load(event: Answer, loader: object) -> bool:
    """Whether a page has loaded, the one that a navigation asked for."""
    about = cast(dict[str, object], event.get("params", {}))
    return event["method"] == "Page.lifecycleEvent" and (about["name"], about["loaderId"]) == ("load", loader)
