"""`ropewalk bridge webhook`: deliver events of a log to HTTP endpoints."""

from __future__ import annotations

import random
import secrets
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropewalk.cli.common.command import Command, Group, emit, say
from ropewalk.cli.git.events import opened
from ropewalk.disk.durable import read_file

if TYPE_CHECKING:
    from ropewalk.bridge.webhooks.run import Delivered, WebhookRunner
    from ropewalk.gitlog.repository.repository import GitRepository

SECRET_FILE_BYTES = 4096  # read at most

webhook = Group(
    "webhook",
    epilog="Examples:\n  ropewalk bridge webhook run\n",
    help="Deliver events of a log to an HTTP endpoint, signed and retried.",
)


@webhook.command(
    "add",
    cls=Command,
    epilog="Examples:\n  openssl rand -hex 32 > hook.secret\n"
    "  ropewalk bridge webhook add --url https://ci.example/hook --log shiplog/prod --secret-file hook.secret\n",
)
@click.option(
    "--url", required=True, metavar="URL", help="Endpoint, http:// or https://; redirects are not followed."
)
@click.option("--log", "name", required=True, metavar="LOG", help="messages/TOPIC or shiplog/NS.")
@click.option(
    "--secret-file",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="Key of the HMAC-SHA256.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["envelope", "cloudevents"]),
    default="envelope",
    help="Body: the delivery object, or a CloudEvent 1.0 in JSON.",
)
@click.option("--ordered", is_flag=True, help="Hold later events back while one is retried.")
@click.option("--allow-private", is_flag=True, help="Permit loopback and private addresses.")
@click.option(
    "--from-start", is_flag=True, help="Deliver what the log holds already, too. Default: new events only."
)
def add(
    url: str,
    name: str,
    secret_file: Path,
    form: str,
    ordered: bool,
    allow_private: bool,
    from_start: bool,
) -> None:
    """Add a webhook: every new event of LOG is posted to URL, at least once."""
    from ropewalk.bridge.webhooks.hooks import Webhook

    secret = read_file(secret_file, SECRET_FILE_BYTES).strip().hex()
    hook = Webhook(secrets.token_hex(8), url, name, secret, form, ordered, allow_private)
    with opened() as repository:
        _runner(repository).add(hook, from_start=from_start)
    emit(hook.to_json(), f"ok  webhook {hook.id}: {hook.log} -> {hook.url}")


@webhook.command("ls", cls=Command, epilog="Examples:\n  ropewalk bridge webhook ls --json\n")
def ls() -> None:
    """List webhooks with their position, waiting retries and dead letters."""
    with opened() as repository:
        rows = _runner(repository).rows()
    text = "\n".join(
        f"{row['id']}  {row['log']} -> {row['url']}  {row['retrying']} retrying, {row['dead']} dead"
        for row in rows
    )
    emit({"webhooks": rows}, text or "no webhooks; ropewalk bridge webhook add makes one")


@webhook.command("rm", cls=Command, epilog="Examples:\n  ropewalk bridge webhook rm 5f0c1d2e3a4b5c6d\n")
@click.argument("hook")
def rm(hook: str) -> None:
    """Remove a webhook with its dead letters."""
    with opened() as repository:
        _runner(repository).hooks.remove(hook)
    emit({"removed": hook}, f"ok  removed {hook}")


@webhook.command(
    "rotate",
    cls=Command,
    epilog="Examples:\n  ropewalk bridge webhook rotate 5f0c1d2e3a4b5c6d --secret-file new.secret\n",
)
@click.argument("hook")
@click.option(
    "--secret-file", type=click.Path(path_type=Path), required=True, metavar="FILE", help="The new key."
)
def rotate(hook: str, secret_file: Path) -> None:
    """Sign with a new secret. The one before signs in X-GATOS-Signature-Previous until the next rotation."""
    with opened() as repository:
        _runner(repository).hooks.rotate(hook, read_file(secret_file, SECRET_FILE_BYTES).strip())
    emit({"rotated": hook}, f"ok  rotated the secret of {hook}")


@webhook.command("dead", cls=Command, epilog="Examples:\n  ropewalk bridge webhook dead 5f0c1d2e3a4b5c6d\n")
@click.argument("hook")
def dead(hook: str) -> None:
    """List the dead letters of a webhook: events that failed five times."""
    with opened() as repository:
        letters = _runner(repository).hooks.dead(hook)
    lines = [
        f"{each['ulid']}  {each['attempts']} attempts, {each['status'] or each['detail']}" for each in letters
    ]
    emit({"dead": letters}, "\n".join(lines) or "no dead letters")


@webhook.command(
    "replay", cls=Command, epilog="Examples:\n  ropewalk bridge webhook replay 5f0c1d2e3a4b5c6d\n"
)
@click.argument("hook")
@click.argument("ulid", nargs=-1)
def replay(hook: str, ulid: tuple[str, ...]) -> None:
    """Put dead letters back into the queue: those named, or all."""
    with opened() as repository:
        back = _runner(repository).hooks.raise_dead(hook, list(ulid))
    emit({"replayed": back}, f"ok  {len(back)} to be delivered again by the next run")


@webhook.command(
    "run",
    cls=Command,
    epilog="Examples:\n  ropewalk bridge webhook run\n  ropewalk bridge webhook run --once\n",
)
@click.option("--once", is_flag=True, help="Deliver what is new and what is due, then exit.")
def run(once: bool) -> None:
    """Deliver events to all webhooks until Ctrl-C. Retries come after 1 s, 5 s, 30 s and 5 min."""
    with opened() as repository:
        runner = _runner(repository)
        if once:
            done = runner.once()
            emit(_answer(done), _text(done))
            return
        say(f"delivering to {len(runner.hooks.all())} webhooks; Ctrl-C ends")
        runner.run(threading.Event(), lambda done: emit(_answer(done), _text(done)))


def _runner(repository: GitRepository) -> WebhookRunner:
    from ropewalk.bridge.webhooks.run import WebhookRunner

    return WebhookRunner(repository, now_ms=lambda: time.time_ns() // 1_000_000, chance=random.random)


def _answer(done: Delivered) -> dict[str, int]:
    return {"delivered": done.delivered, "failed": done.failed, "dead": done.dead}


def _text(done: Delivered) -> str:
    return f"ok  {done.delivered} delivered, {done.failed} to be retried, {done.dead} dead"
