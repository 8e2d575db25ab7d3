"""The page of ``probtx segment`` in Chromium: pointer, touch, keyboard; what is shown, saved, said, and asked of whom."""

import io
import json
import re
import signal
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from in_chromium import CONTRAST, needs_chromium
from made_pictures import disc, right
from PIL import Image

from probtx_pyro import cli

TIMES = 4  # the disc's picture is 240 x 160
OBJECT, GROUND = (100, 80), (220, 12)  # (x, y) in the disc and beside it

pytestmark = [pytest.mark.slow, needs_chromium]


@pytest.fixture(scope="module")
def photo(tmp_path_factory):
    path = tmp_path_factory.mktemp("page") / "photo.png"
    Image.fromarray(disc(TIMES)[0]).save(path)
    return path


def serve(*words):
    """The command in a process of its own, and the address it prints."""
    command = [sys.executable, "-m", "probtx_pyro", "segment", *map(str, words), "--no-browser"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    return process, process.stdout.readline().split()[0]


def end(process):
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)


@pytest.fixture(scope="module")
def address(photo):
    process, address = serve(photo)
    yield address
    end(process)


class Visit:
    """A page that is open, with what it wrote to its console and what it asked of whom."""

    def __init__(self, browser, address, **options):
        self.context = browser.new_context(**{"viewport": {"width": 1200, "height": 900}, **options})
        self.page = self.context.new_page()
        self.console, self.asked = [], []
        self.page.on("console", lambda message: self.console.append(message.text))
        self.page.on("pageerror", lambda error: self.console.append(str(error)))
        self.page.on("request", lambda request: self.asked.append(request.url))
        self.page.goto(address)
        self.page.get_by_text("Nothing is marked yet.").wait_for()

    def at(self, place):
        """Where a pixel of the picture is on the screen."""
        self.page.locator("#canvas").scroll_into_view_if_needed()
        box = self.page.locator("#canvas").bounding_box()
        x, y = ((value + 0.5) / side for value, side in zip(place, (60 * TIMES, 40 * TIMES), strict=True))
        return box["x"] + x * box["width"], box["y"] + y * box["height"]

    def click(self, place):
        self.page.mouse.click(*self.at(place))

    def two_classes(self):
        self.click(OBJECT)
        self.page.keyboard.press("2")
        self.click(GROUND)
        self.answered()

    def answered(self):
        """The status, once it shows shares and seconds."""
        for _ in range(600):  # by hand: the page's policy allows no string as a program, wait_for_function included
            status = self.page.locator("#status").inner_text()
            if status.endswith(" s") and not self.page.evaluate("asking"):
                return status
            self.page.wait_for_timeout(100)
        raise AssertionError(f"no answer in a minute: {status!r}, {self.console}")

    def mask(self):
        """Labels that the page holds."""
        labels = self.page.evaluate("Array.from(answer.labels)")
        return np.array(labels).reshape(40 * TIMES, 60 * TIMES)

    def colour(self, place):
        """Colour of the canvas at a pixel of the picture."""
        script = """([x, y]) => { const r = canvas.width / about.width, copy = document.createElement('canvas');
            copy.width = copy.height = 1;
            const pen = copy.getContext('2d');
            pen.drawImage(canvas, -Math.round((x + .5) * r), -Math.round((y + .5) * r));
            return Array.from(pen.getImageData(0, 0, 1, 1).data.slice(0, 3)); }"""
        return np.array(self.page.evaluate(script, list(place)))


@pytest.fixture
def visit(chromium, address):
    visits = []

    def begin(**options):
        visits.append(Visit(chromium, options.pop("address", address), **options))
        return visits[-1]

    yield begin
    for one in visits:
        assert one.console == []
        hosts = {re.match(r"(?:blob:)?(\w+:/*[^/]*)", url)[1] for url in one.asked if not url.startswith("data:")}
        assert {host.rpartition(":")[0] for host in hosts} == {"http://127.0.0.1"}
        one.context.close()


