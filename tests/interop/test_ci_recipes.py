"""The CI recipes of examples/ci: the command of each runs against a local remote, two jobs at once."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from tests.waiting import LIMIT_S, Crew

from ropewalk.gitlog.repository.opening import open_repository
from ropewalk.gitlog.sharing.exchange import pull

EXAMPLES = Path(__file__).parents[2] / "examples" / "ci"
COMMAND = re.compile(r"sh examples/ci/record-deployment\.sh .* -- \./deploy\.sh")


def command_of(recipe: str) -> str:
    """The line that the recipe runs."""
    (found,) = COMMAND.findall((EXAMPLES / recipe).read_text())
    return str(found)


@pytest.mark.slow
@pytest.mark.parametrize("recipe", ["github-actions.yml", "gitlab-ci.yml", "Jenkinsfile"])
def test_two_jobs_at_once_are_both_recorded(tmp_path, recipe):
    remote = tmp_path / "log.git"
    subprocess.run(["git", "init", "-q", "--bare", remote], check=True)
    jobs = {}
    for name, code in (("first", 0), ("second", 3)):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "examples").symlink_to(EXAMPLES.parent)
        script = folder / "deploy.sh"
        script.write_text(f"#!/bin/sh\necho deploying {name}\nexit {code}\n")
        script.chmod(0o755)
        jobs[name] = (folder, code)

    def job(folder: Path, expected: int) -> None:
        env = {
            **os.environ,
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(folder),
            "LOG_URL": str(remote),
            "ARTIFACT": f"web:{folder.name}",
            "PIPELINE": recipe,
            "RUN_URL": "https://ci.example/1",
        }
        done = subprocess.run(
            ["sh", "-c", command_of(recipe)],
            cwd=folder,
            env=env,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
        )
        assert done.returncode == expected, done.stderr

    with Crew(2) as crew:
        for each in [crew.submit(job, *job_of) for job_of in jobs.values()]:
            each.result(LIMIT_S)
    subprocess.run(["git", "clone", "-q", remote, tmp_path / "auditor"], check=True, capture_output=True)
    with open_repository(tmp_path / "auditor") as log:
        pull(log, "origin", who="auditor")
        events = log.read("prod").events
    assert sorted((event.payload["artifact"], event.type) for event in events) == [
        ("web:first", "deployment.success"),
        ("web:second", "deployment.failed"),
    ]
