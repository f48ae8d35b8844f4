"""`ropewalk gossip`: names, flags, exit codes and JSON keys as other software calls them."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest
from tests.unit.cli.conftest import Answer, Ropewalk, ropewalk  # noqa: F401 - a fixture
from tests.unit.gossip.conftest import key

from ropewalk.cli.gossip import gossip as command
from ropewalk.cli.gossip.graph import draw
from ropewalk.cli.main import run
from ropewalk.gossip.core.log import GossipLog
from ropewalk.gossip.core.message import sign
from ropewalk.gossip.core.profiles import PROFILES, V13
from ropewalk.gossip.peer.topics import open_topic, topic_folder, topics
from ropewalk.kernel.cbor import Link

TOPIC = "com.example.chat"


@pytest.fixture
def said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsysbinary: pytest.CaptureFixture[bytes]):
    """Run the command inside this process, so that many questions are cheap; one test below starts the real one."""
    monkeypatch.setenv("ROPEWALK_CONFIG", str(tmp_path / "config"))
    monkeypatch.setenv("NO_COLOR", "1")
    monkeypatch.chdir(tmp_path)
    assert run(["init", "log.git"]) == 0
    assert run(["key", "new", "ada"]) == 0

    def said(*arguments: str, stdin: bytes = b"") -> Answer:
        (tmp_path / "stdin").write_bytes(stdin)
        given = [str(tmp_path / "stdin") if argument == "-" else argument for argument in arguments]
        capsysbinary.readouterr()
        code = run(["--repo", str(tmp_path / "log.git"), "gossip", *given])
        out, err = capsysbinary.readouterr()
        return Answer(code, out, err.decode())

    return said


def test_the_real_command_reads_a_payload_from_a_pipe(ropewalk: Ropewalk):  # noqa: F811
    ropewalk("init", "log.git")
    ropewalk("key", "new", "ada")
    answer = ropewalk(
        "gossip", "append", "--repo", "log.git", "--topic", TOPIC, "--payload", "-", "--key", "ada", "--json",
        stdin=b'{"text":"hi"}',
    )  # fmt: skip
    assert (answer.code, answer.json["clock"]) == (0, 1)
    assert ropewalk("--repo", "log.git", "gossip", "heads", "--topic", "com.nowhere").code == 3


def test_a_gossip_command_does_not_load_git():
    code = (
        "import sys, ropewalk.cli.gossip.gossip, ropewalk.gossip.peer.topics; print('pygit2' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=True)
    assert done.stdout.split() == [b"False"]


def home(tmp_path: Path) -> Path:
    return tmp_path / "log.git" / "ropewalk"


def append(said, payload: bytes = b'{"text":"hi"}', *more: str):
    return said("append", "--topic", TOPIC, "--payload", "-", "--key", "ada", "--json", *more, stdin=payload)


def test_a_topic_is_made_written_read_and_verified(said, tmp_path: Path):
    first = append(said).json
    assert first == {"id": first["id"], "clock": 1, "parents": []}
    second = append(said, b'{"b":{"/":{"bytes":"AAE"}},"n":1.5}').json
    assert (second["clock"], second["parents"]) == (2, [first["id"]])
    assert said("heads", "--topic", TOPIC, "--json").json == {
        "heads": [second["id"]],
        "clock": 3,
        "pending": 0,
    }
    got = said("get", second["id"], "--topic", TOPIC, "--json").json
    assert set(got) == {"id", "signature", "message"}
    assert got["message"] == {
        "topic": TOPIC, "clock": 2, "parents": [first["id"]], "payload": {"b": {"/": {"bytes": "AAE"}}, "n": 1.5}
    }  # fmt: skip
    assert got["signature"]["publicKey"].startswith("did:key:z6Mk")
    assert got["signature"]["codec"] == "dag-cbor"
    rows = said("log", "--json").json["messages"]  # the only topic need not be named
    assert [row["id"] for row in rows] == [first["id"], second["id"]]
    assert set(rows[0]) == {"id", "clock", "parents", "payload", "author"}
    assert [row["id"] for row in said("log", "--reverse", "--limit", "1", "--json").json["messages"]] == [
        second["id"]
    ]
    assert said("ancestors", second["id"], "1", "--json").json == {"ancestors": [first["id"]]}
    with open_topic(home(tmp_path), TOPIC, create=False) as log:
        root = log.root()
    assert said("root", "--json").json == {"level": root.level, "hash": root.hash.hex()}
    report = said("verify", "--topic", TOPIC, "--json")
    assert report.code == 0
    assert (report.json["ok"], report.json["entries"]) == (True, 2)
    assert {step["name"]: step["status"] for step in report.json["steps"]} == dict.fromkeys(
        ["ids", "signatures", "parents", "heads", "tree", "arrivals", "pending", "ancestors"], "passed"
    )


def test_plain_answers_are_one_line_a_message(said):
    first = append(said).json["id"]
    assert said("append", "--topic", TOPIC, "--payload", "-", "--key", "ada", stdin=b"[1]").text.startswith(
        "ok  "
    )
    lines = said("log").text.splitlines()
    assert len(lines) == 2
    assert lines[0].startswith(first)
    assert lines[0].endswith('{"text":"hi"}')
    assert said("verify").text.splitlines()[-1].startswith("ok  2 entries")
    assert said("log", "--graph").text.splitlines()[0].startswith("●  ")


def test_a_message_made_elsewhere_is_inserted_or_waits(said, tmp_path: Path):
    append(said)
    parent = sign(V13, key(3), TOPIC, (), "parent")
    child = sign(V13, key(3), TOPIC, (parent.key,), "child")

    def insert(raw: bytes):
        (tmp_path / "message").write_bytes(raw)
        return said("insert", "--topic", TOPIC, "--file", str(tmp_path / "message"), "--json")

    answer = insert(child.raw).json
    assert (answer["id"], answer["pending"]) == (child.id, True)
    assert said("pending", "--json").json == {"pending": [{"id": child.id, "missing": [parent.id]}]}
    assert insert(parent.raw).json["pending"] is False
    assert child.id in said("heads", "--json").json["heads"]
    assert insert(parent.raw).json["status"] == "known"
    broken = insert(child.raw[:-1])
    assert (broken.code, broken.json["code"]) == (8, "InvalidCbor")
    forged = child.raw.replace(child.signature.signature, bytes(64))
    assert insert(forged).code == 5


def test_pending_messages_are_listed_and_dropped(said, tmp_path: Path):
    append(said)
    missing = sign(V13, key(3), TOPIC, (), "missing")
    waiting = [sign(V13, key(3), TOPIC, (missing.key,), n) for n in range(3)]
    for each in waiting:
        (tmp_path / "message").write_bytes(each.raw)
        assert said("insert", "--topic", TOPIC, "--file", str(tmp_path / "message")).code == 0
    assert len(said("pending", "ls", "--topic", TOPIC, "--json").json["pending"]) == 3
    assert said("pending", "drop", waiting[0].id, "--json").json == {"dropped": 1, "pending": 2}
    assert said("pending", "drop", "--older-than", "1", "--json").json == {"dropped": 0, "pending": 2}
    assert said("pending", "drop", "--all", "--json").json == {"dropped": 2, "pending": 0}
    assert said("pending", "--drop", "--json").json == {"dropped": 0, "pending": 0}
    assert said("pending", "--drop", "ls").code == 2
    assert said("pending", "drop").code == 2
    assert said("verify").code == 0


def test_a_message_is_carried_by_hand(said, tmp_path: Path):
    first, second = (append(said, b"%d" % n).json["id"] for n in range(2))
    for id in (first, second):
        assert said("get", id, "-o", str(tmp_path / id)).text.startswith(f"ok  {id}")
    assert said("get", first, "--output=-").out == (tmp_path / first).read_bytes()
    island = ("--repo", str(tmp_path / "island.git"), "--json")
    assert run(["init", island[1]]) == 0
    for id, status in ((second, "pending"), (first, "stored")):
        answer = said("insert", "--topic", TOPIC, "--file", str(tmp_path / id), *island)
        assert answer.json["status"] == status
    assert said("heads", *island).json["heads"] == [second]


@pytest.mark.parametrize("profile", list(PROFILES.values()), ids=lambda profile: profile.name)
def test_a_first_message_makes_its_topic_in_its_own_profile(said, tmp_path: Path, profile):
    made = sign(profile, key(3), TOPIC, (), {"x": 1})
    forged = made.raw.replace(made.signature.signature, bytes(64))
    (tmp_path / "bad").write_bytes(forged)
    assert said("insert", "--topic", TOPIC, "--file", str(tmp_path / "bad"), "--json").code == 5
    assert not topic_folder(home(tmp_path), TOPIC).exists()
    (tmp_path / "good").write_bytes(made.raw)
    assert said("insert", "--topic", TOPIC, "--file", str(tmp_path / "good"), "--json").json["id"] == made.id
    with open_topic(home(tmp_path), TOPIC, create=False) as log:
        assert log.profile is profile


def test_the_profile_is_fixed_when_the_topic_is_made(said):
    made = append(said, b"1", "--profile", "v0.6").json
    assert set(said("get", made["id"], "--json").json["signature"]) == {"publicKey", "signature", "cid"}
    again = append(said, b"2", "--profile", "v0.13")
    assert (again.code, again.json["status"]) == (4, 409)
    assert append(said, b"2").json["clock"] == 2


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["heads", "--topic", "com.nowhere"], 3),
        (["heads"], 3),  # there is no topic to choose
        (["get", "0" * 32, "--topic", TOPIC], 3),
        (["get", "nonsense", "--topic", TOPIC], 8),
        (["ancestors", "0" * 32, "1", "--topic", TOPIC], 3),
        (["append", "--topic", "not a topic", "--payload", "-"], 8),
        (["append", "--topic", TOPIC, "--payload", "-", "--key", "nobody"], 3),
        (["append", "--topic", TOPIC, "--payload", "missing.json"], 3),
    ],
)
def test_what_is_wrong_has_its_exit_code(said, arguments, code):
    if TOPIC in arguments:
        append(said)
    answer = said(*arguments, "--json", stdin=b"1")
    assert answer.code == code, answer
    assert answer.json["code"]


@pytest.mark.parametrize(
    ("given", "code"),
    [
        (("--peer", "http://a:1"), "Usage"),
        (("--peer", "ws://a:1", "--peer", "tcp://a:1"), "Conflict"),
        (("--announce", "here"), "Usage"),
        (("--announce", "ws://a:1", "--profile", "v0.6"), "Usage"),
        (("--discover", "*:1"), "Usage"),
        (("--tls-cert", "cert.pem"), "Usage"),
        (("--token-file", "token"), "NotFound"),
    ],
)
def test_serve_with_wrong_options_makes_no_topic(said, tmp_path, given, code):
    answer = said("serve", "--topic", TOPIC, "--port", "0", *given, "--json")
    assert answer.json["code"] == code
    assert topics(home(tmp_path)) == []


@pytest.mark.parametrize("payload", [b"", b"{", b'{"a":1,"a":2}', b'{"/":1}', b"9007199254740993"])
def test_a_payload_that_is_no_json_is_refused(said, payload):
    assert append(said, payload).code == 8


def tampered(said, tmp_path: Path, table: str, change) -> dict[str, str]:
    with open_topic(home(tmp_path), TOPIC, create=False) as log:
        log.table.transact(lambda txn: change(log, txn))
    answer = said("verify", "--json")
    assert answer.code == 5
    assert answer.json["ok"] is False
    return {step["name"]: step["status"] for step in answer.json["steps"]}


def test_verify_finds_what_was_tampered_with(said, tmp_path: Path):
    ids = [append(said, b"%d" % n).json["id"] for n in range(3)]
    said("ancestors", ids[2], "1")

    def lose_a_head(log: GossipLog, txn):
        for row, _ in list(txn.scan("heads")):
            txn.delete("heads", row)

    def change_the_tree(log: GossipLog, txn):
        row, value = next(txn.scan("tree", b"\x00\x01"))
        txn.put("tree", row, bytes(16))
        assert value != bytes(16)

    def change_a_message(log: GossipLog, txn):
        row, raw = next(txn.scan("messages"))
        txn.put("messages", row, raw[:-1] + b"\x07")

    def change_the_index(log: GossipLog, txn):
        row, _ = list(txn.scan("ancestors"))[-1]
        txn.put("ancestors", row, b"\x80")

    def forget_an_arrival(log: GossipLog, txn):
        txn.put("meta", b"arrivals", (2).to_bytes(8, "big"))

    def forget_what_is_indexed(log: GossipLog, txn):
        txn.put("meta", b"indexed", (7).to_bytes(8, "big"))

    assert tampered(said, tmp_path, "arrivals", forget_an_arrival)["arrivals"] == "failed"
    assert tampered(said, tmp_path, "indexed", forget_what_is_indexed)["ancestors"] == "failed"
    assert tampered(said, tmp_path, "heads", lose_a_head)["heads"] == "failed"
    steps = tampered(said, tmp_path, "tree", change_the_tree)
    assert steps["tree"] == "failed"
    assert steps["signatures"] == "passed"
    assert tampered(said, tmp_path, "ancestors", change_the_index)["ancestors"] == "failed"
    assert tampered(said, tmp_path, "messages", change_a_message)["ids"] == "failed"


def test_verify_reports_pages_that_cannot_be_read(said, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    append(said)

    def broken(*_: object) -> Iterator[tuple[bytes, bytes]]:
        yield from ()
        raise lmdb.CorruptedError("a page is gone")

    monkeypatch.setattr("ropewalk.disk.lmdb_tables._View._scan", broken)
    answer = said("verify", "--json")
    assert (answer.code, answer.json["ok"]) == (5, False)
    assert "a page is gone" in answer.json["steps"][0]["detail"]


def test_the_list_of_profiles_is_the_engines():
    assert set(command.PROFILES) == set(PROFILES)


def test_topics_cannot_climb_out_of_their_folder(tmp_path: Path):
    for topic in ("..", ".", "...", ".hidden"):
        folder = topic_folder(tmp_path, topic)
        assert folder.resolve().parent == (tmp_path / "gossip").resolve()
        assert not folder.name.startswith(".")


def test_links_travel_through_the_command(said):
    link = "bafyreigbtj4x7ip5legnfznufuopl4sg4knzc2cof6duas4b3q2fy6swua"
    id = append(said, b'{"see":{"/":"%s"}}' % link.encode()).json["id"]
    assert said("get", id, "--json").json["message"]["payload"] == {"see": {"/": link}}
    assert Link.parse(link).text() == link


def test_a_failed_first_append_leaves_no_topic_of_a_wrong_profile(said, tmp_path: Path):
    run(["key", "new", "coin", "--alg", "secp256k1"])
    first = ["append", "--topic", TOPIC, "--payload", "-", "--key", "coin", "--json"]
    assert said(*first, stdin=b"1").code == 8
    assert topics(home(tmp_path)) == []
    assert said(*first, "--profile", "v0.6", stdin=b"1").code == 0


@pytest.mark.parametrize(
    ("url", "code"),
    [("ws://127.0.0.1:1", 7), ("tcp://127.0.0.1:1", 7), ("ws://127.0.0.1:99999", 2), ("tcp://h:99999", 2)],
)
def test_a_sync_with_nobody_leaves_no_topic(said, tmp_path: Path, url: str, code: int):
    answer = said("sync", url, "--topic", TOPIC, "--json")
    assert (answer.code, topics(home(tmp_path))) == (code, [])


def test_a_payload_cannot_steer_the_terminal(said):
    id = append(said, '{"t":"\\u001b[1m\u009b31m\u202e\u007f"}'.encode()).json["id"]
    for asked in (["log"], ["log", "--graph"], ["get", id]):
        plain = said(*asked).out.decode()
        assert all(each.isprintable() or each == "\n" for each in plain)
        assert r"\u009b31m\u202e\u007f" in plain


def lines(*rows: str) -> list[str]:
    """Draw a graph given as `id parent parent …`."""
    return list(draw((row.split()[0], row.split()[1:], row.split()[0]) for row in rows))


def test_the_graph_shows_forks_and_merges():
    assert lines("d b c", "c a", "b a", "a") == ["●  d", "├─╮", "│ ●  c", "● │  b", "├─╯", "●  a"]
    assert lines("c a", "b a", "a") == ["●  c", "│ ●  b", "├─╯", "●  a"]
    assert lines("b", "a") == ["●  b", "●  a"]
    assert lines("d a b c", "c", "b", "a") == ["●  d", "├─┬─╮", "│ │ ●  c", "│ ●  b", "●  a"]
    assert lines("e a", "d b", "c a b", "b", "a") == ["●  e", "│ ●  d", "│ │ ●  c", "├─┼─╯", "│ ●  b", "●  a"]
