# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Kubernetes distributions that bring their own containerd: they generate its root file, so ours is another one."""
from __future__ import annotations

from ...core.errors import GpuOpsError
from ...core.host import Host
from ..model import Service
from ..policy import RuntimePolicy
from . import k0s, microk8s, rancher
from .change import Change
from .configuration import Configuration

# Their root file is made anew at each start of the service
RENDERED_AT_START = ("k3s", "rke2", "microk8s")


def change(
    host: Host, service: Service, configuration: Configuration, policy: RuntimePolicy, systemd_cgroup: bool
) -> Change:
    """The files that bring what is wanted, or take ours away. Raises GpuOpsError where that is not safe.

    systemd_cgroup: whether the kubelet uses systemd's control groups, for a runtime that does not say it.
    """
    if not configuration.files:
        raise GpuOpsError(
            found="no %s: %s has not been started yet" % (service.root, service.unit),
            wanted="the configuration that it generates at its start",
            remedy="start it: systemctl start %s" % service.unit,
            file=service.root,
        )
    if service.distribution in ("k3s", "rke2"):
        return rancher.change(host, service, configuration, policy)
    if service.distribution == "k0s":
        return k0s.change(host, service, configuration, policy, systemd_cgroup)
    return microk8s.change(host, service, configuration, policy)
