# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""`gpuops watch`: rounds of looking at the host's health, at once when the driver logs something, else by time.

Asleep it holds the kernel's log, its own lock and, where metrics are served, their socket: nothing of the driver, and
never the host's lock. Whatever fails is told, the same once an hour at most, and does not end it. A signal ends it at
once, also in the middle of a round: what is kept is replaced as a whole.
"""
from __future__ import annotations

import argparse
import contextlib
import importlib
import math
import os
import signal
import sys
import time
import traceback
from dataclasses import replace
from typing import Any, Callable, Dict, NoReturn, Optional, Sequence, Tuple

from .. import shipped
from ..agent.policy import CORDON, POLICY_FILE, SILENT
from ..agent.watch import LOCK, WORD, Watcher, address_of, watcher
from ..core import boot_record
from ..core.children import take_away
from ..core.errors import GpuOpsError
from ..core.host import Host, NewRecords, Stamps
from ..core.lock import DIRECTORY
from ..core.secrets import hidden
from ..core.times import since_boot
from ..hardware.nvml import binding
from ..health.look import read_look
from ..health.metrics import metrics_text
from ..health.state import keep_look, kept
from . import host_policy
from .host_policy import HealthOptions, health_options
from .serving import Page, tell_started
from .watching import Rounds, after_failure, after_round, asks_nvml, due, is_told_of

TOLD = "watch the GPUs' health until it is ended; for the unit that does"
FAILED, INTERRUPTED = 1, 130
# Between two looks at what has come to the log: a flood of it is read in few pieces
LISTENING = 1.0
# After which what goes wrong still is told again
TOLD_SECONDS = 3600.0


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--policy", default=POLICY_FILE, metavar="FILE", help="the policy (default: %(default)s)")


def main(words: Sequence[str], host: Optional[Host] = None) -> int:
    """Watch until a signal comes; the exit code of what could not be begun."""
    parser = argparse.ArgumentParser(prog="gpuops %s" % WORD, description=TOLD)
    add_arguments(parser)
    asked = parser.parse_args(list(words[1:]))
    signal.signal(signal.SIGTERM, _end)
    try:
        watch(host or Host(), asked.policy)
    except GpuOpsError as error:
        _say(str(error))
        return FAILED
    except KeyboardInterrupt:
        return INTERRUPTED


def _end(_number: int, _frame: Any) -> NoReturn:
    # Whoever waits for something in a round stops waiting
    raise SystemExit(0)


def _say(line: str) -> None:
    # Whether somebody reads it or not
    with contextlib.suppress(OSError):
        sys.stderr.write("gpuops: %s\n" % hidden(line))
        sys.stderr.flush()


def watch(host: Host, path: str = POLICY_FILE) -> NoReturn:
    """Watch a host for ever, by the policy in that file. Raises GpuOpsError where that holds none, or where somebody
    else watches already."""
    watching = Watch(host, path, _say)
    pid = os.getpid()
    code = os.path.basename(os.environ.get(shipped.VARIABLE, ""))
    host.make_directory(DIRECTORY, 0o700)
    with host.occupied(LOCK, Watcher(code, pid, host.process_started(pid), host.boot()).text) as is_ours:
        if not is_ours:
            other = watcher(host)
            raise GpuOpsError(
                "gpuops.watched_already",
                found="this host is watched already%s" % (" by process %d" % other.pid if other else ""),
                wanted="one that watches it",
                remedy="leave it to that one, or end it first: `systemctl stop gpuops-nvidia-watch`")
        # The last that is imported; a round without it says so
        with contextlib.suppress(GpuOpsError):
            binding()
        watching.prepare()
        shipped.let_go()
        tell_started()
        while True:
            watching.await_next()
            watching.look()


class Watch:
    """The rounds of one host. Raises GpuOpsError where its policy cannot be followed to begin with.

    tell: is told what goes wrong.
    """

    def __init__(self, host: Host, path: str, tell: Callable[[str], None]) -> None:
        self.host = host
        self.rounds = Rounds()
        self._path = path
        self._tell = tell
        self._told: Dict[Tuple[str, str], float] = {}
        self._records: Optional[NewRecords] = None
        self._page: Optional[Page] = None
        self._served = self._text = ""
        self._stamps: Stamps = ()
        self._options = self._read_options()
        self._telling: Any = None

    def prepare(self) -> None:
        """Import what only some hosts need; nothing can be imported later."""
        if self._options.node_condition != SILENT:
            self._telling = importlib.import_module("..agent.telling", __package__)

    def await_next(self) -> None:
        """Wait until a round is due."""
        while True:
            left = due(self.rounds, self._options.policy) - since_boot()
            if left <= 0:
                return
            if self._records is None or self.rounds.heard < math.inf:
                time.sleep(left)
            elif self._records.wait(left):
                self._listen(self._records)

    def look(self) -> None:
        """One round, whatever comes of it."""
        self._renew()
        began = since_boot()
        asked = asks_nvml(self.rounds, self._options.policy, began)
        self._follow_log()
        try:
            look = read_look(self.host, lambda: kept(self.host), self._options.policy, asked)
            state = keep_look(self.host, self._options.policy, look, self._options.metrics_directory)
            self.rounds = after_round(self.rounds, look, state, asked, began, since_boot())
            self._text = metrics_text(state, boot_record.read(self.host))
            if self._page is not None:
                self._page.text = self._text
            self._tell_node()
        except Exception as error:
            self._complain("a round failed", error)
            self.rounds = after_failure(self.rounds, asked, since_boot())
        take_away()

    def _tell_node(self) -> None:
        # Who has it told no more has taken back by now what was said
        self._renew()
        if self._options.node_condition == SILENT:
            return
        if self._telling is None:
            # It was not wanted when this began: the unit begins anew
            raise SystemExit(0)
        try:
            self._telling.tell(self.host, self._options.kubeconfig, self._options.policy.stale_seconds,
                               self._options.node_condition == CORDON, in_passing=True)
        except GpuOpsError as error:
            self._complain("the cluster is not told", error)

    def _listen(self, records: NewRecords) -> None:
        try:
            texts = records.read()
        except OSError as error:
            self._without_log(error)
            return
        # What nobody has heard may have been of the driver
        if texts is None or is_told_of(texts):
            self.rounds = replace(self.rounds, heard=since_boot())
        else:
            time.sleep(LISTENING)

    def _follow_log(self) -> None:
        """From what this round will read on."""
        if self._records is None:
            self._records = self.host.new_records()
            return
        try:
            self._records.skip()
        except OSError as error:
            self._without_log(error)

    def _without_log(self, error: OSError) -> None:
        """Until the next round, rounds come by time alone."""
        self._complain("the kernel's log cannot be waited for", error)
        if self._records is not None:
            self._records.close()
        self._records = None

    def _renew(self) -> None:
        """Follow a policy that has changed; one that cannot be followed changes nothing."""
        try:
            if self.host.stamps(self._path) != self._stamps:
                self._options = self._read_options(renews=True)
            self._serve(self._options.listen)
        except Exception as error:
            self._complain("what was wanted before goes on", error)

    def _read_options(self, renews: bool = False) -> HealthOptions:
        """renews: whether there are options that go on where a name is misspelt; without any, the others are followed.
        """
        stamps = self.host.stamps(self._path)
        options = host_policy.read(self.host, self._path)
        if renews:
            host_policy.refuse_unknown(options)
        found = health_options(options)
        self._stamps = stamps
        return found

    def _serve(self, listen: str) -> None:
        """One that cannot be had is tried again with the next round."""
        if listen == self._served:
            return
        if self._page is not None:
            self._page.close()
        self._page, self._served = None, ""
        if listen:
            self._page, self._served = Page(address_of(listen)), listen
            self._page.text = self._text

    def _complain(self, what: str, error: Exception) -> None:
        key = (what, error.code if isinstance(error, GpuOpsError) else type(error).__name__)
        if since_boot() - self._told.get(key, -math.inf) >= TOLD_SECONDS:
            self._told[key] = since_boot()
            self._tell("%s: %s" % (what, error if isinstance(error, (GpuOpsError, OSError)) else _unforeseen(error)))


def _unforeseen(error: Exception) -> str:
    """Without its own words, which may quote anything."""
    frames = traceback.extract_tb(error.__traceback__)
    places = ", ".join("%s:%s" % (frame.filename, frame.lineno) for frame in frames[-3:])
    return "%s in %s" % (type(error).__name__, places)
