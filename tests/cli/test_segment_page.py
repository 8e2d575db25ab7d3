"""The server behind the page of ``probtx segment``: who may ask, what it takes, what it answers; without a browser."""

import asyncio
import io
import re
import signal
import subprocess
import sys
import threading
import time
import zipfile

import httpx
import numpy as np
import pytest
from made_pictures import SHAPE, disc, right
from PIL import Image

from probtx_pyro import cli
from probtx_pyro.apps import segmentation
from probtx_pyro.apps.segmentation import LABEL_COLOURS, InteractiveSegmenter, overlay
from probtx_pyro.cli import _segment_page as page

TOKEN = "token-of-this-test"
ABOUT = {"name": "photo.png", "full": [60, 40], "begin": None}
MARKS = {"strokes": [{"label": 1, "points": [[25, 20]]}, {"label": 2, "points": [[5, 3], [55, 3]]}]}


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "photo.png"
    Image.fromarray(disc()[0]).save(path)
    return path


@pytest.fixture(scope="module")
def opened(photo):
    yield (photograph := page.Photograph(photo, None))
    photograph.worker.shutdown()


def ask(photograph, method, path, *, host="127.0.0.1:8000", token=TOKEN, **options):
    """One request, without a socket."""

    async def one():
        transport = httpx.ASGITransport(app=page.application(photograph, TOKEN))
        async with httpx.AsyncClient(transport=transport, base_url=f"http://{host}") as client:
            return await client.request(method, f"/{token}{path}", **options)

    return asyncio.run(one())


def planes(answer, shape=SHAPE):
    """Labels and uncertainty of an answer."""
    _, _, body = answer.content.partition(b"\n")
    return np.frombuffer(body, np.uint8).reshape(2, *shape)


@pytest.mark.parametrize("token", ["", "token", TOKEN[:-1], f"{TOKEN}x", "schlüssel"])
@pytest.mark.parametrize(("method", "path"), [("GET", "/"), ("GET", "/picture.png"), ("POST", "/answer"), ("GET", "")])
def test_without_the_token_everything_is_refused(token, method, path, opened):
    refused = ask(opened, method, path, token=token, json=MARKS if method == "POST" else None)
    assert refused.status_code == 403
    assert refused.json()["error"].startswith("this address lacks the token")


@pytest.mark.parametrize("host", ["evil.example", "127.0.0.1.evil.example", "localhost.evil.example:8000", "0.0.0.0"])
def test_another_host_name_is_refused(host, opened):
    assert ask(opened, "GET", "/", host=host).status_code == 400
    assert ask(opened, "GET", "/", host="localhost:8000").status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Origin": "http://127.0.0.1:8001"}, 403),
        ({"Origin": "http://127.0.0.1:8000"}, 200),
        ({"Sec-Fetch-Site": "cross-site"}, 403),
        ({"Sec-Fetch-Site": "same-site"}, 403),
        ({"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate"}, 403),
        ({"Sec-Fetch-Site": "same-origin", "Origin": "http://127.0.0.1:8000"}, 200),
    ],
)
def test_what_another_sites_page_sends_is_refused(headers, status, opened):
    assert ask(opened, "POST", "/marks", json=MARKS, headers=headers).status_code == status


def test_a_link_on_another_site_may_lead_to_the_page_and_nothing_else_of_it_may_be_shown_there(opened):
    across = {"Sec-Fetch-Site": "cross-site"}
    assert ask(opened, "GET", "/", headers={**across, "Sec-Fetch-Mode": "navigate"}).status_code == 200
    assert ask(opened, "GET", "/picture.png", headers={**across, "Sec-Fetch-Mode": "no-cors"}).status_code == 403


@pytest.mark.parametrize(
    "path",
    ["/photo.png", "/other.txt", "/../other.txt", "/%2e%2e/other.txt", "/picture.png/../other.txt", "//etc/passwd"],
)
def test_no_other_file_is_served(path, opened, photo):
    photo.with_name("other.txt").write_text("secret")
    answer = ask(opened, "GET", path)
    assert answer.status_code in (403, 404) and b"secret" not in answer.content


