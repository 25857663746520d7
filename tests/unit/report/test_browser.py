"""The page in a real browser, where one is installed: what only a browser can tell."""

import json
import re
import shutil
import subprocess
from html import unescape

import pytest

from tests.support.report_tree import small_params, write_tree
from tinybert.report.page import build_report

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome", "chrome"))), None)
QUIET = ("--no-first-run", "--disable-background-networking", "--disable-component-update", "--disable-sync")
PROBE = """<script>
addEventListener("load", () => {
  const style = getComputedStyle(document.body);
  const charts = [...document.querySelectorAll("figure svg")].filter(svg => svg.checkVisibility());
  parent.postMessage(JSON.stringify({
    width: innerWidth,
    overflow: document.documentElement.scrollWidth - innerWidth,
    answer_ends: document.querySelector(".answer figure").getBoundingClientRect().bottom,
    charts: charts.map(svg => svg.getBoundingClientRect().width),
    outside: performance.getEntriesByType("resource").map(entry => entry.name),
    scripts: document.scripts.length,
    ground: style.backgroundColor,
    text: style.color,
  }), "*");
});
</script>"""
# A window of a desktop browser is never as narrow as a phone; a frame is.
FRAME = """<!DOCTYPE html>
<script>addEventListener("message", message => {{ document.body.dataset.found = message.data; }});</script>
<body><iframe src="probed.html" width="{width}" height="{height}" style="border: 0"></iframe></body>"""

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no Chromium is installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Holds the page with a probe in it, for which its content security policy is widened."""
    root = tmp_path_factory.mktemp("browser")
    write_tree(root)
    build_report(small_params(), root)
    html = (root / "reports/index.html").read_text(encoding="utf-8")
    assert "default-src 'none'; style-src" in html
    html = html.replace("default-src 'none'; style-src", "default-src 'none'; script-src 'unsafe-inline'; style-src")
    (root / "probed.html").write_text(html.replace("</body>", f"{PROBE}</body>"), encoding="utf-8")
    return root


def look(folder, *, width: int, height: int, scheme: int) -> tuple[dict, list[str]]:
    """What the probe finds in a frame of that size, and the lines of the browser's console. scheme: 0 dark, 1 light."""
    frame = folder / f"{width}.html"
    frame.write_text(FRAME.format(width=width, height=height), encoding="utf-8")
    flags = [f"--user-data-dir={folder / str(width)}", f"--blink-settings=preferredColorScheme={scheme}"]
    flags += ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--enable-logging=stderr", *QUIET]
    command = [BROWSER, *flags, "--window-size=1400,1000", "--dump-dom", frame.as_uri()]
    answer = subprocess.run(command, capture_output=True, text=True, timeout=120)
    found = re.search(r'data-found="([^"]*)"', answer.stdout)
    assert found, answer.stderr[-2000:]
    return json.loads(unescape(found[1])), [line for line in answer.stderr.splitlines() if "CONSOLE" in line]


def test_it_fits_a_phone_loads_nothing_and_has_no_errors(folder):
    found, console = look(folder, width=390, height=844, scheme=1)
    assert found["width"] == 390 and found["overflow"] <= 0
    assert min(found["charts"]) > 200
    assert found["outside"] == [] and console == []
    assert found["scripts"] == 1  # the probe: the scripts in the data are text
    assert brightness(found["ground"]) > 200 and brightness(found["text"]) < 80


def test_the_picture_is_seen_without_scrolling_and_dark_is_dark(folder):
    found, console = look(folder, width=1280, height=800, scheme=0)
    assert found["answer_ends"] <= 800 and found["overflow"] <= 0
    assert console == []
    assert brightness(found["ground"]) < 60 and brightness(found["text"]) > 180


def brightness(color: str) -> float:
    """Mean of red, green and blue of a color such as rgb(1, 2, 3)."""
    return sum(map(int, re.findall(r"\d+", color)[:3])) / 3
