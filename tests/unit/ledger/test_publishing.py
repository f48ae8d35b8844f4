"""What an operator publishes: never a second history, never a damaged tile, never for a log that nobody named."""

from __future__ import annotations

import os
import shutil
import threading
from pathlib import Path

import pytest
from tests.unit.ledger.calling import make
from tests.unit.ledger.heading import NOW_S, WITNESS, SmallLog
from tests.unit.ledger.making import NODE, observed, opened
from tests.waiting import LIMIT_S

from ropewalk.disk.folder_lock import hold_folder
from ropewalk.errors import Conflict, Forked, Unavailable
from ropewalk.kernel.note.note import cosign_head
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.proof.proof import head_signer
from ropewalk.ledger.transparency.head_check import HeadTrust, verify_head
from ropewalk.ledger.transparency.heads import tile_source
from ropewalk.ledger.transparency.publish import PublishResult, publish_tiles
from ropewalk.ledger.transparency.tiles import encode_entries, holds_entries

HOST, CHANNEL = "log.example", "ea.core"


def record(home: Path, numbers: range) -> None:
    with opened(home) as ledger:
        for number in numbers:
            ledger.log.submit(observed(number).raw)


def publish(home: Path, folder: Path, host: str = HOST) -> PublishResult:
    with open_channel(home, CHANNEL) as channel:
        return publish_tiles(channel, NODE, host, folder)


