"""A channel that is appended to through shared memory: the answers of `append`, whatever is done to the memory."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.unit.ledger.making import ADA, NODE, command, observed
from tests.waiting import LIMIT_S, soon

from ropewalk.cli.ledger.remote import mailbox
from ropewalk.errors import (
    Denied,
    DigestMismatch,
    Invalid,
    InvalidJson,
    NotFound,
    Replayed,
    RopewalkError,
    SigInvalid,
    TooLarge,
    Unavailable,
    Unverified,
    Usage,
)
from ropewalk.ledger.channel.channel import open_channel, verify_blocks
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.envelope.envelope import to_cbor
from ropewalk.ledger.ingest.async_log import ServedLog
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.mailbox import server as hosting
from ropewalk.ledger.mailbox.agreement import BurstLimiter, MailboxLimits, SignedRoot, sign_root
from ropewalk.ledger.mailbox.client import MailboxClient, RingSession
from ropewalk.ledger.mailbox.ring import HEADER_BYTES, RingWriter
from ropewalk.ledger.mailbox.ring_report import read_rings
from ropewalk.ledger.mailbox.server import MailboxServer
from ropewalk.ledger.mailbox.shared_memory import make_ring, map_ring
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.remote.client import LedgerClient
from ropewalk.ledger.remote.messages import RemoteMessage, parse_message
from ropewalk.ledger.remote.negotiate import Capabilities, choose
from ropewalk.ledger.remote.sync_client import connect_channel
from ropewalk.ledger.rules.policy import STRICT
from ropewalk.net.frames import pack_parts, unpack_parts

pytestmark = pytest.mark.timeout(300)
SMALL = MailboxLimits(16, 4096)


@asynccontextmanager
async def hosted(home: Path, limits: MailboxLimits = SMALL, **options: Any) -> AsyncIterator[MailboxServer]:
    if not (home / "ledger" / "audit").exists():
        create_channel(home, "audit", "node", NODE.public, options.pop("policy", None))
    server = MailboxServer(home, lambda _channel: [NODE], home / "box", "audit", limits=limits, **options)
    async with asyncio.timeout(LIMIT_S), server:
        yield server


def with_client(
    home: Path,
    act: Callable[[MailboxClient], Awaitable[Any]],
    client: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    async def main() -> Any:
        async with (
            hosted(home, **options) as server,
            MailboxClient(server.url, "audit", **(client or {})) as remote,
        ):
            assert isinstance(remote, MailboxClient)
            return await act(remote)

    return asyncio.run(main())


def line_of(remote: LedgerClient) -> RingSession:
    assert isinstance(remote._session, RingSession)
    return remote._session


def stored(home: Path) -> list[bytes]:
    with open_channel(home, "audit") as channel:
        return [raw for block in channel.blocks() for raw in block.envelopes]


def rings(home: Path) -> list[str]:
    return [path.name for path in (home / "box").iterdir() if path.suffix == ".ring"]


def test_receipts_in_order_through_a_small_ring(tmp_path):
    good = [observed(i).raw for i in range(200)]
    mixed = [good[0], b"{", command("c").raw, command("c", payload=2).raw, to_cbor(observed(7))]

    async def act(remote: MailboxClient) -> tuple[Any, Any]:
        assert remote.agreement.transport == "vm_mailbox" and remote.agreement.mailbox == SMALL
        return await remote.submit_many(good), await remote.submit_many(mixed)

    first, second = with_client(tmp_path, act)
    assert [receipt.envelope_id for receipt in first] == [observed(i).id for i in range(200)]
    assert [type(each) for each in second] == [
        LedgerReceipt,
        InvalidJson,
        LedgerReceipt,
        Replayed,
        LedgerReceipt,
    ]
    assert [second[place].replayed for place in (0, 2, 4)] == [True, False, True]
    assert stored(tmp_path) == [*good, command("c").raw]
    assert verify_blocks(tmp_path, "audit", deep=True).ok
    assert rings(tmp_path) == []


def test_many_callers_share_a_ring_and_can_read_over_its_bell(tmp_path):
    async def act(remote: MailboxClient) -> Any:
        receipts = await asyncio.gather(*(remote.submit(observed(i).raw) for i in range(60)))
        assert remote.connections == 1 and (await remote.head())["envelopes"] == 60
        assert (await remote.settings()).signer == NODE.public
        assert sum(len(lines) - 1 for _, lines in await remote.read_blocks(0)) == 60
        return receipts

    assert len({(receipt.height, receipt.index) for receipt in with_client(tmp_path, act)}) == 60


def test_two_senders_have_a_ring_each(tmp_path):
    async def main() -> None:
        async with (
            hosted(tmp_path) as server,
            MailboxClient(server.url, "audit") as one,
            MailboxClient(server.url, "audit", limits=MailboxLimits(2, 2048)) as other,
        ):
            assert len(rings(tmp_path)) == 2
            assert other.agreement.mailbox == MailboxLimits(2, 2048)
            raws = [observed(i).raw for i in range(80)]
            await asyncio.gather(one.submit_many(raws[:40]), other.submit_many(raws[40:]))
            assert sorted(stored(tmp_path)) == sorted(raws)

    asyncio.run(main())


def test_mailbox_address_works_for_sync_and_trust(tmp_path):
    async def main() -> None:
        async with hosted(tmp_path) as server:

            def send(trust: Trust) -> Any:
                with connect_channel(server.url, "audit", trust=trust) as remote:
                    return remote.submit(observed(1).raw)

            assert (await asyncio.to_thread(send, Trust((NODE.public,), ()))).height == 0
            with pytest.raises(SigInvalid):
                await asyncio.to_thread(send, Trust((ADA.public,), ()))
            with pytest.raises(NotFound):
                await MailboxClient(server.url, "other").__aenter__()

    asyncio.run(main())


def test_slots_bytes_and_rate_are_the_smaller_of_both_sides(tmp_path):
    ours = Capabilities(("vm_mailbox",), mailbox=MailboxLimits(8, 9000, 70))
    theirs = Capabilities(("tls", "vm_mailbox"), mailbox=MailboxLimits(16, 500))
    assert choose(ours, theirs).mailbox == choose(theirs, ours).mailbox == MailboxLimits(8, 500, 70)
    assert choose(ours, replace(theirs, mailbox=None)).mailbox == MailboxLimits(8, 9000, 70)
    assert choose(Capabilities(("tls",)), replace(theirs, transports=("tls",))).mailbox is None
    for text in ("[]", "{}", '{"slots":1}', '{"slots":0,"slot_bytes":1}', '{"slots":1,"slot_bytes":true}'):
        with pytest.raises(Invalid):
            MailboxLimits.from_json(json.loads(text))
    with pytest.raises(Invalid):
        MailboxLimits.from_json({"slots": 1, "slot_bytes": 1, "burst_per_s": 0})
    create_channel(tmp_path, "audit", "node", NODE.public, None)
    with pytest.raises(Usage):
        MailboxServer(tmp_path, lambda _channel: [NODE], tmp_path, "audit", limits=MailboxLimits(0, 1))
    with pytest.raises(Usage, match="takes no envelopes where sessions are recorded"):
        MailboxServer(tmp_path, lambda _channel: [NODE], tmp_path, "audit", record="audit")
    assert MailboxLimits(mailbox.SLOTS, mailbox.SLOT_BYTES) == MailboxLimits()


def test_envelope_over_slot_size_refused_alone(tmp_path):
    async def act(remote: MailboxClient) -> Any:
        large = observed(1, payload="x" * 5_000)
        return await remote.submit_many([observed(0).raw, large.raw, observed(2).raw])

    outcomes = with_client(tmp_path, act)
    assert [type(each) for each in outcomes] == [LedgerReceipt, TooLarge, LedgerReceipt]


def test_what_comes_faster_than_agreed_waits_and_is_not_lost(tmp_path, monkeypatch):
    waits: list[float] = []

    class Noted(BurstLimiter):
        def wait_s(self, count: int, now_s: float) -> float:
            waits.append(super().wait_s(count, now_s))
            return waits[-1]

    monkeypatch.setattr(hosting, "BurstLimiter", Noted)

    async def act(remote: MailboxClient) -> Any:
        assert remote.agreement.mailbox == MailboxLimits(16, 4096, 100)
        return await remote.submit_many([observed(i).raw for i in range(40)])

    limits = MailboxLimits(16, 4096, 100)
    outcomes = with_client(tmp_path, act, limits=limits)
    assert all(isinstance(each, LedgerReceipt) for each in outcomes)
    assert len(waits) >= 10 and sum(wait > 0 for wait in waits) > 0
    pace = BurstLimiter(4)
    assert [pace.wait_s(2, 10.0), pace.wait_s(2, 10.0), pace.wait_s(1, 10.5)] == [0.0, 0.5, 0.5]


def test_restricted_envelopes_do_not_even_lie_in_shared_memory(tmp_path):
    secret = observed(1, confidentiality={"level": "restricted"})

    async def act(remote: MailboxClient) -> Any:
        before = bytes(line_of(remote).mapped.ring.memory)
        with pytest.raises(Denied, match="vm_mailbox does not encrypt"):
            await remote.submit(secret.raw)
        assert bytes(line_of(remote).mapped.ring.memory) == before

    with_client(tmp_path, act)


def test_the_host_refuses_what_a_careless_sender_puts_in(tmp_path, monkeypatch):
    secret = to_cbor(observed(1, confidentiality={"level": "restricted"}))
    wrong = [secret, b"", b"\xa0", observed(2).raw, to_cbor(observed(3))]

    async def careless(remote: MailboxClient) -> Any:
        return await LedgerClient.submit_many(remote, wrong)

    outcomes = with_client(tmp_path, careless)
    assert [isinstance(each, RopewalkError) for each in outcomes] == [True, True, True, True, False]
    assert isinstance(outcomes[0], Denied) and stored(tmp_path) == [observed(3).raw]


@pytest.mark.parametrize("place", [0, 8, 12, 20, 60], ids=["number", "length", "flags", "digest", "bytes"])
def test_a_byte_that_was_changed_in_a_slot_is_refused_and_the_others_go(tmp_path, monkeypatch, place):
    put = RingWriter.put

    def changing(writer: RingWriter, raw: bytes) -> bytes:
        digest = put(writer, raw)
        if writer.tail == 2:
            stride = (48 + SMALL.slot_bytes + 63) // 64 * 64
            writer.ring.memory[HEADER_BYTES + stride + place] ^= 1
        return digest

    monkeypatch.setattr(RingWriter, "put", changing)

    async def act(remote: MailboxClient) -> Any:
        outcomes = await remote.submit_many([observed(i).raw for i in range(3)])
        return outcomes, await remote.submit_many([observed(1).raw])

    first, again = with_client(tmp_path, act)
    assert [type(each) for each in first] == [LedgerReceipt, DigestMismatch, LedgerReceipt]
    assert not again[0].replayed
    assert stored(tmp_path) == [observed(0).raw, observed(2).raw, observed(1).raw]


def test_exchanged_envelope_noticed_by_sender(tmp_path, monkeypatch):
    put = RingWriter.put

    def exchanged(writer: RingWriter, raw: bytes) -> bytes:
        put(writer, to_cbor(observed(99)))  # well made, by an author who signed it, and with the right digest
        return writer.ring.digest(writer.tail - 1, raw)

    monkeypatch.setattr(RingWriter, "put", exchanged)

    async def act(remote: MailboxClient) -> None:
        with pytest.raises(Unverified, match="other slots were taken than were put in"):
            await remote.submit(observed(1).raw)

    with_client(tmp_path, act)


def test_a_root_that_the_host_did_not_sign_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(hosting, "sign_root", lambda _key, *run: sign_root(ADA, *run))

    async def act(remote: MailboxClient) -> None:
        with pytest.raises(SigInvalid):
            await remote.submit(observed(1).raw)

    with_client(tmp_path, act)


def test_a_root_covers_the_mailbox_the_place_and_every_slot():
    digests = [bytes([i]) * 32 for i in range(3)]
    signed = sign_root(NODE, b"i" * 16, 5, digests)
    signed.check(NODE.public, b"i" * 16, 5, digests)
    for name, first, run in (
        (b"j" * 16, 5, digests),
        (b"i" * 16, 6, digests),
        (b"i" * 16, 5, digests[:2]),
        (b"i" * 16, 5, digests[::-1]),
    ):
        with pytest.raises(Unverified):
            signed.check(NODE.public, name, first, run)
    with pytest.raises(SigInvalid):
        replace(signed, signature=bytes(64)).check(NODE.public, b"i" * 16, 5, digests)
    assert SignedRoot.from_bytes(bytes(128)) is None
    for wrong in (None, {}, signed.to_json() | {"from": -1}, signed.to_json() | {"signature": "00"}):
        with pytest.raises(Invalid):
            SignedRoot.from_json(wrong)


def test_what_was_put_in_is_sealed_though_its_sender_never_rang(tmp_path):
    async def main() -> None:
        async with hosted(tmp_path) as server:
            async with MailboxClient(server.url, "audit") as remote:
                for number in range(3):
                    line_of(remote).writer.put(to_cbor(observed(number)))
            await soon(lambda: rings(tmp_path) == [])
        assert stored(tmp_path) == [observed(number).raw for number in range(3)]

    asyncio.run(main())


def test_a_host_takes_in_what_the_one_before_was_killed_over(tmp_path):
    box = tmp_path / "box"
    box.mkdir()
    create_channel(tmp_path, "audit", "node", NODE.public, None)
    name, stranger = (f"{channel}~{'0' * 32}.ring" for channel in ("audit", "other"))
    ring = make_ring(box / name, 8, 4096, bytes(16))
    writer = RingWriter(ring.ring)
    for number in range(4):
        writer.put(to_cbor(observed(number)))
    ring.ring.memory[HEADER_BYTES + 4160] ^= (
        1  # the number of the second: those behind are found all the same
    )
    ring.close()
    make_ring(box / stranger, 1, 64, bytes(16)).close()
    strange = f"audit~{'2' * 32}.ring"
    damaged = make_ring(box / strange, 8, 4096, bytes(16))
    RingWriter(damaged.ring).put(to_cbor(observed(9)))
    damaged.ring.memory[64] = 2  # let go of more than were put in: nobody knows what is in it
    damaged.close()
    (box / "audit~unfinished.ring.new").write_bytes(b"x")
    (box / f"audit~{'1' * 32}.ring").write_bytes(b"no ring")
    asyncio.run(_only_open(tmp_path))
    assert stored(tmp_path) == [observed(number).raw for number in (0, 2, 3)]
    assert sorted(rings(tmp_path)) == sorted([stranger, strange, f"audit~{'1' * 32}.ring"])


async def _only_open(home: Path) -> None:
    async with hosted(home):
        pass


def test_a_ring_is_kept_while_its_channel_cannot_be_written(tmp_path, monkeypatch):
    async def refusing(_log: ServedLog, raws: Any) -> Any:
        return [Unavailable("no disk")] * len(raws)

    box = tmp_path / "box"
    box.mkdir()
    create_channel(tmp_path, "audit", "node", NODE.public, None)
    ring = make_ring(box / f"audit~{'0' * 32}.ring", 8, 4096, bytes(16))
    RingWriter(ring.ring).put(to_cbor(observed(1)))
    ring.close()
    with monkeypatch.context() as patched:
        patched.setattr(ServedLog, "submit_many", refusing)
        asyncio.run(_only_open(tmp_path))
    assert len(rings(tmp_path)) == 1
    asyncio.run(_only_open(tmp_path))
    assert rings(tmp_path) == [] and stored(tmp_path) == [observed(1).raw]


@pytest.mark.parametrize(
    "asked",
    [
        RemoteMessage("append", 2, {"slots": 1}, (b"{}",)),
        RemoteMessage("append", 2, {"slots": 0}),
        RemoteMessage("append", 2, {"slots": 17}),
    ],
    ids=["parts", "none", "too_many"],
)
def test_whoever_rings_and_makes_no_sense_is_told_so_and_let_go(tmp_path, asked):
    async def act(remote: MailboxClient) -> Any:
        await remote.head()
        line = line_of(remote)
        assert line.reading is not None
        line.reading.cancel()
        await asyncio.gather(line.reading, return_exceptions=True)
        await line.carrier.frames.send(pack_parts(asked.parts_out()))
        raw = await line.carrier.frames.receive()
        assert raw is not None and await line.carrier.frames.receive() is None
        return parse_message(unpack_parts(raw, 2))

    told = with_client(tmp_path, act)
    assert (told.op, told.number) == ("problem", 0)


def test_ringing_empty_slots_gives_refusals(tmp_path):
    async def act(remote: MailboxClient) -> Any:
        line = line_of(remote)
        line.writer.put = lambda raw: line.writer.ring.digest(0, raw)  # type: ignore[method-assign]
        return await remote.submit_many([observed(1).raw])

    (refused,) = with_client(tmp_path, act)
    assert isinstance(refused, DigestMismatch) and stored(tmp_path) == []


@pytest.mark.parametrize("name", ["../bell", "audit.ring", 7, f"audit~{'0' * 32}.ring"])
def test_a_host_that_names_another_file_is_not_followed(tmp_path, monkeypatch, name):
    prepare = hosting.MailboxSession._prepare
    other = make_ring(tmp_path / f"audit~{'0' * 32}.ring", 4, 4096, bytes(16))

    def lying(session: Any, *known: Any) -> Any:
        other.path.rename(tmp_path / "box" / other.path.name)
        return prepare(session, *known) | {"ring": name}

    monkeypatch.setattr(hosting.MailboxSession, "_prepare", lying)

    async def main() -> None:
        async with hosted(tmp_path) as server:
            with pytest.raises(Invalid, match="ring"):
                await MailboxClient(server.url, "audit").__aenter__()

    asyncio.run(main())
    other.close()


def test_a_policy_that_pins_another_transport_keeps_mailboxes_out(tmp_path):
    policy = replace(STRICT, capability_matrix={"transports": ["tls"]})

    async def main() -> None:
        async with hosted(tmp_path, policy=policy) as server:
            with pytest.raises(Unavailable, match="no transport in common"):
                await MailboxClient(server.url, "audit").__aenter__()

    asyncio.run(main())


def test_one_host_at_a_time_in_a_folder_that_is_its_own(tmp_path):
    async def main() -> None:
        async with hosted(tmp_path):
            with pytest.raises(Unavailable, match="another process"):
                await _only_open(tmp_path)
        (tmp_path / "box").chmod(0o777)
        with pytest.raises(Denied, match="not be writable by others"):
            await _only_open(tmp_path)

    asyncio.run(main())
    assert list((tmp_path / "box").iterdir()) == []


def test_a_folder_may_have_a_longer_name_than_a_socket(tmp_path):
    home = tmp_path / ("x" * 120)
    home.mkdir()

    async def act(remote: MailboxClient) -> LedgerReceipt:
        return await remote.submit(observed(1).raw)

    assert with_client(home, act).height == 0


def test_addresses_that_lead_to_no_mailbox_are_refused(tmp_path):
    async def main() -> None:
        with pytest.raises(Unavailable, match="No such file") as nobody:
            await MailboxClient(f"mailbox:{tmp_path}", "audit").__aenter__()
        assert "mailbox serve" in nobody.value.advice_now
        for url in ("mailbox:", "tcp://127.0.0.1:1"):
            with pytest.raises(Usage, match="not a mailbox"):
                MailboxClient(url, "audit")

    asyncio.run(main())
    with pytest.raises(NotFound):
        map_ring(tmp_path / "nowhere")
    (tmp_path / "empty").touch()
    with pytest.raises(Invalid):
        map_ring(tmp_path / "empty")


def test_ring_report_shows_waiting_and_damage(tmp_path):
    async def act(remote: MailboxClient) -> None:
        ring, box = line_of(remote).mapped.ring, tmp_path / "box"
        assert [(one.taken, one.waiting, one.root) for one in read_rings(box)] == [(0, 0, None)]
        await remote.submit_many([observed(i).raw for i in range(3)])
        (one,) = read_rings(box, [ADA.public, NODE.public])
        assert (one.ok, one.taken, one.waiting, one.root) == (True, 3, 0, "holds")
        assert one.signer == NODE.public.did() and read_rings(box, [ADA.public])[0].signer is None
        line_of(remote).writer.put(to_cbor(observed(3)))
        at = HEADER_BYTES + 3 * 4160 + 50
        ring.memory[at] ^= 1
        (one,) = read_rings(box)
        assert (one.ok, one.waiting, one.damaged) == (False, 1, (3,))
        ring.memory[at] ^= 1
        ring.memory[HEADER_BYTES + 50] ^= 1
        (one,) = read_rings(box)
        assert (one.ok, one.root) == (False, "differs") and one.to_json()["damaged"] == []

    with_client(tmp_path, act)
    with pytest.raises(NotFound):
        read_rings(tmp_path / "nowhere")


def test_sender_resends_after_host_replaced(tmp_path):
    async def main() -> None:
        raws = [observed(i).raw for i in range(30)]
        async with hosted(tmp_path) as first:
            remote = MailboxClient(first.url, "audit")
            await remote.__aenter__()
            await remote.submit_many(raws[:10])
        sending = asyncio.ensure_future(remote.submit_many(raws[5:]))
        async with hosted(tmp_path):
            receipts = await sending
            assert remote.connections == 2
            await remote.__aexit__(None, None, None)
        assert [each.replayed for each in receipts if isinstance(each, LedgerReceipt)] == [True] * 5 + [
            False
        ] * 20
        assert stored(tmp_path) == raws

    asyncio.run(main())
