"""Every link inside the house leads somewhere."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("vectors/*.md")])
LINK = re.compile(r"\[[^\]]*\]\(([^)\s]+)\)")
PATH = re.compile(r"`((?:tests|docs|src|vectors|examples|bench)/[\w./-]*)(?:::\w+)?`")


def anchors(page: Path) -> set[str]:
    """The names a page's headings have in a link."""
    heads = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.strip().lower()).replace(" ", "-") for head in heads}


def broken_links(page: Path) -> list[str]:
    """Return the paths and links of a page that lead nowhere."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    lost = [path for path in PATH.findall(text) if not (ROOT / path).exists()]
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = page.parent / name if name else page
        if not target.exists() or (anchor and anchor not in anchors(target)):
            lost.append(link)
    return [f"{page.relative_to(ROOT)}: {each}" for each in lost]


def test_links_of_all_pages_lead_somewhere():
    assert [lost for page in PAGES for lost in broken_links(page)] == []


def test_broken_links_are_found(tmp_path, monkeypatch):
    monkeypatch.setitem(broken_links.__globals__, "ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("# One\n[a](#one) [b](#two) [c](gone.md) [d](https://example.test/) `src/gone.py`\n")
    assert broken_links(page) == ["page.md: src/gone.py", "page.md: #two", "page.md: gone.md"]
