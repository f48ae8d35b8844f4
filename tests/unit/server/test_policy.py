"""The policy of the repository filters what clients read by requests as it filters streams."""

from __future__ import annotations

import asyncio
import json
from base64 import b64decode
from typing import Any

from tests.asgi import Client, served

ADA = {"type": "signup", "payload": {"id": 7, "user": {"email": "ada@example.test", "name": "Ada"}}}
HIDES = {
    "privacy": {"rules": [{"select": "**.email", "action": "redact"}]},
    "stream": {"topics": {"deny": ["payroll.**", "shiplog.secret"]}},
}
READS = (
    "/shiplog/{0}/events",
    "/shiplog/{0}/events/{1}",
    "/shiplog/tail?ns={0}",
    "/messages?topic={0}",
    "/history?log=shiplog/{0}",
    "/history?log=messages/{0}",
)


def with_policy(folder: Any, act: Any) -> None:
    """Record events, then give the repository a policy that hides some of them."""

    async def main() -> None:
        async with served(folder) as client:
            ulid = ""
            for log in ("orders", "secret"):
                ulid = (await client("POST", f"/shiplog/{log}/events", ADA)).json["ulid"]
            for topic in ("orders", "payroll/march"):
                await client("POST", f"/messages?topic={topic}", ADA)
            path = client.node.place.home / "policy.json"
            path.write_text(json.dumps(HIDES))
            await act(client, ulid, path)

    asyncio.run(main())


def test_logs_that_the_policy_hides_are_denied(tmp_path):
    async def act(client: Client, ulid: str, _path: Any) -> None:
        for path in READS[:3]:
            found = await client("GET", path.format("secret", ulid))
            assert (found.status, found.code) == (403, "PolicyDenied"), path
        for path in ("/messages?topic=payroll/march", "/history?log=messages/payroll/march"):
            found = await client("GET", path)
            assert (found.status, found.code) == (403, "PolicyDenied"), path
        assert (await client("GET", "/deployments?ns=secret")).status == 403
        logs = {each["log"] for each in (await client("GET", "/overview")).json["logs"]}
        assert logs == {"shiplog/orders", "messages/orders"}
        # Writers are not readers.
        assert (await client("POST", "/shiplog/secret/events", ADA)).status == 201
        assert (await client("GET", "/shiplog/orders/events")).status == 200

    with_policy(tmp_path, act)


def test_private_members_are_left_out_of_reads(tmp_path):
    async def act(client: Client, _ulid: str, path: Any) -> None:
        page = await client("GET", "/shiplog/orders/events")
        (row,) = page.json["events"]
        for target in READS:
            found = await client("GET", target.format("orders", row["ulid"]))
            text = (
                found.body + b64decode(found.json["messages"][0]["canonical_json"])
                if "messages?" in target
                else found.body
            )
            assert found.status == 200 and b"Ada" in text and b"ada@" not in text, target
            assert b'"withheld":true' in found.body, target
        assert row["envelope"]["payload"] == {"id": 7, "user": {"name": "Ada"}}
        searched = await client("GET", "/history?log=shiplog/orders&find=ada@example")
        assert searched.json["events"] == []
        path.unlink()
        again = await client("GET", "/shiplog/orders/events", headers={"if-none-match": page.headers["etag"]})
        assert again.status == 200 and b"ada@" in again.body and b"withheld" not in again.body

    with_policy(tmp_path, act)


def test_unreadable_policy_shows_nothing(tmp_path):
    async def act(client: Client, _ulid: str, path: Any) -> None:
        path.write_text("{")
        for target in READS:
            found = await client("GET", target.format("orders", "01ARZ3NDEKTSV4RRFFQ69G5FAV"))
            assert (found.status, found.headers["retry-after"]) == (503, "1"), target
        assert (await client("GET", "/overview")).status == 503

    with_policy(tmp_path, act)


def test_policy_holds_for_transports_of_channels(tmp_path):
    async def act(client: Client, _ulid: str, path: Any) -> None:
        from ropewalk.ledger.remote.conversation import Peer
        from ropewalk.ledger.remote.negotiate import FEATURES
        from ropewalk.server.ledger_transports import rights_of

        assert "read" in rights_of(client.node, Peer("tcp:1"), "audit")
        path.write_text('{"stream":{"topics":{"deny":["ledger.audit"]}}}')
        assert "read" not in rights_of(client.node, Peer("tcp:1"), "audit")
        found = await client("GET", "/channels/audit/blocks")
        assert found.code == "PolicyDenied"
        path.write_text("{")
        assert rights_of(client.node, Peer("tcp:1"), "audit") == FEATURES - {"read"}  # appends go on

    with_policy(tmp_path, act)