def test_two_clicks_give_the_mask_and_show_it(visit):
    one = visit()
    before = one.colour((85, 80))
    one.click(OBJECT)
    assert "One class is marked, “object”" in one.page.locator("#status").inner_text()
    one.page.get_by_label("Mark with class 2, background").check()
    one.click(GROUND)
    said = one.answered()
    assert re.fullmatch(r"object \d+ % · background \d+ % · \d+\.\d\d s", said)
    assert right(one.mask(), disc(TIMES)[1], (1, 2))
    blue = np.array([0, 114, 178])
    assert abs(one.colour((85, 80)) - blue).sum() < abs(before - blue).sum()  # tinted
    one.page.get_by_label("Photo").check()
    np.testing.assert_array_equal(one.colour((85, 80)), before)


def test_opacity_and_uncertainty_change_what_is_seen(visit):
    one = visit()
    one.two_classes()
    seen = [one.colour((85, 80))]
    one.page.get_by_label("Opacity").fill("0")
    seen.append(one.colour((85, 80)))
    one.page.get_by_label("Opacity").fill("100")
    seen.append(one.colour((85, 80)))
    one.page.get_by_label("Uncertainty").check()
    seen.append(one.colour((85, 80)))
    assert len({tuple(colour) for colour in seen}) == 4
    assert seen[1].tolist() == [230, 200, 60]
    assert one.page.get_by_text("dark is sure").is_visible()


def test_undo_redo_and_clear(visit):
    one = visit()
    one.two_classes()
    mask = one.mask()
    one.page.get_by_role("button", name="Undo").click()
    assert one.page.evaluate("answer") is None and "One class is marked" in one.page.locator("#status").inner_text()
    one.page.keyboard.press("Control+Shift+Z")
    one.answered()
    np.testing.assert_array_equal(one.mask(), mask)
    one.page.get_by_role("button", name="Clear").click()
    assert one.page.locator("#status").inner_text() == "Nothing is marked yet."
    one.page.keyboard.press("Control+z")
    one.answered()
    np.testing.assert_array_equal(one.mask(), mask)
    assert one.page.get_by_role("button", name="Redo").is_enabled()


def test_a_scribble_marks_what_it_runs_over(visit):
    one = visit()
    one.two_classes()
    one.page.get_by_role("button", name="Add a class").click()
    one.page.mouse.move(*one.at((85, 60)))
    one.page.mouse.down()
    one.page.mouse.move(*one.at((100, 80)), steps=5)
    one.page.mouse.move(*one.at((115, 100)), steps=5)
    one.page.mouse.up()
    assert "class 3" in one.answered()
    mask = one.mask()
    assert mask[60, 85] == mask[80, 100] == mask[100, 115] == 3


def test_the_keyboard_does_it_all(visit):
    one = visit()
    page = one.page
    page.locator("#canvas").focus()
    page.keyboard.press("ArrowLeft")  # from the middle, (120, 80), two pixels at a time
    assert page.locator("#where").inner_text() == "row 80, column 118"
    for _ in range(9):
        page.keyboard.press("ArrowLeft")
    page.keyboard.press("Shift+ArrowUp")
    assert page.locator("#where").inner_text() == "row 79, column 100"
    page.keyboard.press("Enter")
    page.keyboard.press("2")
    for _ in range(40):
        page.keyboard.press("ArrowUp")
    assert page.locator("#where").inner_text() == "row 0, column 100"
    page.keyboard.press("Enter")
    one.answered()
    assert right(one.mask(), disc(TIMES)[1], (1, 2))
    order = []
    for _ in range(30):
        page.keyboard.press("Tab")
        order.append(
            page.evaluate(
                "document.activeElement.id || document.activeElement.ariaLabel || document.activeElement.tagName"
            )
        )
    assert {
        "class-2",
        "Name of class 1",
        "Colour of class 1",
        "add",
        "undo",
        "view-mask",
        "opacity",
        "suggest",
        "go",
        "save-mask",
    } <= set(order)