def test_the_page_allows_its_own_script_and_nothing_else(opened):
    first, second = (ask(opened, "GET", "/") for _ in range(2))
    nonces = [
        re.search("script-src 'nonce-([^']+)'", answer.headers["Content-Security-Policy"])[1]
        for answer in (first, second)
    ]
    assert nonces[0] != nonces[1] and first.text.count(f'nonce="{nonces[0]}"') == 2
    assert "default-src 'none'" in first.headers["Content-Security-Policy"]
    assert "unsafe" not in first.headers["Content-Security-Policy"]
    assert first.headers["Referrer-Policy"] == "no-referrer" and first.headers["X-Content-Type-Options"] == "nosniff"
    addresses = set(re.findall(r"https?://[^\s'\"]+", first.text))
    assert addresses == {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_the_picture_is_the_one_given(opened):
    assert ask(opened, "GET", "/about").json() == {**ABOUT, "width": 60, "height": 40}
    sent = Image.open(io.BytesIO(ask(opened, "GET", "/picture.png").content))
    np.testing.assert_array_equal(np.asarray(sent), disc()[0])


def test_an_answer_is_labels_and_uncertainty(opened):
    answer = ask(opened, "POST", "/answer", json=MARKS)
    assert answer.status_code == 200 and answer.headers["Content-Encoding"] == "gzip"
    labels, doubt = planes(answer)
    assert right(labels, disc()[1], (1, 2))
    assert doubt[20, 25] == doubt[3, 30] == 0  # marked
    head = httpx.Response(200, content=answer.content.partition(b"\n")[0]).json()
    assert sum(head["shares"].values()) == pytest.approx(1) and head["shares"]["1"] == (labels == 1).mean()
    assert 0 <= head["suggestion"][0] < 40 and 0 <= head["suggestion"][1] < 60


def test_later_strokes_overrule_earlier_ones(opened):
    strokes = [*MARKS["strokes"], {"label": 3, "points": [[25, 20]]}, {"label": 1, "points": [[20, 20]]}]
    labels, _ = planes(ask(opened, "POST", "/answer", json={"strokes": strokes}))
    assert labels[20, 25] == 3 and labels[20, 20] == 1


@pytest.mark.slow
def test_strokes_count_in_their_order_and_undo_shows_what_was_before(opened):
    """The server, which keeps answers, says what one segment after another says; also where strokes were taken back or painted over."""
    strokes = [*MARKS["strokes"], {"label": 1, "points": [[50, 35]]}, {"label": 2, "points": [[24, 12]]}]
    segmenter = InteractiveSegmenter.from_image(disc()[0])

    def said(*chosen):
        given = [page.Stroke(some["label"], [tuple(point) for point in some["points"]], []) for some in chosen]
        answer = None
        for count in range(2, len(given) + 1):
            marks = opened.marks(given[:count], opened.size)
            answer = segmenter.segment(marks, answer)
        return answer.mask

    shown = []
    for count in (2, 3, 4, 3, 2, 4):
        shown.append(planes(ask(opened, "POST", "/answer", json={"strokes": strokes[:count]}))[0])
        np.testing.assert_array_equal(shown[-1], said(*strokes[:count]))
    assert (shown[0] != shown[1]).any() and (shown[1] != shown[2]).any()
    other = [*strokes[:3], {"label": 1, "points": [[24, 12]]}]
    np.testing.assert_array_equal(planes(ask(opened, "POST", "/answer", json={"strokes": other}))[0], said(*other))
    over = [{"label": 3, "points": [[10, 5]]}, {"label": 1, "points": [[25, 20]]}, {"label": 2, "points": [[10, 5]]}]
    labels, _ = planes(ask(opened, "POST", "/answer", json={"strokes": over}))
    assert set(np.unique(labels)) == {1, 2}  # class 3 was painted over


def stroke(**given):
    return {"strokes": [MARKS["strokes"][1], {"label": 1, "points": [[25, 20]], **given}]}


@pytest.mark.parametrize(
    "given",
    [
        [],
        {},
        3,
        {"strokes": 3},
        {"strokes": [3]},
        stroke(label=0),
        stroke(label=10),
        stroke(label=True),
        stroke(label="1"),
        stroke(points=[]),
        stroke(points=[[60, 20]]),
        stroke(points=[[25, 40]]),
        stroke(points=[[-1, 2]]),
        stroke(points=[[2.5, 2]]),
        stroke(points=[[1, 2, 3]]),
        stroke(points="ab"),
        stroke(runs=[]),
        stroke(runs=[[50, 20]]),
        stroke(runs=[[50, 20, 0]]),
        stroke(runs=[[50, 20, 11]]),
        stroke(runs=[[50, 40, 1]]),
    ],
)
def test_wrong_marks_are_one_sentence(given, opened):
    for deed in ("answer", "mask", "marks"):
        refused = ask(opened, "POST", f"/{deed}", json=given)
        assert refused.status_code == 400 and "stroke" in refused.json()["error"]


@pytest.mark.parametrize("strokes", [[], MARKS["strokes"][:1], [MARKS["strokes"][0]] * 2])
def test_one_class_is_one_sentence(strokes, opened):
    for deed in ("answer", "mask"):
        refused = ask(opened, "POST", f"/{deed}", json={"strokes": strokes})
        assert refused.status_code == 400 and "two classes or more" in refused.json()["error"]


@pytest.mark.parametrize("colours", [3, {"1": "blue"}, {"1": 3}, {"0": "#000000"}, {"10": "#000000"}, {"1": "#00000g"}])
def test_wrong_colours_are_one_sentence(colours, opened):
    refused = ask(opened, "POST", "/marks", json={**MARKS, "colours": colours})
    assert refused.status_code == 400 and "#rrggbb" in refused.json()["error"]


@pytest.mark.parametrize(
    ("body", "kind", "status"),
    [
        (b"{", "application/json", 400),
        (b"\xff", "application/json", 400),
        (b"[" * 100_000, "application/json", 400),
        (b"", "application/json", 400),
        (b"{}", "text/plain", 415),
        (b"strokes=1", "application/x-www-form-urlencoded", 415),
        (b" " * (page.MOST_BYTES + 1), "application/json", 413),
    ],
)
def test_only_json_of_limited_size_is_read(body, kind, status, opened):
    refused = ask(opened, "POST", "/answer", content=body, headers={"Content-Type": kind})
    assert refused.status_code == status and refused.json()["error"]
    assert "Traceback" not in refused.text


def test_a_body_is_refused_before_it_ends(opened):
    sent = []

    async def endless():
        while True:
            sent.append(1)
            yield b" " * 100_000

    refused = ask(opened, "POST", "/answer", content=endless(), headers={"Content-Type": "application/json"})
    assert refused.status_code == 413 and len(sent) <= 2 + page.MOST_BYTES // 100_000


def test_marks_are_asked_by_post(opened):
    assert ask(opened, "GET", "/answer").status_code == 405


def files_of(answer):
    with zipfile.ZipFile(io.BytesIO(answer.content)) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


@pytest.mark.slow
def test_a_downloaded_mask_is_that_of_the_command_with_the_downloaded_marks(opened, photo, tmp_path):
    colours = {"1": "#112233", "2": "#445566"}
    marks = ask(opened, "POST", "/marks", json={**MARKS, "colours": colours})
    assert marks.headers["X-File-Name"] == "photo_marks.png"
    (tmp_path / "marks.png").write_bytes(marks.content)
    mask = ask(opened, "POST", "/mask", json={**MARKS, "colours": colours})
    assert mask.headers["X-File-Name"] == "photo_mask.zip"
    out = tmp_path / "photo_mask.png"
    assert cli.main(["segment", str(photo), "--scribbles", str(tmp_path / "marks.png"), "--out", str(out)]) == 0
    files = files_of(mask)
    assert list(files) == [out.name, *(f"photo_mask{end}" for end in page.pictures.BESIDE)]
    for name in files:
        if name.endswith(".png"):  # a zip of arrays holds the time
            assert files[name] == (tmp_path / name).read_bytes()
    with Image.open(out) as written:
        assert written.getpalette()[3:9] == [0x11, 0x22, 0x33, 0x44, 0x55, 0x66]


def test_with_out_the_files_are_written_there(photo, tmp_path):
    photograph = page.Photograph(photo, page.pictures.outputs(tmp_path / "mask.png"))
    written = ask(photograph, "POST", "/mask", json=MARKS).json()["written"]
    assert written == [str(tmp_path / name) for name in ("mask.png", *(f"mask{end}" for end in page.pictures.BESIDE))]
    assert right(np.asarray(Image.open(tmp_path / "mask.png")), disc()[1], (1, 2))
    assert ask(photograph, "POST", "/marks", json=MARKS).json()["written"] == [str(tmp_path / "mask_marks.png")]
    marks = np.asarray(Image.open(tmp_path / "mask_marks.png"))
    assert marks[20, 25] == 1 and (marks[3, 5:56] == 2).all() and (marks > 0).sum() == 1 + 3 * 51
    photograph.worker.shutdown()


def test_a_folder_that_is_gone_is_one_sentence(photo, tmp_path):
    (tmp_path / "out").mkdir()
    photograph = page.Photograph(photo, page.pictures.outputs(tmp_path / "out" / "mask.png"))
    (tmp_path / "out").rmdir()
    refused = ask(photograph, "POST", "/mask", json=MARKS)
    assert refused.status_code == 400 and "out" in refused.json()["error"]
    photograph.worker.shutdown()


def test_a_mask_is_the_answer_that_the_page_has(opened, monkeypatch):
    shown, doubt = planes(ask(opened, "POST", "/answer", json=MARKS))
    monkeypatch.setattr(InteractiveSegmenter, "segment", None)  # nothing is answered again
    monkeypatch.setattr(InteractiveSegmenter, "from_image", None)
    files = files_of(ask(opened, "POST", "/mask", json=MARKS))
    np.testing.assert_array_equal(np.asarray(Image.open(io.BytesIO(files["photo_mask.png"]))), shown)
    with np.load(io.BytesIO(files["photo_mask_probability.npz"])) as saved:
        most = saved["probabilities"].max(-1)
    np.testing.assert_allclose((1 - most) * 2 * 255, doubt, atol=0.51)  # doubt is a byte


@pytest.mark.parametrize("rows", [7, 1000])
def test_rows_are_saved_as_if_at_once(rows, photo, monkeypatch):
    """Interpolated in float32, by Pillow's filter: a weight is off by what 20,000 times its place is rounded."""
    monkeypatch.setattr(page, "MOST_PIXELS", SHAPE[0] * SHAPE[1] // 4)
    photograph = page.Photograph(photo, None)
    answer, *given = photograph.answer_to({"strokes": [stroke_at(12, 10, 1), stroke_at(2, 1, 2)]})
    monkeypatch.setattr(page, "_ROWS", rows)
    whole, drawn = photograph._in_full(answer, *given)
    planes = [
        Image.fromarray(plane).resize((60, 40), Image.Resampling.BILINEAR)
        for plane in np.moveaxis(answer.probabilities, -1, 0)
    ]
    expected, marks = np.stack(planes, -1), given[0]
    for number, label in enumerate(answer.classes):
        expected[marks == label] = np.eye(2)[number]
    np.testing.assert_allclose(whole.probabilities, expected, atol=1e-5)
    sure = np.abs(expected[..., 0] - 0.5) > 1e-5
    np.testing.assert_array_equal(whole.mask[sure], answer.classes[expected.argmax(-1)][sure])
    np.testing.assert_allclose(drawn, overlay(photograph.picture[0], whole, marks, given[1]), atol=1)
    photograph.worker.shutdown()


def stroke_at(x, y, label):
    return {"label": label, "points": [[x, y]]}


def test_saving_tells_how_far_it_is_and_can_be_cancelled(photo, tmp_path, monkeypatch):
    monkeypatch.setattr(page, "_ROWS", 10)
    photograph = page.Photograph(photo, page.pictures.outputs(tmp_path / "mask.png"))
    given, shares = photograph.answer_to(MARKS), []

    def overlay_then_cancel(*arguments):
        shares.append(photograph.saved)
        if len(shares) == 3:
            assert ask(photograph, "POST", "/cancel", json={}).status_code == 200
        return overlay(*arguments)

    monkeypatch.setattr(segmentation, "overlay", overlay_then_cancel)
    with pytest.raises(ValueError, match="cancelled; nothing was written"):
        photograph.save_mask(*given)
    assert shares == [0, 0.25, 0.5] and list(tmp_path.iterdir()) == []
    assert ask(photograph, "POST", "/mask", json=MARKS).status_code == 200  # a later one is not
    assert ask(photograph, "GET", "/progress").json() == {"saved": 1.0}
    photograph.worker.shutdown()


@pytest.mark.slow
def test_saving_a_large_picture_takes_a_fraction_of_answering_it(tmp_path):
    """Processor time at 10.7 million pixels: 2.7 s where a PNG of the overlay, level 6, took 1.9 s. That is the unit, twice."""
    small = Image.fromarray(np.random.default_rng(0).integers(0, 255, (12, 16, 3), np.uint8))
    large = small.resize((4000, 2667), Image.Resampling.BICUBIC)
    large.save(tmp_path / "photo.png", compress_level=1)
    photograph = page.Photograph(tmp_path / "photo.png", None)
    given = photograph.answer_to({"strokes": [stroke_at(100, 100, 1), stroke_at(700, 400, 2)]})
    begun = time.process_time()
    large.save(io.BytesIO(), format="PNG", compress_level=6)
    unit = time.process_time() - begun
    photograph.save_mask(*given)
    assert time.process_time() - begun - unit < 3 * unit
    photograph.worker.shutdown()


def of_labels(labels, colours=None):
    """The bytes of a PNG of labels."""
    file, picture = io.BytesIO(), Image.fromarray(labels)
    if colours:
        picture.putpalette(colours)
    picture.save(file, format="PNG")
    return file.getvalue()


def open_marks(photograph, content, kind="image/png"):
    return ask(photograph, "POST", "/open", content=content, headers={"Content-Type": kind})


def test_marks_that_were_saved_are_opened_again_pixel_by_pixel(opened):
    strokes = [*MARKS["strokes"], {"label": 4, "points": [[30, 30], [50, 35]]}]
    saved = ask(opened, "POST", "/marks", json={"strokes": strokes, "colours": {"4": "#123456"}})
    again = open_marks(opened, saved.content).json()
    assert [one["label"] for one in again["strokes"]] == [1, 2, 4] and again["colours"]["4"] == "#123456"
    back = ask(opened, "POST", "/marks", json={"strokes": again["strokes"], "colours": {"4": "#123456"}})
    assert back.content == saved.content


def test_marks_of_a_large_picture_are_opened_on_the_page_s_pixels(photo, monkeypatch):
    monkeypatch.setattr(page, "MOST_PIXELS", SHAPE[0] * SHAPE[1] // 4)
    labels = np.zeros(SHAPE, np.uint8)
    labels[21, 24], labels[3, 10:31] = 1, 2  # thinner than a pixel of the page
    (photo.parent / "marks.png").write_bytes(of_labels(labels))
    photograph = page.Photograph(photo, None, photo.parent / "marks.png")
    begin = ask(photograph, "GET", "/about").json()["begin"]
    assert begin == {
        "strokes": [{"label": 1, "runs": [[12, 10, 1]]}, {"label": 2, "runs": [[5, 1, 11]]}],
        "colours": {},
    }
    full = photograph.marks(page.read_strokes(begin, *photograph.size), photograph.full)
    assert (full[20:22, 24:26] == 1).all() and (full[2:4, 10:32] == 2).all() and (full > 0).sum() == 4 + 44
    photograph.worker.shutdown()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"text", "the file is not a PNG picture"),
        (of_labels(np.zeros((3, 4), np.uint8)), "the file is 4 x 3 but the picture is 60 x 40"),
        (of_labels(np.zeros(SHAPE, np.uint8)), "the file has no marks"),
        (of_labels(np.full(SHAPE, 12, np.uint8)), "the marks have the label 12; the page has 1 to 9"),
    ],
)
def test_marks_that_cannot_be_opened_are_one_sentence(content, said, opened):
    refused = open_marks(opened, content)
    assert refused.status_code == 400 and refused.json()["error"].startswith(said)
    assert open_marks(opened, content, "application/json").status_code == 415


