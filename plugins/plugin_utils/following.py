# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Lines on the controller's terminal about what a host is at, while a task of minutes runs there.

The task itself stays one call over one connection. Beside it a thread asks the host over a connection of its own, every
so many seconds, and the first time only when the task has taken that long. Where it cannot ask, nothing is shown, and
the task is none the worse for it.
"""
from __future__ import annotations

import contextlib
import copy
import threading
import time
from types import TracebackType
from typing import Any, Callable, Dict, Optional, Type

from ansible.module_utils.common.validation import check_type_int
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import become_loader, connection_loader
from ansible.utils.display import Display

from ..module_utils.core.errors import GpuOpsError
from ..module_utils.core.progress import COMMAND, parse, render

Ask = Callable[[], str]
DEFAULT_INTERVAL = 30
# Connections of which each command is a process of its own on the controller, so that two never share a state
FOLLOWED = ("ssh", "local", "docker", "podman")
# Of a connection that hangs in a question a task is not to wait for the answer
JOIN_SECONDS = 5.0
MOST_FAILURES = 3
# ssh(1): a question over a network that is gone ends, in ten seconds; what the user says of these counts more
_ALIVE = "-o ServerAliveInterval=5 -o ServerAliveCountMax=2"


class Following:
    """While it is entered, shows a line every so many seconds, and once more what was seen last where an error ends it.

    host:     its name in the inventory.
    run:      the run that is followed, as the host's lock names it.
    interval: seconds, 0 is to show nothing.
    ask:      what COMMAND tells on the host; None where the host cannot be asked. It may raise anything.
    show:     puts a line on the screen.
    """

    def __init__(self, host: str, run: str, interval: float, ask: Optional[Ask], show: Callable[[str], None]) -> None:
        self._host, self._run, self._interval, self._ask, self._show = host, run, interval, ask, show
        self._over = threading.Event()
        self._thread: Optional[threading.Thread] = None
        self._last = ""

    def __enter__(self) -> "Following":
        if self._ask is not None and self._interval:
            # A daemon: one that hangs in its connection does not keep the process of the task from ending
            self._thread = threading.Thread(target=self._follow, args=(self._ask,), name="gpuops-progress", daemon=True)
            self._thread.start()
        return self

    def __exit__(
        self, kind: Optional[Type[BaseException]], error: Optional[BaseException], trace: Optional[TracebackType]
    ) -> None:
        self._over.set()
        if self._thread is not None:
            self._thread.join(JOIN_SECONDS)
        if error is not None and self._last:
            self._show("%s (seen last; the task was interrupted)" % self._last)

    def _follow(self, ask: Ask) -> None:
        failures = 0
        while failures < MOST_FAILURES and not self._over.wait(self._interval):
            try:
                seen = parse(ask())
            except Exception as error:
                failures += 1
                Display().vvv("Its progress cannot be asked for: %s" % type(error).__name__, host=self._host)
                continue
            if seen is not None and not self._over.is_set():
                self._last = render(self._host, self._run, seen, time.time())
                self._show(self._last)


def interval(given: Any) -> int:
    """Seconds between two lines, as an option says them. Raises GpuOpsError."""
    with contextlib.suppress(TypeError, ValueError, OverflowError):
        seconds: int = check_type_int(DEFAULT_INTERVAL if given is None else given)
        if seconds >= 0:
            return seconds
    raise GpuOpsError(
        "variables.no_interval",
        found="a progress interval of %s" % (given,),
        wanted="a whole number of seconds, 0 for no lines about the progress",
        remedy="correct `progress_interval`",
        option="progress_interval",
    )


def is_shown(task: Any) -> bool:
    """Whether the lines of a task may be seen, and what it does is done."""
    return not (task.check_mode or task.no_log)


def on_screen(line: str) -> None:
    """On the standard error, as warnings are: the standard output is the callback's."""
    Display().display(line, stderr=True)


def asking(action: ActionBase) -> Optional[Ask]:
    """How the host of a task is asked while the task's own connection is at work; None where it cannot be.

    Nothing is connected yet: that is done by the first question.
    """
    try:
        connection = _second(action._connection, action._play_context)
    # A plugin of somebody else may take its options in another way
    except Exception as error:
        Display().vvv("Its progress will not be shown: %s" % type(error).__name__)
        return None
    if connection is None:
        return None
    asker = _Asker(action._task, connection, connection._play_context, action._loader, action._templar,
                   action._shared_loader_obj)
    return asker.ask


class _Asker(ActionBase):
    """A task's way to its host, become included, over another connection."""

    def run(self, tmp: Any = None, task_vars: Any = None) -> Dict[str, Any]:
        raise NotImplementedError

    def ask(self) -> str:
        """Raises AnsibleError where the host cannot be reached, or become is not possible."""
        done = self._low_level_execute_command(COMMAND)
        if done["rc"]:
            raise OSError("the host answers with %d" % done["rc"])
        return str(done["stdout"])


def _second(main: Any, play_context: Any) -> Any:
    """A connection with the options of another, and with its become; None where two would share a state."""
    name = getattr(main, "_load_name", "")
    if name.rpartition(".")[2] not in FOLLOWED:
        return None
    second = connection_loader.get(name, copy.copy(play_context), new_stdin=None)
    options = dict(main.get_options())
    if name.rpartition(".")[2] == "ssh":
        options["reconnection_retries"] = 0
        options["ssh_extra_args"] = ("%s %s" % (options.get("ssh_extra_args") or "", _ALIVE)).strip()
    second.set_options(direct=options)
    if main.become is not None:
        become = become_loader.get(main.become._load_name)
        become.set_options(direct=main.become.get_options())
        second.set_become_plugin(become)
    return second
