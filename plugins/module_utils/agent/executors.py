# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The agent's own actions."""
from __future__ import annotations

import os
from typing import Dict, Mapping

from .. import shipped
from ..core import boot_record
from ..core.errors import GpuOpsError
from ..core.host import Host, Ownership
from ..core.journal import Journal
from ..core.libraries import put
from ..core.plan import Step
from ..core.steps import Executor
from ..health import state as health
from . import telling
from .observation import DIRECTORY, archive_path
from .planner import FORGET, INSTALL, RELOAD, TIDY, UNTELL, WRITE
from .policy import NAME, POLICY_FILE, POLICY_MODE, Policy, options_in
from .watch import LOCK


def secret_executors(policy: Policy) -> Mapping[str, Executor]:
    """The policy is in no step, plan or journal."""
    def write(host: Host, journal: Journal, step: Step) -> None:
        before = _metrics_directory(host.read(step.subject) or "")
        journal.keep_original(step.capability, step.subject, policy.text)
        host.put_back(step.subject, policy.text.encode(), Ownership(POLICY_MODE, -1, -1))
        if before != _metrics_directory(policy.text):
            health.forget_metrics(host, before)

    return {WRITE: write}


def _metrics_directory(text: str) -> str:
    """Of a policy, '' where it has none or is none."""
    try:
        own = options_in(text).get(NAME) or {}
    except GpuOpsError:
        own = {}
    return str(own.get("health_metrics_directory") or "")


def install(host: Host, journal: Journal, step: Step) -> None:
    archive = os.environ.get(shipped.VARIABLE, "")
    content = host.read_bytes(archive) if os.path.basename(archive) == step.subject else None
    path = archive_path(step.subject)
    if content is None or not shipped.is_whole(path, content):
        raise GpuOpsError(
            "agent.code_gone",
            found="%s is not the archive %s any more" % (archive or "nothing", step.subject),
            wanted="the archive that this call began with",
            remedy="run again",
        )
    put(host, path, content)


def tidy(host: Host, journal: Journal, step: Step) -> None:
    """Nobody else may write there: what is not of the code that stays was an older one's."""
    stays = step.parameters["stays"].split(".")[0]
    for name in host.list(DIRECTORY):
        if not stays or not name.startswith(stays):
            host.remove("%s/%s" % (DIRECTORY, name))
    if not stays:
        host.remove_empty_dir(DIRECTORY)


def forget(host: Host, journal: Journal, step: Step) -> None:
    """With the metrics, which would tell the last verdict for ever, and what became of the boot, which would be told of
    an agent that comes again."""
    host.remove(LOCK)
    host.remove(boot_record.PATH)
    if not telling.said_before(host):
        telling.forget(host)
    health.forget(host, _metrics_directory(host.read(POLICY_FILE) or ""))


def untell(host: Host, journal: Journal, step: Step) -> None:
    telling.take_back(host)


def reload_systemd(host: Host, journal: Journal, step: Step) -> None:
    host.systemctl("daemon-reload")


EXECUTORS: Dict[str, Executor] = {INSTALL: install, TIDY: tidy, FORGET: forget, UNTELL: untell,
                                  RELOAD: reload_systemd}
