"""A browser without a window, driven over a pipe by Chromium's own protocol: no further package is needed."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PATH = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")

_FLAGS = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-quic",
    "--hide-scrollbars",
    "--remote-debugging-pipe",
]
_SECONDS = 60


class Page:
    """One tab: what it asked the network for and what it complained about are in `requests` and `complaints`."""

    def __init__(self, to_browser: int, from_browser: int):
        self._to, self._from = to_browser, os.fdopen(from_browser, "rb", buffering=0)
        self._session: str | None = None
        self._number = 0
        self._rest = b""
        self._events: list[dict] = []
        self.requests: list[str] = []
        self.complaints: list[str] = []
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict:
        """Send a command and wait for its answer."""
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._to, json.dumps(message).encode() + b"\0")
        while (answer := self._receive()).get("id") != self._number:
            self._note(answer)
        if "error" in answer:
            raise RuntimeError(f"{method}: {answer['error']}")
        return answer["result"]

    def _receive(self) -> dict:
        while b"\0" not in self._rest:
            ready, _, _ = select.select([self._from], [], [], _SECONDS)
            if not ready:
                raise TimeoutError(f"Chromium has said nothing for {_SECONDS} s")
            part = self._from.read(1 << 20)
            if not part:
                raise RuntimeError("Chromium has ended")
            self._rest += part
        message, _, self._rest = self._rest.partition(b"\0")
        return json.loads(message)

    def _note(self, event: dict) -> None:
        method, params = event.get("method"), event.get("params", {})
        self._events.append(event)
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.complaints.append(str(params["exceptionDetails"]))
        elif method == "Log.entryAdded":
            self.complaints.append(params["entry"]["text"])
        elif method == "Runtime.consoleAPICalled" and params["type"] in ("error", "warning", "assert"):
            self.complaints.append(str(params["args"]))

    def open(self, path: Path) -> None:
        """Open a file and wait until it is there."""
        self._events.clear()
        self.call("Page.navigate", url=path.resolve().as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self._events):
            self._note(self._receive())

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; a promise is waited for."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        if "exceptionDetails" in answer:
            raise RuntimeError(str(answer["exceptionDetails"]))
        return answer["result"].get("value")

    def resize(self, width: int, height: int = 844, scale: float = 1) -> None:
        """Make the window this large."""
        mobile = width < 600
        self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=mobile
        )

    def prefer(self, scheme: str, media: str = "") -> None:
        """Ask for a colour scheme, `light` or `dark`, and for a medium such as `print`."""
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", media=media, features=features)

    def press(self, key: str, code: int, text: str = "") -> None:
        """Press a key and let it go."""
        for kind in ("keyDown", "keyUp"):
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=code, text=text)

    def screenshot(self, path: Path) -> None:
        """The whole page as a picture."""
        size = self.call("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        picture = self.call("Page.captureScreenshot", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(picture["data"]))


@contextlib.contextmanager
def page() -> Iterator[Page]:
    """A tab of a new browser with a profile of its own; both are gone afterwards."""
    assert PATH is not None
    child_reads, to_browser = os.pipe()
    from_browser, child_writes = os.pipe()
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        # The protocol's pipes are the file descriptors 3 and 4.
        redirect = f'exec "$@" 3<&{child_reads} 4>&{child_writes}'
        process = subprocess.Popen(
            ["bash", "-c", redirect, "bash", PATH, *_FLAGS, f"--user-data-dir={profile}"],
            pass_fds=(child_reads, child_writes),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(child_reads)
        os.close(child_writes)
        tab = None
        try:
            tab = Page(to_browser, from_browser)
            yield tab
        finally:
            os.close(to_browser)
            process.terminate()
            process.wait(_SECONDS)
            if tab is not None:
                tab._from.close()
