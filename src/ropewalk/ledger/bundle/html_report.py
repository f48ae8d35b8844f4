"""An HTML page about a verified bundle: one file, no scripts, nothing fetched.

The content of a bundle may be hostile, so every text passes through `_safe`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from ropewalk.kernel import merkle
from ropewalk.kernel.report import Report
from ropewalk.ledger.bundle.anchors import AnchorFinding
from ropewalk.ledger.bundle.manifest import BundleManifest
from ropewalk.ledger.bundle.paths import Exhibit
from ropewalk.ledger.proof.steps import describe_moment
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.transparency.head_signers import HeadSigner

_WORDS = {"passed": "passed", "failed": "failed", "not_checked": "not checked"}
_SIGNS = {"passed": "✓", "failed": "✗", "not_checked": "–"}
_MEANINGS = {
    "bundle_signature": "The list of contents is signed by a trusted key, and every file is the one that was listed.",
    "envelope_hashes": "Every event has the fingerprint named in the proofs.",
    "merkle_paths": "Every fingerprint leads, step by step, to the root in its block's header.",
    "block_signatures": "Every block is sealed by a trusted key and follows the block before it.",
    "policy_hash": "The blocks were made under the policy that was expected.",
    "anchors": "The blocks lie under a signed head of the channel: its signer had them before.",
    "envelope_rules": "Every event by itself: signature, version, evidence, confidentiality.",
    "evidence": "Evidence of where and how something was made ends in a trusted root, as of the time of its block.",
}
_KINDS = {
    "channel": "the channel's own key",
    "witness": "a trusted witness",
    "unknown": "unknown: ignored",
}
_STYLE = """
:root{color-scheme:light dark;--ink:#1b1f24;--paper:#fff;--soft:#57606a;--line:#d0d7de;--good:#1a7f37;--bad:#cf222e;
--open:#7d5700;--box:#f6f8fa}
@media (prefers-color-scheme:dark){:root{--ink:#e6edf3;--paper:#0d1117;--soft:#9198a1;--line:#3d444d;--good:#3fb950;
--bad:#ff7b72;--open:#e3b341;--box:#161b22}}
body{font:16px/1.5 system-ui,sans-serif;color:var(--ink);background:var(--paper);max-width:62rem;margin:2rem auto;
padding:0 1rem}
h1{font-size:1.6rem}h2{font-size:1.2rem;margin-top:2.2rem}
.verdict{border:2px solid;border-radius:8px;padding:.8rem 1rem;font-weight:600}
.passed{color:var(--good)}.failed{color:var(--bad)}.not_checked{color:var(--open)}
table{border-collapse:collapse;width:100%}th,td{text-align:left;vertical-align:top;padding:.45rem .6rem;
border-bottom:1px solid var(--line)}
code,text{font-family:ui-monospace,monospace}code{overflow-wrap:anywhere}.soft{color:var(--soft)}
figure{margin:1.2rem 0;overflow-x:auto}figcaption{color:var(--soft);margin-bottom:.4rem}
svg rect{fill:var(--box);stroke:var(--line)}svg .ours{stroke:var(--good);stroke-width:2}
svg .wrong{stroke:var(--bad);stroke-width:2}svg line{stroke:var(--soft)}svg text{fill:var(--ink);font-size:12px}
"""
_BOX, _GAP, _STEP = 170, 24, 62


@dataclass(frozen=True, slots=True)
class PathStep:
    """One step of a path: the sibling, its side, and the parent hash."""

    sibling: bytes
    on_left: bool
    result: bytes


def path_steps(leaf: bytes, index: int, size: int, path: Sequence[bytes]) -> list[PathStep]:
    """Return the steps from a leaf upwards, as the verifier takes them.

    >>> [rise.on_left for rise in path_steps(bytes(32), 2, 3, [bytes(32)])]
    [True]
    """
    place, last, got, rises = index, max(size - 1, 0), leaf, []
    for sibling in path:
        on_left = bool(place & 1) or place == last
        got = merkle.LEDGER.node(sibling, got) if on_left else merkle.LEDGER.node(got, sibling)
        if on_left:
            while not place & 1 and place:
                place, last = place >> 1, last >> 1
        place, last = place >> 1, last >> 1
        rises.append(PathStep(sibling, on_left, got))
    return rises


def draw_path(exhibit: Exhibit) -> str:
    """Draw the path from one envelope to its block's root as SVG, root on top.

    >>> one = Exhibit(0, 0, 1, "00" * 32, "Alert", "x", (), "00" * 32, True)
    >>> draw_path(one)[:4]
    '<svg'
    """
    rises = path_steps(
        bytes.fromhex(exhibit.envelope_id),
        exhibit.index,
        exhibit.count,
        [bytes.fromhex(each) for each in exhibit.path],
    )
    levels = len(rises)
    width, height = 3 * _BOX + 2 * _GAP + 20, (levels + 1) * _STEP + 40
    middle = width // 2
    parts: list[str] = []

    def box(x: int, y: int, text: str, kind: str) -> None:
        parts.append(f'<rect class="{kind}" x="{x - _BOX // 2}" y="{y}" width="{_BOX}" height="34" rx="5"/>')
        parts.append(f'<text x="{x}" y="{y + 21}" text-anchor="middle">{_safe(text)}</text>')

    def level_y(level: int) -> int:
        return (levels - level) * _STEP + 6

    top = "ours" if exhibit.holds else "wrong"
    nodes = [bytes.fromhex(exhibit.envelope_id), *(rise.result for rise in rises)]
    for level, rise in enumerate(rises):
        side = middle + (-1 if rise.on_left else 1) * (_BOX + _GAP)
        y, above = level_y(level), level_y(level + 1) + 34
        parts.append(f'<line x1="{middle}" y1="{y}" x2="{middle}" y2="{above}"/>')
        parts.append(f'<line x1="{side}" y1="{y}" x2="{middle}" y2="{above}"/>')
        box(side, y, f"{rise.sibling.hex()[:12]}…", "beside")
    for level, node in enumerate(nodes):
        name = "envelope" if level == 0 else "root" if level == levels else ""
        text = f"{name} {node.hex()[:10]}…" if name else f"{node.hex()[:14]}…"
        box(middle, level_y(level), text, top if level in (0, levels) else "between")
    said = (
        f"the header has {exhibit.root[:14]}…"
        if exhibit.holds
        else f"but the header has {exhibit.root[:14]}…"
    )
    parts.append(f'<text x="{middle}" y="{height - 6}" text-anchor="middle">{_safe(said)}</text>')
    label = f"Path of envelope {exhibit.index} of block {exhibit.height}: {levels} steps to the root"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" role="img" aria-label="{_safe(label)}" '
        f'width="{width}" height="{height}" viewBox="0 0 {width} {height}">{"".join(parts)}</svg>'
    )


def render_report(
    report: Report,
    manifest: BundleManifest | None,
    exhibits: Sequence[Exhibit],
    trust: Trust,
    *,
    source: str,
    anchors: Sequence[AnchorFinding] = (),
) -> str:
    """Return the whole page. `source` is the name of the verified file.

    >>> page = render_report(Report.of([]), None, (), Trust((), ()), source="<x>")
    >>> "<x>" in page, "&lt;x&gt;" in page, "<script" in page
    (False, True, False)
    """
    parts = [
        '<!doctype html><html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1">',
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">",
        f"<title>Bundle report: {_safe(source)}</title><style>{_STYLE}</style></head><body><main>",
        f"<h1>Bundle <code>{_safe(source)}</code></h1>",
        _verdict(report),
        "<h2>The steps</h2>",
        "<table><thead><tr><th>Step</th><th>Verdict</th><th>What was found</th></tr></thead><tbody>",
    ]
    for number, step in enumerate(report.steps, start=1):
        parts.append(
            f"<tr><td>{number}. <code>{_safe(step.name)}</code><br>"
            f'<span class="soft">{_safe(_MEANINGS.get(step.name, ""))}</span></td>'
            f'<td class="{step.status}">{_SIGNS[step.status]} {_WORDS[step.status]}</td>'
            f"<td>{_safe(step.detail)}</td></tr>"
        )
    parts.append("</tbody></table>")
    if manifest is not None:
        parts.append(_contents(manifest, report))
    if anchors:
        parts.append(_anchors(anchors))
    parts.append("<h2>What was trusted</h2><ul>")
    parts += [f"<li>{_safe(line)}</li>" for line in trust.explain()]
    parts.append("</ul>")
    if exhibits:
        parts.append(
            "<h2>Proof paths</h2><p>From an envelope upwards: each box is the fingerprint of the two below "
            "it. The boxes at the sides come from the bundle; those in the middle were computed here.</p>"
        )
        parts += [_figure(exhibit) for exhibit in exhibits]
    parts.append(
        '<p class="soft">This page was made by <code>ropewalk bundle verify --report</code> without any network. '
        "It is a record of that run, not a proof: verify the bundle yourself.</p></main></body></html>\n"
    )
    return "".join(parts)


def _safe(text: str) -> str:
    """Return text for the page: no markup, and no character that could reorder or hide its surroundings."""
    return escape("".join(each if each.isprintable() else "\N{REPLACEMENT CHARACTER}" for each in text))


def _verdict(report: Report) -> str:
    kind = "passed" if report.verdict == "passed" else "failed"
    counts = f"{report.counts.get('envelopes', 0)} envelopes in {report.counts.get('blocks', 0)} blocks"
    required = ", ".join(
        step.name for step in report.steps if step.status == "not_checked" and step.need != "optional"
    )
    if report.first_failure is not None:
        text = f"✗ Not verified. The first step that failed is {report.first_failure.name}."
    elif report.verdict != "passed":
        text = f"✗ Not verified ({report.verdict}). Required and not checked: {required or 'everything'}."
    elif any(step.status == "not_checked" for step in report.steps):
        names = ", ".join(step.name for step in report.steps if step.status == "not_checked")
        text = f"✓ Verified: {counts}. Not checked: {names}."
    else:
        text = f"✓ Verified: {counts}."
    return f'<p class="verdict {kind}" role="status">{_safe(text)}</p>'


def _contents(manifest: BundleManifest, report: Report) -> str:
    rows = [
        ("Channel", manifest.channel),
        ("Heights", f"{manifest.start_height} to {manifest.end_height}"),
        ("Envelopes", str(report.counts.get("envelopes", 0))),
        ("Made", f"{manifest.created_at}{_bracketed(manifest.created_at)}"),
        ("Signed by", manifest.signer.did()),
        ("Policy", manifest.policy_hash or "none"),
        ("Range root", manifest.range_root),
        ("Last block", manifest.block_hashes[-1] if manifest.block_hashes else ""),
        ("Detached payloads", str(len(manifest.payload_refs))),
        ("Unpacked size", f"{manifest.size} bytes in {len(manifest.files)} files"),
    ]
    cells = "".join(
        f"<tr><th>{_safe(name)}</th><td><code>{_safe(text)}</code></td></tr>" for name, text in rows
    )
    return f"<h2>Contents claimed by the manifest</h2><table><tbody>{cells}</tbody></table>"


def _anchors(anchors: Sequence[AnchorFinding]) -> str:
    rows = "".join(
        f"<tr><td>{_safe(each.origin or 'unreadable')}<br>"
        f'<span class="soft">size {each.size}, root <code>{_safe(each.root)}</code></span></td>'
        f"<td>{'<br>'.join(_safe(_signer(signer)) for signer in each.signers)}</td>"
        f'<td class="{each.status}">{_SIGNS[each.status]} {_WORDS[each.status]}</td>'
        f"<td>{_safe(each.detail)}</td></tr>"
        for each in anchors
    )
    return (
        "<h2>Anchors</h2><p>Heads of the channel that were signed outside this bundle. One that was signed by the "
        "channel alone repeats its operator's claim; one that was signed by a witness shows that another party had "
        "seen it.</p><table><thead><tr><th>Head</th><th>Signed by</th><th>Verdict</th><th>What was found</th></tr>"
        f"</thead><tbody>{rows}</tbody></table>"
    )


def _signer(signer: HeadSigner) -> str:
    when = "" if signer.time_s is None else _bracketed(str(signer.time_s * 10**9))
    return f"{signer.name} {signer.key_id} ({_KINDS[signer.kind]}){when}"


def _figure(exhibit: Exhibit) -> str:
    kind = " ".join(each for each in (exhibit.event_class, exhibit.event_type) if each)
    state = "leads to the root" if exhibit.holds else "does not lead to the root"
    caption = (
        f"Block {exhibit.height}, envelope {exhibit.index} of {exhibit.count}"
        f"{f' ({kind})' if kind else ''}: {state}."
    )
    return f"<figure><figcaption>{_safe(caption)}</figcaption>{draw_path(exhibit)}</figure>"


def _bracketed(text: str) -> str:
    moment = describe_moment(text)
    return f" ({moment})" if moment is not None else ""
