# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A small capability over real files of a scratch root, with all that the record is for, and a user's files."""
from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, Mapping, Tuple

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import Capability, Run
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal, PackageChange
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan, Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import (
    file_step,
    restore_steps,
    write_file,
)

THEIRS, LINKED, OURS, REMOVED = "/etc/theirs", "/etc/link", "/etc/deep/er/ours", "/etc/old.d/removed"


@dataclass(frozen=True)
class Seen:
    texts: Mapping[str, Any]
    restorable: Tuple[Step, ...]
    noted: Any

    def to_dict(self) -> Dict[str, Any]:
        return {"texts": dict(self.texts), "restorable": [step.to_dict() for step in self.restorable],
                "noted": self.noted}


def write_and_note(host: Host, journal: Journal, step: Step) -> None:
    """Beside the file: a note for the next run, and what a transaction brought."""
    write_file(host, journal, step)
    journal.remember("texts", {"last": step.change["after"]})
    journal.set_packages("texts", {"package": PackageChange(None, step.change["after"])})


def forget(host: Host, journal: Journal, step: Step) -> None:
    journal.set_packages("texts", {})
    journal.remember("texts", {})


def observe(host: Host, journal: Journal, policy: Mapping[str, Any], facts: HostFacts) -> Seen:
    return Seen({path: host.read(path) for path in (THEIRS, LINKED, OURS, REMOVED)},
                tuple(restore_steps("texts", host, journal)), journal.recall("texts"))


def plan(observation: Seen, policy: Mapping[str, Any], facts: HostFacts) -> Plan:
    if policy.get("state") == "absent":
        last = (Step("texts", "texts.forget", "notes", "They are of no use."),) if observation.noted else ()
        return Plan(steps=observation.restorable + last)
    wanted = {THEIRS: policy["text"], LINKED: policy["text"], OURS: policy["text"], REMOVED: None}
    return Plan(steps=tuple(file_step("texts", path, observation.texts[path], text, "It is wanted.")
                            for path, text in wanted.items() if observation.texts[path] != text))


WISHES: Dict[str, Dict[str, Any]] = {"install": {"text": "one\n"}, "upgrade": {"text": "two\n"},
                                     "uninstall": {"state": "absent"}}

# Wants one text in three files, one of them behind a link, and a fourth file gone.
TEXTS = Capability("texts", {"text": {"type": "str"}, "state": {"type": "str"}}, dict, observe, plan,
                   {"file.write": write_and_note, "texts.forget": forget})


def run(root: str, **parameters: Any) -> Run:
    """Of one of WISHES, on a scratch root."""
    return Run(TEXTS, parameters, Host(root), lambda _host: HostFacts(hostname="h"))


def furnish(root: Path) -> None:
    """What the user has."""
    for name, data, mode in ((THEIRS, b"# caf\xe9\ntheirs\n", 0o640), ("/etc/linked", b"linked\n", 0o600),
                             (REMOVED, b"removed\n", 0o755)):
        path = root / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        path.chmod(mode)
    (root / LINKED.lstrip("/")).symlink_to("linked")
    for directory in ("var/lib", "run"):
        (root / directory).mkdir(parents=True)


def tree(root: Path, *left_out: str) -> Dict[str, Any]:
    """Every file, directory and link below a root, with mode and owner; without those below what is left out."""
    found: Dict[str, Any] = {}
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if any(name == directory or name.startswith(directory + "/") for directory in left_out):
            continue
        seen = path.lstat()
        if stat.S_ISLNK(seen.st_mode):
            found[name] = os.readlink(path)
        else:
            found[name] = (oct(seen.st_mode), seen.st_uid, seen.st_gid,
                           path.read_bytes() if stat.S_ISREG(seen.st_mode) else b"")
    return found
