"""Ways to lie to a reader, each done to the stored bytes of a usual world."""

from __future__ import annotations

import shutil
import subprocess
import zlib
from collections.abc import Callable
from dataclasses import dataclass

from ropewalk.disk.lmdb_tables import LmdbTables
from ropewalk.gossip.core.table import TABLES
from ropewalk.gossip.peer.topics import topic_folder
from ropewalk.ledger.channel.segments.format import ALIGN, record_head
from ropewalk.ledger.channel.segments.reader import Segments
from tests.pipeline.world import ADA, NODE, World


@dataclass(frozen=True, slots=True)
class Tampering:
    """One lie: what is done, to which engine, and how many rows may still be believed."""

    engine: str
    act: Callable[[World], object]
    left: int
    refused_always: bool = False


def rewrite_block(world: World, height: int, change: Callable[[list[bytes]], list[bytes]]) -> None:
    """Change the lines of a stored block and make its checksums hold again, as somebody with the disk could."""
    segments = Segments(world.segment.parent.parent)
    raw = bytearray(world.segment.read_bytes()[:ALIGN])
    for record in segments.scan():
        lines = change(list(record.lines)) if record.height == height else record.lines
        body = b"\n".join(lines) + b"\n"
        body += b"\n" * (-len(body) % ALIGN)
        raw += record_head(record.height, body) + body
    world.segment.write_bytes(raw)


def change_payload(world: World) -> None:
    rewrite_block(world, 2, lambda lines: [lines[0], lines[1].replace(b'"n":8', b'"n":9'), *lines[2:]])


def drop_envelope(world: World) -> None:
    rewrite_block(world, 2, lambda lines: lines[:-1])


def double_envelope(world: World) -> None:
    rewrite_block(world, 2, lambda lines: [*lines, lines[-1]])


def forge_seal(world: World) -> None:
    def forge(lines: list[bytes]) -> list[bytes]:
        at = lines[0].index(b'"sig":"') + 7
        other = b"A" if lines[0][at : at + 1] != b"A" else b"B"
        return [lines[0][:at] + other + lines[0][at + 1 :], *lines[1:]]

    rewrite_block(world, 2, forge)


def wrong_root(world: World) -> None:
    def change(lines: list[bytes]) -> list[bytes]:
        at = lines[0].index(b'"merkle_root":"') + 15
        return [lines[0][:at] + bytes(reversed(lines[0][at : at + 64])) + lines[0][at + 64 :], *lines[1:]]

    rewrite_block(world, 2, change)


def edit_header(world: World) -> None:
    rewrite_block(
        world, 2, lambda lines: [lines[0].replace(b'"timestamp":"1', b'"timestamp":"2'), *lines[1:]]
    )


def corrupt_segment(world: World) -> None:
    raw = bytearray(world.segment.read_bytes())
    raw[raw.index(b'"n":8')] ^= 0x01
    world.segment.write_bytes(raw)


def resealed_by_a_stranger(world: World) -> None:
    """A block sealed again by another key: whole in itself, but nobody the channel trusts."""
    from ropewalk.ledger.block.block import Block, seal

    def change(lines: list[bytes]) -> list[bytes]:
        old = Block.from_lines(lines)
        return seal(
            ADA,
            channel=old.header.channel,
            height=old.height,
            prev_block_hash=old.header.prev_block_hash,
            envelopes=old.envelopes,
            timestamp_ns=old.header.timestamp_ns,
        ).lines()

    rewrite_block(world, 4, change)


def forged_envelope_under_a_good_seal(world: World) -> None:
    """The channel's own key seals a block with an envelope nobody signed."""
    from ropewalk.ledger.block.block import Block, seal

    def change(lines: list[bytes]) -> list[bytes]:
        old = Block.from_lines(lines)
        envelopes = list(old.envelopes)
        at = envelopes[1].index(b'"sig":"') + 7
        envelopes[1] = (
            envelopes[1][:at] + bytes(reversed(envelopes[1][at : at + 20])) + envelopes[1][at + 20 :]
        )
        return seal(
            NODE,
            channel=old.header.channel,
            height=old.height,
            prev_block_hash=old.header.prev_block_hash,
            envelopes=envelopes,
            timestamp_ns=old.header.timestamp_ns,
        ).lines()

    rewrite_block(world, 4, change)


def replace_blob(world: World) -> None:
    """Another envelope under the name of the third event of prod, as a loose object in front of the pack."""
    from ropewalk.pipeline.source.git_logs import GitLogs

    logs = GitLogs(world.place)
    slot = logs.line("prod").span(3, 4)[0]
    _, raw = logs.store.get(slot.blob)
    changed = raw.replace(b'"ok":true', b'"ok":null')
    folder = world.place.git_dir / "objects" / slot.blob[:2]
    unpack(world)
    path = folder / slot.blob[2:]
    path.chmod(0o644)
    path.write_bytes(zlib.compress(b"blob %d\x00" % len(changed) + changed))


def drop_commits(world: World) -> None:
    head = "refs/gatos/shiplog/prod/head"
    _git(world, "update-ref", head, _git(world, "rev-parse", f"{head}~2"))


def change_message(world: World) -> None:
    _alter(world, lambda raw: raw.replace(b"\x61n\x03", b"\x61n\x04") if b"\x61n\x03" in raw else None)


def drop_message(world: World) -> None:
    _alter(world, lambda raw: b"" if b"\x61n\x03" in raw else None)


def double_arrival(world: World) -> None:
    """A message that is said to have arrived once more."""
    tables = LmdbTables(topic_folder(world.place.home, "com.example.chat"), TABLES)

    def body(view: object) -> None:
        arrived = dict(view.scan("arrivals"))  # type: ignore[attr-defined]
        last = max(arrived)
        view.put("arrivals", (int.from_bytes(last, "big") + 1).to_bytes(8, "big"), arrived[min(arrived)])  # type: ignore[attr-defined]

    tables.transact(body)
    tables.close()


