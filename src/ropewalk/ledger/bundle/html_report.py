"""An HTML page about a verified bundle: one file, nothing fetched, and one script, which filters the list of events.

`ropewalk.pages` escapes every text, for the content of a bundle may be hostile; the page's policy lets only the script
with the known digest run.
"""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import sha256

from ropewalk.kernel import merkle
from ropewalk.kernel.report import Report, Status
from ropewalk.ledger.bundle.anchors import AnchorFinding
from ropewalk.ledger.bundle.manifest import BundleManifest
from ropewalk.ledger.bundle.paths import Exhibit, ListedEnvelope
from ropewalk.ledger.proof.steps import describe_moment
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.transparency.head_signers import HeadSigner
from ropewalk.pages import Html, fill

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
_KINDS = {"channel": "the channel's own key", "witness": "a trusted witness", "unknown": "unknown: ignored"}
_BOX, _GAP, _STEP = 170, 24, 62
_fill = partial(fill, "bundle")


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


def draw_path(exhibit: Exhibit) -> Html:
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
    parts: list[Html] = []

    def box(x: int, y: int, text: str, kind: str) -> None:
        parts.append(_fill("box", kind=kind, left=x - _BOX // 2, top=y, middle=x, base=y + 21, text=text))

    def level_y(level: int) -> int:
        return (levels - level) * _STEP + 6

    nodes = [bytes.fromhex(exhibit.envelope_id), *(rise.result for rise in rises)]
    for level, rise in enumerate(rises):
        side = middle + (-1 if rise.on_left else 1) * (_BOX + _GAP)
        y, above = level_y(level), level_y(level + 1) + 34
        parts += [_fill("link", x1=x, y1=y, x2=middle, y2=above) for x in (middle, side)]
        box(side, y, f"{rise.sibling.hex()[:12]}…", "beside")
    for level, node in enumerate(nodes):
        name = "envelope" if level == 0 else "root" if level == levels else ""
        text = f"{name} {node.hex()[:10]}…" if name else f"{node.hex()[:14]}…"
        box(middle, level_y(level), text, ("ours" if exhibit.holds else "wrong") if name else "between")
    said = f"{'' if exhibit.holds else 'but '}the header has {exhibit.root[:14]}…"
    parts.append(_fill("note", x=middle, y=height - 6, text=said))
    label = f"Path of envelope {exhibit.index} of block {exhibit.height}: {levels} steps to the root"
    return _fill("drawing", label=label, width=width, height=height, parts=parts)


def render_report(
    report: Report,
    manifest: BundleManifest | None,
    exhibits: Sequence[Exhibit],
    trust: Trust,
    *,
    source: str,
    anchors: Sequence[AnchorFinding] = (),
    listed: Sequence[ListedEnvelope] = (),
    about: Mapping[str, str] | None = None,
) -> str:
    """Return the whole page. `source` is the name of the verified file, `about` says what verified it, and when.

    >>> page = render_report(Report.of([]), None, (), Trust((), ()), source="<x>")
    >>> "<x>" in page, "&lt;x&gt;" in page
    (False, True)
    """
    kind, verdict = _verdict(report)
    steps = [
        _fill(
            "step",
            number=number,
            name=step.name,
            meaning=_MEANINGS.get(step.name, ""),
            detail=step.detail,
            **_status(step.status),
        )
        for number, step in enumerate(report.steps, start=1)
    ]
    return (
        _fill(
            "page",
            source=source,
            script=_fill("script"),
            digest=b64encode(sha256(_fill("script").encode()).digest()).decode(),
            kind=kind,
            verdict=verdict,
            steps=steps,
            about=_table("about", about) if about else "",
            contents=_contents(manifest, report, trust) if manifest is not None else "",
            events=_events(listed, report, trust) if listed else "",
            anchors=_fill("anchors", rows=map(_anchor, anchors)) if anchors else "",
            trusted=[_fill("item", text=line) for line in trust.explain()],
            paths=_fill("paths", figures=map(_figure, exhibits)) if exhibits else "",
        )
        + "\n"
    )


def _status(status: Status) -> dict[str, str]:
    return {"status": status, "sign": _SIGNS[status], "word": _WORDS[status]}


def _verdict(report: Report) -> tuple[str, str]:
    """Return the kind of the verdict, and its sentence."""
    counts = f"{report.counts.get('envelopes', 0)} envelopes in {report.counts.get('blocks', 0)} blocks"
    required = ", ".join(
        step.name for step in report.steps if step.status == "not_checked" and step.need != "optional"
    )
    if report.first_failure is not None:
        return "failed", f"✗ Not verified. The first step that failed is {report.first_failure.name}."
    if report.verdict != "passed":
        required = required or "everything"
        return "failed", f"✗ Not verified ({report.verdict}). Required and not checked: {required}."
    names = ", ".join(step.name for step in report.steps if step.status == "not_checked")
    return "passed", f"✓ Verified: {counts}.{f' Not checked: {names}.' if names else ''}"


def _contents(manifest: BundleManifest, report: Report, trust: Trust) -> Html:
    rows = {
        "Channel": manifest.channel,
        "Heights": f"{manifest.start_height} to {manifest.end_height}",
        "Envelopes": str(report.counts.get("envelopes", 0)),
        "Made": f"{manifest.created_at}{_bracketed(manifest.created_at)}",
        "Signed by": trust.name_of(manifest.signer.did()),
        "Policy": manifest.policy_hash or "none",
        "Range root": manifest.range_root,
        "Last block": manifest.block_hashes[-1] if manifest.block_hashes else "",
        "Detached payloads": str(len(manifest.payload_refs)),
        "Unpacked size": f"{manifest.size} bytes in {len(manifest.files)} files",
    }
    return _table("contents", rows)


def _events(listed: Sequence[ListedEnvelope], report: Report, trust: Trust) -> Html:
    count = report.counts.get("envelopes", 0)
    cut = f"The first {len(listed)} of {count}." if count > len(listed) else f"All {len(listed)}."
    rows = [
        _fill(
            "event",
            place=f"{each.height}.{each.index}",
            time=_bracketed(each.timestamp).strip(" ()") or each.timestamp,
            kind=each.event_class,
            type=each.event_type,
            signer=trust.names.get(each.signer, each.signer),
            id=each.envelope_id,
        )
        for each in listed
    ]
    return _fill("events", cut=cut, rows=rows)


def _table(fragment: str, rows: Mapping[str, str]) -> Html:
    return _fill(fragment, rows=[_fill("row", name=name, text=text) for name, text in rows.items()])


def _anchor(found: AnchorFinding) -> Html:
    return _fill(
        "anchor",
        origin=found.origin or "unreadable",
        size=found.size,
        root=found.root,
        signers=[_fill("line", text=_signer(signer)) for signer in found.signers],
        detail=found.detail,
        **_status(found.status),
    )


def _signer(signer: HeadSigner) -> str:
    when = "" if signer.time_s is None else _bracketed(str(signer.time_s * 10**9))
    return f"{signer.name} {signer.key_id} ({_KINDS[signer.kind]}){when}"


def _figure(exhibit: Exhibit) -> Html:
    kind = " ".join(each for each in (exhibit.event_class, exhibit.event_type) if each)
    state = "leads to the root" if exhibit.holds else "does not lead to the root"
    caption = (
        f"Block {exhibit.height}, envelope {exhibit.index} of {exhibit.count}"
        f"{f' ({kind})' if kind else ''}: {state}."
    )
    return _fill("figure", caption=caption, drawing=draw_path(exhibit))


def _bracketed(text: str) -> str:
    moment = describe_moment(text)
    return f" ({moment})" if moment is not None else ""