def test_every_control_has_a_name(visit):
    one = visit()
    for role in ("button", "radio", "checkbox", "slider", "textbox"):
        controls = one.page.get_by_role(role)
        assert controls.count() > 0
        for number in range(controls.count()):
            assert re.search(rf"- {role} \".+\"", controls.nth(number).aria_snapshot()), controls.nth(
                number
            ).aria_snapshot()


def test_the_suggestion_is_shown_and_can_be_taken(visit):
    one = visit()
    one.two_classes()
    y, x = one.page.evaluate("answer.suggestion")
    shown = one.page.evaluate("canvas.toDataURL()")
    one.page.get_by_label("Show the least sure place").uncheck()
    assert one.page.evaluate("canvas.toDataURL()") != shown
    one.page.get_by_role("button", name="Put the cursor there").click()
    assert one.page.locator("#where").inner_text() == f"row {y}, column {x}"
    one.page.keyboard.press("Enter")
    one.answered()
    assert one.mask()[y, x] == 2 and one.page.evaluate("answer.suggestion") != [y, x]


def test_a_tap_marks(visit):
    one = visit(has_touch=True, viewport={"width": 380, "height": 800})
    one.page.touchscreen.tap(*one.at(OBJECT))
    one.page.get_by_label("Mark with class 2, background").tap()
    one.page.touchscreen.tap(*one.at(GROUND))
    one.answered()
    assert right(one.mask(), disc(TIMES)[1], (1, 2))


def test_quick_clicks_end_in_the_answer_to_the_last(visit):
    one = visit()
    one.two_classes()
    first = len([url for url in one.asked if url.endswith("answer")])
    for x in range(20, 230, 10):
        one.click((x, 150))
    one.answered()
    assert len(one.page.evaluate("strokes()")) == 23
    assert (one.mask()[150, 20:230:10] == 2).all()
    assert len([url for url in one.asked if url.endswith("answer")]) - first < 21  # what was overtaken was not asked


def test_names_and_colours_are_the_users(visit):
    one = visit()
    one.two_classes()
    one.page.get_by_label("Name of class 1").fill("moon")
    assert one.page.locator("#status").inner_text().startswith("moon ")
    one.page.get_by_label("Opacity").fill("100")
    one.page.get_by_label("Colour of class 1").fill("#ff0000")
    red, green, blue = one.colour((85, 80))
    assert red > 200 and green < 80 and blue < 80


def test_the_right_button_marks_the_second_class(visit):
    one = visit()
    one.click(OBJECT)
    one.page.mouse.click(*one.at(GROUND), button="right")
    one.answered()
    assert right(one.mask(), disc(TIMES)[1], (1, 2))
    one.page.keyboard.press("2")
    one.page.mouse.click(*one.at((20, 140)), button="right")
    assert [stroke["label"] for stroke in one.page.evaluate("strokes()")] == [1, 2, 1]


def test_wheel_and_buttons_zoom_and_a_click_marks_what_is_under_it(visit):
    one = visit()
    place = one.at((60, 40))
    one.page.mouse.move(*place)
    one.page.mouse.wheel(0, -300)
    assert one.page.evaluate("frame.k") == pytest.approx(2)
    one.page.mouse.click(*place)  # it has stayed where it was
    assert one.page.evaluate("strokes()[0].points") == [[60, 40]]
    one.page.get_by_role("button", name="Zoom in").click()
    x, y, k = one.page.evaluate("[frame.x, frame.y, frame.k]")
    assert k == pytest.approx(3)
    one.click(OBJECT)
    expected = (x + (OBJECT[0] + 0.5) / k, y + (OBJECT[1] + 0.5) / k)
    assert np.abs(np.array(one.page.evaluate("strokes()[1].points[0]")) + 0.5 - expected).max() <= 1
    one.page.keyboard.press("0")
    assert one.page.evaluate("frame") == {"x": 0, "y": 0, "k": 1}
    assert one.page.get_by_role("button", name="Whole picture").is_disabled()


