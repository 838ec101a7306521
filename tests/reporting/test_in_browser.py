"""Pages in a browser: the slider moves particles, nothing is asked of the network, nothing complains, nothing runs."""

import pytest

import chromium
from handmade import make_recording, make_weighed
from pgps import reporting

pytestmark = pytest.mark.skipif(chromium.PATH is None, reason="no Chromium here; apt-get install chromium brings it")

PICTURE = "document.getElementById('stage').toDataURL()"
EVIL = "<img src=x onerror=window.hacked=1><script>window.hacked = 1</script>"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    result = make_weighed(num=60, dim=3, warnings=(EVIL,))
    path = tmp_path_factory.mktemp("browser") / "<script>window.hacked = 1<"
    reporting.save_run(result, path, f"pgps sample '{EVIL}'", make_recording(result))
    reporting.compare_runs([path, path])
    return path


@pytest.fixture(scope="module")
def browser():
    with chromium.page() as page:
        yield page


@pytest.fixture
def page(browser, folder):
    browser.requests.clear()
    browser.complaints.clear()
    browser.resize(1280)
    browser.prefer("light")
    browser.open(folder / "report.html")
    yield browser
    # Whatever a test did, the page asked for itself alone and had nothing to complain about.
    assert {url.partition("/browser")[0][:8] for url in browser.requests} == {"file:///"}
    assert len(browser.requests) == 1
    assert browser.complaints == []
    assert browser.evaluate("window.hacked") is None


def test_the_slider_moves_particles(page):
    last = page.evaluate(PICTURE)
    assert page.evaluate("document.getElementById('stage').dataset.frame") == "20"
    page.evaluate("document.getElementById('moment').focus()")
    page.press("Home", 36)
    first = page.evaluate(PICTURE)
    assert page.evaluate("document.getElementById('reading').textContent").startswith("t = 0.000, step 0 of 20")
    page.press("ArrowRight", 39)
    second = page.evaluate(PICTURE)
    assert page.evaluate("document.getElementById('moment').getAttribute('aria-valuetext')").startswith("t = 0.050")
    assert len({last, first, second}) == 3
    page.press("End", 35)
    assert page.evaluate(PICTURE) == last


def test_play_runs_to_the_end_by_keyboard(page):
    page.evaluate("document.getElementById('play').focus()")
    page.press("Enter", 13, "\r")
    assert page.evaluate("document.getElementById('play').textContent") == "Pause"
    wait = "new Promise(done => { const look = () => play.textContent === 'Play' ? done(stage.dataset.frame)"
    assert page.evaluate(f"{wait} : setTimeout(look, 50); look(); }})") == "20"


def test_other_coordinates_and_zooming_change_the_picture(page):
    before = page.evaluate(PICTURE)
    change = "(() => {{ {0}; {1}.dispatchEvent(new Event('input')); }})()"
    page.evaluate(change.format("up.value = 2", "up"))
    other = page.evaluate(PICTURE)
    page.evaluate(change.format("follow.checked = true; moment.value = 3", "moment"))
    zoomed = page.evaluate(PICTURE)
    assert len({before, other, zoomed}) == 3
    assert page.evaluate("[...document.querySelectorAll('#up option')].map(o => o.text)") == ["x[0]", "x[1]", "x[2]"]


def test_everything_is_reached_by_keyboard_and_shows_focus(page):
    reached = set()
    for _ in range(25):
        page.press("Tab", 9)
        reached.add(page.evaluate("document.activeElement.id || document.activeElement.tagName"))
    assert {"play", "moment", "across", "up", "follow", "SUMMARY"} <= reached
    page.evaluate("document.getElementById('moment').focus()")
    assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"


@pytest.mark.parametrize("width", [320, 390, 1280])
def test_nothing_sticks_out_of_a_screen(page, width):
    page.resize(width)
    assert page.evaluate("document.documentElement.scrollWidth") == width


def test_a_wide_table_keeps_its_names_in_sight_and_its_note_whole(page):
    page.resize(320)
    assert page.evaluate("document.querySelectorAll('.scroll caption').length") == 0
    table = "document.querySelector('.scroll:has(table)')"
    page.evaluate(f"{table}.scrollLeft = 1000")
    assert page.evaluate(f"{table}.scrollLeft") > 0
    left = "getBoundingClientRect().left"
    gap = page.evaluate(f"{table}.querySelector('tbody th').{left} - {table}.{left}")
    assert 0 <= gap < 3


def test_darkness_reaches_the_page_and_the_canvas(page):
    light = page.evaluate(PICTURE)
    page.prefer("dark")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 27)"
    assert page.evaluate("new Promise(done => requestAnimationFrame(() => done(stage.toDataURL())))") != light
    page.prefer("dark", media="print")
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    assert page.evaluate("getComputedStyle(document.querySelector('.controls')).display") == "none"


def test_a_comparison_opens(page, folder):
    page.requests.clear()
    page.open(folder / "comparison.html")
    assert page.evaluate("document.querySelectorAll('.drawing svg').length") == 3


def test_a_script_that_was_let_in_would_not_run(page, folder):
    injected = folder / "injected.html"
    text = (folder / "report.html").read_text("utf-8")
    injected.write_text(text.replace("</main>", "<script>window.hacked = 1</script></main>"), "utf-8")
    page.open(injected)
    assert page.evaluate("window.hacked") is None
    assert len(page.complaints) == 1
    assert "Content Security Policy" in page.complaints[0]
    page.complaints.clear()
    page.requests.pop()