@pytest.mark.slow
def test_a_large_picture_is_worked_on_smaller_and_saved_in_full(photo, monkeypatch):
    monkeypatch.setattr(page, "MOST_PIXELS", SHAPE[0] * SHAPE[1] // 4)
    photograph = page.Photograph(photo, None)
    assert ask(photograph, "GET", "/about").json() == {**ABOUT, "width": 30, "height": 20}
    small = {"strokes": [{"label": 1, "points": [[12, 10]]}, {"label": 2, "points": [[2, 1], [27, 1]]}]}
    labels, _ = planes(ask(photograph, "POST", "/answer", json=small), (20, 30))
    assert right(labels, disc()[1][::2, ::2], (1, 2))
    marks = np.asarray(Image.open(io.BytesIO(ask(photograph, "POST", "/marks", json=small).content)))
    assert marks.shape == SHAPE and marks[20:22, 24:26].max() == 1 and (marks == 1).sum() == 1
    mask = files_of(ask(photograph, "POST", "/mask", json=small))["photo_mask.png"]
    assert right(np.asarray(Image.open(io.BytesIO(mask))), disc()[1], (1, 2))
    photograph.worker.shutdown()


def test_the_page_has_the_colours_of_the_package():
    written = re.search(r"COLOURS = \[(.*?)\]", page.PAGE.read_text(encoding="utf-8"))[1]
    assert re.findall("#([0-9a-f]{6})", written) == [bytes(colour).hex() for colour in LABEL_COLOURS[1:10]]
    assert page.MOST_CLASSES == 9


def test_a_missing_extra_is_one_line(photo, monkeypatch, capsys):
    monkeypatch.delitem(sys.modules, "probtx_pyro.cli._segment_page")
    monkeypatch.delattr(cli, "_segment_page", raising=False)
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert cli.main(["segment", str(photo)]) == 2
    error = capsys.readouterr().err
    assert "pip install -e '.[page]' in the folder of the repository" in error and error.count("\n") == 1


@pytest.mark.parametrize("words", [("--out", "photo.png"), ("--out", "mask.jpg"), ("--overwrite",)])
def test_wrong_words_for_the_page_are_one_line(words, photo, capsys, monkeypatch):
    monkeypatch.chdir(photo.parent)
    assert cli.main(["segment", "photo.png", "--no-browser", *words]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("words", [(), ("--no-browser",)])
def test_the_browser_is_opened_at_the_address_unless_told(words, photo, capsys, monkeypatch):
    opened = threading.Event()
    asked = []
    monkeypatch.setattr(page.webbrowser, "open", lambda address: (asked.append(address), opened.set()))

    def interrupted(server, sockets):
        assert sockets[0].getsockname()[0] == "127.0.0.1"
        assert words or opened.wait(10)
        raise KeyboardInterrupt

    monkeypatch.setattr(page.uvicorn.Server, "run", interrupted)
    assert cli.main(["segment", str(photo), *words]) == 0
    shown = capsys.readouterr()
    assert asked == ([] if words else [shown.out.split()[0]])
    assert shown.err == "\nprobtx: the page is closed\n" and shown.out.count("\n") == 1


@pytest.mark.slow
def test_a_further_answer_takes_a_fraction_of_the_first(tmp_path):
    """The layers are made once. In processor time, the smallest of five: a further answer takes some 1/6 of the first."""
    rng = np.random.default_rng(0)
    small = Image.fromarray(rng.integers(0, 255, (12, 16, 3), np.uint8))
    small.resize((500, 375), Image.Resampling.BICUBIC).save(tmp_path / "photo.png")
    begun = time.process_time()
    photograph = page.Photograph(tmp_path / "photo.png", None)
    photograph.answer(MARKS)  # waits for the layers
    first, seconds = time.process_time() - begun, []
    for x in range(100, 400, 60):
        given = {"strokes": [*MARKS["strokes"], {"label": 1, "points": [[x, 200]]}]}
        before = time.process_time()
        photograph.answer(given)
        seconds.append(time.process_time() - before)
    photograph.worker.shutdown()
    assert min(seconds) < first / 2


@pytest.mark.slow
def test_the_command_serves_one_address_and_ends_by_an_interrupt(photo):
    words = [sys.executable, "-m", "probtx_pyro", "segment", str(photo), "--no-browser"]
    served = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    address = served.stdout.readline().split()[0]
    assert re.fullmatch(r"http://127\.0\.0\.1:\d+/[\w-]{32}/", address)
    assert httpx.get(address).status_code == 200
    assert httpx.get(address[:-2] + "/").status_code == 403
    assert httpx.post(f"{address}answer", json=MARKS, timeout=60).status_code == 200
    served.send_signal(signal.SIGINT)
    _, errors = served.communicate(timeout=30)
    assert served.returncode == 0 and errors == "\nprobtx: the page is closed\n"
