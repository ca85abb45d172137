"""The page of a verdict: one file without a script, with what was claimed, printed, proven and measured."""

import base64
import hashlib
import re
from html.parser import HTMLParser

import numpy as np
import pytest
from click.testing import CliRunner

from fedveil.cli import app
from fedveil.errors import FieldError
from fedveil_lab.report.verdict_page import page_of, require_page
from fedveil_lab.verify import verify_scores

CLAIM = "eps=1 delta=1e-5 zero-out client total central"
MADE = {"command": "fedveil verify <b>", "commit": "abc", "versions": {"fedveil": "1"}}


class Seen(HTMLParser):
    """Tags, attributes and texts of a page."""

    def __init__(self, text):
        super().__init__()
        self.tags, self.names, self.facts = [], [], []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.names += [name for name, _ in attrs]

    def handle_data(self, data):
        if data.strip():
            self.facts.append(data.strip())


def page(shift, subject="scores"):
    rng = np.random.default_rng(0)
    scores = rng.normal(shift, 1, 2000), rng.normal(0, 1, 2000)
    return page_of(verify_scores(*scores, rows="runs", claim=CLAIM, subject=subject), MADE)


def test_a_page_has_the_verdict_and_no_script():
    text = page(3.0)
    seen = Seen(text)
    assert "REFUTED by scores" in " ".join(seen.facts)
    assert {"script", "img", "iframe", "form"}.isdisjoint(seen.tags)
    assert not [name for name in seen.names if name.startswith("on") or name in ("src", "action")]
    for word in ("claimed", "proven", "measured", "verdict"):
        assert word in seen.facts
    [style] = re.findall(r"<style>(.*?)</style>", text, re.DOTALL)
    assert base64.b64encode(hashlib.sha256(style.encode()).digest()).decode() in text


def test_what_is_not_refuted_is_not_called_true_and_words_of_others_are_escaped():
    text = page(0.0, subject="<script>alert(1)</script>")
    seen = Seen(text)
    assert "script" not in seen.tags
    assert "b" in seen.tags
    assert "<b>" not in text.partition("<code>")[2].partition("</code>")[0]
    answer = text.partition("<b>Verdict</b>")[2].partition("</p>")[0]
    assert answer.startswith("not refuted")


def test_the_command_writes_it_or_refuses_its_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    lines = ["in,out", *(f"{i % 7},{i % 5}" for i in range(60))]
    (tmp_path / "s.csv").write_text("\n".join(lines))
    command = ["verify", "--scores", "s.csv", "--rows", "runs", "--claim", CLAIM, "--out", "out"]
    result = CliRunner().invoke(app, [*command, "--page", "verdict.html"])
    assert result.exit_code == 0, result.output
    assert "h1" in Seen((tmp_path / "verdict.html").read_text()).tags
    assert CliRunner().invoke(app, [*command, "--page", "verdict.txt"]).exit_code == 2
    with pytest.raises(FieldError):
        require_page(tmp_path)