def test_the_middle_button_moves_a_zoomed_picture(visit):
    one = visit()
    for _ in range(3):
        one.page.keyboard.press("+")
    before = one.page.evaluate("[frame.x, frame.y]")
    one.page.mouse.move(*one.at((120, 80)))
    one.page.mouse.down(button="middle")
    one.page.mouse.move(*one.at((60, 50)), steps=3)
    one.page.mouse.up(button="middle")
    moved = np.subtract(one.page.evaluate("[frame.x, frame.y]"), before)
    np.testing.assert_allclose(moved, np.array([60, 30]) / 1.5**3, atol=0.5)
    assert one.page.evaluate("strokes()") == []


def test_two_fingers_zoom_and_mark_nothing_and_one_marks_afterwards(visit):
    one = visit(has_touch=True, viewport={"width": 380, "height": 800})
    send = one.context.new_cdp_session(one.page).send
    x, y = one.at((120, 80))

    def touch(kind, *places):
        points = [{"x": left, "y": y, "id": number} for number, left in enumerate(places)]
        send("Input.dispatchTouchEvent", {"type": kind, "touchPoints": points})

    touch("touchStart", x - 20)
    touch("touchStart", x - 20, x + 20)
    for step in range(1, 6):
        touch("touchMove", x - 20 - 8 * step, x + 20 + 8 * step)
    touch("touchEnd", x - 60)
    touch("touchEnd")
    assert one.page.evaluate("frame.k") == pytest.approx(3, rel=0.02)
    assert one.page.evaluate("strokes()") == []
    one.page.touchscreen.tap(x, y)
    (mark,) = one.page.evaluate("strokes()[0].points")
    assert abs(mark[0] - 120) <= 1 and abs(mark[1] - 80) <= 1


def test_a_reload_asks_and_keeps_marks_names_and_undo(visit):
    one = visit()
    one.two_classes()
    one.page.get_by_label("Name of class 1").fill("moon")
    mask, asked = one.mask(), []
    one.page.on("dialog", lambda dialog: (asked.append(dialog.type), dialog.accept()))
    one.page.reload()
    assert one.answered().startswith("moon ") and asked == ["beforeunload"]
    np.testing.assert_array_equal(one.mask(), mask)
    one.page.keyboard.press("Control+z")
    assert "One class is marked" in one.page.locator("#status").inner_text()
    one.page.keyboard.press("Control+y")
    with one.page.expect_download():
        one.page.get_by_role("button", name="Save marks").click()
    one.page.get_by_text("Downloaded:").wait_for()
    one.page.reload()
    one.answered()
    assert asked == ["beforeunload"]  # what is saved can go


def test_marks_are_opened_on_the_page_and_by_the_command(visit, photo, tmp_path):
    one = visit()
    one.two_classes()
    mask = one.mask()
    with one.page.expect_download() as marks:
        one.page.get_by_role("button", name="Save marks").click()
    marks.value.save_as(tmp_path / "marks.png")
    one.page.get_by_role("button", name="Clear").click()
    one.page.locator("#file-of-marks").set_input_files(tmp_path / "marks.png")
    one.answered()
    np.testing.assert_array_equal(one.mask(), mask)
    one.page.get_by_label("Opacity").fill("0")
    assert np.abs(one.colour(OBJECT) - [0, 114, 178]).max() <= 8  # the mark is seen
    (tmp_path / "no.png").write_text("no")
    one.page.locator("#file-of-marks").set_input_files(tmp_path / "no.png")
    one.page.get_by_role("alert").get_by_text("the file is not a PNG picture").wait_for()
    process, address = serve(photo, "--scribbles", tmp_path / "marks.png")
    page = one.context.new_page()
    page.goto(address)
    page.get_by_text("object 1").wait_for()
    assert page.evaluate("Array.from(answer.labels)") == mask.ravel().tolist()
    end(process)
    one.console.clear()  # of the refusal


