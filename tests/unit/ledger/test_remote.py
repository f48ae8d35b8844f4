"""A channel that is elsewhere: what is sent there stands there, what is read there holds here."""

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
from tests.unit.ledger.rotating import NEXT, rotation
from tests.waiting import LIMIT_S, aside, soon

from ropewalk import ledger
from ropewalk.errors import (
    Conflict,
    Denied,
    Forked,
    HistoryRewritten,
    Invalid,
    InvalidEnvelope,
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
from ropewalk.kernel.keys import PublicKey, SigningKey
from ropewalk.ledger.channel.channel import open_channel, open_log, verify_blocks
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.envelope.adapt import check_adapted
from ropewalk.ledger.envelope.envelope import parse_stored, to_cbor
from ropewalk.ledger.ingest.ticket import LedgerReceipt
from ropewalk.ledger.proof.trust import Trust
from ropewalk.ledger.remote.client import LedgerClient
from ropewalk.ledger.remote.messages import PROTOCOL
from ropewalk.ledger.remote.negotiate import FEATURES
from ropewalk.ledger.remote.replica import pull_channel
from ropewalk.ledger.remote.server import LedgerServer
from ropewalk.ledger.remote.writer_lease import WriterLease
from ropewalk.ledger.rules.policy import STRICT, Policy
from ropewalk.ledger.versions.lifecycle import move_version
from ropewalk.net.tls import client_tls, server_tls

pytestmark = pytest.mark.timeout(300)
TRUST = Trust((NODE.public,), ())


@asynccontextmanager
async def served(home: Path, **options: Any) -> AsyncIterator[LedgerServer]:
    if not (home / "ledger" / "audit").exists():
        create_channel(home, "audit", "node", NODE.public, options.pop("policy", None))
    async with asyncio.timeout(LIMIT_S), LedgerServer(home, lambda _channel: [NODE], **options) as server:
        yield server


def with_client(
    home: Path,
    act: Callable[[LedgerClient], Awaitable[Any]],
    client: dict[str, Any] | None = None,
    **options: Any,
) -> Any:
    async def main() -> Any:
        async with (
            served(home, **options) as server,
            LedgerClient(server.url, "audit", **(client or {})) as remote,
        ):
            return await act(remote)

    return asyncio.run(main())


def test_receipts_come_back_one_for_each_envelope_in_order(tmp_path):
    good = [observed(i).raw for i in range(700)]
    mixed = [
        good[0],
        b"{",
        command("c").raw,
        command("c", payload=2).raw,
        command("c").raw,
        to_cbor(observed(7)),
    ]

    async def act(remote: LedgerClient) -> tuple[Any, Any]:
        return await remote.submit_many(good), await remote.submit_many(mixed)

    first, second = with_client(tmp_path, act)
    with open_channel(tmp_path, "audit") as channel:
        for raw, receipt in zip(good, first, strict=True):
            assert channel.index.position(receipt.envelope_id) == (receipt.height, receipt.index)
            assert channel.envelope(receipt.envelope_id).raw == raw
        assert channel.head().envelopes == 701
    assert [type(each) for each in second] == [
        LedgerReceipt,
        InvalidJson,
        LedgerReceipt,
        Replayed,
        LedgerReceipt,
        LedgerReceipt,
    ]
    assert [second[place].replayed for place in (0, 2, 4, 5)] == [True, False, True, True]
    assert verify_blocks(tmp_path, "audit", deep=True).ok


def test_a_refusal_is_the_same_error_here_as_there(tmp_path):
    wrong = json.dumps({**observed(1).value, "payload": 0}).encode()

    async def act(remote: LedgerClient) -> RopewalkError:
        with pytest.raises(RopewalkError) as refused:
            await remote.submit(wrong)
        return refused.value

    remote = with_client(tmp_path, act)
    with open_log(tmp_path, "audit", NODE) as opened, pytest.raises(RopewalkError) as local:
        opened.log.submit(wrong)
    assert type(remote) is type(local.value) and remote.to_problem() == local.value.to_problem()


@pytest.mark.parametrize("compression", [("none",), ("zstd",)])
def test_block_hashes_do_not_depend_on_what_carries_the_envelopes(tmp_path, authority, compression):
    raws = [observed(i).raw for i in range(50)]
    tls = server_tls(authority.files("server"), PROTOCOL)
    mine = client_tls(authority.files("client"), PROTOCOL)

    async def act(remote: LedgerClient) -> Any:
        agreed = remote.agreement
        assert (agreed.transport, agreed.compression) == ("tls", compression[0])
        return [
            each.envelope_id for each in await remote.submit_many(raws) if isinstance(each, LedgerReceipt)
        ]

    there = with_client(tmp_path, act, {"tls": mine, "compression": compression}, tls=tls)
    assert there == [observed(i).id for i in range(50)]
    with open_channel(tmp_path, "audit") as channel:
        stored = [raw for block in channel.blocks() for raw in block.envelopes]
    assert stored == raws


def test_many_callers_of_one_client_share_a_connection_and_blocks(tmp_path):
    async def act(remote: LedgerClient) -> Any:
        receipts = await asyncio.gather(*(remote.submit(observed(i).raw) for i in range(200)))
        assert remote.connections == 1
        return receipts

    receipts = with_client(tmp_path, act)
    assert len({(receipt.height, receipt.index) for receipt in receipts}) == 200
    with open_channel(tmp_path, "audit") as channel:
        assert channel.head().height < 150


def test_a_large_block_is_read_in_small_messages(tmp_path):
    raws = [observed(i, payload={"n": i, "text": "x" * 9_000}).raw for i in range(60)]

    async def act(remote: LedgerClient) -> Any:
        assert remote.agreement.max_message_bytes == 65_536
        await remote.submit_many(raws)
        return [lines async for _, lines in remote.blocks()]

    found = with_client(tmp_path, act, {"max_message_bytes": 65_536})
    with open_channel(tmp_path, "audit") as channel:
        assert found == [lines for _, lines in channel.lines()]


def test_envelope_over_agreed_size_refused_alone(tmp_path):
    large = observed(1, payload="x" * 70_000).raw

    async def act(remote: LedgerClient) -> Any:
        return await remote.submit_many([observed(0).raw, large, observed(2).raw])

    outcomes = with_client(tmp_path, act, {"max_message_bytes": 65_536})
    assert [type(each) for each in outcomes] == [LedgerReceipt, TooLarge, LedgerReceipt]


def test_unoffered_operation_keeps_the_session(tmp_path):
    async def act(remote: LedgerClient) -> None:
        with pytest.raises(Denied, match="cannot be read in this session"):
            await remote.head()
        assert (await remote.submit(observed(1).raw)).height == 0

    with_client(tmp_path, act, features=FEATURES - {"read"})

    async def other(remote: LedgerClient) -> None:
        with pytest.raises(Denied, match="cannot be appended to"):
            await remote.submit(observed(2).raw)
        assert (await remote.head())["envelopes"] == 1

    with_client(tmp_path, other, features=FEATURES - {"append"})


def allowing_restricted() -> Policy:
    (rule,) = (rule for rule in STRICT.rules if rule["id"] == "restricted")
    return replace(STRICT, rules=(rule | {"decision": "allow", "requires": []},), capability_matrix={})


def test_restricted_envelopes_need_encryption(tmp_path, authority):
    policy = allowing_restricted()
    secret = observed(1, confidentiality={"level": "restricted"}).raw
    decoy = observed(2, payload={"level": "restricted"}).raw

    async def plainly(remote: LedgerClient) -> Any:
        return await remote.submit_many([secret, decoy])

    outcomes = with_client(tmp_path, plainly, policy=policy)
    assert [type(each) for each in outcomes] == [Denied, LedgerReceipt]
    assert "does not encrypt" in outcomes[0].detail
    mine = client_tls(authority.files("client"), PROTOCOL)

    async def encrypted(remote: LedgerClient) -> Any:
        await remote.submit(secret)
        return [height async for height, _ in remote.blocks()]

    tls = server_tls(authority.files("server"), PROTOCOL)
    assert with_client(tmp_path, encrypted, {"tls": mine}, tls=tls) == [0, 1]

    async def read(remote: LedgerClient) -> Any:
        assert [height async for height, _ in remote.blocks(0, 0)] == [0]
        with pytest.raises(Denied, match="block 1 holds restricted envelopes"):
            await remote.read_blocks(0)

    with_client(tmp_path, read)


def test_the_policy_of_the_channel_pins_what_is_agreed(tmp_path):
    matrix = {"compression": ["zstd"], "versions": ["1.0.x"], "evidence": ["slsa.v1"]}
    pinned = replace(STRICT, rules=(), capability_matrix=matrix)

    async def act(remote: LedgerClient) -> Any:
        with pytest.raises(Unverified, match=r"version 1\.1\.0"):
            await remote.submit(observed(1, protocol_version="1.1.0").raw)
        return remote.agreement

    agreed = with_client(tmp_path, act, policy=pinned)
    assert (agreed.compression, agreed.protocol_version) == ("zstd", "1.0.x")
    assert agreed.attestation_format == "slsa.v1" and agreed.attestation_formats == ("slsa.v1",)
    elsewhere = replace(pinned, capability_matrix={"transports": ["tls"]})

    async def none(remote: LedgerClient) -> None:
        raise AssertionError("it connected")

    with pytest.raises(Unavailable, match="no transport in common"):
        with_client(tmp_path / "other", none, policy=elsewhere)


def test_retiring_versions_named_sunset_read_only(tmp_path):
    create_channel(tmp_path, "audit", "node", NODE.public)
    with open_log(tmp_path, "audit", NODE) as opened:
        opened.log.submit(observed(1).raw)
    move_version(tmp_path, "1.1.x", "deprecated", sunset="2100-01-01T00:00:00Z")
    move_version(tmp_path, "1.0.x", "deprecated", sunset="2025-01-01T00:00:00Z", grace_days=36_500)

    async def main() -> None:
        async with served(tmp_path) as server:
            able = server.capabilities(server.lease("audit"), "tcp")
            assert able.supported_versions == able.retiring_versions == ("1.1.x",)
            assert able.grace_versions == ("1.0.x",)
            async with LedgerClient(server.url, "audit") as remote:
                assert remote.agreement.protocol_version == "1.1.x"
                with pytest.raises(Unverified):
                    await remote.submit(observed(2).raw)
            async with LedgerClient(server.url, "audit", versions=("1.0.x",)) as old:
                with pytest.raises(Denied, match="cannot be appended to"):
                    await old.submit(observed(2).raw)
                assert (await old.head())["envelopes"] == 1

    asyncio.run(main())


def test_what_was_negotiated_is_sealed_before_the_session_begins(tmp_path):
    create_channel(tmp_path, "sessions", "node", NODE.public)

    async def act(remote: LedgerClient) -> Any:
        return remote.recorded, remote.agreement

    recorded, agreement = with_client(tmp_path, act, {"key": ADA}, record="sessions")
    with open_channel(tmp_path, "sessions") as channel:
        (block,) = channel.blocks()
        asked, own, agreed = map(parse_stored, block.envelopes)
    assert (asked.public_key, own.public_key, agreed.public_key) == (ADA.public, NODE.public, NODE.public)
    assert recorded["envelope_id"] == agreed.hex_id and recorded["block_hash"] == block.hash.hex()
    payload: Any = agreed.payload
    assert payload["agreed"] == agreement.to_json()
    assert verify_blocks(tmp_path, "sessions", deep=True).ok


@pytest.mark.parametrize("versions", [("1.0.x", "1.1.x"), ("1.0.x",)], ids=["newest", "grace"])
def test_sessions_are_recorded_after_a_sunset(tmp_path, versions):
    """After the sunset of 1.0.x sessions go on; a client that knows nothing newer may still read."""
    create_channel(tmp_path, "sessions", "node", NODE.public)
    move_version(tmp_path, "1.0.x", "deprecated", sunset="2025-01-01T00:00:00Z", grace_days=36_500)

    async def act(remote: LedgerClient) -> Any:
        return remote.recorded, remote.agreement.features

    recorded, features = with_client(tmp_path, act, {"key": ADA, "versions": versions}, record="sessions")
    with open_channel(tmp_path, "sessions") as channel:
        asked, own, agreed = (parse_stored(raw) for block in channel.blocks() for raw in block.envelopes)
    assert {each.protocol_version for each in (asked, own, agreed)} == {"1.1.0"}
    assert recorded["envelope_id"] == agreed.hex_id and ("append" in features) == (len(versions) == 2)
    if versions == ("1.0.x",):
        original = check_adapted(asked)
        assert original["protocol_version"] == "1.0.0" and asked.public_key == NODE.public
    assert verify_blocks(tmp_path, "sessions", deep=True).ok


def test_the_record_names_the_certificate_that_was_shown(tmp_path, authority):
    create_channel(tmp_path, "sessions", "node", NODE.public)

    async def act(remote: LedgerClient) -> Any:
        return remote.recorded

    own = server_tls(authority.files("server"), PROTOCOL)
    with_tls = {"tls": client_tls(authority.files("ada"), PROTOCOL)}
    recorded = with_client(tmp_path, act, with_tls, record="sessions", tls=own)
    with open_channel(tmp_path, "sessions") as channel:
        asked, _, shown, agreed = (parse_stored(raw) for block in channel.blocks() for raw in block.envelopes)
    said: Any = shown.payload
    assert (said["initiator"], said["certificate"]["subject"]) == (asked.hex_id, "CN=ada")
    assert shown.public_key == NODE.public and recorded["envelope_id"] == agreed.hex_id
    assert verify_blocks(tmp_path, "sessions", deep=True).ok


def test_nobody_but_the_server_appends_to_the_channel_it_records_in(tmp_path):
    create_channel(tmp_path, "sessions", "node", NODE.public)

    async def main() -> None:
        async with (
            served(tmp_path, record="sessions") as server,
            LedgerClient(server.url, "sessions") as remote,
            LedgerClient(server.url, "audit") as other,
        ):
            with pytest.raises(Denied, match="channel sessions cannot be appended to") as refused:
                await remote.submit(observed(1).raw)
            assert "recorded there" in refused.value.advice_now
            assert (await other.submit(observed(1).raw)).height == 0
            assert len(await remote.read_blocks(0)) == 2

    asyncio.run(main())


def test_only_a_trusted_key_answers_for_a_channel(tmp_path):
    async def act(remote: LedgerClient) -> Any:
        return remote.responder

    assert with_client(tmp_path, act, {"trust": TRUST}) == NODE.public
    with pytest.raises(SigInvalid, match="not trusted"):
        with_client(tmp_path, act, {"trust": Trust((ADA.public,), ())})


def test_a_channel_that_is_not_served_is_not_there(tmp_path):
    async def main() -> None:
        create_channel(tmp_path, "secret", "node", NODE.public)
        async with served(tmp_path, channels=["audit"]) as server:
            for name in ("secret", "nope", "../audit", ""):
                with pytest.raises(NotFound, match="is served here"):
                    await LedgerClient(server.url, name).__aenter__()

    asyncio.run(main())


def test_local_append_goes_between_batches(tmp_path):
    async def main() -> None:
        async with served(tmp_path, linger_s=0.01) as server, LedgerClient(server.url, "audit") as remote:
            await remote.submit(observed(1).raw)

            def append() -> LedgerReceipt:
                with open_log(tmp_path, "audit", NODE, wait_s=LIMIT_S) as opened:
                    return opened.log.submit(observed(2).raw)

            assert not (await aside(append)).replayed
            assert (await remote.submit(observed(2).raw)).replayed
            assert (await remote.head())["envelopes"] == 2

    asyncio.run(main())


def test_a_server_that_stops_answers_what_it_has_read(tmp_path):
    async def main() -> None:
        async with served(tmp_path) as server:
            remote = await LedgerClient(server.url, "audit", retry_s=0).__aenter__()
            waiting = asyncio.create_task(remote.submit_many([observed(i).raw for i in range(3)]))
            await soon(lambda: any(lease._writers for lease in server._leases.values()) or waiting.done())
        outcomes = await waiting
        assert all(isinstance(each, LedgerReceipt) for each in outcomes), outcomes
        with pytest.raises(Unavailable):
            await remote.submit(observed(9).raw)
        await remote.__aexit__(None, None, None)

    asyncio.run(main())


def test_nothing_listens_in_the_open_unless_that_is_asked_for(tmp_path):
    create_channel(tmp_path, "audit", "node", NODE.public)
    with pytest.raises(Usage, match="would not be encrypted"):
        LedgerServer(tmp_path, lambda _channel: [NODE], host="0.0.0.0")
    LedgerServer(tmp_path, lambda _channel: [NODE], host="0.0.0.0", plain=True)
    with pytest.raises(NotFound):
        LedgerServer(tmp_path, lambda _channel: [NODE], channels=["nope"])


@pytest.mark.parametrize(
    "url", ["", "ws://x:1", "tcp://x", "tcp://:1", "tcp://x:y", "tcp://x:1/a", "x:1", None]
)
def test_an_address_that_is_none_is_told_its_form(url):
    with pytest.raises(Usage, match="not a ledger address"):
        LedgerClient(url, "audit")


# Without a loop, and copies.


def pulled(home: Path, copy: Path, trust: Trust | None = None) -> Any:
    async def main() -> Any:
        async with served(home) as server:

            def act() -> Any:
                with ledger.connect_channel(server.url, "audit") as remote:
                    return pull_channel(remote, copy, "audit", trust=trust)

            return await aside(act)

    return asyncio.run(main())


def test_programs_without_a_loop_send_and_read(tmp_path):
    async def main() -> None:
        async with served(tmp_path) as server:

            def act() -> None:
                with ledger.connect_channel(server.url, "audit") as remote:
                    assert remote.submit(observed(1).raw).height == 0
                    assert len(remote.submit_many([observed(2).raw, b""])) == 2
                    assert [height for height, _ in remote.blocks()] == [0, 1]
                    assert remote.head()["envelopes"] == 2 and remote.responder == NODE.public
                with pytest.raises(Unavailable, match="closed here"):
                    remote.head()
                with pytest.raises(InvalidEnvelope), ledger.connect_channel(server.url, "audit") as again:
                    again.submit("text")  # type: ignore[arg-type]

            await aside(act)

    asyncio.run(main())


def test_a_copy_grows_by_what_is_new_and_verifies_like_the_original(tmp_path):
    home, copy = tmp_path / "home", tmp_path / "copy"
    create_channel(home, "audit", "node", NODE.public, STRICT)
    with open_log(home, "audit", NODE) as opened:
        opened.log.submit_many([observed(i).raw for i in range(20)])
    first = pulled(home, copy, TRUST)
    assert (first.made, first.envelopes) == (True, 20)
    with open_log(home, "audit", NODE) as opened:
        opened.log.submit(command("c").raw)
    second = pulled(home, copy)
    assert (second.made, second.blocks, second.envelopes) == (False, 1, 1)
    assert pulled(home, copy).blocks == 0
    with open_channel(home, "audit") as ours, open_channel(copy, "audit") as theirs:
        assert list(ours.lines()) == list(theirs.lines()) and ours.head() == theirs.head()
        assert theirs.settings.policy == STRICT
    assert verify_blocks(copy, "audit", trust=TRUST, deep=True).ok
    with pytest.raises(Conflict, match="no available key"):
        open_log(copy, "audit", ADA)


def test_replica_of_foreign_channel_not_begun(tmp_path):
    home, copy, false = (tmp_path / name for name in ("home", "copy", "false"))
    create_channel(home, "audit", "node", NODE.public)
    with open_log(home, "audit", NODE) as opened:
        opened.log.submit(observed(1).raw)
    with pytest.raises(SigInvalid, match="not trusted"):
        pulled(home, copy, Trust((ADA.public,), ()))
    assert not (copy / "ledger" / "audit").exists()
    pulled(home, copy)
    create_channel(false, "audit", "node", NODE.public)  # the same key seals another history
    with open_log(false, "audit", NODE) as opened:
        for number in (7, 8):
            opened.log.submit(observed(number).raw)
    with pytest.raises(Forked):
        pulled(false, copy)
    assert len(list((copy / "ledger" / "audit" / "evidence").iterdir())) == 1
    with open_channel(copy, "audit") as channel:
        assert channel.head().envelopes == 1
    create_channel(tmp_path / "empty", "audit", "node", NODE.public)
    with pytest.raises(HistoryRewritten, match="ends below block 0"):
        pulled(tmp_path / "empty", copy)


def test_a_copy_follows_the_keys_of_the_channel(tmp_path):
    home, copy = tmp_path / "home", tmp_path / "copy"
    create_channel(home, "audit", "node", NODE.public)
    with open_log(home, "audit", NODE) as opened:
        opened.log.submit(observed(1).raw)
    pulled(home, copy, TRUST)
    with open_log(home, "audit", NODE, also=[NEXT]) as opened:
        opened.log.submit(rotation(channel="audit").raw)
        opened.log.submit(observed(2).raw)
    with open_channel(home, "audit") as channel:
        assert [block.record.signer for block in channel.blocks()] == [NODE.public, NODE.public, NEXT.public]
    assert pulled(home, copy, TRUST).blocks == 2
    assert verify_blocks(copy, "audit", trust=TRUST, deep=True).ok
    assert pulled(home, copy, TRUST).blocks == 0


def test_a_trust_file_from_before_a_rotation_still_says_who_may_answer(tmp_path):
    create_channel(tmp_path, "audit", "node", NODE.public)
    with open_log(tmp_path, "audit", NODE, also=[NEXT]) as opened:
        opened.log.submit(rotation(channel="audit").raw)

    async def answers(trust: Trust, keys: list[SigningKey]) -> PublicKey:
        server = LedgerServer(tmp_path, lambda _channel: keys)
        async with server, LedgerClient(server.url, "audit", trust=trust) as remote:
            return remote.responder

    assert asyncio.run(answers(TRUST, [NEXT, NODE])) == NEXT.public
    for trust, keys in (
        (TRUST, [NODE]),  # it has ended
        (TRUST, [ADA]),
        (Trust((ADA.public,), ()), [NEXT]),
    ):
        with pytest.raises(SigInvalid, match="not trusted"):
            asyncio.run(answers(trust, keys))


def test_rotation_of_another_channel_names_no_responder(tmp_path, monkeypatch):
    """A key that seals two channels was replaced in one of them; its successor must not answer for the other."""
    create_channel(tmp_path, "audit", "node", NODE.public)
    create_channel(tmp_path, "other", "node", NODE.public)
    with open_log(tmp_path, "other", NODE, also=[NEXT]) as opened:
        opened.log.submit(rotation(channel="other").raw)
    with open_channel(tmp_path, "other") as reading:
        foreign = reading.key_proofs()
    monkeypatch.setattr(WriterLease, "keys", lambda self, now_ns: (NEXT, foreign))

    async def dial() -> None:
        async with LedgerServer(tmp_path, lambda _channel: [NODE]) as server:
            await LedgerClient(server.url, "audit", trust=TRUST).__aenter__()

    with pytest.raises(Invalid, match="key statements must be of channel audit"):
        asyncio.run(dial())


@pytest.mark.parametrize("forks", ["refuse", "longest"])
def test_fork_policy_of_a_replica(tmp_path, forks):
    """Two servers with one key and two histories: refused, or the longer one taken; both stay as evidence."""
    servers = [tmp_path / "short", tmp_path / "long"]
    for home, count in zip(servers, (2, 4), strict=True):
        create_channel(home, "audit", "node", NODE.public)
        with open_log(home, "audit", NODE) as opened:
            for number in range(count):
                opened.log.submit(observed(count * 100 + number).raw)

    def pull(home: Path) -> Any:
        async def main() -> Any:
            async with served(home) as server:

                def act() -> Any:
                    with ledger.connect_channel(server.url, "audit") as remote:
                        return pull_channel(remote, tmp_path / "copy", "audit", trust=TRUST, forks=forks)

                return await asyncio.to_thread(act)

        return asyncio.run(main())

    first = pull(servers[0])
    assert first.head.height == 2
    if forks == "refuse":
        with pytest.raises(Forked):
            pull(servers[1])
        with open_channel(tmp_path / "copy", "audit") as channel:
            assert channel.head().block_hash == first.head.block_hash
        return
    second = pull(servers[1])
    assert second.head.height == 4 and second.replaced is not None
    assert verify_blocks(tmp_path / "copy", "audit", deep=True).ok
    assert (Path(second.replaced) / "channel.json").is_file()
    with pytest.raises(HistoryRewritten):  # the shorter one does not come back
        pull(servers[0])
