"""What a notebook shows of logs, receipts, and verdicts: small tables in which nothing is markup."""

from __future__ import annotations

from pathlib import Path

import ropewalk
from ropewalk.kernel.report import Report, Step
from ropewalk.pages import html_table
from ropewalk.pipeline.jobs.verify import LogsReport, LogVerdict
from ropewalk.pipeline.source.offsets import LogName

EVIL = "<script>alert(1)</script>\x1b[31m"


def shown(value: object) -> str:
    html: str = value._repr_html_()  # type: ignore[attr-defined]
    assert html.startswith("<table>") and html.endswith("</table>")
    assert "<script" not in html and "\x1b" not in html
    return html


def test_notebook_cells_are_escaped_and_cut():
    html = html_table(EVIL, [EVIL], [[{EVIL: "x" * 1_000_000}], [b"\x01"], [None]])
    assert "<script" not in html and "\x1b" not in html and len(html) < 1_000
    assert "<td>01</td>" in html and "<td></td>" in html


def test_notebook_shows_logs_and_receipts(tmp_path: Path):
    with ropewalk.init(tmp_path / "r.git") as repo:
        prod, audit = repo.events("prod"), repo.create_channel("audit")
        chat = repo.gossip("com.example.chat", signer=repo.key())
        assert "prod" in shown(prod)  # empty
        receipt = prod.append({"type": "deploy.finished", "payload": {"note": EVIL}})
        sealed = audit.submit("build.finished", {"note": EVIL}, domain="ci")
        chat.append({"text": EVIL})
        assert receipt.commit in shown(prod) and receipt.commit in shown(receipt)
        assert sealed.envelope_id.hex() in shown(audit) and sealed.block_hash.hex() in shown(sealed)
        assert "alert(1)" in shown(chat)
        assert "passed" in shown(prod.verify())
    assert receipt.commit not in shown(prod)


def test_notebook_shows_verdicts():
    step = Step("hashes", "failed", EVIL)
    log = LogVerdict(LogName("gitlog", "prod"), 3, "ab", 1, "cd", EVIL)
    assert "failed, 3 entries" in shown(Report.of([step], entries=3))
    assert "gitlog" in shown(LogsReport((log,), (step,)))
