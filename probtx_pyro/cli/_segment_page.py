"""A page to mark a photograph in, served to this machine alone.

Who may ask: a random token stands in the address, every request without it is refused, and so is a Host header that is
not the loopback's (DNS rebinding), and a request that another site's page sent (Sec-Fetch-Site, Origin). What can be
asked: the page, the one picture, and, with marks as JSON of limited size, an answer, a mask or the marks as a picture;
and marks can be brought as a PNG of limited size. No request names a file.
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
from math import ceil
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

from probtx_pyro.cli import _pictures as pictures
from probtx_pyro.cli._segment_file import segment_in_turn, several

if TYPE_CHECKING:
    import numpy as np

    from probtx_pyro.apps.segmentation import InteractiveSegmenter, Segmentation

PAGE = Path(__file__).with_name("_segment_page.html")
HOSTS = ["127.0.0.1", "localhost"]
# larger pictures are worked on smaller, and saved in full size
MOST_PIXELS = 500_000
MOST_BYTES = 1_000_000
MOST_BYTES_OF_MARKS = 20_000_000  # that are opened
MOST_CLASSES = 9
# rows that are saved at once, and rows beside them that the overlay of a row looks at
_ROWS, _BESIDE = 256, 4
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
    runs: instead of points (x, y, length): marks that were opened, a run of pixels in a row each.
    """

    label: int
    points: list[tuple[int, int]]
    runs: list[tuple[int, int, int]]


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
        Anything but ``{"strokes": [{"label": 1, "points": [[x, y], ...]}, ...]}`` with points in the picture, or in
        place of points ``"runs": [[x, y, length], ...]``.
    """

    def whole(value: object, least: int, most: int) -> bool:
        return type(value) is int and least <= value <= most

    def point(value: object) -> bool:
        if not isinstance(value, list) or len(value) != 2:
            return False
        return whole(value[0], 0, width - 1) and whole(value[1], 0, height - 1)

    def run(value: object) -> bool:
        return isinstance(value, list) and point(value[:2]) and len(value) == 3 and whole(value[2], 1, width - value[0])

    strokes = given.get("strokes") if isinstance(given, dict) else None
    if not isinstance(strokes, list):
        raise ValueError("the request has no list of strokes")
    for stroke in strokes:
        if not isinstance(stroke, dict) or not whole(stroke.get("label"), 1, MOST_CLASSES):
            raise ValueError(f"a stroke has no label from 1 to {MOST_CLASSES}")
        name, right = ("runs", run) if "runs" in stroke else ("points", point)
        if not isinstance(stroke.get(name), list) or not stroke[name] or not all(map(right, stroke[name])):
            raise ValueError(f"a stroke needs points [x, y] or runs [x, y, length], integers inside {width} x {height}")
    return [
        Stroke(stroke["label"], *([tuple(one) for one in stroke.get(name, [])] for name in ("points", "runs")))
        for stroke in strokes
    ]


def strokes_of(labels: "np.ndarray", size: tuple[int, int]) -> list[dict]:
    """Return marks in a picture of labels as strokes of a request, one for each label.

    Parameters
    ----------
    labels
        Integers (H, W), 0 for unmarked.
    size
        Width and height of the picture on the page; where it is smaller, a pixel is marked if one that it covers is.

    Raises
    ------
    ValueError
        Labels that the page has not.
    """
    import numpy as np

    strokes = []
    for label in np.unique(labels[labels > 0]).tolist():
        if label > MOST_CLASSES:
            raise ValueError(f"the marks have the label {label}; the page has 1 to {MOST_CLASSES}")
        y, x = np.nonzero(labels == label)
        marked = np.zeros(size[::-1], np.int8)
        marked[y * size[1] // labels.shape[0], x * size[0] // labels.shape[1]] = 1
        steps = np.diff(np.pad(marked, ((0, 0), (1, 1))))
        (rows, first), (_, end) = np.nonzero(steps == 1), np.nonzero(steps == -1)
        strokes.append({"label": label, "runs": np.stack([first, rows, end - first], 1).tolist()})
    return strokes


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
    scribbles
        File of marks to begin with, or None.

    Attributes
    ----------
    saved
        Which share of a mask that is being saved is done.
    cancelled
        Set to end the saving.
    """

    def __init__(self, path: Path, paths: tuple[Path, ...] | None, scribbles: Path | None = None) -> None:
        from PIL import Image

        self.path, self.paths = path, paths
        self.picture = pictures.read_image(path)
        full = Image.fromarray(self.picture[0])
        self.full = full.size
        factor = min(1.0, (MOST_PIXELS / (full.width * full.height)) ** 0.5)
        self.size = (max(1, round(full.width * factor)), max(1, round(full.height * factor)))
        shown = full if self.size == self.full else full.resize(self.size, Image.Resampling.LANCZOS)
        file = io.BytesIO()
        shown.save(file, format="PNG", compress_level=1)
        self.png, self.shown = file.getvalue(), shown
        self.begin = None if scribbles is None else self._opened(scribbles)
        self.worker, self.saver = ThreadPoolExecutor(1), ThreadPoolExecutor(1)
        self.saved, self.cancelled = 0.0, threading.Event()
        self.layers = self.worker.submit(self._layers)
        self.answers: list[tuple[list[Stroke], Segmentation]] = []  # to the strokes so far, and to the first of them

    def _layers(self) -> "InteractiveSegmenter":
        """Compute all that does not depend on marks; the heavy imports, too, are for the worker."""
        import numpy as np

        from probtx_pyro.apps.segmentation import InteractiveSegmenter

        pixels = self.picture[1] if self.size == self.full else np.asarray(self.shown)
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
        for label, points, runs in strokes:
            for x, y, length in runs:  # all pixels whose middle lies in the run
                x0, x1, y0, y1 = (
                    ceil(value - 0.5) for value in (x * across, (x + length) * across, y * down, (y + 1) * down)
                )
                pen.rectangle([x0, y0, x1 - 1, y1 - 1], fill=label)
            scaled = [(round((x + 0.5) * across - 0.5), round((y + 0.5) * down - 0.5)) for x, y in points]
            if len(scaled) == 1:
                pen.point(scaled, fill=label)
            elif scaled:
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
        answers = segment_in_turn(segmenter, (some for _, some in steps), previous)
        for (count, _), answer in zip(steps, answers, strict=True):
            self.answers = [*self.answers[1 - _KEPT :], (strokes[:count], answer)]
        return self.answers[-1][1]

    def answer_to(self, given: object) -> "tuple[Segmentation, np.ndarray, np.ndarray]":
        """Return the answer to the marks of a request, kept from the page, with the marks in full size and the palette."""
        strokes, palette = read_strokes(given, *self.size), read_colours(given)
        self.saved = 0.0
        self.cancelled.clear()
        return self._answer_to(strokes), self.marks(strokes, self.full), palette

    def save_mask(self, answer: "Segmentation", marks: "np.ndarray", palette: "np.ndarray") -> Response:
        """Write the files of ``--out``, or return them in a zip; probabilities of a larger picture are interpolated."""
        whole, drawn = self._in_full(answer, marks, palette)
        if self.paths is not None:
            pictures.write(self.paths, whole, drawn, palette)
            return JSONResponse({"written": [str(path) for path in self.paths]})
        with TemporaryDirectory() as folder:
            paths = pictures.outputs(Path(folder) / f"{self.path.stem}_mask.png")
            pictures.write(paths, whole, drawn, palette)
            packed = io.BytesIO()
            with zipfile.ZipFile(packed, "w") as archive:
                for path in paths:
                    archive.write(path, path.name)
        return self._download(packed, f"{self.path.stem}_mask.zip", "application/zip")

    def _in_full(
        self, answer: "Segmentation", marks: "np.ndarray", palette: "np.ndarray"
    ) -> "tuple[Segmentation, np.ndarray]":
        """Return an answer and its overlay in the picture's full size, computed some rows at a time.

        Parameters
        ----------
        answer
            Of the picture on the page.
        marks
            (H, W) in full size.
        palette
            As `read_colours` returns it.

        Raises
        ------
        ValueError
            Saving was cancelled.
        """
        import numpy as np
        from PIL import Image

        from probtx_pyro.apps.segmentation import Segmentation, overlay

        (width, height), (small, low) = self.full, self.size
        planes = [Image.fromarray(plane) for plane in np.moveaxis(answer.probabilities, -1, 0)]
        mask = np.empty((height, width), answer.mask.dtype)
        probabilities = np.empty((height, width, len(planes)), np.float32)
        drawn = np.empty((height, width, 3), np.uint8)
        for top in range(0, height, _ROWS):
            if self.cancelled.is_set():
                raise ValueError("saving was cancelled; nothing was written")
            first, last = max(0, top - _BESIDE), min(height, top + _ROWS + _BESIDE)
            if self.size == self.full:
                found, labels = answer.probabilities[first:last], answer.mask[first:last]
            else:
                box = (0, first * low / height, small, last * low / height)
                some = [plane.resize((width, last - first), Image.Resampling.BILINEAR, box) for plane in planes]
                found = np.stack([np.asarray(plane) for plane in some], -1)
                own = marks[first:last]
                found[own > 0] = np.eye(len(planes))[np.searchsorted(answer.classes, own[own > 0])]
                labels = answer.classes[found.argmax(-1)]
            rows = slice(first, last)
            tinted = overlay(self.picture[0][rows], Segmentation(labels, found, answer.classes), marks[rows], palette)
            kept, rows = slice(top - first, top - first + _ROWS), slice(top, top + _ROWS)
            mask[rows], probabilities[rows], drawn[rows] = labels[kept], found[kept], tinted[kept]
            self.saved = min(1.0, (top + _ROWS) / height)
        return Segmentation(mask, probabilities, answer.classes), drawn

    def _opened(self, path: Path) -> dict:
        """Return the marks of a file as strokes, and its colours, as a request has them."""
        labels, palette = pictures.read_marks(path, self.full[::-1])
        strokes = strokes_of(labels, self.size)
        if not strokes:
            raise ValueError(f"{path} has no marks")
        colours = (
            {} if palette is None else {str(one["label"]): f"#{bytes(palette[one['label']]).hex()}" for one in strokes}
        )
        return {"strokes": strokes, "colours": colours}

    def open_marks(self, content: bytes) -> Response:
        """Return the marks of a PNG, as `_opened` does."""
        with TemporaryDirectory() as folder:
            path = Path(folder) / "marks.png"
            path.write_bytes(content)
            try:
                return JSONResponse(self._opened(path))
            except ValueError as error:
                raise ValueError(str(error).replace(str(path), "the file")) from None

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
        if not secrets.compare_digest(given.encode(), token.encode()):
            response: Response = JSONResponse(
                {"error": "this address lacks the token that probtx segment printed"}, 403
            )
        elif _foreign(request):
            response = JSONResponse({"error": "this request came from another site's page"}, 403)
        else:
            response = await answer(request)
        for name, value in _HEADERS.items():
            response.headers[name] = value
        response.headers.setdefault("Content-Security-Policy", _POLICY.format("none"))
        return response

    async def page(_: Request) -> Response:
        nonce = secrets.token_urlsafe(16)
        html = PAGE.read_text(encoding="utf-8").replace("__NONCE__", nonce)
        return HTMLResponse(html, headers={"Content-Security-Policy": _POLICY.format(nonce)})

    async def about(_: Request) -> Response:
        (width, height), name = photograph.size, photograph.path.name
        told = {"name": name, "width": width, "height": height, "full": photograph.full, "begin": photograph.begin}
        return JSONResponse(told)

    async def picture(_: Request) -> Response:
        return Response(photograph.png, media_type="image/png")

    def asked(deed: Callable[[object], Response]) -> Callable[[Request], Awaitable[Response]]:
        async def endpoint(request: Request) -> Response:
            given = await _json(request)
            return await get_running_loop().run_in_executor(photograph.worker, deed, given)

        return endpoint

    async def mask(request: Request) -> Response:
        given, loop = await _json(request), get_running_loop()
        found = await loop.run_in_executor(photograph.worker, photograph.answer_to, given)
        return await loop.run_in_executor(photograph.saver, photograph.save_mask, *found)

    async def progress(_: Request) -> Response:
        return JSONResponse({"saved": photograph.saved})

    async def cancel(request: Request) -> Response:
        await _json(request)
        photograph.cancelled.set()
        return JSONResponse({})

    async def marks_of(request: Request) -> Response:
        content = await _body(request, "image/png", MOST_BYTES_OF_MARKS)
        return await get_running_loop().run_in_executor(photograph.worker, photograph.open_marks, content)

    deeds = {"answer": asked(photograph.answer), "mask": mask, "marks": asked(photograph.save_marks)}
    deeds |= {"cancel": cancel, "open": marks_of}
    routes = [Route("/", page), Route("/about", about), Route("/picture.png", picture), Route("/progress", progress)]
    routes += [Route(f"/{name}", deed, methods=["POST"]) for name, deed in deeds.items()]
    return Starlette(
        routes=[Mount(f"/{token}", routes=routes)],
        middleware=[Middleware(TrustedHostMiddleware, allowed_hosts=HOSTS), Middleware(BaseHTTPMiddleware, guard)],
        exception_handlers={ValueError: _sentence, OSError: _sentence, HTTPException: _sentence},
    )


