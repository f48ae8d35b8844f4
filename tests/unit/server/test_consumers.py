"""Checkpoints of consumer groups over HTTP and over `gatosd rpc`."""

from __future__ import annotations

import asyncio
import json

from tests.asgi import served

from ropewalk.disk.repository_paths import make_repository
from ropewalk.gitlog.core.envelope import Draft
from ropewalk.gitlog.core.layout import MESSAGES
from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.server.consumer_lag import GROUPS_MAX, SAMPLES_MAX, ConsumerLag, consumer_rows
from ropewalk.server.rpc import Rpc

EVENT = {"type": "t", "payload": {}}


def test_checkpoint_stays_if_the_client_has_left(tmp_path):
    async def main() -> None:
        async with served(tmp_path) as client:
            await client("POST", "/messages?topic=jobs", EVENT)
            page = "/messages?topic=jobs&group=g"
            await client("GET", page, leaves=True)
            assert (await client("GET", "/consumers")).json == {"consumers": []}
            assert len((await client("GET", page)).json["messages"]) == 1
            assert (await client("GET", page)).json["messages"] == []

    asyncio.run(main())


def test_rpc_checkpoint_moves_behind_a_written_answer(tmp_path):
    place, _ = make_repository(tmp_path / "log.git")
    request = {"id": 1, "method": "messages.read", "params": {"topic": "jobs", "group": "g"}}
    line = json.dumps(request).encode()
    with open_repository(place.git_dir) as log:
        log.append_all("jobs", [Draft(EVENT)], layout=MESSAGES)
        lost = Rpc(log).answer_all([line])
        assert len(next(lost)["result"]["messages"]) == 1
        del lost  # as where the reader of the pipe is gone
        counts = [len(each["result"]["messages"]) for each in Rpc(log).answer_all([line, line])]
        assert counts == [1, 0]


def test_consumer_routes_tell_the_engines_apart(tmp_path):
    async def main() -> None:
        async with served(tmp_path) as client:
            ulid = (await client("POST", "/shiplog/prod/events", EVENT)).json["ulid"]
            await client("POST", "/messages?topic=prod", EVENT)
            assert (await client("PUT", "/consumers/g?log=shiplog/prod", {"ulid": ulid})).status == 200
            for method in ("GET", "DELETE"):
                assert (await client(method, "/consumers/g?log=messages/prod")).status == 404
            assert (await client("GET", "/consumers/g?log=shiplog/prod")).json["ulid"] == ulid

    asyncio.run(main())


def test_admin_replaces_no_checkpoint_of_another_engine(tmp_path):
    rights = [{"logs": ["**"], "actions": ["read", "append", "checkpoint", "admin"]}]
    auth = tmp_path / "auth.json"
    auth.write_text(json.dumps({"version": 1, "clients": [], "anonymous": rights}))
    auth.chmod(0o600)

    async def main() -> None:
        async with served(tmp_path, auth=auth) as client:
            first = (await client("POST", "/shiplog/prod/events", EVENT)).json["ulid"]
            other = (await client("POST", "/messages?topic=prod", EVENT)).json["ulid"]
            await client("PUT", "/consumers/g?log=shiplog/prod", {"ulid": first})
            answer = await client("PUT", "/consumers/g?log=messages/prod", {"ulid": other})
            assert answer.status == 409
            assert (await client("GET", "/consumers/g?log=shiplog/prod")).json["ulid"] == first

    asyncio.run(main())


def test_lag_over_time_is_kept_by_the_server(tmp_path):
    async def main() -> None:
        async with served(tmp_path) as client:
            ulids = [(await client("POST", "/shiplog/prod/events", EVENT)).json["ulid"] for _ in range(3)]
            await client("PUT", "/consumers/g?log=shiplog/prod", {"ulid": ulids[0]})
            await check_samples(client, [2])
            await client("PUT", "/consumers/g?log=shiplog/prod", {"ulid": ulids[2]})
            client.node.lag.take(consumer_rows(client.node.log), 2**50)
            await check_samples(client, [2, 0])
            assert await samples(client, "messages/prod") == []

    async def samples(client, log: str = "shiplog/prod") -> list[dict[str, int]]:
        answer = (await client("GET", "/consumer-lag")).json
        assert answer["every_s"] > 0
        return [sample for each in answer["groups"] if each["log"] == log for sample in each["samples"]]

    async def check_samples(client, want: list[int]) -> None:
        """Take a sample, as the server does by itself every few seconds."""
        client.node.lag.take(consumer_rows(client.node.log), 2**50 - 1)
        found = [each["behind"] for each in await samples(client)]
        assert sorted(set(found), reverse=True) == want

    asyncio.run(main())


def test_lag_is_bounded_and_forgets_lost_groups():
    lag = ConsumerLag()
    for number in range(SAMPLES_MAX + 9):
        lag.take(
            [{"group": str(n), "log": "shiplog/a", "behind": number} for n in range(GROUPS_MAX + 5)], number
        )
    rows = lag.rows(lambda _log: True)
    assert len(rows) == GROUPS_MAX and {len(each["samples"]) for each in rows} == {SAMPLES_MAX}
    assert lag.rows(lambda log: log != "shiplog/a") == []
    lag.take([{"group": "0", "log": "shiplog/b", "behind": None}], 10**6)
    assert [each["log"] for each in lag.rows(lambda _log: True)] == ["shiplog/b"]
