"""Vectors for gitlog, made from the definitions with hashlib, blake3 and json alone: none of the product's code."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from blake3 import blake3

SCHEMA = "https://gatos.dev/schemas/v1/shiplog/"
ULIDS = ("01HF4Y9Q1SM8Q7K9DK2R4V5CXD", "01HF4Y9Q1SM8Q7K9DK2R4V5CXE", "01HF4Y9Q1TM8Q7K9DK2R4V5CXD")
PERSON = {"name": "Ada Example", "email": "ada@example.test", "time_s": 1_700_000_000, "zone": "+0000"}


def canonical(value: Any) -> str:
    """JCS of the plain values used here: ASCII keys, integers, text."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)


def object_id(kind: str, raw: bytes) -> str:
    return hashlib.sha1(b"%s %d\x00" % (kind.encode(), len(raw)) + raw, usedforsecurity=False).hexdigest()


def tree_id(path: list[str], blob: str) -> str:
    oid, mode = blob, b"100644"
    for name in reversed(path):
        oid, mode = object_id("tree", b"%s %s\x00" % (mode, name.encode()) + bytes.fromhex(oid)), b"40000"
    return oid


def line(layout: str, topic: str, payloads: list[Any]) -> dict[str, Any]:
    """A few events on one another, with everything that follows from them."""
    parent, expect = None, []
    for height, (ulid, payload) in enumerate(zip(ULIDS, payloads, strict=False)):
        raw = canonical({"ulid": ulid, "ns": topic, "type": "made", "payload": payload}).encode()
        content_id = "blake3:" + blake3(raw).hexdigest()
        path = (
            ["gatos", "shiplog", topic, f"{ulid}.json"]
            if layout == "shiplog"
            else ["message", "envelope.json"]
        )
        message = f"Event-Id: ulid:{ulid}\nContent-Id: {content_id}\n"
        if layout == "shiplog":
            now = "2023-11-14T22:13:20Z"
            trailer: dict[str, Any] = {"version": 1, "env": topic, "status": "success", "seq": height}
            trailer["when"] = {"start_ts": now, "end_ts": now, "dur_s": 0}
            if parent is not None:
                trailer["journal_parent"] = parent
            message += f"Namespace: {topic}\nEnvelope-Schema: {SCHEMA}event_envelope.schema.json\n"
            message += f"Trailer-Schema: {SCHEMA}deployment_trailer.schema.json\n---\n{canonical(trailer)}\n"
        tree = tree_id(path, object_id("blob", raw))
        who = f"{PERSON['name']} <{PERSON['email']}> {PERSON['time_s']} {PERSON['zone']}"
        above = f"parent {parent}\n" if parent else ""
        commit = object_id(
            "commit", f"tree {tree}\n{above}author {who}\ncommitter {who}\n\n{message}".encode()
        )
        expect.append(
            {
                "canonical": raw.decode(),
                "content_id": content_id,
                "blob": object_id("blob", raw),
                "tree": tree,
                "message": message,
                "commit": commit,
            }
        )
        parent = commit
    events = [{"ulid": u, "type": "made", "payload": p} for u, p in zip(ULIDS, payloads, strict=False)]
    document = {
        "layout": layout,
        "topic": topic,
        "author": PERSON,
        "now_ms": 1_700_000_000_123,
        "events": events,
    }
    return {"name": f"{layout}_{topic.replace('/', '_')}", "input": document, "expect": expect}


def names() -> dict[str, Any]:
    good = ["a", "governance", "a.b", "a_b-c.9", "a" * 64]
    bad = {
        "two_dots": "a..b",
        "lock_suffix": "x.lock",
        "dot_at_the_end": "x.",
        "climbs_out": "../x",
        "slash": "a/b",
        "upper_case": "Prod",
        "digit_first": "1a",
        "empty": "",
        "too_long": "a" * 65,
        "space": "a b",
        "newline": "a\n",
    }
    cases: list[dict[str, Any]] = [
        {"name": f"good_{n}", "input": name, "expect": name} for n, name in enumerate(good)
    ]
    cases += [{"name": name, "input": text, "error": "InvalidName"} for name, text in bad.items()]
    return {
        "name": "namespace",
        "why": "S0 §2 and git's own rules for ref names must both hold",
        "cases": cases,
    }


def messages() -> dict[str, Any]:
    ulid, digest = ULIDS[0], "blake3:" + "0" * 64
    plain = f"Event-Id: ulid:{ulid}\nContent-Id: {digest}\nNamespace: demo\n"
    told = {"ulid": ulid, "content_id": digest, "namespace": "demo"}
    good = {
        "as_written": plain + '---\n{"version":1}\n',
        "any_order": f"Namespace: demo\nContent-Id: {digest}\nEvent-Id: ulid:{ulid}\n---\n{{}}\n",
        "any_case": f"EVENT-ID: ulid:{ulid}\ncontent-id:   {digest}\nNamespace: demo\n---\n{{}}",
        "subject_in_front": "deployed web\n\n" + plain + "---\n{}\n",
        "no_trailer": plain,
    }
    bad = {
        "header_twice": plain + "Namespace: demo\n",
        "legacy_schema_header": plain + "Schema: x\n",
        "no_event_id": f"Content-Id: {digest}\n",
        "no_content_id": f"Event-Id: ulid:{ulid}\n",
        "event_id_without_prefix": f"Event-Id: {ulid}\nContent-Id: {digest}\n",
        "ulid_with_l": f"Event-Id: ulid:{ulid[:-1]}L\nContent-Id: {digest}\n",
        "digest_in_upper_case": f"Event-Id: ulid:{ulid}\nContent-Id: blake3:{'A' * 64}\n",
        "trailer_is_no_json": plain + "---\nnot json\n",
        "trailer_is_a_list": plain + "---\n[]\n",
    }
    cases: list[dict[str, Any]] = [
        {"name": name, "input": text, "expect": told} for name, text in good.items()
    ]
    cases += [{"name": name, "input": text, "error": "VerificationFailed"} for name, text in bad.items()]
    return {
        "name": "message",
        "why": "S0 §4: headers in any order, three dashes, a JSON trailer",
        "cases": cases,
    }


def generate() -> dict[str, object]:
    payloads = [{}, {"id": 7, "text": "naïve café"}, {"nested": {"b": [1, 2], "a": None}}]
    lines = [line("shiplog", "governance", payloads), line("messages", "jobs/pending", payloads)]
    why = "S0 §4, S1 §2: which bytes, names and commits follow from an event, so that two writers agree"
    return {
        "gitlog/lines.json": {"name": "lines", "why": why, "cases": lines},
        "gitlog/namespace.json": names(),
        "gitlog/message.json": messages(),
    }
