"""Common mistakes at the command line: each gets its exit code and advice that leads on."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest
from tests.unit.cli.conftest import Ropewalk, living_in

# command line → exit code, a part of what stderr says
MISTAKES: dict[str, tuple[int, str]] = {
    # Commands and options
    "shiplg read": (2, "Did you mean shiplog?"),
    "shiplog apend --ns deploy --file e.json": (2, "Did you mean append?"),
    "ledger aappend": (2, "Did you mean append?"),
    "gossip snyc": (2, "Did you mean sync?"),
    "pipline sql": (2, "Did you mean pipeline?"),
    "pipeline qsl x": (2, "Did you mean sql?"),
    "audit x.tar.zst": (2, "Did you mean verify?"),
    "status": (2, "Did you mean doctor?"),
    "gossip read --topic t": (2, "Did you mean log?"),
    "stream subscribe ws://127.0.0.1:1": (2, "Did you mean sub?"),
    "help": (2, "Did you mean --help?"),
    "version": (2, "Did you mean --version?"),
    "-json": (2, "Did you mean --json?"),
    "shiplog read --nss deploy": (2, "Did you mean --ns?"),
    "shiplog read --ns deploy --limt 3": (2, "Did you mean --limit?"),
    "shiplog append --ns deploy --file e.json --josn": (2, "Did you mean --json or --jsonl?"),
    "ledger append --chanel audit --file e.json": (2, "Did you mean --channel?"),
    "shiplog --ns deploy read": (2, "Options of a command follow its name."),
    "shiplog read": (2, "Missing option '--ns'"),
    "shiplog run -- ls": (2, "Missing option '--ns'"),
    "shiplog run --ns deploy --servce web -- true": (2, "Did you mean --service?"),
    "shiplog run --ns deploy --service web": (2, "Missing argument '-- CMD…'"),
    "consumer reset --ns deploy": (2, "Missing option '--group'"),
    "bundle verify x.tar.zst": (2, "Missing option '--trust'"),
    "pipeline sql 'SELECT 1'": (2, "Missing option '--warehouse'"),
    "completion tcsh": (2, "is not one of 'bash', 'zsh', 'fish'"),
    "stream serve --port 99999": (2, "is not in the range"),
    "ledger serve --port abc": (2, "is not a valid integer"),
    "heads diff": (2, "exactly one of --ns NS and --topic T"),
    "mirror --from deploy --to topic:all": (2, "write ns:NAME, topic:NAME or channel:NAME"),
    "gossip sync ftp://127.0.0.1 --topic t": (2, "ws://HOST:PORT"),
    "gossip pending drop": (2, "give IDs, --all or --older-than DAYS"),
    "serve --host 0.0.0.0 --port 0": (2, "ropewalk auth add NAME"),
    "stream serve --port 0 --token-file two.jsonl": (8, "openssl rand"),
    # Names
    "shiplog read --ns deplyo": (3, "Did you mean deploy?"),
    "shiplog read --ns jobs": (3, "There is: deploy"),
    "messages read --topic jobs.pending": (3, "Did you mean jobs/pending?"),
    "messages read --topic deploy": (3, "It is a namespace: ropewalk shiplog read --ns deploy"),
    "shiplog anchor ls --ns nope": (3, "there is no log 'nope'"),
    "shiplog ls --env pord": (3, "Did you mean prod?"),
    "shiplog show xyz": (3, "names no event, namespace or ref"),
    "consumer lag --group analytcs": (3, "Did you mean analytics?"),
    "shiplog checkpoint get --group analytcs --ns deploy": (3, "Did you mean analytics?"),
    "ledger read --channel audt": (3, "Did you mean audit?"),
    "ledger head --channel audt": (3, "Did you mean audit?"),
    "gossip log --topic com.example.caht": (3, "Did you mean com.example.chat?"),
    "gossip append --topic com.example.chat --payload e.json --key nodee": (3, "Did you mean node?"),
    "shiplog show depoly": (3, "Did you mean deploy?"),
    "consumer lag --ns depoly": (3, "Did you mean deploy?"),
    "mirror --from ns:depoly --to topic:all": (3, "Did you mean deploy?"),
    "ledger status --channel audt": (3, "Did you mean audit?"),
    "ledger serve --channel audt --port 0": (3, "Did you mean audit?"),
    "ledger key rotate --channel audit --to aad": (3, "Did you mean ada?"),
    "key show aad": (3, "Did you mean ada?"),
    "key show zulu": (3, "ropewalk key ls"),
    "auth revoke bne": (3, "Did you mean ben?"),
    "auth revoke zulu": (3, "ropewalk auth ls"),
    "auth add cleo --right deploy:read": (8, "write shiplog/deploy"),
    "auth add cleo --right shiplog/deploy:write": (8, "shiplog/prod:read,append"),
    "explain HeadMovd": (3, "Did you mean HeadMoved?"),
    "explain 99": (3, "`ropewalk explain` lists them all."),
    "push": (3, "git remote add origin URL"),
    "pull nope": (3, "git remote add origin URL"),
    # Files and repositories
    "shiplog append --ns deploy --file e.jsn": (3, "Did you mean e.json?"),
    "hash e.josn": (3, "Did you mean e.json?"),
    "shiplog append --ns deploy --file home": (3, "Name a file in it."),
    "--repo nope.git shiplog ls": (3, "ropewalk init PATH"),
    "verify nope": (3, "no file nope"),
    "verify shiplog/deploy": (3, "ropewalk verify --ns deploy"),
    "shiplog read --ns refs/gatos/shiplog/deploy/head": (8, "Name the namespace alone: deploy"),
    "verify e.jsn": (3, "Did you mean e.json?"),
    "verify trust.json": (8, "Name it with --trust."),
    "verify two.txt": (8, "ropewalk verify --help"),
    "verify log.git --trust nope": (3, "no file nope"),
    "demo .": (4, "Name a new or empty folder."),
    "key new ada": (4, "choose another name"),
    "ledger create --channel audit": (4, "audit"),
    # Values
    "shiplog append --ns 'de ploy' --file e.json": (8, "Use lower-case letters"),
    "shiplog append --ns deploy --file broken.json": (8, "broken.json"),
    "shiplog append --ns deploy --file two.jsonl": (8, "add --jsonl"),
    "shiplog read --ns deploy --since yesterday": (8, "ropewalk shiplog ls --since yesterday"),
    "shiplog ls --since yesteday": (8, "today, yesterday or a date"),
    "ledger append --channel audit --file e.json": (8, "ropewalk ledger envelope"),
    "stream sub ws://127.0.0.1:1": (8, "Name at least one ref or topic."),
    "stream sub ws://127.0.0.1:1 --topic jobs": (7, "127.0.0.1"),
}


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Ropewalk:
    folder: Path = tmp_path_factory.mktemp("mistakes")
    run = living_in(folder)
    (folder / "e.json").write_text('{"type":"note","payload":{"text":"hi"}}')
    (folder / "two.jsonl").write_text('{"type":"a","payload":{}}\n{"type":"b","payload":{}}\n')
    (folder / "broken.json").write_text('{"type":')
    (folder / "trust.json").write_text('{"block_signers":[]}')
    (folder / "two.txt").write_text("neither\nthis nor that\n")
    (folder / "home").mkdir()
    for line in (
        "init log.git",
        "key new ada",
        "--repo log.git shiplog append --ns deploy --file e.json",
        "--repo log.git shiplog run --ns deploy --env prod --service web -- true",
        "--repo log.git messages publish --topic jobs/pending --file e.json",
        "--repo log.git consumer reset --group analytics --ns deploy --to now",
        "--repo log.git ledger create --channel audit",
        "--repo log.git auth add ben --right shiplog/deploy:read",
        "--repo log.git gossip append --topic com.example.chat --payload e.json",
    ):
        done = run(*shlex.split(line))
        assert done.code == 0, (line, done.err)
    return lambda *words: run(*words, env={"ROPEWALK_REPO": "log.git"})


@pytest.mark.parametrize("line", MISTAKES)
def test_mistake_gets_its_advice(house, line):
    code, words = MISTAKES[line]
    done = house(*shlex.split(line))
    assert (done.code, words in done.err) == (code, True), done.err
    assert "Traceback" not in done.err and not done.out


def test_mistakes_with_json_are_problems(house):
    done = house("ledger", "read", "--channel", "audt", "--json")
    assert done.json["advice"] == "Did you mean audit?" and done.code == 3
    assert "--limit" in house("shiplog", "read", "--ns", "deploy", "--limt", "3", "--json").json["detail"]
