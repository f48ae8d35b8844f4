"""A witness: signs what extends the largest head it has seen, keeps what does not, and never forgets in between."""

from __future__ import annotations

import json
import threading
from dataclasses import replace

import pytest
from tests.unit.ledger.heading import LOG, NOW_S, ORIGIN, SECRET, WITNESS, SmallLog
from tests.unit.ledger.making import NODE
from tests.waiting import LIMIT_S, Crew

from ropewalk.errors import (
    Conflict,
    Damaged,
    Forked,
    Invalid,
    InvalidKey,
    InvalidNote,
    InvalidProof,
    NotFound,
    ProofRefused,
    SigInvalid,
    TooLarge,
    Unavailable,
)
from ropewalk.kernel import merkle
from ropewalk.kernel.keys import SigningKey
from ropewalk.kernel.note.key import Verifier
from ropewalk.kernel.note.note import SignedHead, Signer, cosign_head, open_head, sign_head
from ropewalk.ledger.transparency.head_check import HeadTrust
from ropewalk.ledger.transparency.head_fork import HeadFork, parse_head_fork, verify_head_fork
from ropewalk.ledger.transparency.witness import (
    REQUEST_BYTES_MAX,
    WatchedLog,
    WitnessRequest,
    accept_head,
    parse_request,
    parse_watched,
    watch_log,
)
from ropewalk.ledger.transparency.witness_folder import make_witness, open_witness

TRUST = HeadTrust(keys=(LOG.verifier,))
EMPTY = watch_log(None, LOG.verifier)


@pytest.fixture
def folder(tmp_path):
    made = make_witness(tmp_path / "watch", WITNESS.name, "watcher", SECRET)
    made.add(LOG.verifier)
    return tmp_path / "watch"


def cosign(folder, note, now_s=NOW_S, tiles=None, **options):
    return open_witness(folder, **options).cosign(parse_request(note), SECRET, now_s, tiles)


def time_of(note):
    signature = open_head(note, LOG.verifier, [WITNESS.verifier])[1].signed_by(WITNESS.verifier)
    assert signature is not None
    return signature.time_s


def asked(log, old, new=None):
    """The request that leads from one size to another."""
    new = log.tree.size if new is None else new
    return WitnessRequest(log.head(new), old, log.tree.consistency(old, new))


def seen(log, size):
    """What a witness knows after it has cosigned the log at that size."""
    taken = accept_head(EMPTY, parse_request(log.head(size)), NOW_S)
    assert not isinstance(taken, HeadFork)
    return taken


# What it decides.


def test_the_first_head_needs_no_proof():
    assert seen(SmallLog(4), 4).head.size == 4


@pytest.mark.parametrize(("old", "new"), [(1, 2), (3, 7), (4, 6), (255, 257), (6, 6)])
def test_a_head_that_extends_the_one_seen_is_taken_by_proof_and_by_tree(old, new):
    log = SmallLog(new)
    before = seen(log, old)
    for taken in (
        accept_head(before, asked(log, old), NOW_S + 1),
        accept_head(before, parse_request(log.head()), NOW_S + 1, log.tree),
    ):
        assert not isinstance(taken, HeadFork)
        assert (taken.head.size, taken.time_s) == (new, NOW_S + 1)


def test_nothing_is_taken_on_faith():
    with pytest.raises(InvalidProof, match="no proof shows"):
        accept_head(seen(SmallLog(6), 4), parse_request(SmallLog(6).head()), NOW_S)


def test_a_smaller_head_is_refused_and_is_no_fork():
    log = SmallLog(6)
    for tree in (None, log.tree):
        with pytest.raises(Conflict, match="a head of 4, after") as refusal:
            accept_head(seen(log, 6), parse_request(log.head(4)), NOW_S, tree)
        assert refusal.value.fields["size"] == 6


def test_a_request_that_stands_on_another_size_is_told_the_right_one():
    with pytest.raises(Conflict) as refusal:
        accept_head(seen(SmallLog(6), 4), asked(SmallLog(6), 3), NOW_S)
    assert refusal.value.fields["size"] == 4


