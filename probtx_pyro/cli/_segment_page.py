"""A page to mark a photograph in, served to this machine alone.

Who may ask: a random token stands in the address, every request without it is refused, and so is a Host header that is
not the loopback's (DNS rebinding). What can be asked: the page, the one picture, and, with marks as JSON of limited
size, an answer, a mask or the marks as a picture. No request names a file.
"""

import gzip
import io
import json
import re
import secrets
import socket
import sys
import threading
import webbrowser
import zipfile
from asyncio import get_running_loop
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, NamedTuple
from urllib.parse import quote

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.middleware.base import BaseHTTPMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Mount, Route

from probtx_pyro.cli import _options as options
from probtx_pyro.cli import _pictures as pictures
from probtx_pyro.cli._segment_file import segment_in_turn, segment_picture, several, threads_for

if TYPE_CHECKING:
    import numpy as np

    from probtx_pyro.apps.segmentation import InteractiveSegmenter, Segmentation

PAGE = Path(__file__).with_name("_segment_page.html")
HOSTS = ["127.0.0.1", "localhost"]
# larger pictures are worked on smaller, and saved in full size
MOST_PIXELS = 500_000
MOST_BYTES = 1_000_000
MOST_CLASSES = 9
# answers that are kept, the priors of the next and of what undo shows
_KEPT = 20
# width of a scribble in pixels of the picture on the page; a click marks one pixel
_BRUSH = 3
_HEADERS = {
    "Cache-Control": "no-store",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
_POLICY = (
    "default-src 'none'; img-src 'self' data:; connect-src 'self'; script-src 'nonce-{0}'; style-src 'nonce-{0}'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class Stroke(NamedTuple):
    """One mark.

    label: 1 to `MOST_CLASSES`.
    points: (x, y) in pixels of the picture on the page; one is a click, several are a scribble.
    """

    label: int
    points: list[tuple[int, int]]


def read_strokes(given: object, width: int, height: int) -> list[Stroke]:
    """Check the marks of a request.

    Parameters
    ----------
    given
        What the JSON holds.
    width, height
        Size of the picture on the page.

    Raises
    ------
    ValueError
        Anything but ``{"strokes": [{"label": 1, "points": [[x, y], ...]}, ...]}`` with points in the picture.
    """

    def whole(value: object, least: int, most: int) -> bool:
        return type(value) is int and least <= value <= most

    def point(value: object) -> bool:
        if not isinstance(value, list) or len(value) != 2:
            return False
        return whole(value[0], 0, width - 1) and whole(value[1], 0, height - 1)

    strokes = given.get("strokes") if isinstance(given, dict) else None
    if not isinstance(strokes, list):
        raise ValueError("the request has no list of strokes")
    for stroke in strokes:
        if not isinstance(stroke, dict) or not whole(stroke.get("label"), 1, MOST_CLASSES):
            raise ValueError(f"a stroke has no label from 1 to {MOST_CLASSES}")
        if not isinstance(stroke.get("points"), list) or not stroke["points"] or not all(map(point, stroke["points"])):
            raise ValueError(f"a stroke needs points [x, y], whole numbers inside {width} x {height}")
    return [Stroke(stroke["label"], [(x, y) for x, y in stroke["points"]]) for stroke in strokes]


def read_colours(given: object) -> "np.ndarray":
    """Return the palette (256, 3) of a request's ``{"colours": {"1": "#0072b2", ...}}``;
    other labels keep the package's.
    """
    from probtx_pyro.apps.segmentation import LABEL_COLOURS

    palette = LABEL_COLOURS.copy()
    named = given.get("colours", {}) if isinstance(given, dict) else None
    if not isinstance(named, dict):
        raise ValueError("colours must be an object of labels and #rrggbb")
    for label, colour in named.items():
        known = re.fullmatch("[1-9]", label) and isinstance(colour, str)
        if not known or not re.fullmatch("#[0-9a-f]{6}", colour):
            raise ValueError("colours must be an object of labels and #rrggbb")
        palette[int(label)] = list(bytes.fromhex(colour[1:]))
    return palette


class Photograph:
    """The picture of a page; whatever is computed runs in one thread, in the order of the questions.

    Parameters
    ----------
    path
        File of the picture.
    paths
        Where masks are written, as `_pictures.outputs` returns them; None to hand them out instead.
    threads
        Number of ``--threads``, or None.
    """

    def __init__(self, path: Path, paths: tuple[Path, ...] | None, threads: int | None) -> None:
        from PIL import Image

        self.path, self.paths, self.threads = path, paths, threads
        self.picture = pictures.read_image(path)
        full = Image.fromarray(self.picture[0])
        self.full = full.size
        factor = min(1.0, (MOST_PIXELS / (full.width * full.height)) ** 0.5)
        self.size = (max(1, round(full.width * factor)), max(1, round(full.height * factor)))
        shown = full if self.size == self.full else full.resize(self.size, Image.Resampling.LANCZOS)
        file = io.BytesIO()
        shown.save(file, format="PNG", compress_level=1)
        self.png, self.shown = file.getvalue(), shown
        self.worker = ThreadPoolExecutor(1)
        self.layers = self.worker.submit(self._layers)
        self.answers: list[tuple[list[Stroke], Segmentation]] = []  # to the strokes so far, and to the first of them

    def _layers(self) -> "InteractiveSegmenter":
        """Compute all that does not depend on marks; the heavy imports, too, are for the worker."""
        import numpy as np

        from probtx_pyro.apps.segmentation import InteractiveSegmenter

        pixels = self.picture[1] if self.size == self.full else np.asarray(self.shown)
        with options.threads(threads_for(self.threads, self.size[0] * self.size[1])):
            return InteractiveSegmenter.from_image(pixels)

    def marks(self, strokes: list[Stroke], size: tuple[int, int]) -> "np.ndarray":
        """Draw strokes, later ones over earlier ones, as labels uint8 (H, W).

        Parameters
        ----------
        strokes
            Marks on the page's picture.
        size
            Width and height of the labels: the picture's on the page, or in full.
        """
        import numpy as np
        from PIL import Image, ImageDraw

        drawn = Image.new("L", size)
        pen = ImageDraw.Draw(drawn)
        across, down = size[0] / self.size[0], size[1] / self.size[1]
        for label, points in strokes:
            scaled = [(round((x + 0.5) * across - 0.5), round((y + 0.5) * down - 0.5)) for x, y in points]
            if len(scaled) == 1:
                pen.point(scaled, fill=label)
            else:
                pen.line(scaled, fill=label, width=round(_BRUSH * across), joint="curve")
        return np.array(drawn)

    def answer(self, given: object) -> Response:
        """Return a line of JSON (shares of the classes, next click), then labels and uncertainty,
        a byte for each pixel.
        """
        from probtx_pyro.apps.segmentation import suggest_click, uncertainty

        strokes = read_strokes(given, *self.size)
        marks = self.marks(strokes, self.size)
        answer = self._answer_to(strokes)
        doubt = uncertainty(answer) * (255 / (1 - 1 / len(answer.classes)))
        shares = {str(label): float((answer.mask == label).mean()) for label in answer.classes}
        head = json.dumps({"shares": shares, "suggestion": suggest_click(answer, marks)}).encode()
        planes = answer.mask.astype("uint8").tobytes() + doubt.round().clip(0, 255).astype("uint8").tobytes()
        body = gzip.compress(head + b"\n" + planes, 1)
        return Response(body, media_type="application/octet-stream", headers={"Content-Encoding": "gzip"})

    def _answer_to(self, strokes: list[Stroke]) -> "Segmentation":
        """Answer strokes one after another, from the last answer to some of them that is kept."""
        segmenter, marks = self.layers.result(), self.marks(strokes, self.size)
        if not several(marks):
            return segmenter.segment(marks)  # refuses them, and says what is missing
        while self.answers and self.answers[-1][0] != strokes[: len(self.answers[-1][0])]:
            self.answers.pop()
        asked, previous = self.answers[-1] if self.answers else ([], None)
        counts = range(len(asked) + 1, len(strokes) + 1)
        steps = [(count, some) for count in counts if several(some := self.marks(strokes[:count], self.size))]
        with options.threads(threads_for(self.threads, marks.size)):
            answers = segment_in_turn(segmenter, (some for _, some in steps), previous)
            for (count, _), answer in zip(steps, answers, strict=True):
                self.answers = [*self.answers[1 - _KEPT :], (strokes[:count], answer)]
        return self.answers[-1][1]

    def save_mask(self, given: object) -> Response:
        """Write the files of ``--out``, or return them in a zip."""
        strokes, palette = read_strokes(given, *self.size), read_colours(given)
        steps = [self.marks(strokes[: count + 1], self.full) for count in range(len(strokes))] or [self._full(given)]
        if self.paths is not None:
            segment_picture(self.picture, steps, palette, self.paths, self.threads)
            return JSONResponse({"written": [str(path) for path in self.paths]})
        with TemporaryDirectory() as folder:
            paths = pictures.outputs(Path(folder) / f"{self.path.stem}_mask.png")
            segment_picture(self.picture, steps, palette, paths, self.threads)
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w") as archive:
                for path in paths:
                    archive.write(path, path.name)
        return self._download(packed, f"{self.path.stem}_mask.zip", "application/zip")

    def save_marks(self, given: object) -> Response:
        """Write the marks beside the mask of ``--out``, or return them: a palette PNG that ``--scribbles`` reads."""
        marks, palette = self._full(given), read_colours(given)
        if self.paths is not None:
            path = self.paths[0].with_name(f"{self.paths[0].stem}_marks.png")
            pictures.keep((self.path,), (path,))
            pictures.write_labels(path, marks, palette)
            return JSONResponse({"written": [str(path)]})
        file = io.BytesIO()
        pictures.write_labels(file, marks, palette)
        return self._download(file, f"{self.path.stem}_marks.png", "image/png")

    def _full(self, given: object) -> "np.ndarray":
        """Return the marks of a request in the picture's full size."""
        return self.marks(read_strokes(given, *self.size), self.full)

    def _download(self, file: io.BytesIO, name: str, kind: str) -> Response:
        """Return a file with its name."""
        return Response(file.getvalue(), media_type=kind, headers={"X-File-Name": quote(name)})


def application(photograph: Photograph, token: str) -> Starlette:
    """Return the application that answers the page.

    Parameters
    ----------
    photograph
        The picture.
    token
        First part of every path.
    """

    async def guard(request: Request, answer: Callable[[Request], Awaitable[Response]]) -> Response:
        given = request.url.path.lstrip("/").partition("/")[0]
        if secrets.compare_digest(given.encode(), token.encode()):
            response = await answer(request)
        else:
            response = JSONResponse({"error": "this address lacks the token that probtx segment printed"}, 403)
        for name, value in _HEADERS.items():
            response.headers[name] = value
        response.headers.setdefault("Content-Security-Policy", _POLICY.format("none"))
        return response

    async def page(_: Request) -> Response:
        nonce = secrets.token_urlsafe(16)
        html = PAGE.read_text(encoding="utf-8").replace("__NONCE__", nonce)
        return HTMLResponse(html, headers={"Content-Security-Policy": _POLICY.format(nonce)})

    async def about(_: Request) -> Response:
        width, height = photograph.size
        return JSONResponse({"name": photograph.path.name, "width": width, "height": height, "full": photograph.full})

    async def picture(_: Request) -> Response:
        return Response(photograph.png, media_type="image/png")

    def asked(deed: Callable[[object], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            given = await _json(request)
            return await get_running_loop().run_in_executor(photograph.worker, deed, given)

        return endpoint

    deeds = {"answer": photograph.answer, "mask": photograph.save_mask, "marks": photograph.save_marks}
    routes = [Route("/", page), Route("/about", about), Route("/picture.png", picture)]
    routes += [Route(f"/{name}", asked(deed), methods=["POST"]) for name, deed in deeds.items()]
    return Starlette(
        routes=[Mount(f"/{token}", routes=routes)],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS), Middleware(BaseHTTPMiddleware, guard)],
        exception_handlers={ValueError: _sentence, OSError: _sentence, HTTPException: _sentence},
    )


async def _json(request: Request) -> object:
    """Return the JSON of a request; refused are other types, and bodies above `MOST_BYTES`, as soon as they are."""
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
        raise HTTPException(415, "marks must come as application/json")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > MOST_BYTES:
            raise HTTPException(413, "these are too many marks; clear some")
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the request is not JSON") from None


async def _sentence(_: Request, error: Exception) -> Response:
    """Answer an error by one sentence."""
    status = error.status_code if isinstance(error, HTTPException) else 400
    said = error.detail if isinstance(error, HTTPException) else " ".join(str(error).split())
    return JSONResponse({"error": said}, status)


def serve(path: Path, paths: tuple[Path, ...] | None, threads: int | None, browser: bool) -> int:
    """Serve the page of a picture until Ctrl-C; return the exit code.

    Parameters
    ----------
    path
        File of the picture.
    paths
        Where masks are written, or None.
    threads
        Number of ``--threads``, or None.
    browser
        True to open the page in the user's browser.
    """
    if paths is not None:
        pictures.keep((path,), paths)
    photograph = Photograph(path, paths, threads)
    token = secrets.token_urlsafe(24)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"http://127.0.0.1:{listener.getsockname()[1]}/{token}/"
        print(f"{address}  (Ctrl-C ends it)", flush=True)
        if browser:  # a thread: a browser of the terminal would hold the server back
            threading.Thread(target=webbrowser.open, args=(address,), daemon=True).start()
        settings = uvicorn.Config(
            application(photograph, token), log_level="warning", lifespan="off", ws="none", timeout_graceful_shutdown=1
        )
        try:
            uvicorn.Server(settings).run(sockets=[listener])
        except KeyboardInterrupt:
            pass
        finally:
            photograph.worker.shutdown(wait=False, cancel_futures=True)
    print("\nprobtx: the page is closed", file=sys.stderr)
    return 0
