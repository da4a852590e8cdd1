"""A headless Chromium, driven over its DevTools protocol."""

from __future__ import annotations

import base64
import json
import shutil
import subprocess
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

PATIENCE = 60.0


def chromium() -> str:
    """The browser on this machine; the test is skipped if there is none."""
    for name in ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable"):
        found = shutil.which(name)
        if found:
            return found
    pytest.skip("no Chromium on this machine")


class Browser:
    """One page. ``profile`` is an empty folder."""

    def __init__(self, profile: Path) -> None:
        self._errors = (profile / "stderr.txt").open("w+b")
        self._process = subprocess.Popen(
            [
                chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
                "--disable-dev-shm-usage", "--disable-background-networking", "--mute-audio",
                "--remote-debugging-port=0", f"--user-data-dir={profile}", "--window-size=1000,800",
                "about:blank",
            ],
            stdout=subprocess.DEVNULL,
            stderr=self._errors,
        )  # fmt: skip
        self._profile = profile
        self._n = 0
        #: Uncaught exceptions and refused loads, in the page's words.
        self.problems: list[str] = []

    def __enter__(self) -> Browser:
        from websockets.sync.client import connect

        found = self._profile / "DevToolsActivePort"
        deadline = time.monotonic() + PATIENCE
        while not (found.is_file() and found.read_text().count("\n")):
            assert self._process.poll() is None, "Chromium did not start"
            assert time.monotonic() < deadline, "Chromium opens no port"
            time.sleep(0.05)
        port, path = found.read_text().split("\n")[:2]
        url = f"ws://127.0.0.1:{port}{path}"
        self._open = connect(url, max_size=None, proxy=None)
        self._socket = self._open.__enter__()
        target = self._call("Target.createTarget", url="about:blank")["targetId"]
        attached = self._call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")
        return self

    def __exit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._open.__exit__(None, None, None)
        self._process.kill()
        self._process.wait()
        self._errors.close()

    def _call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._n += 1
        message = {"id": self._n, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        self._socket.send(json.dumps(message))
        while True:
            said = json.loads(self._socket.recv(timeout=PATIENCE))
            if said.get("id") == self._n:
                assert "error" not in said, said["error"]
                result: dict[str, Any] = said["result"]
                return result
            self._note(said)

    def _note(self, said: dict[str, Any]) -> None:
        params = said.get("params", {})
        if said.get("method") == "Runtime.exceptionThrown":
            self.problems.append(str(params["exceptionDetails"]))
        if said.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(params["entry"]["text"])

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """A DevTools command to the page."""
        return self._call(method, self._session, **params)

    def open(self, url: str) -> None:
        self.call("Page.navigate", url=url)
        self.until("document.readyState === 'complete'")

    def value(self, expression: str) -> Any:
        """What JavaScript in the page evaluates to."""
        done = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in done, done["exceptionDetails"]
        return done["result"].get("value")

    def until(self, expression: str) -> None:
        """Wait for ``expression`` to become true."""
        deadline = time.monotonic() + PATIENCE
        while not self.value(expression):
            assert time.monotonic() < deadline, f"never true: {expression}"
            time.sleep(0.03)

    def type(self, text: str) -> None:
        """Type into what has the focus; a line break presses Enter."""
        for part in text.splitlines(keepends=True):
            self.call("Input.insertText", text=part.rstrip("\n"))
            if part.endswith("\n"):
                for kind in ("keyDown", "keyUp"):
                    self.call("Input.dispatchKeyEvent", type=kind, key="Enter", code="Enter",
                              windowsVirtualKeyCode=13, text="\r")  # fmt: skip

    def screenshot(self, path: Path) -> None:
        """A PNG of the window."""
        png = base64.b64decode(self.call("Page.captureScreenshot")["data"])
        path.write_bytes(png)