@pytest.mark.parametrize(
    ("raw", "error", "says"),
    [
        (SmallLog(4).head(signer=Signer(ORIGIN, NODE)), SigInvalid, "no signature of a known key"),
        (SmallLog(4).head().replace(b"\n4\n", b"\n5\n"), SigInvalid, "does not hold"),
        (SmallLog(4).head(origin="elsewhere"), SigInvalid, 'head of "elsewhere"'),
    ],
)
def test_only_the_log_speaks_for_itself(raw, error, says):
    with pytest.raises(error, match=says):
        accept_head(EMPTY, parse_request(raw), NOW_S)


def test_an_empty_log_with_a_root_is_refused():
    with pytest.raises(ProofRefused):
        accept_head(EMPTY, parse_request(sign_head(SignedHead(ORIGIN, 0, bytes(32)), LOG)), NOW_S)


def test_time_does_not_go_back():
    log = SmallLog(4)
    with pytest.raises(Unavailable, match="the clock is at"):
        accept_head(seen(log, 4), parse_request(log.head()), NOW_S - 1)


def test_a_tree_that_does_not_lead_to_the_head_is_no_fork_of_the_log():
    log = SmallLog(6)
    with pytest.raises(ProofRefused, match="the tree leads to"):
        accept_head(seen(log, 4), parse_request(log.head()), NOW_S, SmallLog(6, 5).tree)


@pytest.mark.parametrize(
    ("old", "new", "turn"), [(4, 4, 3), (4, 6, 1), (5, 7, 4), (3, 300, 0), (256, 300, 255)]
)
def test_two_histories_are_proven_from_the_tree(old, new, turn):
    before, other = seen(SmallLog(old), old), SmallLog(new, turn)
    fork = accept_head(before, parse_request(other.head()), NOW_S, other.tree)
    assert isinstance(fork, HeadFork)
    assert fork.is_proven
    assert isinstance(fork.error(), Forked)
    assert parse_head_fork(fork.to_bytes()) == fork
    assert all(step.status == "passed" for step in verify_head_fork(fork, TRUST).steps)


def test_a_smaller_head_of_another_history_is_a_fork_too():
    log = SmallLog(6)
    fork = accept_head(seen(log, 6), parse_request(SmallLog(4, 2).head()), NOW_S, log.tree)
    assert isinstance(fork, HeadFork)
    assert [head.size for head in fork.heads()] == [4, 6]
    assert verify_head_fork(fork, TRUST).ok


def test_a_proof_may_prove_a_fork_by_itself_or_leave_it_open():
    told = accept_head(seen(SmallLog(5), 5), asked(SmallLog(7, 2), 5), NOW_S)
    assert isinstance(told, HeadFork)
    assert told.is_proven  # the path holds the older root that the newer one has
    left = accept_head(seen(SmallLog(4), 4), asked(SmallLog(7, 2), 4), NOW_S)
    assert isinstance(left, HeadFork)
    assert not left.is_proven  # a full tree is not part of its path
    assert isinstance(left.error(), ProofRefused)
    steps = {step.name: step.status for step in verify_head_fork(left, TRUST).steps}
    assert steps["two_histories"] == "not_checked"


def test_neither_a_wrong_clock_nor_a_wrong_size_hides_a_fork():
    before, other = seen(SmallLog(4), 4), SmallLog(4, 2)
    assert isinstance(accept_head(before, parse_request(other.head()), NOW_S - 9), HeadFork)
    assert isinstance(accept_head(before, asked(other, 3), NOW_S), HeadFork)


def test_a_wrong_proof_is_no_fork():
    log = SmallLog(7)
    bent = replace(asked(log, 5), path=(bytes(32), *asked(log, 5).path[1:]))
    fork = accept_head(seen(log, 5), bent, NOW_S)
    assert isinstance(fork, HeadFork)
    assert not fork.is_proven
    with pytest.raises(InvalidProof):
        accept_head(seen(log, 5), replace(bent, path=bent.path[:1]), NOW_S)


