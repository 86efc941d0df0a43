"""A real Chromium, driven through its DevTools protocol over a pipe, with the standard library alone."""

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import sys
import time

BROWSER = shutil.which("chromium") or shutil.which("google-chrome")
REASON = "needs Chromium (Debian: apt-get install chromium)"
# Chromium reads commands from file descriptor 3 and writes answers to 4.
_TRAMPOLINE = "import os, sys; r, w = map(int, sys.argv[1:3]); os.dup2(r, 203); os.dup2(w, 204); \
os.dup2(203, 3); os.dup2(204, 4); os.execv(sys.argv[3], sys.argv[3:])"


class Page:
    """One tab: evaluates JavaScript, moves the pointer, presses keys, and remembers what went wrong."""

    def __init__(self, folder):
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
        options += ["--disable-background-networking", "--disable-component-update"]
        options += [f"--user-data-dir={folder}", "--remote-debugging-pipe", "about:blank"]
        command_read, self._write = os.pipe()
        self._read, answer_write = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-c", _TRAMPOLINE, str(command_read), str(answer_write), BROWSER, *options],
            pass_fds=(command_read, answer_write),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(command_read)
        os.close(answer_write)
        self._buffer, self._count, self._session = b"", 0, None
        self.problems, self.requests = [], []
        targets = self.call("Target.getTargets")["targetInfos"]
        target = next(t["targetId"] for t in targets if t["type"] == "page")
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def close(self):
        with contextlib.suppress(OSError, TimeoutError, EOFError):
            self._session = None
            self.call("Browser.close")
        os.close(self._write)
        os.close(self._read)
        try:
            self._process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self._process.kill()

    def call(self, method, **parameters):
        """Send a command, and wait for its answer."""
        self._count += 1
        message = {"id": self._count, "method": method, "params": parameters}
        if self._session is not None:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._count:
                assert "error" not in answer, answer
                return answer["result"]
            self._note(answer)

    def _next(self, seconds=60):
        deadline = time.monotonic() + seconds
        while b"\0" not in self._buffer:
            ready, _, _ = select.select([self._read], [], [], max(0, deadline - time.monotonic()))
            if not ready:
                raise TimeoutError("Chromium does not answer")
            piece = os.read(self._read, 1 << 20)
            if not piece:
                raise EOFError("Chromium has gone")
            self._buffer += piece
        text, _, self._buffer = self._buffer.partition(b"\0")
        return json.loads(text)

    def _note(self, event):
        """Keep events that tell of errors and of requests."""
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Runtime.exceptionThrown":
            self.problems.append(parameters["exceptionDetails"])
        elif method == "Log.entryAdded" and parameters["entry"]["level"] in ("error", "warning"):
            self.problems.append(parameters["entry"])
        elif method == "Runtime.consoleAPICalled" and parameters["type"] in ("error", "warning", "assert"):
            self.problems.append(parameters)
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])

    def open(self, path, width=1280, height=900, *, dark=False, calm=True, touch=False):
        """Open a page from disk, and wait until it has drawn itself."""
        self.resize(width, height, mobile=touch)
        features = [{"name": "prefers-color-scheme", "value": "dark" if dark else "light"}]
        features.append({"name": "prefers-reduced-motion", "value": "reduce" if calm else "no-preference"})
        self.call("Emulation.setEmulatedMedia", features=features)
        self.call("Emulation.setTouchEmulationEnabled", enabled=touch)
        self.problems.clear()
        self.requests.clear()
        self.call("Page.navigate", url=path.as_uri())
        deadline = time.monotonic() + 30
        while not self.evaluate("document.readyState === 'complete' && !!window.cbsaExplorer"):
            assert time.monotonic() < deadline, self.problems
            time.sleep(0.02)
        self.evaluate("cbsaExplorer.ready")
        self.settle()

    def resize(self, width, height, mobile=False):
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=mobile,
        )

    def settle(self):
        """Wait until what was changed is drawn."""
        self.evaluate(
            "new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done(1))))"
        )

    def evaluate(self, expression):
        """Value of a JavaScript expression; promises are awaited."""
        answer = self.call("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def text(self, selector):
        return self.evaluate(f"document.querySelector({json.dumps(selector)}).textContent")

    def place(self, selector, x=0.5, y=0.5):
        """Window coordinates of a point of an element, from 0 to 1, once it is scrolled into sight."""
        box = self.evaluate(
            f"""(() => {{ const e = document.querySelector({json.dumps(selector)});
            e.scrollIntoView({{block: "center", behavior: "instant"}});
            const b = e.getBoundingClientRect(); return [b.left, b.top, b.width, b.height]; }})()"""
        )
        return box[0] + x * box[2], box[1] + y * box[3]

    def hover(self, selector, x=0.5, y=0.5):
        left, top = self.place(selector, x, y)
        self.call("Input.dispatchMouseEvent", type="mouseMoved", x=left, y=top)
        self.settle()

    def click(self, selector, x=0.5, y=0.5):
        left, top = self.place(selector, x, y)
        for kind in ("mousePressed", "mouseReleased"):
            self.call("Input.dispatchMouseEvent", type=kind, x=left, y=top, button="left", clickCount=1)
        self.settle()

    def tap(self, selector, x=0.5, y=0.5):
        left, top = self.place(selector, x, y)
        self.call("Input.dispatchTouchEvent", type="touchStart", touchPoints=[{"x": left, "y": top}])
        self.call("Input.dispatchTouchEvent", type="touchEnd", touchPoints=[])
        self.settle()

    def press(self, key, code=None, text=None):
        extra = {"text": text} if text else {}
        virtual = {"ArrowLeft": 37, "ArrowUp": 38, "ArrowRight": 39, "ArrowDown": 40, "Tab": 9, "Enter": 13}
        common = {
            "key": key,
            "code": code or key,
            "windowsVirtualKeyCode": virtual.get(key, ord(key[0].upper())),
        }
        self.call("Input.dispatchKeyEvent", type="keyDown", **common, **extra)
        self.call("Input.dispatchKeyEvent", type="keyUp", **common)
        self.settle()

    def state(self):
        return self.evaluate("cbsaExplorer.state()")

    def screenshot(self, path, full=True):
        shot = self.call("Page.captureScreenshot", captureBeyondViewport=full, format="png")
        path.write_bytes(base64.b64decode(shot["data"]))
        return path
