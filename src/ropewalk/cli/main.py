"""The root command: the list of nouns, and the one place where errors become exit codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

import click

from ropewalk import __version__
from ropewalk.cli.common.command import Group, Session, drop_output, fail, refusal_of, say
from ropewalk.errors import RopewalkError, Usage

INTERRUPTED = 130

# name → (module, attribute, one line of help); imported on first use so that starting costs little.
COMMANDS: dict[str, tuple[str, str, str]] = {
    "init": ("ropewalk.cli.init", "init", "Make a repository, or add to one what ropewalk needs."),
    "key": ("ropewalk.cli.key", "key", "Make, list and show keys."),
    "canon": ("ropewalk.cli.canon", "canon", "Print the canonical bytes of a JSON file."),
    "hash": ("ropewalk.cli.canon", "hash_", "Print the content id of a JSON file."),
    "ledger": ("ropewalk.cli.ledger.ledger", "ledger", "Channels of signed envelopes in sealed blocks."),
    "bundle": ("ropewalk.cli.audit.bundle", "bundle", "Ranges of a ledger that verify anywhere, offline."),
    "witness": (
        "ropewalk.cli.audit.witness",
        "witness",
        "Watch other people's logs, and cosign heads that extend those seen before.",
    ),
    "shiplog": (
        "ropewalk.cli.git.shiplog",
        "shiplog",
        "Events of a namespace in git: append, read, follow, run.",
    ),
    "messages": ("ropewalk.cli.git.messages", "messages", "Messages of a topic in git: publish, read."),
    "mirror": ("ropewalk.cli.git.mirror", "mirror", "Copy what is new in one log into another."),
    "bridge": (
        "ropewalk.cli.bridge.bridge",
        "bridge",
        "Carry events to message brokers and webhooks, and messages into topics.",
    ),
    "consumer": ("ropewalk.cli.git.consumer", "consumer", "Where consumer groups stand, and how far behind."),
    "heads": ("ropewalk.cli.git.heads", "heads", "Heads seen, compared, accepted and signed."),
    "pointer": (
        "ropewalk.cli.git.pointer",
        "pointer",
        "Seal private bytes behind pointers, open and erase them.",
    ),
    "verify": (
        "ropewalk.cli.audit.verify",
        "verify",
        "Verify a repository, a proof, a receipt, a bundle or a checkpoint, offline.",
    ),
    "stream": ("ropewalk.cli.stream.serve", "stream", "What changes in a repository, told as it happens."),
    "serve": ("ropewalk.cli.server.serve", "serve", "Serve a repository to a team over HTTP."),
    "auth": ("ropewalk.cli.server.auth", "auth", "Identities and rights of the server's clients."),
    "rpc": ("ropewalk.cli.server.rpc", "rpc", "Answer JSON requests on stdin, one a line."),
    "messages-read": (
        "ropewalk.cli.server.rpc",
        "messages_read",
        "Print the answer of `messages.read` (S1).",
    ),
    "gossip": (
        "ropewalk.cli.gossip.gossip",
        "gossip",
        "A signed log between peers, synced by comparing trees.",
    ),
    "pipeline": (
        "ropewalk.cli.pipeline.pipeline",
        "pipeline",
        "Tables from logs, on Spark, every row proven.",
    ),
    "doctor": ("ropewalk.cli.doctor", "doctor", "Check the installation and the repository."),
    "demo": ("ropewalk.cli.demo", "demo", "Run the main job on sample data, end to end."),
}

root = Group(
    "ropewalk",
    lazy=COMMANDS,
    help="Append-only event logs you can prove: in git, between peers, or as a sealed ledger.",
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Examples:\n  ropewalk demo\n  ropewalk init my.git\n"
    '  echo \'{"type":"note","payload":{"text":"hi"}}\' | ropewalk --repo my.git shiplog append --ns notes --file -\n'
    "  ropewalk --repo my.git shiplog read --ns notes\n  ropewalk verify my.git\n\n"
    "`ropewalk COMMAND --help` shows examples of each command.\n"
    "Exit codes: 0 ok, 1 internal, 2 usage, 3 not found, 4 conflict, 5 verification failed, 6 denied,\n"
    "            7 unavailable, 8 invalid input, 130 interrupted.\n",
)
root = click.version_option(__version__, prog_name="ropewalk", message="%(prog)s %(version)s")(root)


def run(arguments: Sequence[str]) -> int:
    """Run one command line and return its exit code.

    >>> run(["--version"])
    ropewalk 0.1.0
    0
    """
    session = Session()
    color = False if os.environ.get("NO_COLOR") else None
    try:
        # With standalone_mode off, click returns the code of an Exit instead of raising it.
        code = root.main(
            list(arguments), prog_name="ropewalk", standalone_mode=False, obj=session, color=color
        )
        return code if isinstance(code, int) else 0
    except click.ClickException as error:
        if "--json" in arguments:
            return fail(Usage(error.format_message()), as_json=True)
        error.show()
        return error.exit_code
    except RopewalkError as error:
        return fail(error, as_json=session.json)
    except (KeyboardInterrupt, click.Abort):
        say("interrupted")
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):
        drop_output(sys.stdout)  # the reader has gone (`| head`), which click turns into SystemExit
        return 0
    except OSError as error:
        code = fail(refusal_of(error), as_json=session.json)
        try:
            sys.stdout.flush()
        except OSError:  # it was stdout that had no room, and what waits for it still has none
            drop_output(sys.stdout)
        return code
    except Exception as error:
        if os.environ.get("ROPEWALK_DEBUG"):
            raise
        unforeseen = RopewalkError(
            f"{type(error).__name__}: {error}",
            advice="This is a defect of ropewalk; run again with ROPEWALK_DEBUG=1 and report the trace.",
        )
        return fail(unforeseen, as_json=session.json)
