# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Questions to dnf's own library, and its answers."""
from __future__ import annotations

import contextlib
import functools
import json
import sys
from typing import Any, Dict, List, Optional, Tuple

from ...core.errors import GpuOpsError
from ...core.host import CommandFailed, Conversation, Host
from .program import BROKEN, TEXT

# As long as it tells what it is at: a driver of a gigabyte comes to five hundred hosts from one mirror
TIMEOUT_SECONDS = 4 * 3600
SILENCE_SECONDS = 600
# A Python before 3.7 ends at what is no ASCII in a file: versionlock passes its whole list over then
_ENVIRONMENT = {"LC_ALL": "C.UTF-8"}
# That which dnf itself runs with comes first
_PYTHONS = ("/usr/libexec/platform-python", "/usr/bin/python3", sys.executable)


def own(host: Host) -> List[str]:
    """Words that make the command dnf work on this host's own state."""
    if host.root == "/":
        return []
    return ["--installroot=" + host.root, "--config=" + host.path("/etc/dnf/dnf.conf"),
            "--setopt=reposdir=" + host.path("/etc/yum.repos.d"),
            "--setopt=pluginconfpath=" + host.path("/etc/dnf/plugins")]


def has_bindings(host: Host) -> bool:
    """Whether a Python of this host has dnf's library."""
    with Library(host, "") as library:
        return library.is_there


class Library:
    """dnf's own library, loaded once for all that is asked of it. A context.

    scratch: a directory of ours for what the library writes.
    """

    def __init__(self, host: Host, scratch: str) -> None:
        self._host = host
        self._scratch = scratch
        self._opened = contextlib.ExitStack()

    def __enter__(self) -> Library:
        return self

    def __exit__(self, *_raised: object) -> None:
        self._opened.close()

    @functools.cached_property
    def _told(self) -> Tuple[str, Optional[Conversation], str]:
        """The Python that has the library, and what is said with it; where no Python has it, the last of them that has
        one which cannot be loaded, and why."""
        broken, why = "", ""
        for python in dict.fromkeys(_PYTHONS):
            # -I: what a directory of somebody holds for Python is not read
            talk = self._opened.enter_context(self._host.conversation(
                [python, "-I", "-c", TEXT], (python, "-I", "-c", "import dnf ..."), _ENVIRONMENT))
            done = talk.ask("{}", SILENCE_SECONDS)
            if done.rc == 0:
                return python, talk, ""
            if done.rc == BROKEN:
                broken, why = python, done.stderr.strip()
        return broken, None, why

    @property
    def is_there(self) -> bool:
        return self._told[1] is not None

    @property
    def argv(self) -> List[str]:
        """What runs the program elsewhere, for a question that line() makes. Raises as ask()."""
        return ["env", *("%s=%s" % item for item in _ENVIRONMENT.items()), self._found()[0], "-I", "-c", TEXT]

    def line(self, op: str, **question: Any) -> str:
        return json.dumps({"op": op, "root": self._host.root, "scratch": self._scratch, **question})

    def _found(self) -> Tuple[str, Conversation]:
        python, talk, why = self._told
        if talk is None:
            raise _no_library(python, why)
        return python, talk

    def ask(self, op: str, **question: Any) -> Dict[str, Any]:
        """What dnf says. question: what program.TEXT asks for that op.

        Raises GpuOpsError where no Python of the host has dnf's library, or dnf fails.
        """
        python, talk = self._found()
        done = talk.ask(self.line(op, **question), TIMEOUT_SECONDS, SILENCE_SECONDS)
        try:
            answer: Dict[str, Any] = json.loads(done.stdout) if done.rc == 0 else {}
        except ValueError:
            answer = {}
        if not answer or "error" in answer:
            raise CommandFailed(
                "packages.dnf_failed",
                found="dnf cannot tell: %s" % (answer.get("error") or " | ".join(done.stderr.splitlines()[-3:])
                                               or "no output"),
                wanted="what dnf knows of its repositories and transactions",
                remedy="see that dnf works on this host (`dnf repolist`); its whole output is in this result",
                cmd=[python, "-I", "-c", op], rc=done.rc, stdout=done.stdout, stderr=done.stderr)
        return answer


def _no_library(broken: str, why: str) -> GpuOpsError:
    """broken: a Python whose library cannot be loaded, and why."""
    return GpuOpsError(
        "packages.no_dnf_bindings",
        found="no library of dnf for %s%s" % (", nor for ".join(dict.fromkeys(_PYTHONS)),
                                              "; that of %s: %s" % (broken, why) if broken else ""),
        wanted="the library that ansible.builtin.dnf works with",
        remedy="see why `%s -I -c 'import dnf'` fails" % broken if broken else "run `dnf install python3-dnf`")


def ask(host: Host, scratch: str, op: str, **question: Any) -> Dict[str, Any]:
    """The answer to a single question, see Library.ask()."""
    with Library(host, scratch) as library:
        return library.ask(op, **question)
