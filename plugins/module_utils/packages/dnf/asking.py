# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A question to dnf's own library, and its answer."""
from __future__ import annotations

import json
import sys
from typing import Any, Dict, List

from ...core.errors import GpuOpsError
from ...core.host import CommandFailed, Host
from .program import NO_BINDINGS, TEXT

TIMEOUT_SECONDS = 600
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
    return any(host.run([python, "-I", "-c", "import dnf"], check=False).rc == 0 for python in dict.fromkeys(_PYTHONS))


def ask(host: Host, scratch: str, op: str, **question: Any) -> Dict[str, Any]:
    """What dnf says. question: what program.TEXT asks for that op; scratch: a directory of ours.

    Raises GpuOpsError where no Python of the host has dnf's library, or dnf fails.
    """
    asked = json.dumps({"op": op, "root": host.root, "scratch": scratch, **question})
    for python in dict.fromkeys(_PYTHONS):
        # -I: what the environment or a directory of somebody holds for Python is not read
        done = host.run([python, "-I", "-c", TEXT], check=False, timeout=TIMEOUT_SECONDS, stdin=asked)
        if done.rc in (NO_BINDINGS, 127):
            continue
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
    raise GpuOpsError(
        "packages.no_dnf_bindings",
        found="no library of dnf for %s" % ", nor for ".join(dict.fromkeys(_PYTHONS)),
        wanted="the library that ansible.builtin.dnf works with",
        remedy="run `dnf install python3-dnf`")
