"""Webhooks over HTTP: a real server delivers to a real endpoint; secrets, rights and addresses."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.serving import Served, call, serving
from tests.unit.bridge.test_webhooks import endpoint as endpoint
from tests.waiting import until

from ropewalk.bridge import check_signature
from ropewalk.bridge.mirror import mirror
from ropewalk.bridge.progress import Progress
from ropewalk.bridge.webhooks.hooks import Webhooks
from ropewalk.disk.durable import Disk
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.ledger.channel.channel import open_channel

TOKENS = {"ada": "a" * 32, "bob": "b" * 32}
ADA, BOB = ({"Authorization": f"Bearer {TOKENS[name]}"} for name in ("ada", "bob"))
EVENT = {"type": "deploy.finished", "payload": {"n": 1}}


@contextmanager
def served(folder: Path, **settings: Any) -> Iterator[Served]:
    """A server on which ada administers namespace prod and bob reads it."""
    rights = {"ada": ["read", "append", "admin"], "bob": ["read"]}
    clients = [
        {
            "name": name,
            "token_sha256": hashlib.sha256(TOKENS[name].encode()).hexdigest(),
            "rights": [{"logs": ["shiplog/prod"], "actions": actions}],
        }
        for name, actions in rights.items()
    ]
    (folder / "auth.json").write_text(json.dumps({"version": 1, "clients": clients, "anonymous": []}))
    (folder / "config.json").write_text(json.dumps({"version": 1, "server": settings}))
    files = ("--auth", str(folder / "auth.json"), "--config", str(folder / "config.json"))
    with serving(folder, *files) as server:
        yield server


def test_server_delivers_to_a_webhook(tmp_path, endpoint):
    with served(tmp_path, webhooks_private=True) as server:
        asked = {"url": endpoint.url + "?key=geheim", "log": "shiplog/prod", "allow_private": True}
        made = server("POST", "/webhooks", asked, headers=ADA)
        assert made.status == 201 and len(made.json["secret"]) == 64
        hook = made.json["id"]
        assert server("POST", "/shiplog/prod/events", EVENT, headers=ADA).status == 201
        until(lambda: len(endpoint.got) == 1)
        headers, body = endpoint.got[0]
        stamp = int(headers["x-gatos-timestamp"])
        assert check_signature(made.json["secret"].encode(), headers, body, stamp)

        def attempts() -> list[Any]:
            return list(server("GET", f"/webhooks/{hook}/deliveries", headers=ADA).json["deliveries"])

        until(lambda: len(attempts()) == 1)
        assert attempts()[0]["status"] == 200
        for path in ("/webhooks", f"/webhooks/{hook}/deliveries"):
            for who in (ADA, BOB):
                answer = server("GET", path, headers=who)
                assert answer.status == 200 and made.json["secret"].encode() not in answer.body
                assert (b"geheim" in answer.body) == (who is ADA and path == "/webhooks")
        assert server("DELETE", f"/webhooks/{hook}", headers=BOB).status == 403
        assert server("DELETE", f"/webhooks/{hook}", headers=ADA).json == {"removed": hook}
        assert server("GET", "/webhooks", headers=ADA).json == {"webhooks": []}
        assert server("GET", f"/webhooks/{hook}/deliveries", headers=ADA).code == "NotFound"
        assert server.stop() == 0
    audit = call(tmp_path, "ledger", "read", "--channel", "server.audit", "--json").stdout
    assert b"webhook.add" in audit and b"webhook.remove" in audit and b"geheim" not in audit


def test_dead_letters_are_delivered_again(tmp_path, endpoint):
    """Only for those with the right admin; the act is in the audit channel before it takes place."""
    with served(tmp_path, webhooks_private=True) as server:
        asked = {"url": endpoint.url, "log": "shiplog/prod", "allow_private": True}
        hook = server("POST", "/webhooks", asked, headers=ADA).json["id"]
        ulid = server("POST", "/shiplog/prod/events", EVENT, headers=ADA).json["ulid"]
        until(lambda: len(endpoint.got) == 1)
        hooks = Webhooks(tmp_path / "log.git/ropewalk", Disk(), lambda: 0)
        hooks.bury(hook, ulid, {"attempts": 5, "status": 503, "detail": "Service Unavailable"})
        replay = f"/webhooks/{hook}/replay"
        assert server("POST", replay, {}, headers=BOB).status == 403
        assert server("POST", replay, {}).status == 401
        for wrong in ({"ulid": ulid}, {"ulids": ulid}, {"ulids": [1]}, [ulid]):
            assert server("POST", replay, wrong, headers=ADA).status == 400, wrong
        assert server("POST", replay, {"ulids": ["0" * 26]}, headers=ADA).status == 404
        assert len(hooks.dead(hook)) == 1
        assert server("POST", replay, {"ulids": [ulid, ulid]}, headers=ADA).json == {"replayed": [ulid]}
        until(lambda: len(endpoint.got) == 2)
        assert hooks.dead(hook) == [] and endpoint.deliveries() == [ulid, ulid]
        assert server("POST", replay, {}, headers=ADA).json == {"replayed": []}
        assert server.stop() == 0
    with open_channel(tmp_path / "log.git/ropewalk", "server.audit") as reading:
        acts = [str(json.loads(raw)["event_type"]) for block in reading.blocks() for raw in block.envelopes]
    assert sum(act.endswith("webhook.replay") for act in acts) == 3


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"allow_private": True}, 403, "public addresses only"),
        ({"log": "shiplog/other"}, 403, "may not admin"),
        ({"log": "ledger/audit"}, 403, "may not admin"),
        ({"url": "file:///etc/passwd"}, 400, "http:// or https://"),
        ({"url": "https://user:word@ci.example/"}, 400, "without credentials"),
        ({"secret": "short"}, 400, "secret must be"),
        ({"format": "xml"}, 400, "format must be"),
        ({"ordered": 1}, 400, "must be a boolean"),
        ({"more": "x"}, 400, "the body must have"),
    ],
)
def test_webhooks_that_are_refused(refusing, change, status, words):
    asked = {"url": "https://ci.example/hook", "log": "shiplog/prod", **change}
    answer = refusing("POST", "/webhooks", asked, headers=ADA)
    assert (answer.status, words in answer.json["detail"]) == (status, True), answer
    assert "short" not in answer.json["detail"]
    assert refusing("GET", "/webhooks", headers=ADA).json == {"webhooks": []}


@pytest.fixture(scope="module")
def refusing(tmp_path_factory) -> Iterator[Served]:
    with served(tmp_path_factory.mktemp("refusing")) as server:
        yield server


def test_readers_and_strangers_add_no_webhook(refusing):
    asked = {"url": "https://ci.example/hook", "log": "shiplog/prod"}
    assert refusing("POST", "/webhooks", asked, headers=BOB).status == 403
    assert refusing("POST", "/webhooks", asked).status == 401


def test_bridges_are_listed_to_readers_of_their_logs(refusing):
    assert refusing("POST", "/shiplog/prod/events", EVENT, headers=ADA).status == 201
    with open_repository(refusing.folder / "log.git") as log:
        log.append("other", EVENT)
        for source, target in (("ns:prod", "topic:t"), ("ns:other", "topic:u")):
            mirror(log, source, target)
        Progress.of(log, "nats", "shiplog/prod", "nats://10.0.0.1:4222/jobs").write(position="7")
    (row,) = refusing("GET", "/bridges", headers=BOB).json["bridges"]  # bob may read neither topic
    assert (row["kind"], row["lag"], row["position"]) == ("nats", 1, "7")
    assert refusing("GET", "/bridges").json == {"bridges": []}
    text = refusing("GET", "/metrics", headers=BOB).body.decode()
    named = 'kind="mirror",source="shiplog/prod",target="messages/t"'
    assert f"ropewalk_bridge_lag_events{{{named}}} 0.0" in text
    assert f"ropewalk_bridge_failing{{{named}}} 0.0" in text
