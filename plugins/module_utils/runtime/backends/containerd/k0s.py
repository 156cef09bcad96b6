# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""k0s: /etc/k0s/containerd.toml is its own as long as its first line says so; files in /etc/k0s/containerd.d join in.

Up to 1.35, with containerd 1.7, k0s merges them into a file of its own; from 1.36, with containerd 2.x, its root file
imports them. It watches the directory and restarts containerd itself (pkg/component/worker/containerd of k0s).
"""
from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Mapping, Optional, Tuple

from ....core.errors import GpuOpsError
from ....core.host import Host
from ....core.plan import digest
from ... import toml
from ...cri import peer_pid
from ...model import Edit, Service, started_at
from ...policy import Policy
from .change import (
    FILE,
    Change,
    change_of,
    check_read_last,
    drop_in_text,
    overrides,
    whole_file,
    without,
)
from .configuration import CRI2, Configuration, handlers, merged
from .writer import Tables, apply_tables, differing, wanted_tables

DIRECTORY = "/etc/k0s/containerd.d"
DROP_IN = "%s/%s.toml" % (DIRECTORY, FILE)
MAGIC = "# k0s_managed=true"

Data = Mapping[str, Any]


@dataclass(frozen=True)
class Beside:
    """The files that k0s puts into the configuration that it makes.

    ours:   text of our file, None where there is none.
    others: {path: text} of the directory's other files, in the order in which they are read.
    """

    ours: Optional[str]
    others: Mapping[str, str]

    def to_dict(self) -> Dict[str, Any]:
        return {"ours": digest(self.ours), "others": {path: digest(text) for path, text in self.others.items()}}


def read(host: Host) -> Beside:
    others = (path for path in host.glob(DIRECTORY + "/*.toml") if path != DROP_IN)
    return Beside(host.read(DROP_IN), {path: host.read(path) or "" for path in others})


def change(
    service: Service, configuration: Configuration, beside: Beside, policy: Policy, systemd_cgroup: bool
) -> Change:
    if not policy.present and beside.ours is None:
        return Change()
    _check_managed(service, configuration)
    others = {path: toml.parse(path, text) for path, text in beside.others.items()}
    _check_format(others, service.release)
    tables = _tables(service, configuration, beside, others, policy, systemd_cgroup) if policy.present else {}
    edit = whole_file(DROP_IN, beside.ours, drop_in_text(3 if service.release >= (2, 0) else 2, tables))
    preview = _merged_by_k0s(configuration, tables) if tables and service.release < (2, 0) else edit
    return change_of([edit], [preview])


def is_waited_for(host: Host, service: Service) -> bool:
    """Whether the process behind the socket is older than the last file that came or went."""
    directory = host.stat(DIRECTORY)
    return directory is not None and started_at(host, peer_pid(host.path(service.socket))) < directory.st_mtime


def _tables(
    service: Service, configuration: Configuration, beside: Beside, others: Mapping[str, Data], policy: Policy,
    systemd_cgroup: bool
) -> Tables:
    base = without(configuration, DROP_IN)
    theirs = handlers(merged([_section(data, base.cri_id) for data in others.values()], 2))
    for name, difference in differing(theirs, policy).items():
        if not policy.adopt:
            place = [path for path, data in others.items() if name in handlers(_section(data, base.cri_id))][-1]
            raise GpuOpsError(
                "runtime.foreign_handler_beside",
                found="%s defines the handler '%s' with %s" % (place, name, difference),
                wanted="BinaryName = %s" % policy.entries[name],
                remedy="take it out of that file, choose another `handler`, or let `adopt` take it over",
                option="adopt",
            )
        check_read_last(beside.others, DROP_IN, name, base.cri_id)
    adopted = overrides(theirs, base.cri_id, policy) if policy.adopt else {}
    cri = base.cri()
    if service.release < (2, 0):
        # k0s has merged our file into one of its own, where nothing tells it apart
        cri = _less(cri, _section(toml.parse(DROP_IN, beside.ours or ""), base.cri_id))
        for name in set(differing(handlers(cri), policy)) - set(theirs):
            cri["containerd"]["runtimes"].pop(name)
    return {**wanted_tables(cri, base.cri_id, service.release, policy, systemd_cgroup), **adopted}


def _merged_by_k0s(configuration: Configuration, tables: Tables) -> Edit:
    """The file that k0s merges ours into, as it will be."""
    file = next(each for each in configuration.files if each.path == configuration.holder())
    rest = {table: values for table, values in tables.items() if _lacks(file.data, table, values)}
    return Edit(file.path, file.text, apply_tables(file.text, rest, file.path), None, None)


def _lacks(data: Data, table: Tuple[str, ...], values: Data) -> bool:
    for part in table:
        data = data.get(part, {})
    return any(data.get(key) != value for key, value in values.items())


def _less(data: Data, ours: Data) -> Dict[str, Any]:
    """A table without the values of ours that were merged into it, and without tables that are empty then."""
    kept: Dict[str, Any] = {}
    for key, value in data.items():
        if isinstance(value, dict) and isinstance(ours.get(key), dict):
            rest = _less(value, ours[key])
            if rest:
                kept[key] = rest
        elif key not in ours or ours[key] != value:
            kept[key] = value
    return kept


def _section(data: Data, cri_id: str) -> Dict[str, Any]:
    return dict(data.get("plugins", {}).get(cri_id, {}))


def _check_managed(service: Service, configuration: Configuration) -> None:
    if [line for line in configuration.files[0].text.splitlines() if line][:1] != [MAGIC]:
        raise GpuOpsError(
            "runtime.k0s_not_managing",
            found="%s does not start with '%s': k0s leaves it alone, and %s with it" % (service.root, MAGIC, DIRECTORY),
            wanted="a configuration that k0s manages",
            remedy="take the file away and restart k0s, or add the handler to it by hand",
        )


def _check_format(others: Mapping[str, Data], release: Tuple[int, int]) -> None:
    """From 1.36, with containerd 2.x, k0s does not start with a file of the old format (its pull request 7376)."""
    for path, data in others.items() if release >= (2, 0) else ():
        if data.get("version", 3) != 3 or CRI2 in data.get("plugins", {}):
            raise GpuOpsError(
                "runtime.k0s_old_format",
                found="%s is of format version 2, which k0s with containerd %d.%d refuses" % (path, *release),
                wanted="`version = 3` and plugin sections of version 3",
                remedy="rewrite the file: k0s does not come up again with it",
                file=path,
            )
