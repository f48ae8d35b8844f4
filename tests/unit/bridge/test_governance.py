"""Governance over a real repository: quorums, votes that do not count, effects, interruptions, races."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.fault.failing import Countdown, FailingDisk
from tests.unit.cli.conftest import living_in
from tests.unit.ledger.making import NODE as SEALER
from tests.unit.ledger.making import shipped
from tests.waiting import together

import ropewalk
from ropewalk.bridge.governance.decision import proposal_statement, statement
from ropewalk.bridge.governance.effects import reset_effect
from ropewalk.bridge.governance.guard import is_governed
from ropewalk.bridge.governance.policy import parse_governance
from ropewalk.bridge.governance.run import Governance
from ropewalk.errors import Conflict, Denied, Invalid, NotFound, RopewalkError
from ropewalk.gitlog.consumers.consumers import set_cursor
from ropewalk.gitlog.consumers.cursor import read_cursor
from ropewalk.gitlog.core.layout import MESSAGES
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.repository.repository import GitRepository
from ropewalk.kernel import jcs
from ropewalk.kernel.keys import SigningKey
from ropewalk.ledger.channel.channel import open_channel
from ropewalk.ledger.channel.maintenance import verify_stored
from ropewalk.ledger.channel.settings import create_channel
from ropewalk.ledger.keys.approvals import approve
from ropewalk.ledger.keys.failover import propose_policy
from ropewalk.ledger.keys.rotate import propose_rotation
from ropewalk.ledger.rules.policy import STRICT, Policy, parse_policy
from ropewalk.ledger.versions.lifecycle import read_lifecycle
from ropewalk.ledger.versions.statements import VersionAct

ADA, BOB, CY, EVE, NODE, NEXT = (SigningKey.generate("ed25519", bytes([n]) * 32) for n in range(1, 7))
START_MS = 1_800_000_000_000
DAY_MS = 86_400_000
ACTIONS = ("consumer.reset", "key.rotate", "lifecycle.change", "policy.change", "policy.rotate")


def person(name: str, key: SigningKey) -> dict[str, str]:
    return {"name": name, **key.public.to_json()}


def policy(
    at_least: int = 2, ttl: Any = "P1D", people: tuple[tuple[str, SigningKey], ...] = ()
) -> dict[str, Any]:
    owners = [person(*each) for each in people or (("ada", ADA), ("bob", BOB), ("cy", CY))]
    rule = {"quorum": {"at_least": at_least, "group": "owners"}, "ttl": ttl}
    return {"groups": {"owners": owners}, "governance": dict.fromkeys(ACTIONS, rule)}


class World:
    """A repository with a policy, a consumer group at the head of a log, and a clock that the test moves."""

    def __init__(self, path: Path) -> None:
        ropewalk.init(path).close()
        self.path, self.now = path, START_MS
        self.set_policy(policy())
        self.git = self.open()
        for number in range(3):
            self.git.append("prod", {"type": "t", "payload": {"n": number}})
        self.end = self.git.tail(["prod"])[-1].ulid
        set_cursor(self.git, "ci", "prod", self.end)
        self.governance = Governance(self.git)

    def open(self, **options: Any) -> GitRepository:
        return open_repository(self.path, now_ms=self.clock, **options)

    def clock(self) -> int:
        self.now += 1
        return self.now

    def set_policy(self, document: dict[str, Any]) -> None:
        (self.path / "ropewalk/policy.json").write_text(json.dumps(document))

    def proposed(self) -> str:
        return self.governance.propose(reset_effect(self.git, "ci", "prod", "beginning"), ADA).ulid

    def granted(self) -> str:
        proposal = self.proposed()
        self.governance.approve(proposal, ADA)
        assert self.governance.approve(proposal, BOB).state == "granted"
        return proposal

    def written(self, verb: str, proposal: str, key: SigningKey | None, about: str = "", **more: Any) -> None:
        """Append an event as any writer of the log can."""
        cid = about or self.governance.get(proposal).content_id
        signed = {} if key is None else {"approval": approve(statement(verb, cid, **more), key).to_json()}
        self.git.append(
            "governance", {"type": f"proposal.{verb}", "payload": {"proposal": proposal, **signed, **more}}
        )

    def position(self) -> str | None:
        found = read_cursor(self.git.store, "ci", "prod")
        return None if found is None else found.ulid

    def types(self) -> list[str]:
        return [event.type.partition(".")[2] for event in self.git.events("governance")]


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = World(tmp_path / "log.git")
    with made.git:
        yield made


def test_quorum_executes_a_reset(world):
    proposal = world.granted()
    done = world.governance.execute(proposal, BOB)
    assert done.state == "executed" and done.to_json()["approved_by"] == ["ada", "bob"]
    assert world.position() is None
    assert world.types() == ["created", "approved", "approved", "executing", "executed"]
    topic = list(world.git.events("governance", layout=MESSAGES))
    assert [each.raw for each in topic] == [each.raw for each in world.git.events("governance")]
    assert all(each.envelope["ns"] == "governance" for each in topic)
    assert ropewalk.verify(world.path).ok


def test_execution_needs_the_quorum(world):
    proposal = world.proposed()
    world.governance.approve(proposal, ADA)
    with pytest.raises(Conflict, match="must be granted"):
        world.governance.execute(proposal, ADA)
    assert world.position() == world.end and "executing" not in world.types()


@pytest.mark.parametrize("verb", ["propose", "approve", "reject", "execute"])
def test_unknown_keys_may_do_nothing(world, verb):
    proposal = world.granted()
    before = world.types()
    with pytest.raises(Denied, match="may not"):
        if verb == "propose":
            world.governance.propose(world.governance.get(proposal).effect, EVE)
        else:
            getattr(world.governance, verb)(proposal, EVE)
    assert world.types() == before


def test_written_votes_without_signature_do_not_count(world):
    proposal, other = world.proposed(), world.proposed()
    foreign = world.governance.get(other).content_id
    for key, about in ((None, ""), (EVE, ""), (BOB, foreign)):
        world.written("approved", proposal, key, about)
    world.written("rejected", proposal, EVE)
    world.written("granted", proposal, ADA)
    found = world.governance.get(proposal)
    assert found.state == "open" and not found.approved and not found.rejected
    assert found.ignored[0][1].startswith("not signed")
    assert len(found.ignored) == 5
    world.written("approved", proposal, BOB)  # the same way with the right signature counts
    assert set(world.governance.get(proposal).approved) == {"bob"}


def test_late_votes_do_not_count(world):
    proposal = world.granted()
    open_one = world.proposed()
    world.now += DAY_MS + 1000
    assert world.governance.get(proposal).state == "expired"
    world.written("approved", open_one, BOB)
    assert world.governance.get(open_one).ignored[0][1].startswith("late")
    for act in (world.governance.approve, world.governance.execute):
        with pytest.raises(Conflict, match="expired"):
            act(proposal, CY)
    world.written("executing", proposal, ADA, before=None)
    assert world.governance.get(proposal).state == "expired"
    assert world.position() == world.end


def test_one_person_counts_once(tmp_path):
    world = World(tmp_path / "log.git")
    world.set_policy(policy(people=(("ada", ADA), ("ada", EVE), ("bob", BOB))))
    proposal = world.proposed()
    world.governance.approve(proposal, ADA)
    assert world.governance.approve(proposal, EVE).replayed
    world.written("approved", proposal, ADA)
    world.written("approved", proposal, EVE)
    assert world.governance.get(proposal).state == "open"
    assert world.governance.approve(proposal, BOB).state == "granted"
    world.git.close()


def test_rejection_withdraws_an_approval_for_good(world):
    proposal = world.granted()
    approval = next(each for each in world.git.events("governance") if each.type == "proposal.approved")
    found = world.governance.reject(proposal, BOB)
    assert found.state == "open" and found.to_json()["approved_by"] == ["ada"]
    world.git.append(
        "governance", {"type": approval.type, "payload": approval.payload}
    )  # replayed by a writer
    world.written("approved", proposal, BOB)
    assert world.governance.get(proposal).state == "open"
    with pytest.raises(Conflict, match="has rejected"):
        world.governance.approve(proposal, BOB)
    assert world.governance.reject(proposal, CY).state == "rejected"  # one is left, two are needed
    with pytest.raises(Conflict, match="rejected"):
        world.governance.execute(proposal, ADA)


def test_proposer_withdraws_the_proposal(world):
    proposal = world.granted()
    assert world.governance.reject(proposal, ADA).state == "withdrawn"
    with pytest.raises(Conflict, match="withdrawn"):
        world.governance.execute(proposal, ADA)


def test_replayed_proposal_is_invalid(world):
    proposal = world.granted()
    world.governance.execute(proposal, ADA)
    set_cursor(world.git, "ci", "prod", world.end)
    assert world.governance.execute(proposal, ADA).replayed and world.position() == world.end
    events = list(world.git.events("governance"))
    again = world.git.append("governance", {"type": events[0].type, "payload": events[0].payload})
    for event in events[1:3]:
        world.git.append(
            "governance", {"type": event.type, "payload": {**event.payload, "proposal": again.ulid}}
        )
    found = world.governance.get(again.ulid)
    assert found.state == "invalid" and "does not hold" in found.fault
    with pytest.raises(Conflict, match="invalid"):
        world.governance.execute(again.ulid, ADA)
    assert world.position() == world.end


def test_proposals_need_a_rule_and_its_proposer(world):
    effect = reset_effect(world.git, "ci", "prod", "now")
    assert effect["to"] == world.end
    with pytest.raises(Invalid, match="must have kind"):
        world.governance.propose({**effect, "more": 1}, ADA)
    with pytest.raises(Invalid, match=r"one of consumer\.reset"):
        world.governance.propose({"kind": "shell"}, ADA)
    said = policy()
    del said["governance"]["consumer.reset"]
    world.set_policy(said)
    with pytest.raises(Denied, match="no governance rule"):
        world.governance.propose(effect, ADA)
    forged = proposal_statement(world.git.new_ulid(), effect, "", world.governance._policies()[0].version)
    payload = {name: forged[name] for name in ("effect", "reason", "policy")}
    document = {"type": "proposal.created", "ulid": forged["ulid"], "payload": payload}
    world.git.append(
        "governance", {**document, "payload": {**payload, "approval": approve(forged, ADA).to_json()}}
    )
    assert world.governance.get(forged["ulid"]).fault == "the policy has no rule for consumer.reset"


def test_policy_change_makes_open_proposals_stale(world):
    open_one, done = world.granted(), world.granted()
    world.governance.execute(done, ADA)
    new = policy(at_least=3)
    change = world.governance.propose({"kind": "policy.change", "policy": new}, BOB).ulid
    for key in (BOB, CY):
        world.governance.approve(change, key)
    assert world.governance.execute(change, CY).state == "executed"
    assert json.loads((world.path / "ropewalk/policy.json").read_text()) == new
    states = {each.ulid: each.state for each in world.governance.proposals()}
    assert states == {open_one: "stale", done: "executed", change: "executed"}
    world.written("executing", open_one, ADA, before=None)
    with pytest.raises(Conflict, match="no longer in force"):
        world.governance.execute(open_one, ADA)
    world.set_policy({**new, "governance": {}})  # edited by hand: nothing can be approved under the old one
    with pytest.raises(Denied):
        world.governance.propose({"kind": "policy.change", "policy": policy()}, ADA)


def test_forged_execution_has_no_effect(world):
    proposal = world.proposed()
    world.written("executing", proposal, ADA, before=None)
    world.written("executed", proposal, ADA, result={})
    found = world.governance.get(proposal)
    assert found.state == "open"
    assert [why for _, why in found.ignored] == ["executed without a quorum", "its execution was not begun"]


class Interrupted(Governance):
    """Stops before an event of one type is written, as a killed process does."""

    at = "executed"

    def _append(self, verb: str, *given: Any) -> None:
        if verb == self.at:
            raise KeyboardInterrupt
        super()._append(verb, *given)


def test_interrupted_execution_is_recorded_once(world):
    proposal = world.granted()
    with pytest.raises(KeyboardInterrupt):
        Interrupted(world.git).execute(proposal, ADA)
    assert world.position() is None and world.governance.get(proposal).state == "executing"
    with pytest.raises(Conflict, match="takes no more votes"):
        world.governance.reject(proposal, ADA)
    world.now += 2 * DAY_MS  # what has happened may be recorded late
    assert world.governance.execute(proposal, BOB).to_json()["result"]["ulid"] is None
    assert world.types()[3:] == ["executing", "executed"]


def test_interrupted_reset_is_not_made_twice(world):
    proposal = world.granted()
    with pytest.raises(KeyboardInterrupt):
        Interrupted(world.git).execute(proposal, ADA)
    moved = world.git.read("prod", limit=1).events[0].ulid
    set_cursor(world.git, "ci", "prod", moved)  # the group went on
    with pytest.raises(Conflict, match="has moved since"):
        world.governance.execute(proposal, BOB)
    assert world.position() == moved


def test_begun_execution_ends_with_its_time(world):
    proposal = world.granted()
    world.written("executing", proposal, ADA, before=world.git.store.head("refs/gatos/consumers/ci/prod"))
    late = world.granted()
    world.written("executing", late, ADA, before=world.git.store.head("refs/gatos/consumers/ci/prod"))
    assert world.governance.execute(proposal, BOB).state == "executed"
    assert world.position() is None
    set_cursor(world.git, "ci", "prod", world.end)
    world.now += 2 * DAY_MS
    with pytest.raises(Conflict, match="not carried out in time"):
        world.governance.execute(late, BOB)
    assert world.position() == world.end


def test_two_executions_take_effect_once(world):
    proposal = world.granted()
    replayed = []

    def execute() -> None:
        with world.open() as git:
            replayed.append(Governance(git).execute(proposal, ADA).replayed)

    together(execute, execute, execute)
    assert sorted(replayed) == [False, True, True]
    with world.open() as git:
        types = [event.type for event in git.events("governance")]
    assert types.count("proposal.executing") == types.count("proposal.executed") == 1


def test_key_rotation_meets_the_channels_own_rule(world):
    home = world.path / "ropewalk"
    create_channel(home, "audit", "node", NODE.public, two_people("rotate"))
    effect = {"kind": "key.rotate", "act": propose_rotation(home, "audit", NEXT.public).to_json()}
    proposal = world.governance.propose(effect, ADA).ulid
    for key in (ADA, BOB):
        world.governance.approve(proposal, key)
    with pytest.raises(NotFound, match="not available here"):
        world.governance.execute(proposal, ADA, [NODE])
    assert world.governance.get(proposal).state == "granted"
    assert world.governance.execute(proposal, ADA, [NODE, NEXT]).state == "executed"
    with open_channel(home, "audit") as reading:
        assert reading.key_history().current.key == NEXT.public
    assert world.governance.execute(proposal, ADA, [NODE, NEXT]).replayed


def two_people(*acts: str) -> Policy:
    rule = {
        "id": "two", "name": "two people", "version": 1, "kind": "control", "decision": "deny",
        "acts": list(acts), "approvals": 2, "approvers": [person("ada", ADA), person("bob", BOB)],
    }  # fmt: skip
    return parse_policy(jcs.encode({"version": 1, "name": "strict", "rules": [rule]}))


def test_channel_policy_is_rotated_once(world):
    home, new = world.path / "ropewalk", two_people("rotate", "revoke")
    create_channel(home, "audit", "node", NODE.public, two_people("rotate"))
    act = propose_policy(home, "audit", new)
    effect = {"kind": "policy.rotate", "act": act.to_json(), "policy": jcs.parse(new.to_bytes())}
    with pytest.raises(Invalid, match="the policy that is proposed"):
        world.governance.propose({**effect, "policy": jcs.parse(STRICT.to_bytes())}, ADA)
    proposal = world.governance.propose(effect, ADA).ulid
    for key in (ADA, CY):
        world.governance.approve(proposal, key)
    with pytest.raises(Denied, match="needs 2 approvals, got only from ada"):
        world.governance.execute(proposal, ADA, [NODE])  # the channel's own rule names ada and bob
    world.governance.approve(proposal, BOB)
    with pytest.raises(NotFound, match="not available here"):
        world.governance.execute(proposal, ADA, [NEXT])
    with pytest.raises(KeyboardInterrupt):
        Interrupted(world.git).execute(proposal, ADA, [NODE])
    assert world.governance.execute(proposal, ADA, [NODE]).state == "executed"
    with open_channel(home, "audit") as reading:
        assert reading.policy == new and reading.head().height == 1
    assert verify_stored(home, "audit", deep=True).first_failure is None
    with pytest.raises(Conflict, match="another key or policy"):
        world.governance.propose(effect, ADA)


def test_lifecycle_change_is_recorded_in_the_channel(world):
    home = world.path / "ropewalk"
    create_channel(home, "ops", "node", SEALER.public)
    act = shipped(home, VersionAct("ops", "1.0.x", "maintenance"))
    effect = {"kind": "lifecycle.change", "act": act.to_json()}
    proposal = world.governance.propose(effect, ADA).ulid
    for key in (ADA, BOB):
        world.governance.approve(proposal, key)
    with pytest.raises(KeyboardInterrupt):
        Interrupted(world.git).execute(proposal, ADA, [SEALER])
    assert world.governance.execute(proposal, ADA, [SEALER]).to_json()["result"] == {
        "channel": "ops",
        "height": 1,
    }
    assert next(each for each in read_lifecycle(home) if each.minor == "1.0").stage == "maintenance"


def test_direct_commands_are_denied(world):
    command = living_in(world.path.parent)
    repo = ("--repo", str(world.path))
    denied = command(*repo, "consumer", "reset", "--group", "ci", "--ns", "prod", "--to", "beginning")
    assert denied.code == 6 and "governance propose consumer.reset" in denied.err
    assert (
        command(*repo, "consumer", "reset", "--group", "ci", "--ns", "prod", "--to", "now", "--dry-run").code
        == 0
    )
    commit = next(world.git.events("prod")).commit
    moving = ("shiplog", "checkpoint", "set", "--group", "ci", "--ns", "prod", "--commit", commit)
    assert command(*repo, *moving, "--reset").code == 6
    assert command(*repo, "ledger", "lifecycle", "set", "1.0.x", "maintenance").code == 6
    assert command(*repo, "ledger", "key", "rotate", "--channel", "audit", "--to", "node").code == 6
    (world.path.parent / "strict.json").write_bytes(STRICT.to_bytes())
    rotating = ("ledger", "policy", "rotate", "--channel", "audit", "--policy", "strict.json")
    assert command(*repo, *rotating).code == 6
    assert world.position() == world.end
    (world.path / "ropewalk/policy.json").write_text("{")
    broken = command(*repo, "consumer", "reset", "--group", "ci", "--ns", "prod", "--to", "beginning")
    assert broken.code in (6, 8) and world.position() == world.end


def test_commands_run_a_proposal(tmp_path):
    command = living_in(tmp_path)
    made = command("init", "log.git")
    assert made.code == 0
    people = []
    for name in ("ada", "bob"):
        assert command("key", "new", name).code == 0
        people.append({"name": name, **command("key", "show", name, "--public", "--json").json["public"]})
    document = {**policy(), "groups": {"owners": people}}
    (tmp_path / "log.git/ropewalk/policy.json").write_text(json.dumps(document))
    repo = ("--repo", "log.git", "--json")
    command(*repo, "shiplog", "append", "--ns", "prod", "--file", "-", stdin=b'{"type":"t","payload":{}}')
    wrong = command(*repo, "governance", "propose", "policy.change", "--group", "ci", "--key", "ada")
    assert wrong.code == 2 and "needs --policy" in wrong.err + wrong.out.decode()
    asked = (
        "governance",
        "propose",
        "consumer.reset",
        "--group",
        "ci",
        "--ns",
        "prod",
        "--to",
        "now",
        "--key",
        "ada",
    )
    proposal = command(*repo, *asked).json["proposal"]
    for name in ("ada", "bob"):
        assert command(*repo, "governance", "approve", proposal, "--key", name).code == 0
    assert command(*repo, "governance", "execute", proposal, "--key", "bob").json["state"] == "executed"
    (listed,) = command(*repo, "governance", "ls").json["proposals"]
    assert listed == command(*repo, "governance", "show", proposal).json
    assert command("--repo", "log.git", "governance", "show", proposal).out.startswith(proposal.encode())
    assert [each["ns"] for each in command(*repo, "consumer", "ls").json["consumers"]] == ["prod"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"quorum": {"at_least": 4, "group": "owners"}}, "at most the number of approvers"),
        ({"quorum": {"at_least": 1, "group": "nobody"}}, "no group"),
        ({"ttl": 5}, "quorum is required"),
        ({"quorum": {"at_least": 1, "group": "owners"}, "ttl": "P101Y"}, "at most 100 years"),
        ({"quorum": {"at_least": 1, "group": "owners"}, "ttl": 10**15}, "at most 100 years"),
        ({"quorum": {"at_least": 1, "group": "owners"}, "ttl": f"P{'9' * 400}D"}, "at most 100 years"),
        ({"quorum": {"all_of": ["owners"]}, "execute": "x"}, "no group"),
    ],
)
def test_rules_that_cannot_be_met_are_refused(change, words):
    document = {**policy(), "governance": {"consumer.reset": change}}
    with pytest.raises(Invalid, match=words):
        parse_governance(jcs.encode(document))


def test_all_of_asks_for_every_member():
    document = {
        **policy(),
        "governance": {"consumer.reset": {"quorum": {"all_of": ["owners"]}, "ttl": "PT1H"}},
    }
    rule = parse_governance(jcs.encode(document)).rules["consumer.reset"]
    assert rule.quorum.count == 3 and rule.ttl_ms == 3_600_000


@pytest.mark.slow
def test_failing_disk_leaves_a_resumable_execution(tmp_path):
    """Every disk call of an execution fails once; executing again completes it, and the effect is made once."""
    world = World(tmp_path / "log.git")
    for number in range(1, 200):
        set_cursor(world.git, "ci", "prod", world.end, reset=True)
        proposal = world.granted()
        call = Countdown(number)
        failed = False
        with world.open(disk=FailingDisk(call)) as git:
            try:
                Governance(git).execute(proposal, ADA)
            except (RopewalkError, OSError):
                failed = True
        assert world.governance.execute(proposal, BOB).state == "executed" and world.position() is None
        types = [
            each.type for each in world.git.events("governance") if each.payload.get("proposal") == proposal
        ]
        assert types.count("proposal.executing") == types.count("proposal.executed") == 1
        if not failed:
            break
    assert 3 < number < 199
    assert is_governed(world.git.store.place, "consumer.reset")
    world.git.close()
