# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A child for calls of a driver that may never come back.

A process that sleeps in the driver cannot be killed. So a child makes the calls and says before each which one it is,
one JSON object a line; this process waits only as long as something is said, and leaves a child behind that cannot be
ended.
"""
from __future__ import annotations

import contextlib
import json
import math
import os
import select
import signal
import time
from typing import Any, Callable, Dict, List, NoReturn, Tuple

from .waiting import wait_for

# What a child says last of one answer
END = b'{"end": true}\n'
# By which the kernel knows a child of ours, whichever of our processes it is of (proc(5): at most 15 letters)
NAME = "gpuops-asks"
# Seconds that a killed child is waited for
PARTING = 2.0


def forked() -> Tuple[int, int, int]:
    """(end of a pipe to read, end to write, child; 0 in the child)."""
    receiver, sender = os.pipe()
    try:
        return receiver, sender, os.fork()
    except OSError:
        os.close(receiver)
        os.close(sender)
        raise


def be_the_child(sender: int, work: Callable[[], None], requests: int = -1, limit: float = 0.0) -> NoReturn:
    """Do the child's work and end: never returns. sender, requests: ends of pipes that are kept. limit: see end_within.

    It lets go of everything that it was born with, so that nobody waits for a child that is left behind: of the
    terminal, of the module's output, and of files that this process has locked.
    """
    try:
        end_within(limit)
        os.setsid()
        with contextlib.suppress(OSError), open("/proc/self/comm", "w", encoding="ascii") as comm:
            comm.write(NAME)
        nothing = os.open(os.devnull, os.O_RDWR)
        for descriptor in (0, 1, 2):
            os.dup2(nothing, descriptor)
        for descriptor in map(int, os.listdir("/proc/self/fd")):
            if descriptor > 2 and descriptor not in (sender, requests):
                _close(descriptor)
        work()
        os._exit(0)
    finally:
        os._exit(1)


def end_within(seconds: float) -> None:
    """In the child: it ends by itself then, wherever it is, but in the driver's own sleep; 0 is to end it never. Where
    its parent was killed, nothing else would."""
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    signal.alarm(math.ceil(seconds))


def say(sender: int, **words: Any) -> None:
    """In the child: tell the parent."""
    os.write(sender, (json.dumps(words) + "\n").encode())


def listen(receiver: int, silence: float, patience: float) -> Tuple[List[Dict[str, Any]], float]:
    """What the child says until it has said all, ends, or falls silent; and for how many seconds it was silent then.

    silence, patience: seconds without a word, and in all. One that has ended before its END is {'gone': True}.
    """
    poll = select.poll()
    poll.register(receiver, select.POLLIN)
    begun = spoken = time.monotonic()
    text, gone = b"", []
    while not text.endswith(END):
        left = min(silence, begun + patience - time.monotonic())
        # What it said while this process got no processor is there to be read
        if not poll.poll(max(0, left * 1000)):
            break
        data = os.read(receiver, 1 << 16)
        if not data:
            gone = [{"gone": True}]
            break
        text, spoken = text + data, time.monotonic()
    lines = text[:text.rfind(b"\n") + 1].splitlines()
    return [json.loads(line) for line in lines] + gone, time.monotonic() - spoken


def end(child: int) -> bool:
    """Whether the child is gone: one that sleeps in the driver is left to the kernel."""
    # Where this process was told to ignore the end of children, the kernel takes them away itself
    with contextlib.suppress(ProcessLookupError, ChildProcessError):
        os.kill(child, signal.SIGKILL)
        return wait_for(lambda: os.waitpid(child, os.WNOHANG), lambda ended: ended != (0, 0), PARTING, 0.1)[1]
    return True


def take_away() -> None:
    """Have no ended child of this process stay: those that were left behind may have ended since. Not to be called
    while somebody waits for one."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG) != (0, 0):
            pass


def _close(descriptor: int) -> None:
    """The list of what is open has one entry that is closed by then: the list's own."""
    with contextlib.suppress(OSError):
        os.close(descriptor)
