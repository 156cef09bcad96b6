# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The command `gpuops`: what the modules do, asked by a person or a unit on the host itself.

Exit codes are those of a module: 0 where it did what was asked, 1 where it refused or failed; 2 where it was asked
wrongly. With --json standard output has one JSON object, the module's result; else it has text, and what went wrong is
on standard error.
"""
from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import sys
from typing import Any, Callable, Dict, Iterator, Mapping, Optional, Sequence

from ..agent.policy import POLICY_FILE
from ..agent.watch import WORD as WATCH
from ..core.errors import GpuOpsError
from ..core.host import Host
from ..core.plan import Disruption, Step
from ..validation.compute.levels import NAMES
from . import acts, text, watch

DONE, FAILED, INTERRUPTED = 0, 1, 130
LOCK_SECONDS = 600
BOOT = "boot"
EVENTS = 40

Result = Dict[str, Any]


def main(words: Sequence[str], host: Optional[Host] = None) -> int:
    """Do what the words ask for; the exit code. host: this one, where none is given."""
    asked = _parser().parse_args(list(words))
    if asked.word == WATCH:
        return watch.main([WATCH, "--policy", asked.policy], host)
    host = host or Host()
    host.waits = _waits
    options: Mapping[str, Any] = {}
    try:
        if asked.with_policy:
            options = acts.policy(host, asked.policy)
        result, code = dict(asked.act(host, options, asked)), DONE
    except GpuOpsError as error:
        result, code = dict(error.result(), failed=True), FAILED
    except KeyboardInterrupt:
        _tell("interrupted; the next run goes on where this one ended", to_people=True)
        return INTERRUPTED
    if asked.word == BOOT:
        # It has read the policy by itself, and told of it what was wrong
        with contextlib.suppress(GpuOpsError):
            options = acts.policy(host, asked.policy)
    unsaid = _say(acts.shown(result, options, bool(result.get("failed"))), asked, code)
    if unsaid:
        _tell("gpuops: what came of it could not be written: %s" % unsaid, to_people=True)
    return FAILED if unsaid else code


def _say(result: Result, asked: argparse.Namespace, code: int) -> str:
    if asked.json:
        return _tell(json.dumps(result, sort_keys=True))
    if code == DONE:
        return _tell(asked.text(result))
    return _tell("\n".join([*text.failed(result), result["msg"]]), to_people=True)


def _tell(line: str, to_people: bool = False) -> str:
    """Why it could not be written, as on a full disk; '' where it was, or nobody reads any more: what is done is done.

    to_people: on standard error.
    """
    stream = sys.stderr if to_people else sys.stdout
    encoding = getattr(stream, "encoding", None) or "utf-8"
    try:
        # A name or a file of the host may have what this terminal has no sign for
        stream.write((line + "\n").encode(encoding, "backslashreplace").decode(encoding))
        stream.flush()
    except OSError as error:
        # Python would try once more when it ends, and fail
        with contextlib.suppress(OSError, ValueError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())
        return "" if isinstance(error, BrokenPipeError) else str(error)
    return ""


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="gpuops", description="NVIDIA GPUs of this host, as gpuops.nvidia manages them.")
    acts_known = parser.add_subparsers(dest="word", required=True, metavar="COMMAND")
    _add(acts_known, "info", "tell what is there; changes nothing", _info, text.info, with_policy=False)
    plan = _add(acts_known, "plan", "tell what `apply` would do; changes nothing", _plan, text.plan)
    apply = _add(acts_known, "apply", "make the host what its policy says", _apply, text.apply)
    apply.add_argument("--allowed-disruption", choices=Disruption.names(), default="",
                       help="the most disturbing step that may be done (default: what the policy says)")
    apply.add_argument("--approved-plan", metavar="FILE", help="do exactly this plan, as `gpuops plan --json` gave it")
    boot = _add(acts_known, BOOT, "bring back what a boot has lost, and validate; for the unit that runs at boot",
                _boot, text.boot, with_policy=False)
    boot.add_argument("--policy", default=POLICY_FILE, metavar="FILE", help="the policy (default: %(default)s)")
    boot.add_argument("--retry-seconds", type=_whole, default=0, metavar="SECONDS",
                      help="for how long what cannot be applied is tried again (default: %(default)s)")
    for each in (plan, apply, boot):
        each.add_argument("--lock-timeout", type=_whole, default=LOCK_SECONDS, metavar="SECONDS",
                          help="how long to wait for another run on this host (default: %(default)s)")
    validate = _add(acts_known, "validate", "decide whether the host may take GPU work", _validate, text.validate)
    validate.add_argument("--compute", choices=NAMES, default="",
                          help="how thoroughly to compute on each GPU (default: what the policy says; a slighter one "
                               "lets in no host that is out)")
    _add(acts_known, "health", "look at the GPUs' health, and tell what was found and what mends it", _health,
         text.health)
    node = _add(acts_known, "node", "tell the cluster of this host's GPUs on its own Node, as the policy has it", _node,
                text.node)
    node.add_argument("--kubeconfig", metavar="FILE", default="",
                      help="with the node's credential (default: what the policy says)")
    node.add_argument("--name", metavar="NODE", default="",
                      help="of the Node (default: what the credential says, else the host's)")
    release = _add(acts_known, "release", "take a finding back, as where a part was replaced", _release, text.health)
    release.add_argument("key", metavar="FINDING", help="a finding, `gpu UUID` or `host`, as `health` names it")
    # Where it is the first word, it has begun elsewhere: see entry.py
    watch.add_arguments(acts_known.add_parser(WATCH, help=watch.TOLD, description=watch.TOLD))
    history = _add(acts_known, "history", "tell what was done on this host", _history, text.history, with_policy=False)
    history.add_argument("--last", type=_whole, default=EVENTS, metavar="NUMBER",
                         help="how many events, 0 for all that are kept (default: %(default)s)")
    return parser


def _whole(word: str) -> int:
    if not word.isdecimal():
        raise argparse.ArgumentTypeError("a whole number is wanted, and not '%s'" % word)
    return int(word)


def _add(
    known: Any, word: str, told: str, act: Callable[..., Result], to_text: Callable[[Result], str],
    with_policy: bool = True
) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = known.add_parser(word, help=told, description=told)
    parser.add_argument("--json", action="store_true", help="give the module's result as JSON")
    parser.set_defaults(act=act, text=to_text, with_policy=with_policy)
    if with_policy:
        parser.add_argument("--policy", default=POLICY_FILE, metavar="FILE", help="the policy (default: %(default)s)")
    return parser


def _info(host: Host, options: Mapping[str, Any], asked: argparse.Namespace) -> Result:
    return acts.info(host)


def _plan(host: Host, options: Mapping[str, Any], asked: argparse.Namespace) -> Result:
    return acts.plan(host, options, asked.lock_timeout)


def _apply(host: Host, options: Mapping[str, Any], asked: argparse.Namespace) -> Result:
    approved = _approved(host, asked.approved_plan) if asked.approved_plan else None
    with _outliving_its_terminal():
        return acts.apply(host, options, asked.lock_timeout, asked.allowed_disruption, approved, _begins)


def _boot(host: Host, options: Mapping[str, Any], asked: argparse.Namespace) -> Result:
    return acts.boot(host, asked.policy, asked.lock_timeout, asked.retry_seconds, _begins, _tell_people)


@contextlib.contextmanager
def _outliving_its_terminal() -> Iterator[None]:
    """What has begun is brought to its end though a connection breaks. What is called meanwhile hears of it as ever."""
    before = signal.getsignal(signal.SIGHUP)
    if before != signal.SIG_IGN:
        signal.signal(signal.SIGHUP, lambda _number, _frame: None)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def _begins(step: Step, number: int, total: int, after: Sequence[Step]) -> None:
    _tell(text.step(step, number, total), to_people=True)


def _waits(whom: str) -> None:
    _tell_people("waiting for another run: %s" % whom)


def _tell_people(line: str) -> None:
    _tell(line, to_people=True)


def _approved(host: Host, path: str) -> Mapping[str, Any]:
    """A plan, or a result that has it as 'plan'."""
    try:
        found = json.loads(host.read(path) or "")
        return dict(found.get("plan", found))
    except (ValueError, AttributeError, TypeError) as error:
        raise GpuOpsError(
            "gpuops.no_plan",
            found="%s holds no plan" % path,
            wanted="what `gpuops plan --json` gave",
            remedy="make the plan again, read it and name its file with --approved-plan",
        ) from error


def _validate(host: Host, options: Mapping[str, Any], asked: argparse.Namespace) -> Result:
    return acts.validate(host, options, asked.compute)


def _health(host: Host, options: Mapping[str, Any], asked: argparse.Namespace) -> Result:
    return acts.health(host, options)


def _node(host: Host, options: Mapping[str, Any], asked: argparse.Namespace) -> Result:
    return acts.node(host, options, asked.kubeconfig, asked.name)


def _release(host: Host, options: Mapping[str, Any], asked: argparse.Namespace) -> Result:
    return acts.release(host, options, asked.key)


def _history(host: Host, options: Mapping[str, Any], asked: argparse.Namespace) -> Result:
    return acts.history(host, asked.last)
