"""Who wrote it: what the environment says, else git's configuration, else the account."""

from __future__ import annotations

import getpass
import subprocess


def _shown(ropewalk, env=None):
    ran = ropewalk(
        *("--repo", "log.git", "shiplog", "run", "--ns", "deploy", "--service", "web", "--json"),
        *("--", "true"),
        env=env,
    )
    assert ran.code == 0, ran.err
    return ropewalk("--repo", "log.git", "shiplog", "show", ran.json["commit"], "--json").json


def test_a_deployment_names_whoever_ran_it(ropewalk, tmp_path):
    ropewalk("init", "log.git")
    login = getpass.getuser()
    shown = _shown(ropewalk)
    assert shown["trailer"]["who"]["name"] == login
    assert shown["author"].startswith(f"{login} <{login}@")

    for key, value in (("user.name", "Ada"), ("user.email", "ada@example.test")):
        subprocess.run(["git", "-C", tmp_path / "log.git", "config", key, value], check=True)
    shown = _shown(ropewalk)
    assert shown["trailer"]["who"] == {"name": "Ada", "email": "ada@example.test"}
    assert shown["author"] == "Ada <ada@example.test>"

    shown = _shown(ropewalk, {"GIT_AUTHOR_NAME": "CI <robot>", "GIT_AUTHOR_EMAIL": "ci@example.test"})
    assert shown["trailer"]["who"]["email"] == "ci@example.test"
    assert shown["author"] == "CI robot <ci@example.test>"


def test_a_trailer_is_shown_in_words(ropewalk):
    ropewalk("init", "log.git")
    _shown(ropewalk)
    shown = ropewalk("--repo", "log.git", "shiplog", "show", "deploy").text
    assert "what            service web\n" in shown
    assert "{'" not in shown


def test_anchors_of_all_namespaces_are_listed(ropewalk, tmp_path):
    ropewalk("init", "log.git")
    (tmp_path / "event.json").write_text('{"type":"note","payload":{}}')
    for ns in ("one", "two"):
        ropewalk("--repo", "log.git", "shiplog", "append", "--ns", ns, "--file", "event.json")
        assert ropewalk("--repo", "log.git", "shiplog", "anchor", "create", "--ns", ns).code == 0
    ls = ("--repo", "log.git", "shiplog", "anchor", "ls")
    assert [each["topic"] for each in ropewalk(*ls, "--json").json["anchors"]] == ["one", "two"]
    assert [line.split()[1] for line in ropewalk(*ls).text.splitlines()] == ["one", "two"]
    assert len(ropewalk(*ls, "--ns", "two", "--json").json["anchors"]) == 1
