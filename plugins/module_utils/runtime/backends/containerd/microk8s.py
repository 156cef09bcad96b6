# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""MicroK8s: containerd.toml is rendered from containerd-template.toml beside it, at each start of the service.

The template is TOML; its ${VARIABLES} stand inside strings (microk8s-resources/wrappers/run-containerd-with-args).
"""
from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import Any, Dict, Optional

from ....core.errors import GpuOpsError
from ....core.host import Host
from ....core.plan import digest
from ... import toml
from ...model import Edit, Service
from ...policy import Policy
from .change import Change, change_of, overrides, without
from .configuration import Configuration, File, handlers
from .writer import Tables, apply_tables, coming_back, differing, wanted_tables

TEMPLATE = "containerd-template.toml"
# Options of the kubelet
KUBELET = "kubelet"


@dataclass(frozen=True)
class Beside:
    """What MicroK8s renders the configuration from.

    template:       its path, text: what is in it, None where it is not there.
    systemd_cgroup: whether the kubelet, which is no process of its own here, uses systemd's control groups.
    """

    template: str
    text: Optional[str]
    systemd_cgroup: bool

    def to_dict(self) -> Dict[str, Any]:
        return {"text": digest(self.text), "systemd_cgroup": self.systemd_cgroup}


def read(host: Host, service: Service) -> Beside:
    directory = os.path.dirname(service.root)
    template = os.path.join(directory, TEMPLATE)
    kubelet = host.read(os.path.join(directory, KUBELET)) or ""
    return Beside(template, host.read(template), re.search(r"(?m)^--cgroup-driver[= ]systemd\b", kubelet) is not None)


def change(service: Service, configuration: Configuration, beside: Beside, policy: Policy) -> Change:
    template, text = beside.template, beside.text
    if text is None and not policy.present:
        return Change()
    if text is None:
        raise GpuOpsError(
            "runtime.microk8s_without_template",
            found="no %s" % template,
            wanted="the template that MicroK8s renders containerd's configuration from",
            remedy="reinstall MicroK8s, or name the runtime with `runtime`",
            option="runtime",
        )
    base = without(configuration, "")
    file = File(template, text, toml.parse(template, text))
    tables = _tables(base, service, policy, file, beside.systemd_cgroup) if policy.present else {}
    after = apply_tables(text, tables, template)
    parameters = {"tables": [[list(table), dict(values)] for table, values in tables.items()]}
    edit = Edit(template, text, after, toml.our_lines(text) or None,
                toml.our_lines(after) + coming_back(text, after) or None, parameters)
    root = configuration.files[0]
    preview = Edit(root.path, root.text, apply_tables(root.text, tables, root.path), None, None)
    return change_of([edit], [preview])


def _tables(
    base: Configuration, service: Service, policy: Policy, template: File, systemd_cgroup: bool
) -> Tables:
    known = handlers(base.cri())
    for name, difference in differing(known, policy).items() if not policy.adopt else ():
        place = template.place("plugins", base.cri_id, "containerd", "runtimes", name)
        raise GpuOpsError(
            "runtime.foreign_handler_in_template",
            found="%s defines the handler '%s' with %s" % (place, name, difference),
            wanted="BinaryName = %s" % policy.entries[name],
            remedy="`microk8s enable nvidia` or the GPU Operator may have put it there: take it out, set "
                   "`handler_binary` to its path, or let `adopt` take it over",
            option="adopt",
        )
    adopted = overrides(known, base.cri_id, policy) if policy.adopt else {}
    return {**wanted_tables(base.cri(), base.cri_id, service.release, policy, systemd_cgroup), **adopted}