def test_evidence_of_a_fork_that_is_none_fails():
    log = SmallLog(7)
    agree = HeadFork(log.head(4), log.head(7), log.tree.root(4), log.tree.consistency(4))
    assert not verify_head_fork(agree, TRUST).ok
    invented = HeadFork(SmallLog(4, 1).head(), log.head(7), bytes(32), log.tree.consistency(4))
    assert not verify_head_fork(invented, TRUST).ok
    strangers = HeadFork(SmallLog(4, 1).head(signer=Signer(ORIGIN, NODE)), log.head(4), log.tree.root(4))
    assert not verify_head_fork(strangers, TRUST).ok
    elsewhere = HeadFork(log.head(4, Signer("x", LOG.key), "x"), log.head(4), log.tree.root(4))
    assert not verify_head_fork(elsewhere, TRUST).ok
    for value in ({"root": "xx"}, {"path": ["00"]}, {"first": 1}, {"version": 2}, {"path": None}):
        with pytest.raises(Invalid):
            parse_head_fork(json.dumps({**json.loads(agree.to_bytes()), **value}).encode())


@pytest.mark.parametrize(
    ("raw", "error"),
    [
        (b"", InvalidNote),
        (b"not a note", InvalidNote),
        (b"old 4\n" + SmallLog(4).head(), InvalidProof),
        (b"old 9\n\n" + SmallLog(4).head(), InvalidProof),
        (b"old 1\nAAAA\n\n" + SmallLog(4).head(), InvalidProof),
        (b"old 1\n" + b"A" * 43 + b"=\n" * 64 + b"\n" + SmallLog(4).head(), InvalidProof),
        (b"x" * (REQUEST_BYTES_MAX + 1), TooLarge),
    ],
)
def test_a_request_that_is_none_is_refused_as_input(raw, error):
    with pytest.raises(error):
        parse_request(raw)


def test_a_request_comes_back_as_it_went():
    request = asked(SmallLog(7), 5)
    assert parse_request(request.to_bytes()) == request


# What it keeps.


def test_a_head_is_cosigned_and_the_next_one_too(folder, tmp_path):
    log = SmallLog(300)
    tiles = log.publish(tmp_path / "public")
    first = cosign(folder, log.head(4))
    assert (first.before, time_of(first.note)) == (0, NOW_S)
    second = cosign(folder, log.head(), NOW_S + 5, tiles)
    assert (second.before, time_of(second.note)) == (4, NOW_S + 5)
    assert [each.head.size for each in open_witness(folder).logs()] == [300]


def test_the_same_head_again_gets_a_new_time_in_place_of_the_old(folder):
    first = cosign(folder, SmallLog(4).head())
    again = cosign(folder, first.note, NOW_S + 60)
    assert time_of(again.note) == NOW_S + 60
    assert len(again.note.splitlines()) == len(first.note.splitlines())


def test_lines_of_others_are_handed_on_and_not_kept(folder):
    other = Signer("other.example", NODE, WITNESS.type)
    raw = cosign_head(SmallLog(4).head(), other, NOW_S)
    done = cosign(folder, raw)
    assert done.note.startswith(raw)
    assert done.log.note == SmallLog(4).head()


def test_a_log_that_is_not_watched_is_refused(folder):
    with pytest.raises(NotFound, match="is not watched"):
        cosign(folder, SmallLog(4).head(signer=Signer("new", NODE), origin="new"))


def test_a_log_may_change_its_key_and_keeps_its_head(folder):
    cosign(folder, SmallLog(4).head())
    fresh = Signer(ORIGIN, NODE)
    witness = open_witness(folder)
    assert len(witness.add(fresh.verifier).keys) == 2
    assert len(witness.add(fresh.verifier).keys) == 2
    assert cosign(folder, SmallLog(4).head(signer=fresh)).before == 4
    with pytest.raises(InvalidKey, match="of a witness"):
        witness.add(WITNESS.verifier)


def test_another_origin_than_the_name_of_the_key(folder):
    open_witness(folder).add(LOG.verifier, "a database tree")
    assert cosign(folder, SmallLog(4).head(origin="a database tree")).log.origin == "a database tree"


def test_a_fork_is_kept_said_and_never_signed(folder, tmp_path):
    cosign(folder, SmallLog(4).head())
    other = SmallLog(6, 2)
    tiles = other.publish(tmp_path / "public")
    for _ in range(2):
        with pytest.raises(Forked, match="two histories"):
            cosign(folder, other.head(), NOW_S + 1, tiles)
    ((path, fork),) = open_witness(folder).forks()
    assert verify_head_fork(parse_head_fork(path.read_bytes()), TRUST).ok
    assert fork.first == SmallLog(4).head()
    assert [each.head.size for each in open_witness(folder).logs()] == [4]
    honest = SmallLog(6).publish(tmp_path / "honest")
    assert cosign(folder, SmallLog(6).head(), NOW_S + 2, honest).before == 4


