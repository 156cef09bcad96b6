# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Kubernetes distributions that bring their own containerd: they generate its root file, so ours is another one."""
from __future__ import annotations

from typing import Optional, Union

from ....core.errors import GpuOpsError
from ....core.host import Host
from ...model import Service
from ...policy import Policy
from . import k0s, microk8s, rancher
from .change import Change
from .configuration import Configuration

# Their root file is made anew at each start of the service
RENDERED_AT_START = ("k3s", "rke2", "microk8s")
Beside = Union[rancher.Beside, k0s.Beside, microk8s.Beside]


def read(host: Host, service: Service, configuration: Configuration) -> Optional[Beside]:
    """What lies beside the configuration and decides over it; None of a service that was never started."""
    if not configuration.files:
        return None
    if service.distribution in ("k3s", "rke2"):
        return rancher.read(host, service, configuration)
    if service.distribution == "k0s":
        return k0s.read(host)
    return microk8s.read(host, service)


def brings(service: Service, configuration: Configuration, beside: Optional[Beside], policy: Policy) -> bool:
    """Whether the next start of the service brings a wanted handler by itself."""
    return isinstance(beside, rancher.Beside) and rancher.brings(service, configuration, beside, policy)


def change(
    service: Service, configuration: Configuration, beside: Optional[Beside], policy: Policy, systemd_cgroup: bool
) -> Change:
    """Pure: the files that bring what is wanted, or take ours away. Raises GpuOpsError where that is not safe.

    systemd_cgroup: whether the kubelet uses systemd's control groups, for a runtime that does not say it.
    """
    if beside is None:
        raise GpuOpsError(
            "runtime.never_started",
            found="no %s: %s has not been started yet" % (service.root, service.unit),
            wanted="the configuration that it generates at its start",
            remedy="start it: `systemctl start %s`" % service.unit,
            file=service.root,
        )
    if isinstance(beside, rancher.Beside):
        return rancher.change(service, configuration, beside, policy)
    if isinstance(beside, k0s.Beside):
        return k0s.change(service, configuration, beside, policy, systemd_cgroup)
    return microk8s.change(service, configuration, beside, policy)
