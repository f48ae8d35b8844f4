"""`ropewalk bridge webhook`: deliver events of a log to HTTP endpoints."""

from __future__ import annotations

import random
import secrets
import threading
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

import click

from ropewalk.cli.common.command import emit, group, say
from ropewalk.cli.common.options import choice, flag, path_option, required
from ropewalk.cli.git.events import opened
from ropewalk.disk.durable import read_file

if TYPE_CHECKING:
    from ropewalk.bridge.webhooks.run import Delivered, WebhookRunner
    from ropewalk.gitlog.repository.repository import GitRepository

SECRET_FILE_BYTES = 4096  # read at most


@group("webhook", "ropewalk bridge webhook run")
def webhook() -> None:
    """Deliver events of a log to an HTTP endpoint, signed and retried."""


@webhook.command(
    "add",
    "openssl rand -hex 32 > hook.secret",
    "ropewalk bridge webhook add --url https://ci.example/hook --log shiplog/prod --secret-file hook.secret",
)
@required("--url", "URL", "Endpoint, http:// or https://; redirects are not followed.")
@required("--log name", "LOG", "messages/TOPIC or shiplog/NS.")
@path_option("--secret-file", "FILE", "Key of the HMAC-SHA256.", required=True)
@choice(
    "--format form",
    ["envelope", "cloudevents"],
    "Body: the delivery object, or a CloudEvent 1.0 in JSON.",
    default="envelope",
)
@flag("--ordered", "Hold later events back while one is retried.")
@flag("--allow-private", "Permit loopback and private addresses.")
@flag("--from-start", "Deliver what the log holds already, too. Default: new events only.")
def add(
    url: str, name: str, secret_file: Path, form: str, ordered: bool, allow_private: bool, from_start: bool
) -> None:
    """Add a webhook: every new event of LOG is posted to URL, at least once."""
    from ropewalk.bridge.webhooks.hooks import Webhook

    secret = read_file(secret_file, SECRET_FILE_BYTES).strip().hex()
    hook = Webhook(secrets.token_hex(8), url, name, secret, form, ordered, allow_private)
    with opened() as repository:
        _runner(repository).add(hook, from_start=from_start)
    emit(hook.to_json(), f"ok  webhook {hook.id}: {hook.log} -> {hook.url}")


@webhook.command("ls", "ropewalk bridge webhook ls --json")
def ls() -> None:
    """List webhooks with their position, waiting retries and dead letters."""
    with opened() as repository:
        rows = _runner(repository).rows()
    lines = (
        f"{row['id']}  {row['log']} -> {row['url']}  {row['retrying']} retrying, {row['dead']} dead"
        for row in rows
    )
    emit({"webhooks": rows}, lines, "no webhooks; ropewalk bridge webhook add makes one")


@webhook.command("rm", "ropewalk bridge webhook rm 5f0c1d2e3a4b5c6d")
@click.argument("hook")
def rm(hook: str) -> None:
    """Remove a webhook with its dead letters."""
    with opened() as repository:
        _runner(repository).hooks.remove(hook)
    emit({"removed": hook}, f"ok  removed {hook}")


@webhook.command("rotate", "ropewalk bridge webhook rotate 5f0c1d2e3a4b5c6d --secret-file new.secret")
@click.argument("hook")
@path_option("--secret-file", "FILE", "The new key.", required=True)
def rotate(hook: str, secret_file: Path) -> None:
    """Sign with a new secret. The one before signs in X-GATOS-Signature-Previous until the next rotation."""
    with opened() as repository:
        _runner(repository).hooks.rotate(hook, read_file(secret_file, SECRET_FILE_BYTES).strip())
    emit({"rotated": hook}, f"ok  rotated the secret of {hook}")


@webhook.command("dead", "ropewalk bridge webhook dead 5f0c1d2e3a4b5c6d")
@click.argument("hook")
def dead(hook: str) -> None:
    """List the dead letters of a webhook: events that failed five times."""
    with opened() as repository:
        letters = _runner(repository).hooks.dead(hook)
    lines = (f"{d['ulid']}  {d['attempts']} attempts, {d['status'] or d['detail']}" for d in letters)
    emit({"dead": letters}, lines, "no dead letters")


@webhook.command("replay", "ropewalk bridge webhook replay 5f0c1d2e3a4b5c6d")
@click.argument("hook")
@click.argument("ulid", nargs=-1)
def replay(hook: str, ulid: tuple[str, ...]) -> None:
    """Put dead letters back into the queue: those named, or all."""
    with opened() as repository:
        back = _runner(repository).hooks.raise_dead(hook, list(ulid))
    emit({"replayed": back}, f"ok  {len(back)} to be delivered again by the next run")


@webhook.command("run", "ropewalk bridge webhook run", "ropewalk bridge webhook run --once")
@flag("--once", "Deliver what is new and what is due, then exit.")
def run(once: bool) -> None:
    """Deliver events to all webhooks until Ctrl-C. Retries come after 1 s, 5 s, 30 s and 5 min."""
    with opened() as repository:
        runner = _runner(repository)
        if once:
            _print_round(runner.once())
            return
        say(f"delivering to {len(runner.hooks.all())} webhooks; Ctrl-C ends")
        runner.run(threading.Event(), _print_round)


def _runner(repository: GitRepository) -> WebhookRunner:
    from ropewalk.bridge.webhooks.run import WebhookRunner

    return WebhookRunner(repository, now_ms=lambda: time.time_ns() // 1_000_000, chance=random.random)


def _print_round(done: Delivered) -> None:
    emit(asdict(done), f"ok  {done.delivered} delivered, {done.failed} to be retried, {done.dead} dead")