def drop_arrival(world: World) -> None:
    """An arrival in the middle that is not there any more."""
    tables = LmdbTables(topic_folder(world.place.home, "com.example.chat"), TABLES)

    def body(view: object) -> None:
        arrived = sorted(key for key, _ in view.scan("arrivals"))  # type: ignore[attr-defined]
        view.delete("arrivals", arrived[3])  # type: ignore[attr-defined]

    tables.transact(body)
    tables.close()


def replace_arrival(world: World) -> None:
    """A message that is said to have arrived in the place of another."""
    tables = LmdbTables(topic_folder(world.place.home, "com.example.chat"), TABLES)

    def body(view: object) -> None:
        arrived = sorted(view.scan("arrivals"))  # type: ignore[attr-defined]
        view.put("arrivals", arrived[4][0], arrived[1][1])  # type: ignore[attr-defined]

    tables.transact(body)
    tables.close()


def tear_ref(world: World) -> None:
    """A ref whose file a crash left without its value, on a clone that has no index yet."""
    (world.place.git_dir / "refs/gatos/shiplog/prod/head").write_bytes(bytes(41))
    for memory in ("index", "seen"):
        shutil.rmtree(world.place.home / memory, ignore_errors=True)


def tear_settings(world: World) -> None:
    (world.place.home / "ledger" / "ea.core" / "channel.json").write_bytes(b"")


def forge_message(world: World) -> None:
    """A signature nobody made, in the bytes of a message; its id changes with it, the log's do not."""
    raws: list[bytes] = []
    _alter(world, lambda raw: raws.append(raw))
    last = raws[-1]
    _alter(world, lambda raw: raw[:-1] + bytes((raw[-1] ^ 1,)) if raw == last else None)


def lose_commit(world: World, name: str = "refs/gatos/shiplog/prod/head~7") -> Callable[[], int]:
    """Other bytes under the name of a commit, on a clone that has no index yet; what is returned brings it back."""
    found = _git(world, "rev-parse", name)
    unpack(world)
    path = world.place.git_dir / "objects" / found[:2] / found[2:]
    path.chmod(0o644)
    before = path.read_bytes()
    path.write_bytes(zlib.compress(b"blob 2\x00{}"))
    for memory in ("index", "seen"):
        shutil.rmtree(world.place.home / memory, ignore_errors=True)
    return lambda: path.write_bytes(before)


def rewrite_history(world: World) -> None:
    """Another history of the same length, whole in itself."""
    head = "refs/gatos/shiplog/prod/head"
    drop_commits(world)
    (world.place.home / "seen" / head).write_text(_git(world, "rev-parse", head) + "\n")
    world.git("prod", 2)


def _alter(world: World, change: Callable[[bytes], bytes | None]) -> None:
    tables = LmdbTables(topic_folder(world.place.home, "com.example.chat"), TABLES)

    def body(view: object) -> None:
        for key, raw in list(view.scan("messages")):  # type: ignore[attr-defined]
            new = change(raw)
            if new == b"":
                view.delete("messages", key)  # type: ignore[attr-defined]
            elif new is not None:
                view.put("messages", key, new)  # type: ignore[attr-defined]

    tables.transact(body)
    tables.close()


def unpack(world: World) -> None:
    """Every packed object as a loose one."""
    folder = world.place.git_dir / "objects" / "pack"
    packs = list(folder.glob("*.pack"))
    moved = [pack.rename(world.path.parent / pack.name) for pack in packs]
    for leftover in folder.iterdir():
        leftover.unlink()
    for pack in moved:
        with pack.open("rb") as stream:
            subprocess.run(
                ["git", "-C", str(world.place.git_dir), "unpack-objects", "-q"],
                stdin=stream,
                check=True,
                capture_output=True,
            )


def _git(world: World, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(world.place.git_dir), *arguments], check=True, capture_output=True, text=True
    )
    return done.stdout.strip()


TAMPERINGS: dict[str, Tampering] = {
    "changed payload": Tampering("ledger", change_payload, 16),
    "dropped envelope": Tampering("ledger", drop_envelope, 16),
    "doubled envelope": Tampering("ledger", double_envelope, 16),
    "forged seal": Tampering("ledger", forge_seal, 16),
    "wrong root": Tampering("ledger", wrong_root, 12),
    "edited header": Tampering("ledger", edit_header, 12),
    "corrupted segment": Tampering("ledger", corrupt_segment, 16),
    "stranger's seal": Tampering("ledger", resealed_by_a_stranger, 16),
    "forged envelope": Tampering("ledger", forged_envelope_under_a_good_seal, 19),
    "changed blob": Tampering("gitlog", replace_blob, 19),
    "dropped commits": Tampering("gitlog", drop_commits, 0, refused_always=True),
    "lost commit": Tampering("gitlog", lose_commit, 8),
    "torn ref": Tampering("gitlog", tear_ref, 8),
    "torn settings": Tampering("ledger", tear_settings, 0),
    "changed message": Tampering("gossip", change_message, 6),
    "dropped message": Tampering("gossip", drop_message, 5),
    "forged message": Tampering("gossip", forge_message, 6),
    "doubled arrival": Tampering("gossip", double_arrival, 7),
    "replaced arrival": Tampering("gossip", replace_arrival, 6),
    "dropped arrival": Tampering("gossip", drop_arrival, 6),
}

__all__ = ["TAMPERINGS", "Tampering", "lose_commit", "rewrite_block", "rewrite_history", "unpack"]
