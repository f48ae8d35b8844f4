"""A sealed ledger: commands and results in blocks, refusals, a proof, a bundle for an auditor, and one flipped byte."""

from __future__ import annotations

import os
import time

from ropewalk.cli.audit.bundle import about_run
from ropewalk.cli.common.command import MARKS
from ropewalk.cli.demo.stage import NODE, Stage, node_key
from ropewalk.cli.ledger.channel import now_text
from ropewalk.disk.repository_paths import make_repository
from ropewalk.errors import RopewalkError
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.report import Report
from ropewalk.ledger.bundle.files import export_bundle, verify_bundle
from ropewalk.ledger.bundle.html_report import render_report
from ropewalk.ledger.channel.channel import Channel, OpenLog, open_channel, open_log, verify_blocks
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.envelope.envelope import build
from ropewalk.ledger.envelope.model import Envelope
from ropewalk.ledger.proof.proof import parse_proof, verify_proof
from ropewalk.ledger.proof.trust import Trust

CHANNEL = "demo.audit"


def run(stage: Stage) -> None:
    """Show a ledger an auditor can check without trusting us."""
    place, _ = make_repository(stage.directory / "demo.git")
    stage.made.setdefault("repository", str(place.git_dir))
    node = node_key(place)
    author = SigningKey.generate("ed25519", os.urandom(32))
    create_channel(place.home, CHANNEL, NODE, node.public)
    with open_log(place.home, CHANNEL, node) as ledger:
        ask = _submit(stage, ledger, author)
        _refuse(stage, ledger, author, ask)
    with open_channel(place.home, CHANNEL) as channel:
        trust = channel.settings.trust()
        _prove(stage, channel, ask, trust)
        report = verify_blocks(place.home, CHANNEL, deep=True)
        stage.good(
            f"verified again: {report.counts['entries']} envelopes, all eight rules, every link and seal"
        )
        _hand_over(stage, channel, node, trust)


def _said(author: SigningKey, kind: str, payload: jcs.Json, **more: object) -> Envelope:
    options = {"domain": "demo.ops", "event_class": kind, "event_type": f"deploy.{kind.lower()}"}
    return build(author, payload=payload, timestamp=now_text(), **options, **more)  # type: ignore[arg-type]


def _submit(stage: Stage, ledger: OpenLog, author: SigningKey) -> Envelope:
    ask = _said(author, "Command", {"service": "web", "build": 7}, correlation_id="deploy-7")
    first = ledger.log.submit(ask.raw)
    stage.show("sealed", f"block {first.height}, envelope {first.envelope_id.hex()[:16]}…, on disk")
    done = _said(author, "Result", {"ok": True}, parent=ask)
    started = time.perf_counter()
    seen = [_said(author, "Observation", {"service": "web", "second": n}).raw for n in range(500)]
    ledger.log.submit_many([done.raw, *seen])
    took = time.perf_counter() - started
    stage.show(
        "and then", f"its Result and {len(seen)} Observations in {took:.1f} s, signed, judged and synced"
    )
    return ask


def _refuse(stage: Stage, ledger: OpenLog, author: SigningKey, ask: Envelope) -> None:
    again = _said(author, "Command", {"service": "web", "build": 8}, correlation_id="deploy-7")
    edited = jcs.encode({**ask.value, "payload": {"service": "web", "build": 9}})
    orphan = _said(author, "Result", {"ok": True}, correlation_id="deploy-99")
    secret = _said(author, "Observation", {"pin": 1}, confidentiality={"level": "restricted"})
    for raw in (again.raw, edited, orphan.raw, secret.raw):
        try:
            ledger.log.submit(raw)
        except RopewalkError as error:
            stage.refused(error.detail)
    receipt = ledger.log.submit(ask.raw)
    stage.good(
        f"the same bytes again give the first receipt: block {receipt.height}, replayed {receipt.replayed}"
    )


def _prove(stage: Stage, channel: Channel, ask: Envelope, trust: Trust) -> None:
    path = stage.directory / "proof.json"
    path.write_bytes(channel.prove(ask.id).to_bytes())
    assert verify_proof(parse_proof(path.read_bytes()), trust).ok
    stage.made["proof"] = str(path)
    stage.good("the proof of one envelope holds offline, with the trust file alone")


def _hand_over(stage: Stage, channel: Channel, node: SigningKey, trust: Trust) -> None:
    believed, bundle, page = (
        stage.directory / name for name in ("trust.json", "audit.tar.zst", "audit.html")
    )
    believed.write_bytes(trust.to_bytes())
    exported = export_bundle(channel, node, 0, channel.head().height - 1, bundle)
    verdict = verify_bundle(bundle, trust)
    page.write_text(
        render_report(
            verdict.report,
            verdict.manifest,
            verdict.exhibits,
            trust,
            source=bundle.name,
            listed=verdict.listed,
            about=about_run(bundle, believed),
        ),
        encoding="utf-8",
    )
    stage.made |= {"bundle": str(bundle), "trust": str(believed), "report": str(page)}
    stage.say("")
    stage.say(f"  A bundle for the auditor, blocks {exported.start} to {exported.end}, checked offline:")
    _steps(stage, verdict.report)
    bent = stage.directory / "bent.tar.zst"
    raw = bytearray(bundle.read_bytes())
    raw[len(raw) // 2] ^= 0x01
    bent.write_bytes(raw)
    stage.say("  The same bundle with one bit flipped in the middle:")
    try:
        _steps(stage, verify_bundle(bent, trust).report)
    except RopewalkError as error:
        stage.refused(error.detail)
    bent.unlink()


def _steps(stage: Stage, report: Report) -> None:
    shows = {"passed": stage.good, "failed": stage.refused}
    for step in report.steps:
        text = f"{step.name}: {step.detail or step.status}"
        if step.status == "not_checked":
            stage.say(f"  {MARKS[step.status]} {text}")
        else:
            shows[step.status](text)
