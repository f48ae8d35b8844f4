"""Each kind of failure ends with its own code, under the name and the status of the specification."""

from __future__ import annotations


def test_a_signature_that_does_not_hold_is_told_as_such(ropewalk, tmp_path):
    ropewalk("init", "log.git")
    ropewalk("key", "new", "vault", "--alg", "xchacha20poly1305")
    (tmp_path / "card.json").write_text('{"card":"4111"}')
    repo = ("--repo", "log.git")
    sealed = ropewalk(
        *repo, "pointer", "seal", "--file", "card.json", "--actor", "ada", "--policy", "v1", "--key", "vault"
    )
    (tmp_path / "pointer.json").write_bytes(sealed.out)
    assert ropewalk(*repo, "pointer", "open", "pointer.json").json == {"card": "4111"}
    refused = ropewalk(*repo, "pointer", "open", "pointer.json", "--actor", "mallory", "--json")
    assert refused.code == 5
    assert (refused.json["code"], refused.json["status"]) == ("SigInvalid", 401)
    assert "4111" not in refused.text + refused.err


def test_a_setting_that_is_no_number_is_a_usage_error(ropewalk, tmp_path):
    ropewalk("init", "log.git")
    ingest = ("--repo", "log.git", "pipeline", "ingest", "--warehouse", "tables", "--json")
    answer = ropewalk(*ingest, env={"ROPEWALK_SPARK_MEMORY_MB": "much"})
    assert (answer.code, answer.json["code"]) == (2, "Usage")
    assert "ROPEWALK_SPARK_MEMORY_MB" in answer.json["detail"]


def test_read_reports_damage_in_the_same_object(ropewalk, tmp_path):
    ropewalk("init", "log.git")
    ropewalk("key", "new", "ada")
    (tmp_path / "body.json").write_text('{"n":"damaged"}')
    repo = ("--repo", "log.git")
    made = ("--domain", "ops", "--class", "Observation", "--type", "disk.full", "--payload", "body.json")
    for _ in range(2):
        envelope = ropewalk(*repo, "ledger", "envelope", "--channel", "audit", *made, "--key", "ada").out
        ropewalk(*repo, "ledger", "append", "--channel", "audit", "--file", "-", stdin=envelope)
    (segment,) = tmp_path.glob("log.git/ropewalk/ledger/audit/segments/*.seg")
    raw = bytearray(segment.read_bytes())
    raw[raw.rindex(b"damaged")] ^= 1
    segment.write_bytes(raw)
    answer = ropewalk(*repo, "ledger", "read", "--channel", "audit", "--json")
    assert answer.code == 5
    assert [block["height"] for block in answer.json["blocks"]] == [0]
    assert answer.json["code"] == "Damaged" and "block 1" in answer.json["detail"]


def test_a_repository_without_topics_says_how_to_make_one(ropewalk):
    ropewalk("init", "log.git")
    answer = ropewalk("--repo", "log.git", "gossip", "log")
    assert answer.code == 3
    assert "ropewalk gossip append" in answer.err
