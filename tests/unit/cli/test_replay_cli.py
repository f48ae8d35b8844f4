"""`ropewalk ledger replay`."""

from __future__ import annotations

import json


def test_replay_prints_the_root_and_keeps_snapshots(ropewalk, tmp_path):
    assert ropewalk("init", "r.git").code == 0
    assert ropewalk("key", "new", "ada").code == 0
    body = json.dumps({"environment": "prod", "service": "web", "version": "7"})
    for _ in range(2):
        made = ropewalk(
            "ledger", "envelope", "--repo", "r.git", "--channel", "audit", "--domain", "ops", "--class",
            "Observation", "--type", "deployment.success", "--payload", "-", "--key", "ada",
            stdin=body.encode(),
        )  # fmt: skip
        assert (
            ropewalk(
                "ledger", "append", "--repo", "r.git", "--channel", "audit", "--file", "-", stdin=made.out
            ).code
            == 0
        )
    replay = ("ledger", "replay", "--repo", "r.git", "--channel", "audit", "--reducer")
    done = ropewalk(*replay, "deployments", "--snapshot-every", "1", "-o", "state.json", "--json")
    assert done.code == 0, done.err
    assert done.json["state"]["prod"]["web"]["version"] == "7"
    assert json.loads((tmp_path / "state.json").read_bytes()) == done.json["state"]
    short = ropewalk(*replay, "deployments", "--from-snapshot")
    assert short.code == 0 and done.json["state_root"] in short.text
    assert "started from the snapshot at 1" in short.err

    (tmp_path / "mine.py").write_text(
        "import time\ndef fold(state, event, moment):\n    return {'at': int(time.time())}\n"
    )
    for options in ((), ("--guard",)):
        caught = ropewalk(*replay, "mine:fold", *options, "--json")
        assert caught.code == 5 and caught.json["call"] == "time.time"
    assert ropewalk(*replay, "mine:fold", "--unsafe-no-guard").code == 0
    assert ropewalk(*replay, "mine:nothing").code == 3