def _foreign(request: Request) -> bool:
    """Return whether a browser says that another site's page sent a request; a link that leads to the page may stand
    anywhere.
    """
    headers = request.headers
    if request.method == "GET" and headers.get("Sec-Fetch-Mode") == "navigate":
        return False
    site, origin = headers.get("Sec-Fetch-Site", "same-origin"), headers.get("Origin")
    return site not in ("same-origin", "none") or origin not in (None, f"http://{headers.get('Host')}")


async def _body(request: Request, kind: str, most: int) -> bytes:
    """Return the body of a request; refused are other types, and bodies above a number of bytes, as soon as they are."""
    if request.headers.get("Content-Type", "").partition(";")[0].strip().lower() != kind:
        raise HTTPException(415, f"marks must come as {kind}")
    body = bytearray()
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            raise HTTPException(413, "these are too many marks; clear some")
    return bytes(body)


async def _json(request: Request) -> object:
    """Return the JSON of a request."""
    body = await _body(request, "application/json", MOST_BYTES)
    try:
        return json.loads(body)
    except (ValueError, RecursionError):
        raise ValueError("the request is not JSON") from None


async def _sentence(_: Request, error: Exception) -> Response:
    """Answer an error by one sentence."""
    status = error.status_code if isinstance(error, HTTPException) else 400
    said = error.detail if isinstance(error, HTTPException) else " ".join(str(error).split())
    return JSONResponse({"error": said}, status)


def serve(path: Path, paths: tuple[Path, ...] | None, browser: bool, scribbles: Path | None = None) -> int:
    """Serve the page of a picture until Ctrl-C; return the exit code.

    Parameters
    ----------
    path
        File of the picture.
    paths
        Where masks are written, or None.
    browser
        True to open the page in the user's browser.
    scribbles
        File of marks to begin with, or None.
    """
    if paths is not None:
        pictures.keep((path,), paths)
    photograph = Photograph(path, paths, scribbles)
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
            photograph.cancelled.set()
            for workers in (photograph.worker, photograph.saver):
                workers.shutdown(wait=False, cancel_futures=True)
    print("\nprobtx: the page is closed", file=sys.stderr)
    return 0
