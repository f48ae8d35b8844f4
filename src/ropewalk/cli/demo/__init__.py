"""`ropewalk demo`: run the main job on sample data, one module per stage."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import click

from ropewalk.cli.common.command import command, emit_line, session
from ropewalk.cli.demo.stage import Stage
from ropewalk.errors import Conflict

# In the order they run; later stages may use what earlier ones made.
STAGES: tuple[tuple[str, str], ...] = (
    ("kernel", "bytes, names, signatures, proofs"),
    ("gitlog", "a deployment log in a git repository"),
    ("gossip", "three peers write, part, and converge"),
    ("ledger", "a sealed ledger, and a bundle an auditor can check"),
    ("pipeline", "the main job: logs into tables on Spark, every row and every table proven"),
)


@command("demo", "ropewalk demo", "ropewalk demo ./tour --json")
@click.argument("directory", required=False, metavar="[DIR]")
def demo(directory: str | None) -> None:
    """Run the main job on sample data, end to end, and list the results.

    Everything is made inside DIR, which must be new or empty; default: a new temporary folder that is kept.
    """
    folder = Path(directory) if directory else Path(tempfile.mkdtemp(prefix="ropewalk-demo-"))
    if folder.exists() and any(folder.iterdir()):
        raise Conflict(f"{folder} is not empty", path=str(folder), advice="Name a new or empty folder.")
    folder.mkdir(parents=True, exist_ok=True)
    stage = Stage(folder.absolute(), quiet=session().json)
    started = time.monotonic()
    for number, (name, title) in enumerate(STAGES, start=1):
        stage.heading(f"{number}/{len(STAGES)}  {title}")
        run: Callable[[Stage], None] = import_module(f"ropewalk.cli.demo.{name}").run
        run(stage)
    if session().json:
        emit_line(stage.made)
    else:
        stage.heading(f"done in {time.monotonic() - started:.1f} s")
        for what, where in stage.made.items():
            stage.show(what, where)
        stage.say("")
        if "warehouse" in stage.made:
            ask = "SELECT * FROM deployments WHERE current"
            stage.say(f'Try next:  ropewalk pipeline sql --warehouse {stage.made["warehouse"]} "{ask}"')
        shown = f" --warehouse {stage.made['warehouse']}" if "warehouse" in stage.made else ""
        stage.say(f"Try next:  ropewalk --repo {stage.made['repository']} serve{shown}")
        stage.say("           and open http://127.0.0.1:7480/ to see all of it in the console")
        stage.say("Try next:  ropewalk --help    ropewalk doctor    ropewalk hash FILE.json")
