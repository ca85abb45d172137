"""The page of a report in a browser without a window: `make browser`."""

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from fedveil_lab.config import parse
from fedveil_lab.grid import compare
from fedveil_lab.report.statement.gather import gather
from fedveil_lab.report.statement.page import PAGE, files_of

pytestmark = pytest.mark.browser
REPORTS = Path(__file__).resolve().parents[2] / "results" / "reports"
NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

# Looks at the page from inside, and leaves what it saw where --dump-dom shows it.
LOOK = """<script>
addEventListener("load", () => {
  const box = document.querySelector("figure input"), line = box.closest("figure").querySelector(".drawn0");
  const shown = [line.getBoundingClientRect().width > 0];
  for (let i = 0; i < 2; i++) { box.click(); shown.push(getComputedStyle(line).display !== "none"); }
  const luminance = (text) => {
    const linear = (v) => (v / 255 <= .03928 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4);
    const [r, g, b] = text.match(/[\\d.]+/g).map(linear);
    return .2126 * r + .7152 * g + .0722 * b;
  };
  const paper = luminance(getComputedStyle(document.body).backgroundColor);
  const contrast = (one) => {
    const ink = luminance(getComputedStyle(one).color);
    return (Math.max(ink, paper) + .05) / (Math.min(ink, paper) + .05);
  };
  const texts = [...document.querySelectorAll("p, dt, dd, th, td, a, figcaption, summary")];
  const ids = [...document.querySelectorAll("[id]")].map((one) => one.id);
  const seen = {
    shown, dark: paper < .5,
    contrast: Math.min(...texts.map(contrast)),
    wide: document.documentElement.scrollWidth, room: innerWidth,
    twice: ids.length - new Set(ids).size,
    lost: [...document.querySelectorAll("nav a")].filter((a) => !document.getElementById(a.hash.slice(1))).length,
    unnamed: [...document.querySelectorAll("input, svg")].filter(
      (one) => !(one.getAttribute("aria-label") || one.closest("label")?.textContent.trim())).length,
    broken: [...document.images].filter((one) => !(one.naturalWidth && one.alt)).length,
    levels: [...document.querySelectorAll("h1, h2, h3")].map((one) => one.tagName).join(" "),
  };
  document.body.setAttribute("data-seen", JSON.stringify(seen));
});
</script></body>"""


@pytest.fixture(scope="session")
def browser():
    found = next(filter(None, map(shutil.which, NAMES)), None)
    assert found, f"needs one of {', '.join(NAMES)}"
    return found


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    path = tmp_path_factory.mktemp("page")
    settings = [{"method": m} for m in ("vanilla", "global", "metric")]
    config = {
        "name": "tiny",
        "rounds": 3,
        "data": {"name": "breast-cancer", "clients": 3},
        "model": {"name": "logistic"},
    }
    privacy = {"method": "global", "noise_multiplier": 4.0, "clip": 1.0}
    compare(
        parse({**config, "privacy": privacy, "compare": {"settings": settings}}),
        path / "run",
        seeds=2,
    )
    text = files_of(gather([path / "run"], [], None, None))[PAGE].decode()
    (path / PAGE).write_text(text)
    (path / "page.html").write_text(looked_at(text))
    return path / "page.html"


def looked_at(text):
    """A page that looks at itself, which its own policy would not let it."""
    assert text.count("</body>") == text.count("<meta http-equiv") == 1
    return re.sub(r"<meta http-equiv[^>]*>", "", text.replace("</body>", LOOK))


def opened(browser, page, tmp_path, *options):
    """What the page shows of itself, and what it wrote to the console."""
    how = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        "--enable-logging=stderr",
        f"--user-data-dir={tmp_path}",
    ]
    command = [browser, *how, *options, "--virtual-time-budget=2000", "--dump-dom", page.as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    seen = re.search(r'data-seen="([^"]*)"', done.stdout)
    assert seen, done.stdout[-2000:]
    return json.loads(html.unescape(seen[1])), [
        line for line in done.stderr.splitlines() if "CONSOLE" in line
    ]


@pytest.mark.parametrize("width", [1280, 500])
@pytest.mark.parametrize("dark", [False, True])
def test_the_page_fits_can_be_read_and_its_lines_switched(browser, page, tmp_path, width, dark):
    scheme = ["--blink-settings=preferredColorScheme=0"] if dark else []
    seen, console = opened(browser, page, tmp_path, f"--window-size={width},900", *scheme)
    assert not console
    assert seen["shown"] == [True, False, True]
    assert seen["wide"] <= seen["room"] <= width
    assert seen["dark"] == dark
    assert seen["contrast"] >= 4.5  # WCAG 2, level AA
    assert (seen["twice"], seen["lost"], seen["unnamed"]) == (0, 0, 0)
    assert re.fullmatch(r"H1( H2( H3)*)+", seen["levels"])


def test_the_page_s_own_policy_lets_no_script_run(browser, page, tmp_path):
    policy = re.search(r"<meta http-equiv[^>]*>", (page.parent / PAGE).read_text())[0]
    (tmp_path / "page.html").write_text(page.read_text().replace("<head>", f"<head>{policy}"))
    how = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}",
        "--dump-dom",
    ]
    command = [browser, *how, (tmp_path / "page.html").as_uri()]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert not re.search(r'data-seen="', done.stdout)


def test_an_error_on_the_page_would_be_seen(browser, page, tmp_path):
    broken = tmp_path / "broken.html"
    broken.write_text(
        page.read_text().replace("<script>", "<script>missing.call();</script><script>", 1)
    )
    assert opened(browser, broken, tmp_path / "profile")[1]


def test_it_prints_on_a_few_sheets_of_a4(browser, page, tmp_path):
    how = [
        "--headless",
        "--no-sandbox",
        "--disable-gpu",
        f"--user-data-dir={tmp_path}",
        "--no-pdf-header-footer",
    ]
    file = tmp_path / "page.pdf"
    subprocess.run(
        [browser, *how, f"--print-to-pdf={file}", page.as_uri()],
        capture_output=True,
        timeout=120,
        check=True,
    )
    raw = file.read_bytes()
    boxes = [
        tuple(map(float, box)) for box in re.findall(rb"/MediaBox \[0 0 ([\d.]+) ([\d.]+)\]", raw)
    ]
    assert 1 <= len(boxes) <= 8
    assert all(abs(width - 595) < 2 and abs(height - 842) < 2 for width, height in boxes)


@pytest.mark.parametrize("name", ["demo", "attacked"])
def test_a_committed_page_opens_with_its_pictures(browser, tmp_path, name):
    text = (REPORTS / name / "report.html").read_text()
    file = tmp_path / "page.html"
    file.write_text(looked_at(text))
    seen, console = opened(browser, file, tmp_path / "profile", "--window-size=500,900")
    assert not console
    assert seen["wide"] <= seen["room"]
    assert (seen["twice"], seen["lost"], seen["unnamed"]) == (0, 0, 0)
    assert seen["broken"] == 0
    assert ("<img" in text) == (name == "attacked")