def test_a_head_that_is_not_shown_to_agree_is_kept_too(folder):
    cosign(folder, SmallLog(4).head())
    with pytest.raises(ProofRefused, match="no proof shows"):
        cosign(folder, asked(SmallLog(6, 2), 4).to_bytes(), NOW_S + 1)
    assert [fork.is_proven for _, fork in open_witness(folder).forks()] == [False]


def test_missing_and_damaged_tiles_stop_it_and_say_which(folder, tmp_path):
    log = SmallLog(6)
    cosign(folder, log.head(4))
    tiles = log.publish(tmp_path / "public")
    tile = tiles / "tile/0/000.p/6"
    raw = tile.read_bytes()
    for bad, error in ((raw[:-1], Damaged), (bytes(32) + raw[32:], ProofRefused), (None, NotFound)):
        tile.unlink() if bad is None else tile.write_bytes(bad)
        with pytest.raises(error):
            cosign(folder, log.head(), NOW_S + 1, tiles)
    assert [each.head.size for each in open_witness(folder).logs()] == [4]
    assert open_witness(folder).forks() == []


@pytest.mark.parametrize("old", [200, 128, 256, 290])
def test_tiles_that_contradict_one_another_accuse_nobody(folder, tmp_path, old):
    log = SmallLog(300)
    cosign(folder, log.head(old))
    tiles = log.publish(tmp_path / "public")
    tile = tiles / "tile/0/000"
    tile.write_bytes(
        bytes(32) + tile.read_bytes()[32:]
    )  # the tile above it, and so the root, stay as they are
    if old >= 256:  # a full tile is known by the hash above it
        assert cosign(folder, log.head(), NOW_S + 1, tiles).before == old
    else:
        with pytest.raises(ProofRefused, match="contradicts itself"):
            cosign(folder, log.head(), NOW_S + 1, tiles)
    assert open_witness(folder).forks() == []


def test_a_damaged_record_is_seen_and_nothing_is_signed(folder):
    cosign(folder, SmallLog(4).head())
    (path,) = folder.glob("log-*.json")
    raw = path.read_bytes()
    for at in range(0, len(raw), 3):
        bent = bytearray(raw)
        bent[at] ^= 1
        path.write_bytes(bytes(bent))
        try:
            assert parse_watched(bytes(bent)).note == SmallLog(4).head()  # the head itself is signed
        except Damaged:
            with pytest.raises(Damaged, match="log-"):
                cosign(folder, SmallLog(4).head(), NOW_S + 1)
    for bad in (b"", raw[:-1], raw + b"\n", b"{}", b"\xff"):
        path.write_bytes(bad)
        with pytest.raises(Damaged):
            cosign(folder, SmallLog(4).head(), NOW_S + 1)


def test_a_record_of_another_log_is_seen(folder):
    (path,) = folder.glob("log-*.json")
    path.write_bytes(watch_log(None, Signer("other", NODE).verifier).to_bytes())
    with pytest.raises(Damaged, match="another log"):
        cosign(folder, SmallLog(4).head())


def test_another_key_is_not_the_witness(folder):
    with pytest.raises(InvalidKey, match="must be that of the witness"):
        open_witness(folder).cosign(parse_request(SmallLog(4).head()), NODE, NOW_S)


def test_a_folder_is_a_witness_once(folder, tmp_path):
    with pytest.raises(Conflict, match="not empty"):
        make_witness(folder, "again", "watcher", SECRET)
    with pytest.raises(NotFound, match="no witness at"):
        open_witness(tmp_path / "nowhere")
    (folder / "witness.json").write_bytes(b'{"version":1}')
    with pytest.raises(Damaged):
        open_witness(folder)


def test_the_head_is_on_disk_before_the_key_is_used(folder, monkeypatch):
    from ropewalk.kernel.note.key import Signer as RealSigner

    known: list[int] = []
    honest = RealSigner.cosign

    def watched(self, text, time_s):
        (path,) = folder.glob("log-*.json")
        known.append(parse_watched(path.read_bytes()).head.size)
        return honest(self, text, time_s)

    monkeypatch.setattr(RealSigner, "cosign", watched)
    cosign(folder, SmallLog(4).head())
    assert known == [4]