def everything(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def is_verified(folder: Path, size: int) -> bool:
    trust = HeadTrust(keys=(head_signer(HOST, CHANNEL, NODE).verifier,))
    raw = (folder / "checkpoint").read_bytes()
    return verify_head(raw, trust, source=tile_source(folder, size, deep=True)).ok


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A channel of five blocks."""
    record(tmp_path / "home", range(5))
    return tmp_path / "home"


@pytest.fixture
def public(home: Path, tmp_path: Path) -> Path:
    """The same, published, and cosigned in place."""
    folder = tmp_path / "public"
    publish(home, folder)
    checkpoint = folder / "checkpoint"
    checkpoint.write_bytes(cosign_head(checkpoint.read_bytes(), WITNESS, NOW_S))
    return folder


# --- who publishes at the same time ---


def test_while_one_publishes_another_is_kept_out_and_writes_nothing(tmp_path, home):
    folder = tmp_path / "public"
    with hold_folder(folder, 0), open_channel(home, CHANNEL) as channel:
        with pytest.raises(Unavailable, match="another process is writing into"):
            publish_tiles(channel, NODE, HOST, folder, wait_s=0)
        assert everything(folder) == {}
    assert publish(home, folder).size == 5
    assert not [name for name in everything(folder) if "lock" in name], "nothing but the log is published"


def test_who_waited_for_another_publishes_what_the_channel_has_by_then(tmp_path, home):
    folder = tmp_path / "public"
    with open_channel(home, CHANNEL) as channel:
        assert channel.head().height == 5
        record(home, range(5, 7))
        assert publish(home, folder).size == 7  # it came first, and knew more than we had seen
        assert publish_tiles(channel, NODE, HOST, folder).size == 7
    assert is_verified(folder, 7)


def test_many_that_publish_at_once_leave_a_log_that_verifies(tmp_path, home):
    folder, failures = tmp_path / "public", []

    def run() -> None:
        try:
            publish(home, folder)
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=run, daemon=True) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not failures and not any(thread.is_alive() for thread in threads)
    assert is_verified(folder, 5)


# --- what is published already ---


@pytest.mark.parametrize("blocks", [5, 8])
def test_a_fork_of_what_is_published_is_refused_and_nothing_is_written(tmp_path, public, blocks):
    before = everything(public)
    record(tmp_path / "again", range(100, 100 + blocks))
    with pytest.raises(Forked, match="has published 5 blocks") as caught:
        publish(tmp_path / "again", public)
    assert caught.value.exit_code == 5
    assert "Nothing was written" in caught.value.advice_now
    assert everything(public) == before


def test_publish_refuses_channel_behind_tiles(tmp_path, home, public):
    shutil.copytree(home, tmp_path / "older")
    record(home, range(5, 7))
    publish(home, public)
    before = everything(public)
    with pytest.raises(Conflict, match="of 7 blocks, and the channel has only 5"):
        publish(tmp_path / "older", public)
    assert everything(public) == before


def test_a_folder_of_another_log_is_refused_and_nothing_is_written(home, public):
    before = everything(public)
    with pytest.raises(
        Conflict, match=r'a head of "log\.example/ea\.core", not of "other\.example/ea\.core"'
    ):
        publish(home, public, "other.example")
    assert everything(public) == before


@pytest.mark.parametrize(
    "raw", [b"", b"not a note\n", b"log.example/ea.core\n5\n", SmallLog(3).head()[:-20], bytes(2_000_000)]
)
def test_a_checkpoint_that_cannot_be_read_is_refused_and_left_as_it_is(home, public, raw):
    (public / "checkpoint").write_bytes(raw)
    before = everything(public)
    with pytest.raises(Conflict, match="exists and is no checkpoint") as caught:
        publish(home, public)
    assert "Put the checkpoint back" in caught.value.advice_now
    assert everything(public) == before


def test_a_pipe_in_place_of_the_checkpoint_holds_nobody_up(home, tmp_path):
    (tmp_path / "piped").mkdir()
    os.mkfifo(tmp_path / "piped/checkpoint")
    with pytest.raises(Conflict, match="is no file"):
        publish(home, tmp_path / "piped")
    assert not (tmp_path / "piped/tile").exists()


def test_what_extends_the_published_head_is_published(home, public):
    cosigned = (public / "checkpoint").read_bytes()
    assert publish(home, public).kept == 2
    assert (public / "checkpoint").read_bytes() == cosigned, "the witness's line stays"
    record(home, range(5, 6))
    assert publish(home, public).written == 2
    assert is_verified(public, 6)


# --- damage ---


@pytest.mark.parametrize("tile", ["tile/0/000.p/5", "tile/entries/000.p/5"])
@pytest.mark.parametrize(
    "damage",
    [
        lambda raw: raw + b"x",
        lambda raw: raw[:-1],
        lambda raw: b"",
        lambda raw: raw[:40] + bytes([raw[40] ^ 1]) + raw[41:],
        lambda raw: raw + bytes(2),
    ],
    ids=["longer", "shorter", "empty", "flipped", "one more entry"],
)
def test_a_damaged_tile_is_written_anew_and_said(home, public, tile, damage):
    right = everything(public)
    (public / tile).write_bytes(damage(right[tile]))
    done = publish(home, public)
    assert (done.written, done.kept, done.mended) == (0, 1, (tile,))
    assert everything(public) == right
    assert is_verified(public, 5)


def test_full_tiles_are_looked_at_too(tmp_path):
    home, folder = tmp_path / "home", tmp_path / "public"
    record(home, range(258))
    publish(home, folder)
    right = everything(folder)
    for tile in ("tile/0/000", "tile/entries/000"):
        raw = right[tile]
        (folder / tile).write_bytes(raw[:-1] + bytes([raw[-1] ^ 1]))
    done = publish(home, folder)
    assert (done.written, done.kept, done.mended) == (0, 3, ("tile/entries/000", "tile/0/000"))
    assert everything(folder) == right


def test_a_tile_of_entries_holds_exactly_those_that_were_hashed():
    log = SmallLog(3)
    leaves = log.tree.nodes(0, 0, 3)
    assert holds_entries(encode_entries(log.entries), leaves)
    for other in (log.entries[:2], [*log.entries, b""], log.entries[::-1], []):
        assert not holds_entries(encode_entries(other), leaves)


# --- the command line ---


def test_tiles_command_reports_mended_and_refused(ropewalk, tmp_path, monkeypatch):
    make(ropewalk)
    ropewalk("ledger", "append", "--channel", "audit", "--file", "one.json")
    tiles = ("ledger", "tiles", "--channel", "audit", "--host", HOST, "-o", "public")
    assert ropewalk(*tiles).code == 0
    with Path("public/tile/0/000.p/1").open("ab") as stream:
        stream.write(b"x")
    done = ropewalk(*tiles)
    assert done.code == 0
    assert '0 files written, 1 kept, 1 damaged and written anew: "tile/0/000.p/1"' in done.out
    assert ropewalk(*tiles, "--json").json["mended"] == []
    assert "damaged" not in ropewalk(*tiles).out
    other = ropewalk(*tiles, "--host", "other.example")
    assert (other.code, "original --host" in other.err) == (4, True)
    published = Path("public/checkpoint").read_bytes()
    assert ropewalk("init", "again.git").code == 0
    monkeypatch.setenv("ROPEWALK_REPO", str(tmp_path / "again.git"))
    make(ropewalk)
    ropewalk("ledger", "append", "--channel", "audit", "--file", "one.json")
    forked = ropewalk(*tiles)
    assert (forked.code, "Forked" in forked.err) == (5, True)
    assert Path("public/checkpoint").read_bytes() == published


def test_who_names_no_host_is_told_for_whom_was_signed(ropewalk):
    make(ropewalk)
    ropewalk("ledger", "append", "--channel", "audit", "--file", "one.json")
    for command in (("head", "--note"), ("tiles", "-o", "public")):
        asked = ("ledger", *command, "--channel", "audit")
        done = ropewalk(*asked)
        assert done.code == 0
        assert done.err == (
            "no --host given: signed for the placeholder origin ropewalk.invalid/audit; "
            "set your host name with --host\n"
        )
    assert "no --host" not in ropewalk("ledger", "head", "--channel", "audit").err
    named = ropewalk("ledger", "head", "--note", "--host", HOST, "--channel", "audit")
    assert (named.err, named.out.splitlines()[0]) == ("", "log.example/audit")


@pytest.mark.parametrize("host", ["", " "])
def test_an_empty_host_is_refused(ropewalk, host):
    make(ropewalk)
    ropewalk("ledger", "append", "--channel", "audit", "--file", "one.json")
    for command in (("head", "--note"), ("tiles", "-o", "public")):
        done = ropewalk("ledger", *command, "--channel", "audit", "--host", host)
        assert (done.code, done.out) == (2, "")
    assert not Path("public").exists()
