"""The root command: the list of commands, and the one place where errors become exit codes."""

from __future__ import annotations

import os
import sys
import traceback
from collections.abc import Sequence
from functools import partial

import click

from ropewalk import __version__
from ropewalk.cli.common.command import Group, Session, drop_output, fail, from_os_error, say
from ropewalk.cli.common.passphrase import current_passphrase, take_from_environment
from ropewalk.disk.key_encryption import passphrase_source
from ropewalk.errors import RopewalkError, Usage

INTERRUPTED = 130

# name → "module:attribute one line of help"; imported on first use, to start fast.
COMMANDS: dict[str, str] = {
    "init": "init:init Create a repository, or add what is missing to one.",
    "clone": "team.share:clone Clone a repository with its logs.",
    "pull": "team.share:pull Fetch the logs of a remote.",
    "push": "team.share:push Send logs to a remote; re-append events where both appended.",
    "hook": "team.hook:hook Install the server-side hook that checks pushes.",
    "key": "key:key Create, list and show keys.",
    "pki": "pki:pki Issue and revoke certificates for servers and clients.",
    "canon": "canon:canon Print the canonical bytes of a JSON file.",
    "hash": "canon:hash_ Print the content id of a JSON file.",
    "ledger": "ledger.ledger:ledger Append, read and prove signed envelopes in sealed blocks.",
    "bundle": "audit.bundle:bundle Export and verify ranges of a ledger, offline.",
    "witness": "audit.witness:witness Cosign heads of other logs that extend the heads seen before.",
    "shiplog": "git.shiplog:shiplog Append, read and follow events in git; record deployments.",
    "messages": "git.messages:messages Publish and read messages in git.",
    "mirror": "git.mirror:mirror Copy new events of one log into another.",
    "bridge": "bridge.bridge:bridge Carry events to message brokers and webhooks, and messages into topics.",
    "governance": "bridge.governance:governance Propose changes, collect signed approvals, carry them out.",
    "consumer": "git.consumer:consumer Show and move the positions of consumer groups.",
    "heads": "git.heads:heads List, compare, accept and sign heads of logs.",
    "pointer": "git.pointer:pointer Seal private bytes behind pointers, open and erase them.",
    "verify": "audit.verify:verify Verify a repository, a proof, a receipt, a bundle or a checkpoint, offline.",
    "stream": "stream.serve:stream Serve and follow repository changes live.",
    "simulate": "simulate:simulate Test a reducer or a policy in seeded worlds.",
    "serve": "server.serve:serve Serve a repository to a team over HTTP.",
    "auth": "server.auth:auth Add, list and revoke clients of the server.",
    "watch": "server.watch:watch Watch channels: signals, alerts, schedules.",
    "rpc": "server.rpc:rpc Answer JSON requests on stdin, one per line.",
    "messages-read": "server.rpc:messages_read Print the answer of `messages.read` (S1).",
    "gossip": "gossip.gossip:gossip Append to and sync signed logs between peers.",
    "pipeline": "pipeline.pipeline:pipeline Load logs into tables on Spark, and verify them.",
    "explain": "explain:explain Explain an error code or an exit code.",
    "completion": "completion:completion Print the completion script of a shell.",
    "doctor": "doctor:doctor Check the installation and the repository.",
    "demo": "demo:demo Run the main job on sample data, end to end.",
}

SECTIONS = {
    "Start": ("init", "demo", "doctor", "explain", "completion"),
    "Logs in git": ("shiplog", "messages", "consumer", "mirror", "bridge", "heads", "pointer"),
    "Team": ("clone", "pull", "push", "hook", "governance"),
    "Ledger": ("ledger", "bundle", "witness"),
    "Peers and live streams": ("gossip", "stream"),
    "Server": ("serve", "watch", "auth", "rpc", "messages-read"),
    "Verification": ("verify", "simulate", "canon", "hash"),
    "Keys": ("key", "pki"),
    "Tables": ("pipeline",),
}

root = Group(
    "ropewalk",
    lazy=COMMANDS,
    sections=SECTIONS,
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
    take_from_environment()
    passphrase_source(partial(current_passphrase, session))
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
        if session.debug:
            traceback.print_exc()
        return fail(error, as_json=session.json)
    except (KeyboardInterrupt, click.Abort):
        say("interrupted")
        return INTERRUPTED
    except (BrokenPipeError, SystemExit):
        drop_output(sys.stdout)  # the reader has closed the pipe (`| head`); click turns that into SystemExit
        return 0
    except OSError as error:
        code = fail(from_os_error(error), as_json=session.json)
        try:
            sys.stdout.flush()
        except OSError:  # stdout itself failed, and its buffer cannot be written either
            drop_output(sys.stdout)
        return code
    except Exception as error:
        if session.debug:
            traceback.print_exc()
        if os.environ.get("ROPEWALK_DEBUG"):
            raise
        unforeseen = RopewalkError(
            f"{type(error).__name__}: {error}",
            advice="This is a defect of ropewalk; run again with --debug and report the traceback.",
        )
        return fail(unforeseen, as_json=session.json)
