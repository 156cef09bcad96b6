# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What tests of dnf and of zypper do alike with a host of an rpm distribution: a change of its driver, step by step."""
from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, Mapping, Optional, Tuple

from scratch_apt import keyring
from scratch_rpm import OPEN, RELEASE, Root

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Step
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import PACKAGES_INSTALL, packages_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.manager import PackageManager
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.model import Repository, Simulation

OURS = "gpuops-nvidia-driver"
KEY_FILE = "/etc/pki/rpm-gpg/" + OURS
LIBRARIES = "nvidia-driver-cuda-libs"


def nvidias(where: Path, **more: Any) -> Repository:
    """NVIDIA's repository, in that directory."""
    return Repository("file://%s" % where, keyring("one").public, KEY_FILE, id=OURS, **more)


def evr(version: str, epoch: int = 3) -> str:
    return ("%d:" % epoch if epoch else "") + "%s-%s" % (version, RELEASE)


def asked(version: str, module: str = OPEN) -> Dict[str, str]:
    return {name: evr(version) for name in ("nvidia-driver-cuda", LIBRARIES, "nvidia-persistenced", module)}


def write(root: Root, files: Mapping[str, Optional[str]]) -> None:
    """What file steps do; a key and a list of locks lie below the root, and the managers' own files name them whole."""
    for path, text in files.items():
        if text is None:
            root.host.remove(path)
        else:
            root.host.write(path, text.replace("file:///etc", "file://%s/etc" % root.path))


def trust(manager: PackageManager, root: Root, repository: Repository) -> None:
    write(root, manager.repository_files(repository))
    for step in manager.trust_steps("driver", repository, manager.trusted(root.host)):
        manager.executors[step.action](root.host, Journal(root.host), step)


def planned(
    manager: PackageManager, root: Root, repository: Repository, request: Mapping[str, str], down: bool,
    chosen: Mapping[str, str]
) -> Tuple[Simulation, Step, Mapping[str, Optional[str]]]:
    """(simulation, step, files) of an installation: what is chosen and the locks of the versions come before it."""
    there = {path: root.host.read(path) for path in manager.hold_paths("driver")}
    files = {**chosen, **manager.hold_files("driver", request, there)}
    with manager.open(root.host, [repository], beside_system=True) as opened:
        opened.hold(files)
        done = opened.simulate(request, down)
        before, after = done.change
        step = packages_step("driver", "driver", before, after, "a test", manager=manager.name, request=dict(request),
                             allow_downgrade=down, without=list(opened.without))
    # A planner makes no step of nothing; here it is carried out all the same
    return done, replace(step, action=PACKAGES_INSTALL), files
