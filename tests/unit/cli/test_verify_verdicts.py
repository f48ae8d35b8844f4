"""`ropewalk verify`: what was not checked is not ok, whatever is verified (exit 5 unless accepted by name)."""

from __future__ import annotations

import json
import shutil
import subprocess

import pytest
from tests.unit.cli.conftest import living_in, move_in


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A repository with a channel, and a proof, a receipt, a bundle, archives and a checkpoint made from it."""
    folder = tmp_path_factory.mktemp("made")
    ropewalk = living_in(folder)
    (folder / "event.json").write_text('{"type":"vote.cast","payload":{"n":1}}')
    for args in (
        ("init", "log.git"),
        ("key", "new", "ada"),
        ("--repo", "log.git", "shiplog", "append", "--ns", "votes", "--file", "event.json"),
    ):
        assert ropewalk(*args).code == 0
    repo = ("--repo", "log.git")
    kind = ("--domain", "ops", "--class", "Observation", "--type", "vote.cast", "--payload", "event.json")
    envelope = ropewalk(*repo, "ledger", "envelope", "--channel", "audit", *kind, "--key", "ada").out
    (folder / "envelope.json").write_bytes(envelope)
    sealed = ropewalk(
        *repo, "ledger", "append", "--channel", "audit", "--file", "envelope.json", "--json"
    ).json
    for act in (
        ("prove", sealed["envelope_id"], "-o", "proof.json"),
        ("receipt", sealed["envelope_id"], "-o", "receipt.cose", "--host", "log.example"),
        ("archive", "--channel", "audit", "--to", "cold"),
        ("tiles", "--channel", "audit", "--host", "log.example", "-o", "public"),
        ("trust", "--channel", "audit", "-o", "trust.json"),
    ):
        answer = ropewalk(*repo, "ledger", *act)
        assert answer.code == 0, (act, answer.err)
    assert ropewalk(*repo, "bundle", "export", "--channel", "audit", "-o", "x.tar.zst").code == 0
    return folder


@pytest.fixture
def place(made, tmp_path):
    move_in(made, tmp_path)
    return tmp_path


@pytest.mark.parametrize("name", ["proof.json", "receipt.cose", "x.tar.zst", "cold", "public"])
def test_verify_without_trust_is_untrusted(ropewalk, place, name):
    alone = ropewalk("verify", name, "--json")
    assert (alone.code, alone.json["ok"], alone.json["verdict"]) == (5, False, "untrusted")
    assert any(step.get("need") == "trust" for step in alone.json["steps"])
    accepted = ropewalk("verify", name, "--no-trust", "--json")
    assert (accepted.code, accepted.json["ok"], accepted.json["verdict"]) == (0, True, "untrusted")
    assert "UNTRUSTED, accepted by --no-trust" in ropewalk("verify", name, "--no-trust").text
    assert ropewalk("verify", name, "--allow-partly").code == 5
    named = ropewalk("verify", name, "--trust", "trust.json", "--json")
    assert (named.code, named.json["verdict"]) == (0, "passed"), named.json


def test_verify_own_repository_passes(ropewalk, place):
    answer = ropewalk("verify", "log.git", "--json")
    assert (answer.code, answer.json["verdict"]) == (0, "passed")
    assert ropewalk("init", "empty.git").code == 0
    empty = ropewalk("verify", "empty.git", "--json")
    assert (empty.code, empty.json["verdict"], empty.json["entries"]) == (0, "passed", 0)


def test_verify_clone_without_logs_is_partly(ropewalk, place):
    """A plain clone leaves the logs behind: nothing was verified, so nothing is ok."""
    subprocess.run(["git", "clone", "-q", "log.git", "copy"], cwd=place, check=True, capture_output=True)
    answer = ropewalk("verify", "copy", "--json")
    assert (answer.code, answer.json["verdict"]) == (5, "partly")
    assert ropewalk("verify", "copy", "--allow-partly").code == 0


def test_verify_heads_signed_by_own_key_pass(ropewalk, place):
    repo = ("--repo", "log.git")
    assert ropewalk(*repo, "heads", "sign", "--ns", "votes", "--key", "ada").code == 0
    sign = ("shiplog", "anchor", "create", "--ns", "votes", "--label", "v1", "--sign", "ada")
    assert ropewalk(*repo, *sign).code == 0
    answer = ropewalk("verify", "log.git", "--json")
    assert (answer.code, answer.json["verdict"]) == (0, "passed"), answer.json


@pytest.mark.parametrize(
    ("act", "step"),
    [
        (("heads", "sign", "--ns", "votes", "--key", "eve"), "signed_heads"),
        (("shiplog", "anchor", "create", "--ns", "votes", "--label", "v1", "--sign", "eve"), "anchors"),
    ],
)
def test_verify_heads_signed_by_unknown_key(ropewalk, place, act, step):
    """Signatures of a key that is neither named nor the user's own are untrusted; under --trust they fail."""
    assert ropewalk("key", "new", "eve").code == 0
    assert ropewalk("--repo", "log.git", *act).code == 0
    (key,) = place.rglob("eve.json")
    shutil.move(key, place / "eve.key")
    answer = ropewalk("verify", "log.git", "--json")
    found = {each["name"]: each["status"] for each in answer.json["steps"]}
    assert (answer.code, answer.json["verdict"], found[step]) == (5, "untrusted", "not_checked")
    assert ropewalk("verify", "log.git", "--no-trust").code == 0
    named = ropewalk("verify", "log.git", "--trust", "trust.json", "--json")
    found = {each["name"]: each["status"] for each in named.json["steps"]}
    assert (named.code, found[step]) == (5, "failed")


def test_verify_revocations_without_deep_is_partly(ropewalk, place):
    """A trust file that revokes an author requires that authors are judged."""
    trust = json.loads((place / "trust.json").read_bytes())
    trust["revocations"] = [{"key": "00" * 32, "since": "2024-01-01T00:00:00Z", "reason": "lost"}]
    (place / "revoked.json").write_text(json.dumps(trust))
    shallow = ropewalk("bundle", "verify", "x.tar.zst", "--trust", "revoked.json", "--json")
    assert (shallow.code, shallow.json["verdict"]) == (5, "partly")
    accepted = ("bundle", "verify", "x.tar.zst", "--trust", "revoked.json", "--allow-partly")
    assert ropewalk(*accepted).code == 0
    assert "PARTLY CHECKED, accepted by --allow-partly" in ropewalk(*accepted).text
    deep = ropewalk("bundle", "verify", "x.tar.zst", "--trust", "revoked.json", "--deep", "--json")
    assert (deep.code, deep.json["verdict"]) == (0, "passed")


def test_ledger_verify_without_channels_is_not_found(ropewalk, place):
    assert ropewalk("init", "empty.git").code == 0
    assert ropewalk("--repo", "empty.git", "ledger", "verify").code == 3
    assert ropewalk("--repo", "log.git", "ledger", "verify", "--json").json["verdict"] == "passed"
