"""The console in a real Chromium: every page with real data, live, by keyboard, offline, and with hostile texts."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest

from ropewalk.bridge.mirror import mirror
from ropewalk.bridge.webhooks.hooks import Webhook
from ropewalk.bridge.webhooks.run import WebhookRunner
from ropewalk.errors import OutOfOrder
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import MESSAGES
from ropewalk.gitlog.repository.opening import open_repository
from tests.browser.chromium import Page, browser, find
from tests.browser.console_data import MARKUP, deployed, make_data
from tests.interop.test_serve import envelopes
from tests.serving import Served, call, serving
from tests.tools import install_npm_packages, needs, needs_that
from tests.waiting import until

pytestmark = [
    pytest.mark.timeout(600),
    needs_that(find(), "no Chromium here"),
]
ROOT = Path(__file__).resolve().parents[2]
BUILT = ROOT / "src/ropewalk/server/console"
WIDE = 1440


@pytest.fixture(scope="module")
def tab() -> Iterator[Page]:
    with browser() as found:
        yield found


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("console")
    make_data(folder)
    (folder / "demo.git").rename(folder / "log.git")
    return folder


@pytest.fixture(scope="module")
def server(data: Path) -> Iterator[Served]:
    with serving(data, "--warehouse", str(data / "tables"), limit_s=3_600) as found:
        yield found


def text(tab: Page, selector: str = "main") -> str:
    return str(tab.ask(f"document.querySelector({json.dumps(selector)})?.innerText ?? ''"))


def shows(tab: Page, *words: str, selector: str = "main") -> None:
    """Wait until the page shows all words."""
    until(lambda: all(word in text(tab, selector) for word in words))


def state(tab: Page) -> str:
    return text(tab, "#state").strip()


def rows(tab: Page) -> list[str]:
    script = "JSON.stringify([...document.querySelectorAll('.vt-body .vt-row')].map((row) => row.innerText))"
    found: list[str] = json.loads(tab.ask(script))
    return found


def append(server: Served, ns: str, *payloads: Any) -> list[str]:
    body = [{"type": "note.added", "payload": each} for each in payloads]
    answer = server("POST", f"/shiplog/{ns}/events", body)
    assert answer.status == 201, answer
    return [each["ulid"] for each in answer.json["receipts"]]


def envelope_ids(server: Served, channel: str, height: int) -> list[str]:
    found = server("GET", f"/channels/{channel}/blocks?from={height}&to={height}").json
    ids: list[str] = found["blocks"][0]["envelope_ids"]
    return ids


def pages(server: Served) -> dict[str, tuple[str, tuple[str, ...]]]:
    """Each page, and words that it must show."""
    audit = envelope_ids(server, "demo.audit", 1)[5]
    deployments = server("GET", "/deployments").json["deployments"]
    one, two = [each["ulid"] for each in deployments if each["service"] == "web"][:2]
    return {
        "overview": ("/", ("Running now", "demo.audit", "com.example.notes", "jobs/pending")),
        "logs": ("/logs/shiplog/prod", ("shiplog/prod", "deployment.success", "Verify log")),
        "messages": ("/logs/messages/jobs/pending", ("job.made",)),
        "envelopes": ("/logs/ledger/demo.metrics", ("latency.measured",)),
        "deployments": ("/deployments", ("What runs where", "staging", "billing", "Change failure rate")),
        "diff": (f"/deployments/diff?a={two}&b={one}", ("members differ", "content_id")),
        "ledger": ("/ledger", ("demo.audit", "demo.metrics")),
        "channel": ("/ledger/demo.audit", ("Key history", "seals now", "block signatures")),
        "block": ("/ledger/demo.audit/1", ("Merkle root", "deploy.result")),
        "envelope": (
            f"/ledger/demo.audit/envelope/{audit}",
            ("The proof holds.", "verdict: passed", "merkle path"),
        ),
        "gossip": ("/gossip/com.example.notes", ("60", "Graph", "head", "No peer is connected")),
        "consumers": ("/consumers", ("dashboard", "behind", "at the head")),
        "pipeline": ("/pipeline?sql=SELECT+*+FROM+health", ("Health of evidence", "3 rows", "ingest")),
        "verify": ("/verify", ("Drop files here",)),
    }


def test_console_shows_logs_and_what_arrives(tab: Page, server: Served):
    tab.leave()
    tab.errors.clear()
    tab.open(server.facts["url"] + "/", WIDE)
    shows(tab, "Overview", "demo.audit", "Running now")
    append(server, "live", {"n": 1})
    tab.open(server.facts["url"] + "/logs/shiplog/live", WIDE)
    until(lambda: state(tab) == "live" and len(rows(tab)) == 1)
    append(server, "live", {"text": MARKUP, "mark": "gnp.\u202eexe"})
    until(lambda: len(rows(tab)) == 2)
    assert "<img src=x" in rows(tab)[0] and "\\u202e" in rows(tab)[0]
    assert tab.ask("document.querySelectorAll('main img, main script').length") == 0
    assert [each for each in tab.requests if not each.startswith((server.facts["url"], "data:"))] == []
    assert tab.errors == [] and "run" not in tab.ask("document.title")


@pytest.mark.slow
def test_every_page_shows_its_data(tab: Page, server: Served):
    tab.leave()
    tab.errors.clear()
    for path, words in pages(server).values():
        tab.open(server.facts["url"] + path, WIDE)
        shows(tab, *words)
        tab.reload()
        shows(tab, *words)
    assert tab.errors == []
    assert [each for each in tab.requests if not each.startswith((server.facts["url"], "data:"))] == []


@pytest.mark.slow
@pytest.mark.parametrize("width", [360, 768, 3840])
def test_no_page_is_wider_than_the_window(tab: Page, server: Served, width: int):
    for path, words in pages(server).values():
        tab.open(server.facts["url"] + path, width)
        shows(tab, words[0])
        assert tab.ask("document.documentElement.scrollWidth") <= width, path


@pytest.mark.slow
def test_filters_live_in_the_address(tab: Page, server: Served):
    tab.open(server.facts["url"] + "/logs/shiplog/prod", WIDE)
    until(lambda: len(rows(tab)) > 10)
    tab.ask("document.getElementById('filter-type').focus()")
    tab.type("deployment.f*")
    tab.press("Enter")
    until(lambda: bool(rows(tab)) and all("deployment.failed" in each for each in rows(tab)))
    assert "type=deployment.f*" in tab.ask("decodeURIComponent(location.search)")
    tab.reload()
    until(lambda: bool(rows(tab)) and all("deployment.failed" in each for each in rows(tab)))
    tab.click(".row-link")
    until(lambda: "Content id recomputed in your browser" in text(tab, ".detail"))
    tab.ask("history.back()")
    until(lambda: tab.ask("location.search.includes('at=')") is False)
    until(lambda: tab.ask("document.querySelector('.detail') === null"))
    found = server("GET", "/history?log=shiplog/prod&limit=1").json["events"][0]
    moment = "2026-01-01T00:00:00.000Z"
    tab.open(f"{server.facts['url']}/logs/shiplog/prod?until={quote(moment)}&at={found['ulid']}", WIDE)
    shows(tab, "No entry fits these filters", "as of")


@pytest.mark.slow
def test_pause_keeps_rows_until_continued(tab: Page, server: Served):
    append(server, "pause", {"n": 0})
    tab.open(server.facts["url"] + "/logs/shiplog/pause", WIDE)
    until(lambda: state(tab) == "live" and len(rows(tab)) == 1)
    tab.press(" ")
    until(lambda: state(tab) == "paused")
    append(server, "pause", *({"n": n} for n in range(1, 6)))
    until(lambda: state(tab) == "paused, 5 waiting")
    assert len(rows(tab)) == 1
    tab.press(" ")
    until(lambda: len(rows(tab)) == 6 and state(tab) == "live")


@pytest.mark.slow
def test_keyboard_alone_reaches_an_event(tab: Page, server: Served):
    tab.open(server.facts["url"] + "/", WIDE)
    shows(tab, "demo.audit")
    tab.press("/")
    until(lambda: tab.ask("document.activeElement.id") == "find")
    tab.type("shiplog/prod")
    until(lambda: "shiplog/prod" in tab.ask("document.querySelector('.choices a .engine')?.title ?? ''"))
    tab.press("Enter")
    until(lambda: len(rows(tab)) > 10)

    def moves() -> bool:
        tab.press("j")  # keys that come before the rows listen are lost
        return bool(tab.ask("document.querySelectorAll('.vt-row[aria-selected=true]').length") == 1)

    until(moves)
    shows(tab, "Payload", selector=".detail")
    tab.press("?")
    until(
        lambda: tab.ask(
            "document.querySelector('dialog[open]')?.innerText.includes('Next or previous row') ?? false"
        )
    )
    tab.press("Escape")
    until(lambda: tab.ask("document.querySelector('dialog[open]') === null"))

    def leaves() -> bool:
        tab.press("4")  # a closed dialog keeps the focus until the next frame
        return bool(tab.ask("location.pathname") == "/ledger")

    until(leaves)
    for _ in range(30):
        tab.press("Tab")
        name = tab.ask(
            "((e) => e.getAttribute('aria-label') || e.innerText || e.placeholder)(document.activeElement)"
        )
        assert name, tab.ask("document.activeElement.outerHTML")


@pytest.mark.slow
def test_ten_thousand_events_stay_few_rows(tab: Page, data: Path, server: Served):
    with open_repository(data / "log.git") as log:
        for start in range(0, 10_000, 1_000):
            log.append_all("many", [Draft({"type": "n", "payload": {"n": start + n}}) for n in range(1_000)])
    tab.open(server.facts["url"] + "/logs/shiplog/many", WIDE)
    until(lambda: '"n":9999' in "".join(rows(tab)))

    def bottom() -> bool:
        tab.ask("(() => { const box = document.querySelector('.vt'); box.scrollTop = box.scrollHeight; })()")
        return '{"n":0}' in "".join(rows(tab))

    until(bottom)
    assert tab.ask("document.querySelectorAll('.vt-row').length") < 120
    shows(tab, "10,000 entries loaded, all there are")


@pytest.mark.slow
def test_hostile_texts_are_only_text(tab: Page, data: Path, server: Served):
    with open_repository(data / "log.git") as log:
        who = {"name": MARKUP}
        log.append_all("hostile", [deployed(MARKUP, MARKUP, who=who, why={"reason": MARKUP})])
    tab.errors.clear()
    ulid = server("GET", "/history?log=shiplog/hostile").json["events"][0]["ulid"]
    ways = (
        f"/logs/shiplog/hostile?at={ulid}",
        "/deployments",
        "/pipeline",
        f"/logs/shiplog/{quote(MARKUP, '')}",
        "/",
    )
    for path in (*ways, f"/deployments?service={quote(MARKUP)}"):
        tab.open(server.facts["url"] + path, WIDE)
        until(lambda: "<img src=x" in text(tab, "body"))
        assert tab.ask("document.querySelectorAll('main img, main script, .top img').length") == 0
        assert tab.ask("document.title") != "run"
    assert [each for each in tab.errors if "Failed to load resource" not in each] == []
    refused = "try { document.body.innerHTML = '<b>x</b>'; 'allowed' } catch (error) { error.name }"
    assert tab.ask(refused) == "TypeError"


@pytest.mark.slow
def test_blocks_lead_to_existing_neighbours(tab: Page, server: Served):
    """The newest block offers no block above it, until there is one."""
    around = "[...document.querySelectorAll('.head a.button')].map((each) => each.innerText).join()"
    for height, want in ((0, "Block 1"), (1, "Block 0")):
        tab.open(f"{server.facts['url']}/ledger/demo.audit/{height}", WIDE)
        shows(tab, f"Block {height} of demo.audit")
        until(lambda want=want: tab.ask(around) == want)  # type: ignore[misc]


@pytest.mark.slow
def test_chosen_event_is_in_view_on_a_phone(tab: Page, server: Served):
    """The list is above the event there: choosing one scrolls to it."""
    tab.open(server.facts["url"] + "/logs/shiplog/prod", 360)
    until(lambda: len(rows(tab)) > 10)
    tab.click(".row-link")
    shows(tab, "Payload", selector=".detail")
    top = "document.querySelector('.detail').getBoundingClientRect().top"
    until(lambda: 0 <= tab.ask(top) < 400)


def drop(tab: Page, *paths: Path) -> None:
    """Give files to the drop zone."""
    tab.call("DOM.enable")
    root = tab.call("DOM.getDocument")["root"]["nodeId"]
    node = tab.call("DOM.querySelector", nodeId=root, selector="input[type=file]")["nodeId"]
    tab.call("DOM.setFileInputFiles", nodeId=node, files=[str(each) for each in paths])


@pytest.mark.slow
def test_proof_and_bundle_verify_in_the_browser(tab: Page, data: Path, server: Served, tmp_path: Path):
    url = server.facts["url"]
    proof = server(
        "GET", f"/channels/demo.audit/envelopes/{envelope_ids(server, 'demo.audit', 1)[7]}/proof"
    ).body
    files = {"proof.json": proof, "bundle.tar.zst": server("GET", "/channels/demo.audit/bundle").body}
    files["checkpoint"] = server("GET", "/channels/demo.audit/checkpoint").body
    files["bent.json"] = proof.replace(b'"second":', b'"Second":')
    files["trust.json"] = server("GET", "/channels/demo.audit/trust").body
    for name, body in files.items():
        (tmp_path / name).write_bytes(body)

    tab.open(url + "/verify", WIDE)
    shows(tab, "Drop files here")
    drop(tab, tmp_path / "proof.json")
    shows(tab, "untrusted", "no key was given that you trust")
    drop(tab, tmp_path / "trust.json")
    shows(tab, "Signers are judged by trust.json")
    tab.requests.clear()
    drop(tab, *(tmp_path / each for each in ("proof.json", "bundle.tar.zst", "checkpoint")))
    until(lambda: tab.ask("document.querySelectorAll('main .card > header .badge.good').length") == 3)
    assert tab.ask("document.querySelectorAll('.merkle .root').length") == 2
    drop(tab, tmp_path / "bent.json")
    until(lambda: tab.ask("document.querySelectorAll('.steps .failed, .notice.bad').length") >= 1)
    assert [each for each in tab.requests if "/overview" not in each] == []


def press_button(tab: Page, name: str, inside: str = "main") -> None:
    """Click a button once it is there."""
    found = f"[...document.querySelectorAll({json.dumps(inside + ' button')})]"
    found += f".find((each) => each.innerText.trim() === {json.dumps(name)})"
    until(lambda: tab.ask(f"Boolean({found})"))
    tab.ask(f"{found}.click()")


@pytest.mark.slow
def test_lag_over_time_is_drawn(tab: Page, server: Served):
    """The server has the samples: a page that has just opened shows what was before it."""
    until(lambda: max(len(each["samples"]) for each in server("GET", "/consumer-lag").json["groups"]) > 1)
    tab.open(server.facts["url"] + "/consumers", WIDE)
    until(lambda: tab.ask("document.querySelectorAll('figure.chart canvas').length") == 1)
    label = "document.querySelector('figure.chart').getAttribute('aria-label')"
    assert "dashboard" in tab.ask(label)
    tab.click("a[href*='group=dashboard']")
    shows(tab, "one group", "All groups")
    tab.open(tab.ask("location.href"), WIDE)
    shows(tab, "one group", "dashboard")


@pytest.mark.slow
def test_consumer_reset_needs_its_name(tab: Page, data: Path, server: Served):
    with open_repository(data / "log.git") as log, log.consume("mine", "prod", 3) as events:
        assert sum(1 for _ in events) == 3
    tab.open(server.facts["url"] + "/consumers", WIDE)
    row = "[...document.querySelectorAll('tr')].find((row) => row.innerText.startsWith('mine'))"
    button = f"{row}?.querySelector('button.danger')"
    until(lambda: tab.ask(f"Boolean({button})"))
    tab.ask(f"{button}.click()")
    until(lambda: tab.ask("document.querySelector('dialog[open] .danger')?.disabled ?? false"))
    tab.ask("document.querySelector('dialog[open] input').focus()")
    tab.type("mine")
    until(lambda: tab.ask("document.querySelector('dialog[open] .danger').disabled") is False)
    tab.ask("document.querySelector('dialog[open] .danger').click()")
    until(lambda: "mine" not in [each["group"] for each in server("GET", "/consumers").json["consumers"]])


@pytest.mark.slow
def test_bridges_are_shown(tab: Page, data: Path, server: Served):
    """A mirror at the head, then behind, then refused with its reason."""
    with open_repository(data / "log.git") as log:
        append(server, "mirrored", {"n": 1})
        mirror(log, "ns:mirrored", "topic:copies")
        tab.open(server.facts["url"] + "/consumers", WIDE)
        rows = "[...document.querySelectorAll('[aria-label=Bridges] tr')]"
        row = rows + ".find((each) => each.innerText.includes('copies'))"
        shown = f"({row}?.innerText ?? '')"
        until(lambda: "at the head" in tab.ask(shown))
        (ulid,) = (each.ulid for each in log.events("mirrored"))
        assert "mirrored" in tab.ask(shown) and ulid in tab.ask(f"{row}.innerHTML")
        append(server, "mirrored", {"n": 2})
        until(lambda: "behind" in tab.ask(shown))
        log.append("copies", {"ns": "", "type": "t", "payload": {"text": MARKUP}}, layout=MESSAGES)
        with pytest.raises(OutOfOrder):
            mirror(log, "ns:mirrored", "topic:copies")
    until(lambda: "failing" in tab.ask(shown))
    assert "of ns:mirrored" in tab.ask(shown)
    assert tab.ask("document.title") != "run"


@pytest.mark.slow
def test_webhook_deliveries_are_shown(tab: Page, data: Path, server: Served):
    """Loopback is refused without --allow-private: every attempt fails, with its reason in the log."""
    hook = Webhook("00112233445566aa", "http://127.0.0.1:9/secret-path", "shiplog/hooked", "61" * 16)
    with open_repository(data / "log.git") as log:
        runner = WebhookRunner(log, now_ms=log.now_ms, chance=lambda: 0.5)
        runner.add(hook)
        dead = log.append("buried", {"type": "t", "payload": {}}).ulid
        runner.hooks.bury(hook.id, dead, {"attempts": 5, "status": 503, "detail": "Service Unavailable"})
    try:
        append(server, "hooked", {"n": 1})
        tab.open(server.facts["url"] + "/consumers", WIDE)
        shows(tab, "Webhooks", "http://127.0.0.1:9/…", "dead letters")
        tab.click("button[aria-label^='Deliveries of']")
        shows(tab, "Newest attempts", "no answer", "has no public address", "Dead letters", "503", dead[:8])
        assert "secret-path" not in tab.ask("document.body.innerText")
        press_button(tab, "Deliver 1 again…")
        until(lambda: "may have seen it before" in text(tab, "dialog[open]"))
        assert len(runner.hooks.dead(hook.id)) == 1
        press_button(tab, "Deliver again", "dialog[open]")
        shows(tab, "None: every event was delivered or is tried again.")
        assert runner.hooks.dead(hook.id) == []
    finally:
        runner.hooks.remove(hook.id)


@pytest.mark.slow
def test_server_that_comes_back_is_found_again(tab: Page, tmp_path: Path):
    with serving(tmp_path) as first:
        append(first, "notes", {"n": 1})
        port = str(first.port)
        tab.open(first.facts["url"] + "/logs/shiplog/notes", WIDE)
        until(lambda: state(tab) == "live" and len(rows(tab)) == 1)
    shows(tab, "The server does not answer")
    assert len(rows(tab)) == 1
    with serving(tmp_path, "--port", port) as second:
        append(second, "notes", {"n": 2})
        until(lambda: len(rows(tab)) == 2 and state(tab) == "live")
        until(lambda: "The server does not answer" not in text(tab))


@pytest.mark.slow
def test_parents_and_schemas_are_links(tab: Page, tmp_path: Path):
    """The parent of a git event and of a gossip message, the schema of the policy, and the shipped one."""
    disk = {"title": "A full disk", "type": "object", "required": ["n"]}
    rule = {"id": "form", "name": "payloads", "version": 1, "kind": "schema", "decision": "deny"}
    rule |= {"when": {"types": ["disk.*"]}, "schema": disk}
    (tmp_path / "policy.json").write_text(json.dumps({"version": 1, "rules": [rule]}))
    with serving(tmp_path) as server:
        made = [append(server, "notes", {"n": n})[0] for n in range(3)]
        made_it = call(
            tmp_path, "ledger", "create", "--channel", "disks", "--policy", str(tmp_path / "policy.json")
        )
        assert made_it.returncode == 0, made_it.stderr
        (envelope,) = envelopes(tmp_path, 1, "disks")
        answer = server("POST", "/channels/disks/envelopes", envelope)
        assert answer.status == 201, answer
        for text_of in ("one", "two"):
            said = {"payload": {"text": text_of}}
            assert server("POST", "/gossip/com.example.notes/messages", said).status == 201
        url = server.facts["url"]
        tab.open(f"{url}/logs/shiplog/notes?at={made[2]}", WIDE)
        parent = "document.querySelector('.detail .facts a[href*=\"%s\"]')"
        until(lambda: tab.ask(f"Boolean({parent % made[1]})"))
        tab.ask(f"{parent % made[1]}.click()")
        until(lambda: made[1] in tab.ask("location.search"))
        shows(tab, made[1][:20], "shiplog/event_envelope", selector=".detail")
        tab.click("a[href='/schemas/shiplog/event_envelope']")
        shows(tab, "Shiplog event envelope", "additionalProperties")
        tab.open(f"{url}/logs/ledger/disks?at={answer.json['envelope_id']}", WIDE)
        until(lambda: "A full disk" in text(tab, ".detail"))
        tab.click(".detail a[href*='rule=form']")
        shows(tab, "Policy", "form", "disk.*")
        until(lambda: tab.ask("document.querySelector('details[open] summary strong')?.innerText") == "form")
        found = server("GET", "/gossip/com.example.notes/messages").json["messages"]
        tab.open(f"{url}/logs/gossip/com.example.notes?at={found[1]['id']}", WIDE)
        until(lambda: tab.ask(f"Boolean({parent % found[0]['id']})"))
        tab.ask(f"{parent % found[0]['id']}.click()")
        until(lambda: found[0]["id"] in tab.ask("location.search"))
        shows(tab, "none: the first entry", selector=".detail")


@pytest.mark.slow
def test_other_origin_is_refused(tab: Page, data: Path, server: Served, tmp_path: Path):
    page = tmp_path / "evil.html"
    script = f"fetch('{server.facts['api']}/overview').then(() => tell('read'), () => tell('refused'))"
    page.write_text(f"<script>const tell = (text) => {{ document.title = text; }}; {script}</script>")
    tab.open(page, WIDE)
    until(lambda: tab.ask("document.title") == "refused")
    until(lambda: "may not use this server" in server.errors())


@pytest.mark.slow
@needs("npm")
def test_no_serious_accessibility_violation(tab: Page, server: Served):
    install_npm_packages(ROOT / "console", "axe-core")
    axe = (ROOT / "console/node_modules/axe-core/axe.min.js").read_text()
    faults: list[str] = []
    for name, (path, words) in pages(server).items():
        for dark in (False, True):
            tab.open(server.facts["url"] + path, WIDE, dark=dark)
            shows(tab, *words)
            tab.ask(axe + "; 0")
            keep = "(found) => { window.found = JSON.stringify(found.violations); }"
            tab.ask(f"axe.run({{resultTypes: ['violations']}}).then({keep}); 0")
            until(lambda: tab.ask("typeof window.found") == "string")
            for each in json.loads(tab.ask("window.found")):
                if each["impact"] in ("serious", "critical"):
                    nodes = [node["html"][:160] + str(node["target"]) for node in each["nodes"][:2]]
                    faults.append(f"{name} {'dark' if dark else 'light'}: {each['id']}: {nodes}")
    assert faults == []


@pytest.mark.slow
@needs("npm")
def test_rebuild_gives_the_same_bytes(tmp_path: Path):
    install_npm_packages(ROOT / "console", "vite")
    program = ROOT / "console/node_modules/.bin/vite"
    built = subprocess.run(
        [str(program), "build", "--outDir", str(tmp_path / "out"), "--emptyOutDir"],
        cwd=ROOT / "console",
        capture_output=True,
        text=True,
        check=False,
    )
    assert built.returncode == 0, built.stdout + built.stderr
    new, old = (
        {each.name: each.read_bytes() for each in folder.iterdir()} for folder in (tmp_path / "out", BUILT)
    )
    assert new.keys() == old.keys()
    assert [name for name in new if new[name] != old[name]] == []


def test_console_is_small_and_names_no_host():
    import gzip

    files = {each.name: each.read_bytes() for each in BUILT.iterdir() if each.suffix != ".md"}
    assert sum(len(gzip.compress(body)) for body in files.values()) < 400_000
    page = files["index.html"].decode()
    assert page.count("integrity=") == 3 and "<style" not in page and "<script>" not in page
    lock = (ROOT / "console/package-lock.json").read_text()
    assert "resolved" not in lock