def test_heads_of_random_growth_stay_consistent(folder, tmp_path):
    log = SmallLog(600)
    tiles = log.publish(tmp_path / "public")
    for step, size in enumerate((1, 2, 7, 255, 256, 511, 512, 513, 600)):
        done = cosign(folder, log.head(size), NOW_S + step, tiles)
        assert (
            merkle.root((merkle.SHA256.leaf(each) for each in log.entries[:size]), merkle.SHA256)
            == done.log.head.root
        )


def test_one_size_with_two_roots_is_proven_for_an_empty_log_too():
    empty = sign_head(SignedHead(ORIGIN, 0, merkle.SHA256.empty), LOG)
    log = accept_head(EMPTY, parse_request(empty), NOW_S)
    assert isinstance(log, WatchedLog)
    fork = accept_head(log, parse_request(sign_head(SignedHead(ORIGIN, 0, bytes(32)), LOG)), NOW_S)
    assert isinstance(fork, HeadFork)
    assert fork.is_proven
    report = verify_head_fork(parse_head_fork(fork.to_bytes()), TRUST)
    assert {step.status for step in report.steps} == {"passed"}


def test_evidence_kept_once_in_any_order(folder):
    second = Signer(ORIGIN, SigningKey.generate("ed25519", b"second" + bytes(26)))
    open_witness(folder).add(second.verifier)
    cosign(folder, SmallLog(5).head())
    text = SignedHead(ORIGIN, 9, SmallLog(9, 3).tree.root())
    note, lines = sign_head(text, LOG, second).split(b"\n\n")
    one, other = lines.splitlines(keepends=True)
    garbage = tuple(bytes(32) for _ in SmallLog(9).tree.consistency(5, 9))
    for order in ([one, other], [other, one], [one, other, one], [other] * 40 + [one] * 40):
        request = WitnessRequest(note + b"\n\n" + b"".join(order), 5, garbage)
        with pytest.raises(ProofRefused):
            open_witness(folder).cosign(request, SECRET, NOW_S)
    assert len(open_witness(folder).forks()) == 1


def test_two_keys_of_a_log_do_not_share_an_id(monkeypatch):
    twin = Signer(ORIGIN, SigningKey.generate("ed25519", b"twin" + bytes(28))).verifier
    monkeypatch.setattr(Verifier, "key_id", property(lambda _: b"same"))  # as four bytes may be made to be
    with pytest.raises(InvalidKey, match="another key with the id"):
        watch_log(EMPTY, twin)


def test_a_witness_that_was_killed_while_it_was_made_can_be_made_again(tmp_path):
    (tmp_path / "lock").touch()
    (tmp_path / ".witness.json.77.88").write_bytes(b'{"ver')
    made = make_witness(tmp_path, WITNESS.name, "watcher", SECRET)
    assert open_witness(tmp_path).vkey == made.vkey


def test_the_clock_is_read_when_it_is_our_turn(folder):
    clock = iter(range(NOW_S, NOW_S + 100))
    witness, note = open_witness(folder, wait_s=LIMIT_S), parse_request(SmallLog(4).head())
    waiting = threading.Barrier(2)

    def late() -> bytes:
        waiting.wait(LIMIT_S)
        return witness.cosign(note, SECRET, lambda: next(clock)).note

    with Crew(1) as pool:
        with witness.state.locked(0):
            done = pool.submit(late)
            waiting.wait(LIMIT_S)
            assert next(clock) == NOW_S  # while the other one waits, or before it does
        assert time_of(done.result(LIMIT_S)) == NOW_S + 1


def test_evidence_that_is_damaged_is_named(folder):
    (folder / "fork-0.json").write_bytes(b"{}")
    with pytest.raises(Damaged, match=r"fork-0\.json is not what was written"):
        open_witness(folder).forks()


def test_what_could_not_be_read_again_is_not_written(folder):
    before = sorted(folder.iterdir())
    with pytest.raises(TooLarge):
        open_witness(folder).add(Verifier("x" * (1 << 20), LOG.verifier.key))
    assert sorted(folder.iterdir()) == before
