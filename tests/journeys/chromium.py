"""A headless browser, driven by its DevTools protocol: pages of a given size, in dark mode, and pictures of them."""

from __future__ import annotations

import base64
import contextlib
import itertools
import json
import os
import shutil
import subprocess
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import websocket

from tests.util import scaled, wait_for

GET = "chromium is missing: apt-get install -y --no-install-recommends chromium fonts-dejavu-core"


def program() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Tab:
    """One page. `said` holds the errors of its console and of its script."""

    def __init__(self, url: str) -> None:
        self._socket = websocket.create_connection(url, timeout=scaled(20), suppress_origin=True)
        self._ids = itertools.count(1)
        self.said: list[str] = []
        for domain in ("Page", "Runtime", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._ids)
        self._socket.send(json.dumps({"id": number, "method": method, "params": params}))
        while True:
            message = json.loads(self._socket.recv())
            if message.get("id") == number:
                assert "error" not in message, message
                return dict(message["result"])
            self._note(message)

    def _note(self, message: dict[str, Any]) -> None:
        params = message.get("params", {})
        if message.get("method") == "Runtime.exceptionThrown":
            self.said.append(json.dumps(params["exceptionDetails"]))
        elif message.get("method") == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.said.append(f"{params['entry']['text']} {params['entry'].get('url', '')}")

    def open(self, url: str, wide: int, high: int, *, dark: bool = False, phone: bool = False) -> None:
        self.call("Emulation.setDeviceMetricsOverride", width=wide, height=high, deviceScaleFactor=1, mobile=phone)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", features=[scheme])
        self.call("Page.navigate", url="about:blank")
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete' && location.protocol === 'http:'")

    def js(self, expression: str) -> Any:
        """Return the value of an expression, copied. Promises are awaited."""
        done = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in done, done
        return done["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 20.0) -> Any:
        return wait_for(lambda: self.js(expression), seconds, expression)

    def picture(self, path: Path) -> int:
        """Write a PNG of the page. Return its size in bytes."""
        data = base64.b64decode(self.call("Page.captureScreenshot", format="png")["data"])
        path.write_bytes(data)
        return len(data)

    def close(self) -> None:
        self._socket.close()


@contextlib.contextmanager
def chromium(folder: Path) -> Iterator[Tab]:
    """Yield a tab of a browser whose files are all in `folder`."""
    binary = program()
    assert binary is not None, GET
    flags = [
        "--headless=new",
        "--remote-debugging-port=0",
        f"--user-data-dir={folder}",
        "--no-first-run",
        "--disable-gpu",
    ]
    flags += ["--disable-dev-shm-usage", "--disable-background-networking", "--hide-scrollbars"]
    flags += ["--no-sandbox"] if os.geteuid() == 0 else []
    process = subprocess.Popen([binary, *flags], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        port = folder / "DevToolsActivePort"
        wait_for(lambda: port.exists() and len(port.read_text().splitlines()) == 2, 60, "the browser")
        at = f"http://127.0.0.1:{port.read_text().splitlines()[0]}/json"
        with urllib.request.urlopen(at, timeout=scaled(10)) as answer:
            pages = [p for p in json.load(answer) if p["type"] == "page"]
        tab = Tab(pages[0]["webSocketDebuggerUrl"])
        try:
            yield tab
        finally:
            tab.close()
    finally:
        process.terminate()
        try:
            process.wait(scaled(10))
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
