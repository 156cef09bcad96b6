# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""MicroK8s: containerd.toml is rendered from containerd-template.toml beside it, at each start of the service.

The template is TOML; its ${VARIABLES} stand inside strings (microk8s-resources/wrappers/run-containerd-with-args).
"""
from __future__ import annotations

import os
import re

from ...core.errors import GpuOpsError
from ...core.host import Host
from .. import toml
from ..model import Edit, Service
from ..policy import RuntimePolicy
from .change import Change, change_of, foreign_handler, overrides, without
from .configuration import Configuration, File, handlers
from .writer import Tables, apply_tables, differing, wanted_tables

TEMPLATE = "containerd-template.toml"
# Options of the kubelet, which is no process of its own here
KUBELET = "kubelet"


def change(host: Host, service: Service, configuration: Configuration, policy: RuntimePolicy) -> Change:
    folder = os.path.dirname(service.root)
    template = os.path.join(folder, TEMPLATE)
    text = host.read(template)
    if text is None:
        raise GpuOpsError("no %s" % template, "the template that MicroK8s renders containerd's configuration from",
                          "reinstall MicroK8s, or name the runtime with 'runtime'")
    base = without(configuration, "")
    file = File(template, text, toml.parse(template, text))
    tables = _tables(base, service, policy, file, _systemd_cgroup(host, folder)) if policy.present else {}
    after = apply_tables(text, tables, template)
    parameters = {"tables": [[list(table), dict(values)] for table, values in tables.items()]}
    edit = Edit(template, text, after, toml.our_lines(text) or None, toml.our_lines(after) or None, parameters)
    root = configuration.files[0]
    preview = Edit(root.path, root.text, apply_tables(root.text, tables, root.path), None, None)
    return change_of([edit], [preview])


def _tables(
    base: Configuration, service: Service, policy: RuntimePolicy, template: File, systemd_cgroup: bool
) -> Tables:
    known = handlers(base.cri())
    for name, difference in differing(known, policy).items() if not policy.adopt else ():
        place = template.place("plugins", base.cri_id, "containerd", "runtimes", name)
        raise foreign_handler(place, name, difference, policy.entries[name],
                              "'microk8s enable nvidia' or the GPU Operator may have put it there: take it out, set "
                              "handler_binary to its path, or let 'adopt' take it over")
    adopted = overrides(known, base.cri_id, policy) if policy.adopt else {}
    return {**wanted_tables(base.cri(), base.cri_id, service.release, policy, systemd_cgroup), **adopted}


def _systemd_cgroup(host: Host, folder: str) -> bool:
    return re.search(r"(?m)^--cgroup-driver[= ]systemd\b", host.read(os.path.join(folder, KUBELET)) or "") is not None
