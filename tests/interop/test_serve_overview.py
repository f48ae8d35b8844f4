"""The rows of the HTTP interface that the console reads: overview, history, deployments, verdicts, warehouse."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa
import pytest
from tests.interop.test_serve import envelopes
from tests.serving import Served, call, serving

from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.pipeline.tables.warehouse import Warehouse

STAGES = (("success", "web:1"), ("failed", "web:2"), ("success", "web:3"))


def fill(folder: Any) -> None:
    """Write three deployments of one service."""
    with open_repository(folder / "log.git") as log:
        for status, artifact in STAGES:
            trailer = {"env": "live", "status": status, "what": {"service": "web", "artifact": artifact}}
            trailer |= {"who": {"name": f"Person {artifact}"}}
            event = {"type": f"deployment.{status}", "payload": {"service": "web", "n": [artifact]}}
            log.append_all("deploy", [Draft(event, trailer)])


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    folder = tmp_path_factory.mktemp("overview")
    store = Warehouse(folder / "tables").make()
    store.note("health", "health-1", pa.table({"channel": ["audit"], "age": [3]}))
    with serving(folder, "--warehouse", str(folder / "tables")) as found:
        fill(folder)
        yield found


def refused(server: Served, query: str) -> str:
    answer = server("POST", "/warehouse/sql", {"query": query})
    assert answer.status == 400 and answer.code == "InvalidInput", answer
    return str(answer.json["detail"])


def test_overview_lists_logs_with_rates(server: Served):
    found = server("GET", "/overview").json
    (log,) = [each for each in found["logs"] if each["log"] == "shiplog/deploy"]
    assert log["entries"] == 3 and sum(log["rates"]) == 3 and log["newest_ms"] <= found["now_ms"]
    assert found["identity"]["name"] == "local" and found["warehouse"] is True and found["fault"] is None


def test_history_pages_from_the_newest(server: Served):
    first = server("GET", "/history?log=shiplog/deploy&limit=2").json
    types = [each["envelope"]["type"] for each in first["events"]]
    assert types == ["deployment.success", "deployment.failed"]
    second = server("GET", f"/history?log=shiplog/deploy&before={first['next_before']}").json
    assert [each["height"] for each in second["events"]] == [0] and second["next_before"] is None
    assert first["events"][1]["parents"] == [second["events"][0]["commit"]]
    assert first["events"][0]["trailer"]["what"]["artifact"] == "web:3"


@pytest.mark.parametrize(
    ("asked", "heights"),
    [
        ("type=deployment.f*", [1]),
        ("type=deployment", []),
        ("path=n.0=web:3", [2]),
        ("path=n.7", []),
        ("find=WEB:1", [0]),
        ("author=no-such-person", []),
        ("author=person%20web:2", [1]),
        ("path=service=web", [2, 1, 0]),
    ],
)
def test_history_filters(server: Served, asked: str, heights: list[int]):
    found = server("GET", f"/history?log=shiplog/deploy&{asked}").json
    assert [each["height"] for each in found["events"]] == heights and found["scanned"] == 3


def test_deployments_name_what_is_in_effect(server: Served):
    found = server("GET", "/deployments").json
    rows = found["deployments"]
    assert [row["artifact"] for row in rows] == ["web:3", "web:2", "web:1"]
    assert found["current"] == [rows[0]["ulid"]] and rows[0]["env"] == "live" and rows[0]["who"]


def test_envelope_verdict_and_channel_keys(server: Served):
    receipt = server("POST", "/channels/audit/envelopes", envelopes(server.folder, 1)[0]).json
    report = server("GET", f"/channels/audit/envelopes/{receipt['envelope_id']}/verdict").json
    assert report["verdict"] == "passed"
    assert {"envelope_signature", "merkle_path", "block_signer"} <= {each["name"] for each in report["steps"]}
    (key,) = server("GET", "/channels/audit/keys").json["keys"]
    assert key["current"] and key["did"].startswith("did:key:")


def test_warehouse_answers_select_only(server: Served):
    assert server("GET", "/warehouse").json == {"tables": [], "noted": ["health"], "batches": [], "runs": []}
    answer = server("POST", "/warehouse/sql", {"query": "SELECT channel, age FROM health", "limit": 1}).json
    assert answer == {"columns": ["channel", "age"], "rows": [["audit", 3]], "truncated": False}
    many = server("POST", "/warehouse/sql", {"query": "SELECT * FROM range(9)", "limit": 2}).json
    assert len(many["rows"]) == 2 and many["truncated"] is True


@pytest.mark.parametrize(
    "query",
    [
        "SELECT * FROM read_text('/etc/hostname')",
        "SELECT * FROM '/etc/hostname'",
        "SELECT * FROM glob('/*')",
        "COPY health TO '/tmp/x.csv'",
        "INSTALL httpfs",
        "SET memory_limit = '8GB'",
        "SELECT 1; SELECT 2",
        "SELECT * FROM read_parquet('http://127.0.0.1:1/x.parquet')",
        "ATTACH '/tmp/x.db'",
        "CREATE TABLE t AS SELECT 1",
    ],
)
def test_sql_reaches_no_file_and_no_network(server: Served, query: str):
    assert refused(server, query)


def test_sql_is_bounded_in_time_and_memory(server: Served):
    text = refused(server, "SELECT list(a.range || b.range) FROM range(1000000) a, range(1000000) b")
    assert "Memory" in text or "took more than" in text
    assert server("POST", "/warehouse/sql", {"query": "SELECT 1", "limit": 10_001}).status == 400


def test_rights_decide_what_is_listed(tmp_path):
    with serving(tmp_path):
        fill(tmp_path)
    auth = str(tmp_path / "log.git" / "ropewalk" / "auth.json")
    tokens = {}
    for name, right in (
        ("ada", "shiplog/other:read"),
        ("bob", "warehouse:read"),
        ("cleo", "shiplog/deploy:read"),
        ("dora", "shiplog/other:admin"),
    ):
        made = call(tmp_path, "auth", "add", name, "--right", right)
        assert made.returncode == 0, made.stderr
        tokens[name] = (
            json.loads(made.stdout)["token"] if made.stdout.startswith(b"{") else made.stdout.decode().strip()
        )
    Warehouse(tmp_path / "tables").make()
    with serving(tmp_path, "--auth", auth, "--warehouse", str(tmp_path / "tables")) as server:

        def ask(name: str, path: str) -> Any:
            return server("GET", path, headers={"Authorization": f"Bearer {tokens[name]}"})

        logs = {name: [each["log"] for each in ask(name, "/overview").json["logs"]] for name in tokens}
        assert logs == {"ada": [], "bob": [], "cleo": ["shiplog/deploy"], "dora": []}
        assert [ask(name, "/warehouse").status for name in tokens] == [403, 200, 403, 403]
        assert ask("ada", "/deployments").json == {"deployments": [], "current": []}
        assert ask("ada", "/deployments?ns=deploy").status == 403
        assert ask("ada", "/history?log=shiplog/deploy").status == 403
        assert len(ask("cleo", "/deployments").json["deployments"]) == 3
        assert server("GET", "/history?log=shiplog/deploy").status == 401
