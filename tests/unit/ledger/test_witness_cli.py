"""Checkpoints and witnesses from the command line: publish, watch, cosign, verify, and carry it along in a bundle."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from tests.unit.ledger.calling import make
from tests.unit.ledger.heading import SmallLog

HOST = ("--host", "log.example")
STRANGER = "PeterNeumann+c74f20a3+ARpc2QcUPDhMQegwxbzhKqiBfsVkmqq/LDE4izWy10TW"


@pytest.fixture
def channel(ropewalk):
    """Four blocks, published."""
    grow(ropewalk, 4)
    return publish(ropewalk)


@pytest.fixture
def watch(ropewalk, channel, request):
    """A witness of that log, which has seen nothing yet."""
    assert ropewalk("key", "new", "watcher", "--alg", getattr(request, "param", "ed25519")).code == 0
    done = ropewalk("witness", "init", "watch", "--name", "witness.example", "--key", "watcher")
    assert done.code == 0
    Path("witness.vkey").write_text(done.out)
    assert ropewalk("witness", "add", "watch", channel).code == 0
    return "watch"


def grow(ropewalk, count):
    for _ in range(count):
        make(ropewalk)
        assert ropewalk("ledger", "append", "--channel", "audit", "--file", "one.json").code == 0
        Path("body.json").write_text(json.dumps({"n": json.loads(Path("body.json").read_text())["n"] + 1}))


def publish(ropewalk):
    done = ropewalk("ledger", "tiles", "--channel", "audit", *HOST, "-o", "public", "--json")
    assert done.code == 0
    return done.json["vkey"]


def statuses(answer):
    return {step["name"]: step["status"] for step in answer.json["steps"]}


def test_a_published_folder_is_verified_by_its_key(ropewalk, channel):
    done = ropewalk("verify", "public", "--vkey", channel, "--deep", "--json")
    assert done.code == 0
    assert statuses(done) == {
        "checkpoint": "passed",
        "log_signature": "passed",
        "witnesses": "not_checked",
        "tree": "passed",
        "consistency": "not_checked",
    }
    assert (done.json["steps"][0]["origin"], done.json["steps"][0]["size"]) == ("log.example/audit", 4)
    assert done.json["entries"] == 4
    said = ropewalk("verify", "public", "--vkey", channel).out.splitlines()[-1]
    assert said == "ok  1 entries, not checked: witnesses, consistency"


def test_verdict_without_key_names_unchecked(ropewalk, channel):
    done = ropewalk("verify", "public")
    said = done.out.splitlines()[-1]
    assert (done.code, said) == (
        5,
        "UNTRUSTED  1 entries, not checked: log_signature, witnesses, consistency",
    )
    done = ropewalk("verify", "public", "--no-trust")
    assert done.code == 0
    assert done.out.splitlines()[-1].startswith("UNTRUSTED, accepted by --no-trust  1 entries")
    assert ropewalk("verify", "public", "--no-trust", "--trust", "x.json").code == 2


def test_a_key_is_given_itself_or_in_a_file(ropewalk, watch, channel):
    key = Path("witness.vkey").read_text().strip()
    Path("log.vkey").write_text(f"{channel}\n")
    assert ropewalk("witness", "cosign", watch, "public", "-o", "seen.note").code == 0
    for vkey, witness in ((channel, key), ("log.vkey", "witness.vkey")):
        more = ("--vkey", vkey, "--witness", witness, "--threshold", "1", "--json")
        done = ropewalk("verify", "seen.note", *more)
        assert (done.code, statuses(done)["witnesses"]) == (0, "passed")
    made = ropewalk("ledger", "trust", "--channel", "audit", "--witness", key, "-o", "trust.json", "--json")
    assert made.json["trust"]["witnesses"] == [key]


@pytest.mark.parametrize(
    ("given", "code", "reason"),
    [("wibble", 3, "no file wibble"), ("w+abc", 8, "is not a verifier key"), (STRANGER[:-3], 8, "note key")],
)
def test_advice_for_a_bad_key_says_what_a_verifier_key_is(ropewalk, channel, given, code, reason):
    for option in ("--witness", "--vkey"):
        done = ropewalk("verify", "public", option, given, "--json")
        assert (done.code, reason in done.json["detail"]) == (code, True), done
        assert "NAME+ID+KEY" in done.json["advice"] and "key new" not in done.json["advice"]


def test_advice_for_bad_key_explains_verifier_keys(ropewalk, channel):
    Path("keys").write_text("wibble\n")
    for what in (("public",), ()):  # a checkpoint, and the repository
        done = ropewalk("verify", *what, "--trust", "keys", "--json")
        assert done.code == 8 and "NAME+ID+KEY" in done.json["advice"]


def test_verify_asks_a_bundle_for_witnesses_as_bundle_verify_does(ropewalk, watch, channel):
    assert ropewalk("witness", "cosign", watch, "public", "-o", "seen.note").code == 0
    pack = ("bundle", "export", "--channel", "audit", "--from", "0", "--to", "3", "--anchor", "seen.note")
    assert ropewalk(*pack, "-o", "audit.tar.zst").code == 0
    assert ropewalk("ledger", "trust", "--channel", "audit", "-o", "trust.json").code == 0
    asked = ("verify", "audit.tar.zst", "--trust", "trust.json", "--witness", "witness.vkey", "--threshold")
    assert statuses(ropewalk(*asked, "1", "--json"))["anchors"] == "passed"
    done = ropewalk(*asked, "2", "--json")
    assert (done.code, statuses(done)["anchors"]) == (5, "failed")
    without = ropewalk("verify", "audit.tar.zst", "--threshold", "1", "--json")
    assert (without.code, statuses(without)["anchors"]) == (5, "failed")
    assert ropewalk("verify", "audit.tar.zst", "--old", "seen.note").code == 2


def test_checkpoint_verified_by_trust_keys_or_none(ropewalk, channel):
    assert ropewalk("ledger", "trust", "--channel", "audit", "-o", "trust.json").code == 0
    Path("keys").write_text(f"# the log\n{channel}\n")
    for trust in ("trust.json", "keys"):
        done = ropewalk("verify", "public/checkpoint", "--trust", trust, "--json")
        assert (done.code, statuses(done)["log_signature"]) == (0, "passed")
    done = ropewalk("verify", "public/checkpoint", "--json")
    assert (done.code, statuses(done)["log_signature"]) == (5, "not_checked")
    assert done.json["verdict"] == "untrusted"


def test_older_checkpoints_are_compared_from_tiles_or_from_the_channel(ropewalk, channel):
    Path("old.note").write_bytes(Path("public/checkpoint").read_bytes())
    grow(ropewalk, 2)
    publish(ropewalk)
    for where in ([], ["--tiles", "public"], ["--channel", "audit"]):
        done = ropewalk(
            "verify", "public/checkpoint", "--old", "old.note", "--vkey", channel, *where, "--json"
        )
        assert (done.code, statuses(done)["consistency"]) == (0, "passed")
    Path("new.note").write_bytes(Path("public/checkpoint").read_bytes())
    done = ropewalk("verify", "new.note", "--old", "old.note", "--vkey", channel, "--json")
    assert (done.code, statuses(done)["consistency"]) == (5, "not_checked")
    assert done.json["verdict"] == "partly"  # an older head was given, and nothing to compare it from
    args = ("verify", "new.note", "--old", "old.note", "--vkey", channel, "--allow-partly")
    assert ropewalk(*args).code == 0
    back = ropewalk("verify", "old.note", "--old", "new.note", "--vkey", channel, "--json")
    assert (back.code, statuses(back)["consistency"]) == (5, "failed")


def test_checkpoint_wrong_exits_5_missing_exits_8(ropewalk, channel):
    Path("forged.note").write_bytes(Path("public/checkpoint").read_bytes().replace(b"\n4\n", b"\n5\n"))
    assert ropewalk("verify", "forged.note", "--vkey", channel).code == 5
    Path("torn.note").write_bytes(Path("public/checkpoint").read_bytes()[:-30])
    done = ropewalk("verify", "torn.note", "--vkey", channel)
    assert (done.code, "torn.note" in done.err) == (8, True)
    Path("text").write_text("something else\n")
    done = ropewalk("verify", "text")
    assert (done.code, "no checkpoint" in done.err) == (8, True)
    bent = f"{channel[:-44]}{'A' * 43}="
    assert ropewalk("verify", "public", "--vkey", bent).code == 8
    Path("public/tile/0/000.p/4").unlink()
    done = ropewalk("verify", "public", "--vkey", channel)
    assert (done.code, "no file public/tile/0/000.p/4" in done.out) == (5, True)


def test_options_of_checkpoints_go_with_nothing_else(ropewalk, channel):
    assert ropewalk("verify", "repo.git", "--threshold", "1").code == 2
    assert ropewalk("verify", "public", "--tiles", "public", "--channel", "audit").code == 2
    assert ropewalk("verify", "public", "--envelope", "one.json").code == 2
    assert ropewalk("ledger", "head", "--channel", "audit", "--old", "1").code == 2
    assert ropewalk("ledger", "head", "--channel", "audit", "--note", "--old", "9").code == 8


@pytest.mark.parametrize("watch", ["ed25519", "ml-dsa-44"], indirect=True)
def test_publish_witness_trust_and_bundle(ropewalk, channel, watch):
    done = ropewalk("witness", "cosign", watch, "public", "-o", "seen.note", "--json")
    assert (done.code, done.json["size"], done.json["before"]) == (0, 4, 0)
    trusted = ropewalk(
        "ledger", "trust", "--channel", "audit", "--witness", "witness.vkey", "-o", "trust.json"
    )
    assert trusted.code == 0
    done = ropewalk("verify", "seen.note", "--trust", "trust.json", "--threshold", "1", "--json")
    assert (done.code, statuses(done)["witnesses"]) == (0, "passed")
    done = ropewalk("verify", "public", "--trust", "trust.json", "--threshold", "1", "--json")
    assert (done.code, statuses(done)["witnesses"]) == (5, "failed")
    exported = ropewalk("bundle", "export", "--channel", "audit", "--anchor", "seen.note", "-o", "a.tar.zst")
    assert exported.code == 0
    done = ropewalk("bundle", "verify", "a.tar.zst", "--trust", "trust.json", "--json")
    assert (done.code, statuses(done)["anchors"]) == (0, "passed")
    ropewalk("ledger", "trust", "--channel", "audit", "-o", "plain.json")
    done = ropewalk("bundle", "verify", "a.tar.zst", "--trust", "plain.json", "--witness", "witness.vkey")
    assert "seen by witness.example on" in done.out


def test_a_script_can_demand_that_a_witness_has_seen_a_bundle(ropewalk, channel, watch):
    assert ropewalk("witness", "cosign", watch, "public", "-o", "seen.note").code == 0
    ropewalk("ledger", "trust", "--channel", "audit", "-o", "trust.json")
    ropewalk("bundle", "export", "--channel", "audit", "-o", "plain.tar.zst")
    ropewalk("bundle", "export", "--channel", "audit", "--anchor", "seen.note", "-o", "seen.tar.zst")
    named = ("--trust", "trust.json", "--witness", "witness.vkey")
    for name, asked, code, status in (
        ("plain", (), 5, "not_checked"),
        ("plain", ("--threshold", "0"), 0, "not_checked"),
        ("plain", ("--allow-partly",), 0, "not_checked"),
        ("plain", ("--threshold", "1"), 5, "failed"),
        ("seen", ("--threshold", "1"), 0, "passed"),
        ("seen", ("--threshold", "2"), 5, "failed"),
    ):
        done = ropewalk("bundle", "verify", f"{name}.tar.zst", *named, *asked, "--json")
        assert (done.code, statuses(done)["anchors"]) == (code, status)


def test_cosigning_in_place_survives_publishing(ropewalk, channel, watch):
    assert ropewalk("witness", "cosign", watch, "public", "-o", "public/checkpoint").code == 0
    cosigned = Path("public/checkpoint").read_bytes()
    assert b"witness.example" in cosigned
    publish(ropewalk)
    assert Path("public/checkpoint").read_bytes() == cosigned
    grow(ropewalk, 1)
    publish(ropewalk)
    assert b"witness.example" not in Path("public/checkpoint").read_bytes()
    assert ropewalk("witness", "cosign", watch, "public", "-o", "public/checkpoint").code == 0
    done = ropewalk(
        "verify", "public", "--witness", "witness.vkey", "--threshold", "1", "--no-trust", "--json"
    )
    assert (done.code, statuses(done)["witnesses"]) == (0, "passed")


def test_a_request_brings_its_own_proof(ropewalk, channel, watch):
    ropewalk("witness", "cosign", watch, "public")
    grow(ropewalk, 2)
    made = ropewalk("ledger", "head", "--channel", "audit", "--note", *HOST, "--old", "4")
    assert made.out.startswith("old 4\n")
    Path("request").write_text(made.out)
    done = ropewalk("witness", "cosign", watch, "request", "--json")
    assert (done.code, done.json["size"], done.json["before"]) == (0, 6, 4)
    assert "\N{EM DASH} witness.example " in done.json["note"]
    again = ropewalk("witness", "cosign", watch, "request")
    assert (again.code, "has cosigned 6" in again.err) == (4, True)
    listed = ropewalk("ledger", "head", "--channel", "audit", "--note", *HOST, "--old", "4", "--json")
    assert listed.json["request"].endswith(listed.json["note"])


def test_heads_that_are_smaller_unknown_or_unproven_are_refused(ropewalk, channel, watch):
    Path("old.note").write_bytes(Path("public/checkpoint").read_bytes())
    grow(ropewalk, 1)
    publish(ropewalk)
    assert ropewalk("witness", "cosign", watch, "public").code == 0
    assert ropewalk("witness", "cosign", watch, "old.note").code == 4
    grow(ropewalk, 1)
    Path("new.note").write_text(ropewalk("ledger", "head", "--channel", "audit", "--note", *HOST).out)
    done = ropewalk("witness", "cosign", watch, "new.note")
    assert (done.code, "--tiles" in done.err) == (8, True)
    Path("strange.note").write_bytes(SmallLog(4).head())
    assert ropewalk("witness", "cosign", watch, "strange.note").code == 3
    done = ropewalk("witness", "cosign", watch, "body.json")
    assert (done.code, "body.json" in done.err) == (8, True)
    assert ropewalk("witness", "cosign", watch, "nothing.note").code == 3
    assert ropewalk("witness", "cosign", "nowhere", "new.note").code == 3


def test_a_fork_ends_with_5_and_its_evidence_is_verified(ropewalk, channel, watch, tmp_path, monkeypatch):
    assert ropewalk("witness", "cosign", watch, "public").code == 0
    # The operator begins again with the same key, and publishes another history under the same name.
    key = (tmp_path / "repo.git/ropewalk/keys/node.json").read_bytes()
    assert ropewalk("init", "again.git").code == 0
    monkeypatch.setenv("ROPEWALK_REPO", str(tmp_path / "again.git"))
    node = tmp_path / "again.git/ropewalk/keys/node.json"
    node.unlink(missing_ok=True)
    node.write_bytes(key)
    node.chmod(0o600)
    grow(ropewalk, 5)
    done = ropewalk("ledger", "tiles", "--channel", "audit", *HOST, "-o", "other", "--json")
    assert done.json["vkey"] == channel
    done = ropewalk("witness", "cosign", watch, "other", "-o", "other.note")
    assert (done.code, "two histories" in done.err, Path("other.note").exists()) == (5, True, False)
    shown = ropewalk("witness", "show", watch, "--json").json
    assert [log["size"] for log in shown["logs"]] == [4]
    (fork,) = shown["forks"]
    assert fork["proven"] is True
    assert "FORK" in ropewalk("witness", "show", watch).out
    done = ropewalk("verify", fork["path"], "--vkey", channel, "--json")
    assert (done.code, set(statuses(done).values())) == (0, {"passed"})
    assert ropewalk("ledger", "trust", "--channel", "audit", "-o", "trust.json").code == 0
    assert ropewalk("verify", fork["path"], "--trust", "trust.json").code == 0
    assert ropewalk("verify", fork["path"], "--vkey", STRANGER).code == 5


def test_what_a_witness_is_told_wrongly_is_said(ropewalk, channel, watch):
    assert ropewalk("witness", "init", watch, "--name", "again", "--key", "watcher").code == 4
    assert ropewalk("witness", "init", "two", "--name", "two words", "--key", "watcher").code == 8
    assert ropewalk("witness", "init", "two", "--name", "two", "--key", "nobody").code == 3
    assert ropewalk("witness", "add", watch, "no key").code == 8
    assert ropewalk("witness", "add", watch, Path("witness.vkey").read_text().strip()).code == 8
    Path("watch/witness.json").write_text("{}")
    assert ropewalk("witness", "show", watch).code == 5
