"""Rights in one seeded world: an operator grants and revokes while clients act on a server in this process.

    python -m tests.sim.rights_world --seed 7        one world again, told step by step
    python -m tests.sim.rights_world --worlds 100    many worlds; a failing seed is minimised

The checker has its own table of the logs that each pattern covers, and uses no code of `server.auth` to decide.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import sys
import tempfile
from base64 import b64decode
from collections import defaultdict
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ropewalk.disk.repository_paths import make_repository
from ropewalk.kernel.keys import SigningKey
from ropewalk.server.auth.auth_file import AuthRules, new_client, write_rules
from ropewalk.server.auth.rights import Right, parse_right
from ropewalk.server.node import ServerNode
from ropewalk.server.settings import Settings
from tests.asgi import Client
from tests.serving import Answer
from tests.sim.power.run import MEMORY
from tests.sim.steps import Step, Tell, draw, run_or_minimise, run_worlds

NAMES = ("ada", "ben", "eve")
ANONYMOUS = "anonymous"
PROD, EU, JOBS, DEEP = "shiplog/prod", "shiplog/prod.eu", "messages/jobs/a", "messages/jobs/b/c"
LOGS = (PROD, EU, JOBS, DEEP)
COVERS = {
    "shiplog/prod": {PROD},
    "shiplog/prod.*": {EU},
    "messages/jobs.*": {JOBS},
    "messages/jobs.**": {JOBS, DEEP},
    "messages/jobs/b/c": {DEEP},
    "*/prod": {PROD},
    "**": set(LOGS),
}
ACTIONS = ("read", "append", "checkpoint", "admin")
STEPS = 60
TRUE = ("grant", "grant", "append", "append", "append", "read", "page")  # these happen in every world
KINDS = (*TRUE, "revoke", "rotate", "damage", "again", "tail", "drop_group", "race", "restart")
KEY = SigningKey.generate("ed25519", bytes(range(32)))
Given = list[tuple[str, frozenset[str]]]


class World:
    """A server, its auth file, and what the operator last wrote there."""

    def __init__(self, folder: Path, closing: contextlib.AsyncExitStack, tell: Tell) -> None:
        self.place, _ = make_repository(folder / "log.git")
        self.path = folder / "auth.json"
        self.tell, self._outer = tell, closing
        self.given: dict[str, Given] = {}
        self.tokens: dict[str, str] = {}
        self.withdrawn = ["rw_" + "0" * 64]
        self.readable = True  # the auth file
        self.stored: defaultdict[str, list[int]] = defaultdict(list)
        self.keyed: list[tuple[str, str, int, Any]] = []  # name, log, number, receipt
        self.groups: set[str] = set()  # logs with a checkpoint
        self.numbers = 0

    async def start(self) -> None:
        """Start a server, the old one ended."""
        self._closing = await self._outer.enter_async_context(contextlib.AsyncExitStack())
        node = ServerNode(
            self.place,
            Settings(auth=self.path),
            channel_keys=lambda _channel: [KEY],
            signing_key=lambda _name: KEY,
        )
        self.client = Client(await self._closing.enter_async_context(node))

    # What the operator does

    def write(self) -> None:
        """Write the auth file as it is meant to be."""
        self.readable = True
        rules = AuthRules(anonymous=_rights(self.given.get(ANONYMOUS, [])))
        for name, token in self.tokens.items():
            client, _ = new_client(name, bytes.fromhex(token[3:]), _rights(self.given[name]))
            rules = rules.with_client(client)
        write_rules(self.path, rules)

    async def grant(self, chance: random.Random) -> None:
        """Give a client other rights than it has; a new one gets a token."""
        self.give(chance.choice((*NAMES, *NAMES, ANONYMOUS)), chance)
        self.write()

    def give(self, name: str, chance: random.Random) -> None:
        self.given[name] = [
            (chance.choice(list(COVERS)), frozenset(chance.sample(ACTIONS, chance.randint(2, 4))))
            for _ in range(chance.randint(0, 3))
        ]
        if name != ANONYMOUS and name not in self.tokens:
            self.tokens[name] = "rw_" + chance.randbytes(32).hex()
        self.tell(f"  {name}: {[(logs, sorted(actions)) for logs, actions in self.given[name]]}")

    async def revoke(self, chance: random.Random) -> None:
        name = chance.choice(NAMES)
        if name in self.tokens:
            self.withdrawn.append(self.tokens.pop(name))
            self.given.pop(name)
        self.write()

    async def rotate(self, chance: random.Random) -> None:
        """Give a client a new token; the old one is worth nothing."""
        for name in chance.sample(sorted(self.tokens), min(1, len(self.tokens))):
            self.withdrawn.append(self.tokens[name])
            self.tokens[name] = "rw_" + chance.randbytes(32).hex()
        self.write()

    async def damage(self, chance: random.Random) -> None:
        """Leave half an auth file behind, or none."""
        self.readable = False
        if chance.random() < 0.3:
            self.path.unlink(missing_ok=True)
        else:
            raw = self.path.read_bytes() if self.path.exists() else b"{}"
            self.path.write_bytes(raw[: len(raw) // 2])

    async def restart(self, chance: random.Random) -> None:
        if chance.random() < 0.7:  # it takes as long as fifty requests
            return
        await self._closing.aclose()
        if not self.readable:  # no server starts on a file that cannot be read
            self.write()
        await self.start()

    # What clients do

    async def append(self, chance: random.Random) -> None:
        name, log, self.numbers = self._who(chance), chance.choice(LOGS), self.numbers + 1
        number, keyed = self.numbers, chance.random() < 0.5
        answer = await self._append(name, log, number, keyed)
        if self._expect(answer, name, log, "append"):
            self.stored[log].append(number)
            if keyed:
                self.keyed.append((name, log, number, answer.json))

    async def again(self, chance: random.Random) -> None:
        """A client that missed an answer sends its request again: it gets the receipt if it still may append."""
        if self.keyed:
            name, log, number, receipt = chance.choice(self.keyed)
            answer = await self._append(name, log, number, True)
            if self._expect(answer, name, log, "append"):
                assert answer.json["ulid"] == receipt["ulid"], "a request was carried out twice"

    async def read(self, chance: random.Random) -> None:
        name, log = self._who(chance), chance.choice(LOGS)
        answer = await self._ask(name, "GET", _events(log))
        if self._expect(answer, name, log, "read"):
            self._check_page(log, answer)

    async def tail(self, chance: random.Random) -> None:
        """Ask for two logs at once: the right for one is not enough."""
        name = self._who(chance)
        answer = await self._ask(name, "GET", "/shiplog/tail?ns=prod&ns=prod.eu")
        allowed = self.may(name, PROD, "read") and self.may(name, EU, "read")
        assert (answer.status in (200, 404)) == allowed, f"tail: {name} got {answer.status}"

    async def page(self, chance: random.Random) -> None:
        """Read for a consumer group, which moves its checkpoint."""
        name, log = self._who(chance), chance.choice((JOBS, DEEP))
        answer = await self._ask(name, "GET", f"{_events(log)}&group=g")
        if self._expect(answer, name, log, "read", "checkpoint") and self.stored[log]:
            self.groups.add(log)

    async def drop_group(self, chance: random.Random) -> None:
        name, log = self._who(chance), chance.choice((JOBS, DEEP))
        answer = await self._ask(name, "DELETE", f"/consumers/g?log={log}")
        if self._expect(answer, name, log, "admin"):
            self.groups.discard(log)

    async def race(self, chance: random.Random) -> None:
        """A client appends while its rights change: either order is right, and the answer says which it was."""
        name, log, self.numbers = self._who(chance), chance.choice(LOGS), self.numbers + 1
        before, number = self.may(name, log, "append"), self.numbers
        sending = asyncio.create_task(self._append(name, log, number, False))
        for _ in range(chance.randrange(4)):
            await asyncio.sleep(0)
        await chance.choice((self.grant, self.revoke, self.rotate))(chance)
        answer = await sending
        if answer.status == 201:
            assert before or self.may(name, log, "append"), f"append: {name} may not, before or after"
            self.stored[log].append(number)
        else:
            assert answer.status in (401, 403), f"append: {name} got {answer.status}"

    # How it is done

    def _who(self, chance: random.Random) -> str:
        """Return a client, `anonymous`, or a token that was withdrawn."""
        return chance.choice((*NAMES, *NAMES, ANONYMOUS, chance.choice(self.withdrawn)))

    async def _ask(self, name: str, method: str, path: str, *arguments: Any, **headers: str) -> Answer:
        if name != ANONYMOUS:
            headers["authorization"] = f"Bearer {self.tokens.get(name, name)}"
        return await self.client(method, path, *arguments, headers=headers)

    async def _append(self, name: str, log: str, number: int, keyed: bool) -> Answer:
        event = {"type": "t", "payload": {"n": number}}
        headers = {"idempotency-key": str(number)} if keyed else {}
        return await self._ask(name, "POST", _events(log).removesuffix("&limit=512"), event, **headers)

    def may(self, name: str, log: str, action: str) -> bool:
        """Return whether the file that the operator wrote last allows it."""
        given = self.given.get(name, []) if name == ANONYMOUS or name in self.tokens else []
        return self.readable and any(action in actions and log in COVERS[logs] for logs, actions in given)

    def _expect(self, answer: Answer, name: str, log: str, *actions: str) -> bool:
        """Check an answer against the rights; return whether the request was carried out."""
        allowed = all(self.may(name, log, action) for action in actions)
        self.tell(f"  {name[:8]} {log} {'+'.join(actions)}: {answer.status}")
        if allowed:
            assert answer.status in (200, 201, 404), f"{name} may {actions} {log}, but got {answer.status}"
            return answer.status != 404
        assert answer.status in (401, 403), f"{name} may not {actions} {log}, but got {answer.status}"
        assert b"ulid" not in answer.body, "a refusal shows an event"
        return False

    def _check_page(self, log: str, answer: Answer) -> None:
        if log.startswith("shiplog/"):
            found = [each["envelope"]["payload"]["n"] for each in answer.json["events"]]
        else:
            raws = [b64decode(each["canonical_json"]) for each in answer.json["messages"]]
            found = [json.loads(raw)["payload"]["n"] for raw in raws]
        assert found == self.stored[log], f"{log} has {found} instead of {self.stored[log]}"

    # What must hold

    async def check(self) -> None:
        """An administrator reads everything: what was refused left no trace."""
        self.given["ada"] = [("**", frozenset(ACTIONS))]
        self.tokens.setdefault("ada", "rw_" + "a" * 64)
        self.write()
        for log in LOGS:
            answer = await self._ask("ada", "GET", _events(log))
            if self._expect(answer, "ada", log, "read"):
                self._check_page(log, answer)
            else:
                assert not self.stored[log], f"{log} is gone"
        rows = (await self._ask("ada", "GET", "/consumers")).json["consumers"]
        assert {row["log"] for row in rows} == self.groups, f"checkpoints: {rows}"


def _events(log: str) -> str:
    engine, _, name = log.partition("/")
    return f"/shiplog/{name}/events?limit=512" if engine == "shiplog" else f"/messages?topic={name}&limit=512"


def _rights(given: Given) -> tuple[Right, ...]:
    return tuple(parse_right({"logs": [logs], "actions": sorted(actions)}) for logs, actions in given)


def steps_of(seed: int) -> list[Step]:
    """Return the steps of a seed."""
    return draw(seed, KINDS, TRUE, STEPS)


def play(steps: Sequence[Step], tell: Tell = lambda _text: None) -> int:
    """Live through the steps and check the end; return how many events were stored."""

    async def main(folder: Path) -> int:
        async with contextlib.AsyncExitStack() as closing:
            world = World(folder, closing, tell)
            for number, name in enumerate(NAMES):
                world.give(name, random.Random(number))
            world.write()
            await world.start()
            for step in steps:
                tell(step.kind)
                await getattr(world, step.kind)(random.Random(step.seed))
            await world.check()
            return sum(map(len, world.stored.values()))

    with tempfile.TemporaryDirectory(prefix="ropewalk-world-", dir=MEMORY) as folder:
        return asyncio.run(main(Path(folder)))


def run(seed: int, tell: Tell = lambda _text: None, *, deep: bool = False) -> int:
    """Run one world; if it fails, say which of its steps are enough."""
    return run_or_minimise(seed, steps_of(seed), play, tell)


if __name__ == "__main__":
    sys.exit(run_worlds("Seeded worlds of grants and revocations.", run))
