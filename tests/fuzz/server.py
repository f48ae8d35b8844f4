"""Parsers of the server and of bridges: files of the operator, bodies of requests, what brokers deliver."""

from __future__ import annotations

from ropewalk.bridge import cloudevents
from ropewalk.bridge.governance.policy import parse_governance
from ropewalk.kernel import jcs
from ropewalk.server.auth.auth_file import AuthRules, new_client, parse_rules
from ropewalk.server.auth.rights import parse_rights
from ropewalk.server.http.replies import parse_items
from ropewalk.server.settings import parse_config, server_options
from ropewalk.server.watch.config import parse_watch, read_watch
from tests.fuzz.offering import Parser, as_text
from tests.unit.ledger.making import ADA

__all__ = ["PARSERS"]

STRUCTURED = {"content-type": cloudevents.STRUCTURED}


def _rules(raw: bytes) -> None:
    found = parse_rules(raw)
    assert parse_rules(found.to_bytes()) == found


def _right(raw: bytes) -> None:
    found = parse_rights(as_text(raw).split(" "))
    assert parse_rules(AuthRules((), found).to_bytes()).anonymous == found


def _config(raw: bytes) -> None:
    document = parse_config(raw)
    server_options(document)
    if isinstance(document.get("watch"), dict):
        parse_watch(document["watch"])


def _watch(raw: bytes) -> None:
    read_watch(raw)


def _items(raw: bytes) -> None:
    found, many = parse_items(raw)
    assert parse_items(jcs.encode(found if many else found[0])) == (found, many)


def _cloudevent(raw: bytes) -> None:
    head, _, body = raw.partition(b"\n\n")
    lines = [line.partition(":") for line in as_text(head).lower().split("\n")]
    found = cloudevents.parse({name.strip(): value.strip() for name, _, value in lines}, body)
    assert cloudevents.parse(STRUCTURED, cloudevents.to_json(found)) == found
    jcs.encode(cloudevents.to_document(found))


def _governance(raw: bytes) -> None:
    found = parse_governance(raw)
    assert parse_governance(jcs.encode(jcs.parse(raw))) == found


def _person(name: str) -> dict[str, str]:
    return {"name": name, "identity_type": "ed25519", "public_key": ADA.public.to_json()["public_key"]}


PARSERS = (
    Parser(
        "auth_rules",
        _rules,
        (
            AuthRules(
                (new_client("ada", bytes(32), parse_rights(["shiplog/prod:read,append"]))[0],)
            ).to_bytes(),
            b'{"version":1,"clients":[{"name":"b","certificate_subject":"CN=b","rights":[]}],"anonymous":'
            b'[{"logs":["messages/jobs.**","**"],"actions":["read","checkpoint"]}]}',
        ),
    ),
    Parser("rights", _right, (b"shiplog/prod:read,append messages/jobs.**:admin", b"ledger/a.*:read")),
    Parser(
        "server_config",
        _config,
        (
            b'{"version":1,"server":{"drain_seconds":5,"hosts":["log.example"],"webhooks_private":true}}',
            b'{"version":1,"watch":{"webhooks":[{"url":"https://a.example"}]}}',
        ),
    ),
    Parser(
        "watch_config",
        _watch,
        (
            b'{"version":1,"webhooks":[{"url":"https://a.example"}],"retention":{"keep_days":9,"archive":"cold",'
            b'"drop":true},"drills":{"every_days":7},"anchors":{"every_hours":1,"folder":"a","host":"h"}}',
            b'{"version":1,"watch":{"interval_seconds":5,"alerts":{"channel":"a"},"tables":{"warehouse":"t"},'
            b'"ingest":{"every_minutes":1,"warehouse":"t","verify":"strict"},"notice_days":[30,14,7]}}',
        ),
    ),
    Parser("request_items", _items, (b'{"type":"t","payload":{}}', b'[{"type":"t"},{"type":"u"}]')),
    Parser(
        "cloudevent",
        _cloudevent,
        (
            b'ce-specversion: 1.0\nce-id: 1\nce-source: /s\nce-type: t%20u\ncontent-type: application/json\n\n{"a":1}',
            b"ce-specversion: 1.0\nce-id: 1\nce-source: /s\nce-type: t\ncontent-type: text/plain\n\nhello",
            b'content-type: application/cloudevents+json\n\n{"specversion":"1.0","id":"1","source":"/s","type":"t",'
            b'"data_base64":"AAA="}',
        ),
    ),
    Parser(
        "governance",
        _governance,
        (
            jcs.encode(
                {
                    "groups": {"owners": [ADA_ENTRY := _person("ada")], "all": [ADA_ENTRY]},
                    "governance": {
                        "policy.change": {"quorum": {"at_least": 1, "group": "owners"}, "ttl": "P1DT2H"},
                        "key.rotate": {"quorum": {"all_of": ["owners", "all"]}, "ttl": 60, "propose": "all"},
                    },
                }
            ),
        ),
    ),
)