def test_it_says_where_a_mark_has_changed_its_surroundings_only(visit):
    one = visit()
    one.two_classes()
    assert one.page.locator("#change").inner_text() == ""
    one.click((20, 140))  # which is background already
    one.answered()
    assert "had this class already" in one.page.locator("#change").inner_text()
    before = one.mask()
    one.page.keyboard.press("1")
    one.click((225, 150))  # an object in the corner
    one.answered()
    changed = (one.mask() != before).sum()
    assert f"changed {changed:,} pixels around it" in one.page.locator("#change").inner_text()


def test_saving_can_be_cancelled(visit):
    one = visit()
    one.two_classes()
    waiting = []
    one.page.route("**/mask", lambda route: waiting.append(route))
    one.page.get_by_role("button", name="Save mask").click()
    one.page.get_by_role("button", name="Cancel").click()
    assert one.page.get_by_role("button", name="Save mask").is_disabled()
    said = "saving was cancelled; nothing was written"
    waiting[0].fulfill(status=400, json={"error": said})
    one.page.get_by_role("alert").get_by_text(said).wait_for()
    assert one.page.get_by_role("button", name="Save mask").is_enabled()
    assert not one.page.get_by_role("button", name="Cancel").is_visible()
    assert any(url.endswith("/cancel") for url in one.asked)
    one.console.clear()  # of the refusal


def test_saved_files_are_those_of_the_command(visit, photo, tmp_path):
    one = visit()
    one.two_classes()
    with one.page.expect_download() as marks:
        one.page.get_by_role("button", name="Save marks").click()
    assert marks.value.suggested_filename == "photo_marks.png"
    marks.value.save_as(tmp_path / "marks.png")
    with one.page.expect_download() as mask:
        one.page.get_by_role("button", name="Save mask").click()
    assert mask.value.suggested_filename == "photo_mask.zip"
    with zipfile.ZipFile(io.BytesIO(Path(mask.value.path()).read_bytes())) as archive:
        saved = np.asarray(Image.open(io.BytesIO(archive.read("photo_mask.png"))))
    assert (
        cli.main(["segment", str(photo), "--scribbles", str(tmp_path / "marks.png"), "--out", str(tmp_path / "m.png")])
        == 0
    )
    np.testing.assert_array_equal(saved, np.asarray(Image.open(tmp_path / "m.png")))
    np.testing.assert_array_equal(saved, one.mask())


def test_with_out_the_files_are_written_and_named(visit, photo, tmp_path):
    process, address = serve(photo, "--out", tmp_path / "mask.png")
    one = visit(address=address)
    one.two_classes()
    one.page.get_by_role("button", name="Save mask").click()
    one.page.get_by_text(f"Written: {tmp_path / 'mask.png'}").wait_for()
    assert right(np.asarray(Image.open(tmp_path / "mask.png")), disc(TIMES)[1], (1, 2))
    end(process)


def test_the_page_shows_that_its_server_has_ended(chromium, photo):
    process, address = serve(photo)
    one = Visit(chromium, address)
    one.two_classes()
    end(process)
    one.click((20, 140))
    one.page.get_by_role("alert").get_by_text("has ended; start probtx segment again").wait_for()
    one.context.close()


@pytest.mark.parametrize("width", [380, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_can_be_read(width, scheme, visit):
    one = visit(color_scheme=scheme, viewport={"width": width, "height": 900})
    one.two_classes()
    assert one.page.evaluate("document.documentElement.scrollWidth") <= width
    ratios = one.page.evaluate(CONTRAST)
    assert len(ratios) > 15
    assert {name: round(ratio, 2) for name, ratio in ratios.items() if ratio < 4.5} == {}, json.dumps(ratios)
    ground = one.page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (sum(map(int, re.findall(r"\d+", ground))) > 380) == (scheme == "light")


def test_focus_is_seen(visit):
    one = visit()
    for _ in range(4):
        one.page.keyboard.press("Tab")
        assert one.page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
