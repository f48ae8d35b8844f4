"""The page about a bundle: readable, alone, and deaf to what stands in the bundle."""

from __future__ import annotations

import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest
from tests.unit.ledger.bundling import TRUST, export, pack, signed, tar_of, unpack
from tests.unit.ledger.making import NODE, NOON_NS, observed

from ropewalk.errors import Invalid
from ropewalk.kernel import merkle
from ropewalk.ledger.block.block import GENESIS, seal
from ropewalk.ledger.bundle.files import export_blocks, verify_bundle
from ropewalk.ledger.bundle.html_report import draw_path, path_steps, render_report
from ropewalk.ledger.bundle.paths import Exhibit
from ropewalk.ledger.proof.trust import parse_trust


def page_of(path, trust=TRUST):
    found = verify_bundle(path, trust)
    return render_report(
        found.report, found.manifest, found.exhibits, trust, source=path.name, listed=found.listed
    )


class Tags(HTMLParser):
    """Collects tags and attributes, and whether they are balanced."""

    VOID = frozenset(("meta", "br", "rect", "line", "input"))

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.attributes = [], [], []

    def handle_starttag(self, tag, attrs):
        self.seen.append(tag)
        self.attributes += [(tag, *pair) for pair in attrs]
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.VOID:
            assert self.open.pop() == tag


def parsed(page):
    tags = Tags()
    tags.feed(page)
    tags.close()
    assert tags.open == []
    return tags


def test_the_page_is_one_file_that_fetches_nothing(tmp_path):
    tags = parsed(page_of(export(tmp_path / "x.tar.zst")))
    assert not {"link", "img", "iframe", "object", "form"} & set(tags.seen)
    assert tags.seen.count("script") == 1 and all(
        value.startswith("#") for tag, name, value in tags.attributes if (tag, name) == ("a", "href")
    )
    assert not [each for each in tags.attributes if each[1] in ("src", "onload", "onclick", "style")]
    page = page_of(tmp_path / "x.tar.zst")
    assert "url(" not in page and "@import" not in page
    assert "default-src 'none'" in page


def test_the_page_names_all_steps_and_the_verdict(tmp_path):
    page = page_of(export(tmp_path / "x.tar.zst"))
    for word in ("bundle_signature", "envelope_hashes", "merkle_paths", "block_signatures", "policy_hash"):
        assert word in page
    assert "✓ Verified: 15 envelopes in 3 blocks. Not checked: policy_hash." in page
    assert "2024-11-01 12:00:00 UTC" in page
    assert page.count("<svg") == 3
    assert NODE.public.did() in page


def test_page_lists_events_with_names_of_keys(tmp_path):
    path = export(tmp_path / "x.tar.zst")
    (ada,) = {each.signer for each in verify_bundle(path, TRUST).listed}
    named = parse_trust(replace(TRUST, names={ada: "Ada", NODE.public.did(): "Release desk"}).to_bytes())
    page = page_of(path, named)
    assert page.count("<tr id=") == 15 and page.count("<code>Ada</code>") == 15
    assert f"Release desk ({NODE.public.did()})" in page and "All 15." in page
    for name in ("", "x" * 81, "a\u202eb"):
        with pytest.raises(Invalid, match="1 to 80 printable"):
            parse_trust(replace(TRUST, names={ada: name}).to_bytes())
    with pytest.raises(Invalid, match="names: "):
        parse_trust(replace(TRUST, names={"ada": "Ada"}).to_bytes())


def test_a_failure_stands_first_and_its_path_is_drawn_as_wrong(tmp_path):
    path = export(tmp_path / "x.tar.zst")
    members = unpack(path)
    name = "blocks/0000000001.jsonl"
    lines = members[name].splitlines()
    lines[2] = observed(77).raw
    pack(path, tar_of(signed({**members, name: b"\n".join(lines) + b"\n"})))
    page = page_of(path)
    assert "Not verified. The first step that failed is envelope_hashes." in page
    assert 'class="wrong"' in page and "does not lead to the root" in page


def test_hostile_texts_are_only_text(tmp_path):
    evil = '<script>alert("x")</script>\'"&<svg onload=x>'
    block = seal(
        NODE,
        channel=evil,
        height=0,
        prev_block_hash=GENESIS,
        envelopes=[observed(0, event_type=evil).raw],
        timestamp_ns=NOON_NS,
    )
    path = tmp_path / "x.tar.zst"
    export_blocks([block], NODE, path, created_at=evil)
    tags = parsed(page_of(path))
    assert tags.seen.count("script") == 1
    assert not [each for each in tags.attributes if each[1].startswith("on")]
    assert "&lt;script&gt;" in page_of(path)


@pytest.mark.parametrize("size", [1, 2, 3, 5, 7, 8, 13])
def test_the_drawn_steps_are_those_of_the_verifier(size):
    leaves = [merkle.LEDGER.leaf(bytes([number])) for number in range(size)]
    tree = merkle.MerkleTree(leaves)
    for index in range(size):
        rises = path_steps(leaves[index], index, size, tree.inclusion(index))
        assert (rises[-1].result if rises else leaves[index]) == tree.root()
        one = Exhibit(
            0, index, size, leaves[index].hex(), "Alert", "x",
            tuple(each.hex() for each in tree.inclusion(index)), tree.root().hex(), True,
        )  # fmt: skip
        drawing = draw_path(one)
        assert drawing.count("<rect") == 1 + 2 * len(rises)
        assert re.search(r'aria-label="Path of envelope', drawing)
        assert tree.root().hex()[:10] in drawing
