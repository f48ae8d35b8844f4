"""`ledger promote` with real processes: a killed writer comes back, and is shut out."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.interop.test_remote_ledger import House
from tests.unit.cli.conftest import living_in
from tests.unit.ledger.making import observed

pytestmark = [pytest.mark.timeout(400), pytest.mark.slow]


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    run = living_in(tmp_path)
    people = [{"name": name, **run("key", "new", name, "--json").json["public"]} for name in ("ada", "bob")]
    rule = {"id": "two", "name": "two", "version": 1, "kind": "control", "decision": "deny"}
    rule |= {"acts": ["promote"], "approvals": 2, "approvers": people}
    (tmp_path / "two.json").write_text(json.dumps({"version": 1, "name": "two", "rules": [rule]}))
    for repo in ("log.git", "copy.git", "third.git"):
        assert run("init", repo).code == 0
    assert (
        run("--repo", "log.git", "ledger", "create", "--channel", "audit", "--policy", "two.json").code == 0
    )
    found = House(tmp_path)
    yield found
    found.close()


def append(house: House, number: int, repo: str) -> tuple[int, str]:
    done = house("append", "--channel", "audit", "--file", "-", repo=repo, stdin=observed(number).raw)
    return done.code, done.err


def test_killed_writer_is_fenced_when_it_returns(house):
    channel = ("--channel", "audit")
    server, said = house.serve()
    assert append(house, 1, "log.git")[0] == 0
    pull = ("pull", said["url"], *channel)
    for repo in ("copy.git", "third.git"):
        assert house(*pull, repo=repo).code == 0
    assert append(house, 2, "log.git")[0] == 0
    assert house(*pull, repo="copy.git").code == 0
    server.kill()
    server.wait()

    to = ("promote", *channel, "--to", "node")
    alone = house(*to, repo="copy.git")
    assert alone.code == 6 and "needs 2 approvals" in alone.err
    assert house(*to, "--propose", "behind.json", repo="third.git").code == 0
    behind = house("key", "approve", "behind.json", "--key", "ada", "-o", "x.json", repo="copy.git")
    assert behind.code == 4 and "would leave some out" in behind.err
    assert house(*to, "--propose", "p.json", repo="copy.git").code == 0
    for name in ("ada", "bob"):
        approved = house("key", "approve", "p.json", "--key", name, "-o", f"{name}.json", repo="copy.git")
        assert approved.code == 0, approved
    second = house("key", "approve", "behind.json", "--key", "ada", "-o", "x.json", repo="nowhere")
    assert second.code == 4 and "to epoch 1 was approved" in second.err
    approvals = ("--approval", "ada.json", "--approval", "bob.json")
    done = house(*to, "--proposal", "p.json", *approvals, "--json", repo="copy.git")
    assert done.code == 0 and done.json["epoch"] == 1, done
    assert append(house, 3, "copy.git")[0] == 0

    assert append(house, 4, "log.git")[0] == 0  # the old writer is back, and cannot know yet
    process = house.start("serve", "--port", "0", repo="copy.git")
    assert process.stdout is not None
    url = json.loads(process.stdout.readline())["url"]
    fenced = house("pull", url, *channel, repo="log.git")
    assert fenced.code == 5 and "has another writer" in fenced.err
    code, told = append(house, 5, "log.git")
    assert code == 5 and "promoted in epoch 1 at block 2" in told
    old, back = house.serve()
    sent = house("send", back["url"], *channel, "--file", "-", stdin=observed(6).raw)
    assert sent.code != 0 and "has another writer" in sent.err
    old.kill()
    old.wait()
    rejoined = house("pull", url, *channel, "--forks", "longest", repo="log.git")
    assert rejoined.code == 0, rejoined
    code, told = append(house, 7, "log.git")
    assert code == 4 and "promoted in epoch 1" in told
    assert house("pull", url, *channel, repo="third.git").code == 0
    assert house("trust", *channel, "-o", "first.json", repo="copy.git").code == 0
    for repo in ("log.git", "copy.git", "third.git"):
        verified = house("verify", *channel, "--deep", "--trust", "first.json", repo=repo)
        assert verified.code == 0, verified
