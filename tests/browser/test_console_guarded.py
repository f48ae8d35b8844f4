"""The console against hostile names and notes, without a network, and with few rights, in a real Chromium."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from ropewalk.errors import Quarantined
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.remote.sync_client import connect_channel
from tests.browser.chromium import Page, browser
from tests.browser.console_data import MARKUP
from tests.browser.test_console import (
    WIDE,
    append,
    data,
    drop,
    pages,
    press_button,
    rows,
    server,
    shows,
    state,
    tab,
    text,
)
from tests.browser.test_console import pytestmark as pytestmark
from tests.interop.test_js_client import channel_with_statements, with_wrong_keys
from tests.serving import Served, call, serving
from tests.unit.ledger.certifying import Authority
from tests.unit.ledger.making import NODE
from tests.unit.ledger.test_policy_rotation import OLD
from tests.waiting import until

__all__ = ["data", "server", "tab"]
HOSTILE = "<img src=x onerror=document.title='run'>\u202e"
TOKEN = "t" * 32
OTHERS = ("demo.audit", "demo.metrics", "com.example.notes", "jobs/pending")


def is_inert(tab: Page) -> bool:
    """Return whether no text of a log became markup."""
    made = tab.ask("document.querySelectorAll('main img, main script, .top img, footer img').length")
    return bool(made == 0 and tab.ask("document.title") != "run")


def guarded(folder: Path, name: str, *rights: dict[str, Any]) -> str:
    """Write an auth file with one client; return its path."""
    client = {"name": name, "token_sha256": hashlib.sha256(TOKEN.encode()).hexdigest(), "rights": rights}
    (folder / "auth.json").write_text(json.dumps({"version": 1, "clients": [client], "anonymous": []}))
    (folder / "auth.json").chmod(0o600)
    return str(folder / "auth.json")


def sign_in(tab: Page, url: str) -> None:
    tab.open(url + "/", WIDE)
    until(lambda: tab.ask("document.querySelector('dialog[open] input[type=password]') !== null"))
    tab.ask("document.querySelector('dialog[open] input').focus()")
    tab.type(TOKEN)
    tab.press("Enter")
    until(lambda: tab.ask("document.querySelector('dialog[open]') === null"))


@pytest.mark.slow
def test_hostile_notes_and_names_are_only_text(tab: Page, tmp_path: Path):
    """The captured output of a command, the name of a client, of a consumer group and of a rule."""
    assert call(tmp_path, "init", str(tmp_path / "log.git")).returncode == 0
    assert call(tmp_path, "shiplog", "run", "--ns", "prod", "--", "printf", "%s", MARKUP).returncode == 0
    rule = {"id": MARKUP, "name": MARKUP, "version": 1, "kind": "schema", "decision": "deny"}
    rule |= {"schema": {"title": MARKUP, "type": "object"}}
    (tmp_path / "policy.json").write_text(json.dumps({"version": 1, "name": MARKUP, "rules": [rule]}))
    made = call(tmp_path, "ledger", "create", "--channel", "audit", "--policy", str(tmp_path / "policy.json"))
    assert made.returncode == 0, made.stderr
    assert call(tmp_path, "key", "new", HOSTILE).returncode != 0  # names of keys are file names
    everything = {"logs": ["**"], "actions": ["read", "append", "checkpoint", "admin"]}
    with serving(tmp_path, "--auth", guarded(tmp_path, HOSTILE, everything)) as server:
        bearer = {"Authorization": f"Bearer {TOKEN}"}
        ulid = server("GET", "/history?log=shiplog/prod", headers=bearer).json["events"][0]["ulid"]
        sign_in(tab, server.facts["url"])
        until(lambda: "signed in as <img" in text(tab, ".side") and "\\u202e" in text(tab, ".side"))
        tab.errors.clear()
        tab.open(f"{server.facts['url']}/logs/shiplog/prod?at={ulid}", WIDE)
        until(lambda: "<img src=x" in text(tab, "pre.output"))
        assert is_inert(tab)
        tab.open(f"{server.facts['url']}/ledger/audit?rule={quote(MARKUP)}", WIDE)
        until(lambda: text(tab).count("<img src=x") > 3)
        assert is_inert(tab)
        assert [each for each in tab.errors if "Failed to load resource" not in each] == []
        tab.ask("sessionStorage.clear()")


@pytest.mark.slow
def test_hostile_certificates_are_only_text(tmp_path: Path):
    """Peers in quarantine are named by the subject of their certificate, whatever it is."""
    pki = Authority(tmp_path)
    own = pki.files("server")
    trust = '{"block_signers":[],"bundle_signers":[],"policy_hash":null,"roots":[],"version":1}'
    (tmp_path / "trust.json").write_text(trust)
    assert call(tmp_path, "init", str(tmp_path / "log.git")).returncode == 0
    assert call(tmp_path, "ledger", "create", "--channel", "audit").returncode == 0
    options = (
        "--tls-cert", str(own.certificate), "--tls-key", str(own.key), "--client-ca", str(own.roots),
        "--grpc", "127.0.0.1:0", "--peer-trust", "trust.json",
    )  # fmt: skip
    with serving(tmp_path, *options) as server, browser() as tab:
        tab.call("Security.setIgnoreCertificateErrors", ignore=True)
        tab.open(f"{server.facts['url']}/ledger", WIDE)
        shows(tab, "grpc://127.0.0.1", "none in quarantine")
        for name in ("ada", HOSTILE):
            with pytest.raises(Quarantined):
                connect_channel(server.facts["grpc"], "audit", files=pki.files(name))
        shows(tab, "2 in quarantine", "it carries no report of hardware", "audit", "CN=ada", "img src")
        assert is_inert(tab)


@pytest.mark.slow
def test_page_goes_on_after_a_lost_network(tab: Page, tmp_path: Path):
    """Without a network every page says so and keeps its rows; nothing is ever asked of another host."""
    with serving(tmp_path) as server:
        append(server, "notes", {"n": 1})
        tab.leave()
        tab.open(server.facts["url"] + "/logs/shiplog/notes", WIDE)
        until(lambda: state(tab) == "live" and len(rows(tab)) == 1)
        lost = {"latency": 0, "downloadThroughput": -1, "uploadThroughput": -1}
        tab.call("Network.emulateNetworkConditions", offline=True, **lost)
        try:
            shows(tab, "The server does not answer")
            assert len(rows(tab)) == 1
            for path in ("/", "/ledger", "/consumers", "/verify", "/logs"):
                tab.ask(f"document.querySelector('.nav a[href=\"{path}\"]').click()")
                until(lambda path=path: tab.ask("location.pathname").startswith(path))  # type: ignore[misc]
                shows(tab, "The server does not answer")
            append(server, "notes", {"n": 2})
        finally:
            tab.call("Network.emulateNetworkConditions", offline=False, **lost)
        until(lambda: len(rows(tab)) == 2 and state(tab) == "live")
        until(lambda: "The server does not answer" not in text(tab))
        own = (server.facts["url"], server.facts["url"].replace("http", "ws"), "data:")
        assert [each for each in tab.requests if not each.startswith(own)] == []


@pytest.mark.slow
def test_few_rights_show_few_logs(tab: Page, data: Path, server: Served, tmp_path: Path):
    """On every page a reader of one log sees that log, learns no other name, and is offered no act."""
    right = {"logs": ["shiplog/prod"], "actions": ["read"]}
    auth = guarded(tmp_path, "ada", right)
    everything = pages(server)
    with serving(data, "--auth", auth, "--warehouse", str(data / "tables")) as few:
        url = few.facts["url"]
        sign_in(tab, url)
        shows(tab, "prod", "in 1 logs")
        assert TOKEN not in tab.ask("location.href + document.documentElement.innerHTML")
        shown = {
            "overview": "prod", "logs": "deployment.success", "messages": "may not read",
            "envelopes": "may not read", "deployments": "billing", "ledger": "There is no channel yet",
            "channel": "may not read", "block": "may not read", "envelope": "may not read",
            "gossip": "may not read", "consumers": "dashboard", "pipeline": "shows no warehouse",
            "verify": "Drop files here", "diff": "These deployments are not in the log",
        }  # fmt: skip
        assert shown.keys() == everything.keys()
        for name, (path, _) in everything.items():
            tab.open(url + path, WIDE)
            shows(tab, shown[name])
            asked = path + text(tab, "h1")  # what the address names is repeated
            said = text(tab, "body")
            assert [each for each in OTHERS if each in said and each not in asked] == [], name
            assert tab.ask("document.querySelectorAll('main button.danger').length") == 0, name
        tab.ask("sessionStorage.clear()")


@pytest.mark.slow
def test_forged_rotation_fails_in_the_drop_zone(tab: Page, server: Served, tmp_path: Path):
    """Under the first key and the first policy, a proof holds after rotations and a promotion; a forged one fails."""
    proof = channel_with_statements(tmp_path)[-1]
    files = {"proof.json": proof, "forged.json": with_wrong_keys(proof)[2]}
    files["trust.json"] = Trust((NODE.public,), (NODE.public,), OLD.hash).to_bytes()
    for name, raw in files.items():
        (tmp_path / name).write_bytes(raw)
    tab.open(server.facts["url"] + "/verify", WIDE)
    shows(tab, "Drop files here")
    drop(tab, tmp_path / "trust.json")
    shows(tab, "Signers are judged by trust.json")
    drop(tab, tmp_path / "proof.json")
    shows(tab, "it replaced a key that is trusted to seal blocks", "which follows")
    assert tab.ask("document.querySelectorAll('main .card > header .badge.good').length") == 1
    drop(tab, tmp_path / "forged.json")
    until(lambda: tab.ask("document.querySelectorAll('.steps .failed').length") >= 1)
    assert tab.ask("document.querySelectorAll('main .card > header .badge.bad').length") == 1


@pytest.mark.slow
def test_links_lead_to_version_person_and_proof(tab: Page, server: Served):
    """What a newcomer does: read the first page, follow its links, and have the log verified."""
    tab.open(server.facts["url"] + "/", WIDE)
    row = "[...document.querySelectorAll('tr')].find((row) => /^billing\\s+prod/.test(row.innerText))"
    until(lambda: tab.ask(f"Boolean({row})"))
    service, env, version, person, _ = tab.ask(f"{row}.innerText").split("\t")
    tab.ask(f"{row}.querySelector('code').closest('a').click()")
    shows(tab, service, env, version, person, "Content id recomputed in your browser", selector=".detail")
    press_button(tab, "Verify log")
    shows(tab, "passed", "149 commits, each on the one before", selector="dialog[open]")
