# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What is there of the agent: its code, its policy and its command."""
from __future__ import annotations

import os
import sys
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Dict, Mapping, Optional, Tuple

from .. import shipped
from ..core import boot_record
from ..core.facts import HostFacts
from ..core.host import Host
from ..core.journal import Journal
from ..core.libraries import is_good
from ..core.plan import Step
from ..core.steps import managed, restore_steps
from ..health import state as health
from . import boot, detector, telling, watch
from .policy import NAME, POLICY_FILE, POLICY_MODE, SILENT, Policy

# For root alone
DIRECTORY = "/var/lib/gpuops/agent"
_SYSTEM_PYTHONS = ("/usr/bin/python3", "/usr/libexec/platform-python")
# Where units lie that are not made anew at each boot (systemd.unit(5))
UNITS = ("/etc/systemd/system", "/usr/local/lib/systemd/system", "/usr/lib/systemd/system", "/lib/systemd/system")
# What the policy's file is called in a plan, which tells nothing of it
A_POLICY = "(a policy)\n"

# In which order our files go: a kubelet requires no unit, and a unit runs no command, that is not there; and what has
# made a directory goes last of what lies in it
_ORDER = (boot.DROP_IN, boot.UNIT_FILE, watch.UNIT_FILE, watch.SCRIPT, *detector.FILES, POLICY_FILE)

_COMMAND = '''import sys

ARCHIVE = "%s"

sys.path.insert(0, ARCHIVE)
try:
    from %s import shipped
except Exception as error:
    sys.exit("gpuops: %%s cannot be used (%%s). It is for root alone; as root, %s" %% (ARCHIVE, error))
sys.path.remove(ARCHIVE)
shipped.run_command(ARCHIVE)
'''


@dataclass(frozen=True)
class Watching:
    """The unit that watches.

    files:   {path: text} of its files, None for one that is not there.
    enabled: whether a boot starts it.
    runs:    whether systemd has it at work, or about to be.
    code:    the archive that it runs from, '' where it does not watch.
    """

    files: Mapping[str, Optional[str]] = field(default_factory=dict)
    enabled: bool = False
    runs: bool = False
    code: str = ""


@dataclass(frozen=True)
class Observation:
    """What there is of the agent.

    code:       name of the archive that this call runs from, '' where it runs from none.
    python:     the Python that runs this call.
    archives:   names of the files beside the code that the command is to have.
    is_whole:   whether that code is there as it should be, for this Python too.
    has_policy: whether a policy is there.
    is_current: whether it is the one that is wanted, and root's alone.
    text:       of the command, None without one.
    units:      {path: text} of the unit's files, None for one that is not there.
    detector:   the same of the files for node-problem-detector.
    enabled:    whether a boot starts the unit.
    others:     {unit that starts pods: whether the host has it}.
    held:       whether systemd may keep a kubelet that does not run from starting (only read where our file is there).
    told:       the Node of which the host has said something that is to be taken back, '' none.
    watching:   the unit that watches.
    health:     whether something of the host's health, or of its boot, is kept (only read when an agent is taken back:
                without one it is of who looks and repairs from a controller).
    restore:    steps that put back our files: all of them where they are taken back, else a command of another path.
    """

    code: str = ""
    python: str = ""
    archives: Tuple[str, ...] = ()
    is_whole: bool = False
    has_policy: bool = False
    is_current: bool = False
    text: Optional[str] = None
    units: Mapping[str, Optional[str]] = field(default_factory=dict)
    detector: Mapping[str, Optional[str]] = field(default_factory=dict)
    enabled: bool = False
    others: Mapping[str, bool] = field(default_factory=dict)
    held: bool = False
    told: str = ""
    watching: Watching = field(default_factory=Watching)
    health: bool = False
    restore: Tuple[Step, ...] = ()

    def to_dict(self) -> Dict[str, Any]:
        return dict(asdict(self), restore=[step.to_dict() for step in self.restore])

    @property
    def command(self) -> str:
        """The text that the command is to have."""
        return command_text(self.python, self.code)


def observe(host: Host, journal: Journal, policy: Policy, facts: HostFacts) -> Observation:
    there = tuple(sorted(host.list(DIRECTORY)))
    restore = tuple(step if step.subject != POLICY_FILE else replace(step, change={"before": A_POLICY, "after": None})
                    for step in restore_steps(NAME, host, journal))
    enabled = host.link(boot.WANTS) is not None
    watching = _watching(host)
    held = host.exists(boot.DROP_IN) and host.unit(boot.KUBELET).get("ActiveState") != "active"
    told = ""
    if policy.state == "absent" or policy.node_condition == SILENT:
        told = ", ".join(each.node for each in telling.said_before(host))
    if policy.state == "absent":
        return Observation(
            told=told,
            archives=there, enabled=enabled, held=held, watching=watching,
            restore=tuple(sorted(
                restore, key=lambda step: _ORDER.index(step.subject) if step.subject in _ORDER else len(_ORDER))),
            health=any(map(host.exists, (watch.LOCK, boot_record.PATH, *(
                () if told else (telling.SAID, telling.LATEST))))) or bool(there or restore) and health.is_kept(host))
    archive, text = os.environ.get(shipped.VARIABLE, ""), host.read(POLICY_FILE)
    code = os.path.basename(archive)
    path = archive_path(code)
    return Observation(
        code=code,
        python=_python(),
        archives=there,
        is_whole=bool(code) and is_good(host, path) and is_good(host, shipped.compiled(path)),
        has_policy=text is not None,
        is_current=text == policy.text and host.mode(POLICY_FILE) == POLICY_MODE,
        text=host.read(policy.command),
        units={path: host.read(path) for path in boot.FILES},
        detector={path: host.read(path) for path in detector.files(policy.problem_detector)},
        enabled=enabled,
        held=held,
        told=told,
        watching=watching,
        others={unit: any(host.exists("%s/%s" % (directory, unit)) for directory in UNITS)
                for unit in boot.UNITS} if policy.boot == boot.HOLD else {},
        restore=tuple(step for step in restore
                      if step.subject not in (policy.command, POLICY_FILE, *boot.FILES, *watch.FILES,
                                              *detector.files(policy.problem_detector))),
    )


def _watching(host: Host) -> Watching:
    """Somebody else may watch, as a person who has called the command: the unit then does not."""
    files = {path: host.read(path) for path in watch.FILES}
    found = host.unit(watch.UNIT) if files[watch.UNIT_FILE] is not None or host.exists(watch.LOCK) else {}
    watcher = watch.watcher(host) if found else None
    is_its = watcher is not None and found.get("MainPID") == str(watcher.pid)
    return Watching(
        files, host.link(watch.WANTS) is not None, found.get("ActiveState", "inactive") not in ("inactive", "failed"),
        watcher.code if watcher is not None and is_its else "")


def archive_path(code: str) -> str:
    return "%s/%s" % (DIRECTORY, code)


def _python() -> str:
    """The Python that runs this call, by the name that a distribution keeps when it exchanges it."""
    real = os.path.realpath(sys.executable)
    return next((name for name in _SYSTEM_PYTHONS if os.path.realpath(name) == real), sys.executable)


def command_text(python: str, code: str) -> str:
    """Alone (-I): nothing of the environment, and of the directory that it is called from, comes in."""
    return "#!%s -I\n%s" % (python, managed(_COMMAND % (archive_path(code), shipped.PACKAGE, shipped.INSTALL_AGAIN)))
