# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Daemons that a driver's packages bring beside it, and that work with exactly its version."""
from __future__ import annotations

import re
from dataclasses import dataclass, replace
from typing import Any, Dict, List, Mapping, Optional, Tuple

from .errors import GpuOpsError
from .facts import HostFacts
from .host import CommandFailed, CommandResult, Host
from .journal import Journal
from .plan import Disruption, Step
from .steps import Executor, control_service, service_step

# Of the journal's notes of a capability: its units that we enabled; and since when a daemon has run that was running
# when we last changed its configuration
ENABLED, OUTDATED = "enabled", "outdated"
FORGET = "service.forget"
# What systemctl(1) calls a unit that a boot starts
_STARTS = ("enabled", "enabled-runtime")
# Seconds: the unit of the fabric manager itself allows 720
START_LIMIT = 900.0
LAST_LINES = 5
_VERSION = re.compile(r"\b(\d{3}\.\d+(?:\.\d+)?)\b")


@dataclass(frozen=True)
class Daemon:
    """A unit and its program.

    version: of the program, '' where it is not installed or does not tell.
    known:   whether systemd has the unit.
    enabled: whether a boot starts it.
    masked:  whether it is kept from starting.
    active:  whether it runs, or starts just now.
    since:   when it came to run, in a form that only compares; '' while it does not run.
    """

    version: str = ""
    known: bool = False
    enabled: bool = False
    masked: bool = False
    active: bool = False
    since: str = ""

    def packaged(self, facts: HostFacts) -> Daemon:
        """As the driver's packages leave it where they are about to come."""
        return replace(self, version=facts.driver_userspace, known=True) if facts.driver_changes else self

    def waits_for(self, facts: HostFacts) -> str:
        """What has to be loaded before the daemon can work, '' if it is."""
        if not facts.driver_loaded:
            return "a loaded driver"
        if self.version and self.version != facts.driver_loaded and self.version in (
                facts.driver_installed, facts.driver_boots, facts.driver_userspace):
            return "driver %s, which is installed and not loaded: run `gpu_driver_activation`, or reboot" % self.version
        return ""


def read_daemon(host: Host, unit: str, program: str) -> Daemon:
    """What there is of it now; two questions to systemd, and one to the program."""
    path = host.which(program)
    told = host.run([path, "--version"], check=False).stdout if path else ""
    version = _VERSION.search(told)
    return replace(read_unit(host, unit), version=version.group(1) if version else "")


def read_unit(host: Host, unit: str) -> Daemon:
    """What systemd knows of it, for a program that cannot be asked for its version."""
    state = host.unit(unit)
    enablement = _enablement(host, unit)
    return Daemon(
        known=state.get("LoadState") in ("loaded", "masked") or enablement in ("enabled", "disabled", "masked"),
        enabled=enablement in _STARTS,
        masked=enablement in ("masked", "masked-runtime"),
        active=_is_active(state),
        since=_since(host, state),
    )


def _enablement(host: Host, unit: str) -> str:
    """"systemctl show" repeats what the manager knew at its last reload."""
    return host.run(["systemctl", "is-enabled", unit], check=False).stdout.strip()


def _is_active(state: Mapping[str, str]) -> bool:
    return state.get("ActiveState") in ("active", "activating", "reloading") and state.get("SubState") != "auto-restart"


def _since(host: Host, state: Mapping[str, str]) -> str:
    return "%s %s" % (host.boot(), state.get("ActiveEnterTimestampMonotonic", "")) if _is_active(state) else ""


def last_words(host: Host, unit: str) -> str:
    """The end of a unit's log in one line, '' where it has none."""
    done = host.run(["journalctl", "--unit", unit, "--lines", str(LAST_LINES), "--output", "cat", "--no-pager"],
                    check=False)
    return "; ".join(line.strip() for line in done.stdout.splitlines() if line.strip())


# what is noted


def note(journal: Journal, capability: str, **facts: Any) -> None:
    """Remember facts beside the others of a capability; an empty one is forgotten."""
    known = dict(journal.recall(capability), **facts)
    journal.remember(capability, {name: value for name, value in known.items() if value})


def outdate(host: Host, journal: Journal, capability: str, unit: str) -> None:
    """Note that the daemon that runs now does not know the configuration that is about to be written."""
    since = _since(host, host.unit(unit))
    if since:
        note(journal, capability, **{OUTDATED: since})


def is_outdated(daemon: Daemon, memory: Mapping[str, Any]) -> bool:
    """Whether the daemon that runs is the one that was running when we last changed its configuration."""
    return bool(daemon.since) and memory.get(OUTDATED) == daemon.since


# what is taken back


def removal_steps(
    capability: str, unit: str, is_enabled: Optional[bool], memory: Mapping[str, Any], requires: Tuple[str, ...] = ()
) -> List[Step]:
    """A unit that we enabled is disabled; one that somebody has disabled since is not ours any more.

    is_enabled: None where nobody can tell.
    """
    if unit not in memory.get(ENABLED, ()) or is_enabled is None:
        return []
    if is_enabled:
        return [service_step(capability, "disable", unit, "We enabled it.", Disruption.none, "enabled", "disabled",
                             requires)]
    return [Step(capability, FORGET, unit, "It is not enabled any more; only our record of it goes.",
                 change={"before": {"enabled by us": "noted"}, "after": {"enabled by us": None}}, depends_on=requires)]


# executors


def enable(host: Host, journal: Journal, step: Step) -> None:
    """Noted before: what a killed run enabled is ours to disable."""
    note(journal, step.capability, **{ENABLED: [*_others(journal, step), step.subject]})
    try:
        control_service(host, journal, step)
    except GpuOpsError:
        if _enablement(host, step.subject) not in _STARTS:
            forget(host, journal, step)
        raise


def disable(host: Host, journal: Journal, step: Step) -> None:
    control_service(host, journal, step)
    forget(host, journal, step)


def forget(host: Host, journal: Journal, step: Step) -> None:
    note(journal, step.capability, **{ENABLED: _others(journal, step)})


def _others(journal: Journal, step: Step) -> List[str]:
    return [unit for unit in journal.recall(step.capability).get(ENABLED, []) if unit != step.subject]


def begin(host: Host, journal: Journal, step: Step) -> CommandResult:
    """Start or restart; one that failed too often in a row is refused by systemd until it is reset. Raises
    CommandFailed with the end of the unit's log in `stderr`."""
    host.run(["systemctl", "reset-failed", step.subject], check=False)
    try:
        done = host.systemctl(step.action.split(".", 1)[1], step.subject, timeout=START_LIMIT)
    except CommandFailed as failure:
        failure.details["stderr"] = last_words(host, step.subject) or failure.details.get("stderr", "")
        raise
    note(journal, step.capability, **{OUTDATED: ""})
    return done


EXECUTORS: Dict[str, Executor] = {"service.enable": enable, "service.disable": disable, FORGET: forget}
