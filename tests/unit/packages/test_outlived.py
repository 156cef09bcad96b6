# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""ansible.builtin.apt is killed (out of memory, by hand) and its apt-get goes on: what still comes is ours."""
from __future__ import annotations

import threading
import time
from typing import Any, Mapping

import pytest
from scratch_apt import Repository, Root, build

from ansible_collections.gpuops.nvidia.plugins.module_utils.core import lock as locks
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.applying import apply_alone
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import Capability, Outcome, Run
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal, PackageChange
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.lock import HostLock, package_manager_works
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Plan
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import packages_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import database
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt.transaction import install_words
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.provenance import Provenance

LIMIT_SECONDS = 60.0
WANTED = {"driver": "1.0", "libdriver": "1.0"}


class Seen:
    def __init__(self, installed: Mapping[str, str]) -> None:
        self.installed = installed

    def to_dict(self) -> Mapping[str, str]:
        return self.installed


def observe(host: Host, journal: Journal, policy: Any, facts: HostFacts) -> Seen:
    return Seen({name: package.version for name, package in database.installed(host).items() if package.installed})


def plan(observation: Seen, policy: Any, facts: HostFacts) -> Plan:
    if observation.installed == WANTED:
        return Plan()
    return Plan(steps=(packages_step("driver", "driver", dict.fromkeys(WANTED), WANTED, "It is wanted.",
                                     manager="apt"),))


# Wants two packages.
DRIVER = Capability("driver", {}, dict, observe, plan, transactions=Provenance())


def call(root: Root, token: str, timeout: float = 0, **more: Any) -> Outcome:
    """A call of the module."""
    run = Run(DRIVER, {}, root.host, lambda _host: HostFacts(hostname="h"), **more)
    return apply_alone(run, HostLock(root.host, token, "gpu_driver for %s" % token), timeout)[0]


def test_the_step_is_open_and_the_host_locked_until_apt_has_ended(root: Root, repository: Repository) -> None:
    go_on = root.path / "tmp/go-on"
    build(repository.directory, "libdriver", "1.0")
    build(repository.directory, "driver", "1.0", depends="libdriver",
          script="until [ -e %s ]; do sleep 0.1; done" % go_on)
    repository.publish()
    root.trust(repository)
    root.apt("update")
    step = call(root, "first").awaiting
    assert step is not None
    apt = threading.Thread(target=root.apt, args=install_words(WANTED, False))
    apt.start()
    try:
        deadline = time.monotonic() + LIMIT_SECONDS
        while "libdriver" not in root.packages() or not package_manager_works(root.host):
            assert time.monotonic() < deadline, "apt never began"
            time.sleep(0.05)

        call(root, "first", resumed=step.id, transaction_failed=True)
        assert [event["step"]["id"] for event in Journal(root.host).unfinished("driver")] == [step.id]
        with pytest.raises(GpuOpsError, match="package transaction of its controller"):
            call(root, "second")
    finally:
        go_on.touch()
        apt.join(LIMIT_SECONDS)
    # Of the last boot: nobody holds it, and nobody waits for what is left of its time
    root.host.remove(locks.RECORD)
    assert call(root, "third").applied == [step.id]
    assert Journal(root.host).packages("driver") == dict.fromkeys(WANTED, PackageChange(None, "1.0"))
