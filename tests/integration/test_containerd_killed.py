# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""A run that is killed between any two writes leaves files that containerd starts with, and the next run completes."""
from __future__ import annotations

from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime import model, policy
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.containerd import configuration, gate, writer
from gpulab.parts.registry import workshop

Release = Tuple[int, int]
PROGRAMS: Dict[Release, Tuple[str, str]] = {
    (1, 6): ("root-bookworm", "root/usr/bin/containerd"),
    (1, 7): ("containerd-1.7", "bin/containerd"),
    (2, 2): ("containerd-2.2", "bin/containerd"),
    (2, 3): ("containerd-2.3", "bin/containerd"),
}
ROOT = "/etc/containerd/config.toml"
CRI2 = 'plugins."io.containerd.grpc.v1.cri"'
RUNC = "[%s.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n" % CRI2
LAYOUTS: Dict[str, Dict[str, str]] = {
    "no file": {},
    "a root file": {ROOT: "version = 2\n[%s]\nenable_selinux = false\n%s" % (CRI2, RUNC)},
    "a foreign handler in another file": {
        ROOT: "version = 2\nimports = ['/etc/containerd/conf.d/*.toml']\n" + RUNC,
        "/etc/containerd/conf.d/50-site.toml": (
            "version = 2\n%s[%s.containerd.runtimes.nvidia]\nruntime_type = 'io.containerd.runc.v2'\n"
            "[%s.containerd.runtimes.nvidia.options]\nBinaryName = '/opt/old' # theirs\n" % (RUNC, CRI2, CRI2)),
    },
}


def wish(**changes: Any) -> policy.RuntimePolicy:
    parameters = {name: option.get("default") for name, option in policy.ARGUMENTS.items()}
    return policy.policy_of(dict(parameters, **changes))


class Disk:
    """The files of a host and the edits that a run would make now."""

    def __init__(self, root: Path, release: Release, binary: str) -> None:
        self.host = Host(str(root))
        self.release = release
        self.binary = binary

    def put(self, files: Dict[str, str]) -> None:
        for name in self.files():
            self.host.remove(name)
        for name, text in files.items():
            self.host.write(name, text)

    def files(self) -> Dict[str, str]:
        names = self.host.glob("/etc/containerd/**/*.toml") + self.host.glob("/etc/containerd/*.toml")
        return {name: self.host.read(name) or "" for name in set(names)}

    def configuration(self) -> configuration.Configuration:
        return configuration.load(self.host, ROOT, self.release[0])

    def edits(self, wanted: policy.RuntimePolicy) -> List[model.Edit]:
        now, ours = self.configuration(), self.host.read(writer.DROP_IN)
        if not wanted.present:
            return writer.absent_edits(now, ours)
        return writer.present_edits(now, ours, ROOT, wanted, self.release, False)

    def make(self, edits: List[model.Edit]) -> None:
        for edit in edits:
            after: Optional[str] = edit.after
            if after is None:
                self.host.remove(edit.path)
            else:
                self.host.write(edit.path, after)

    def run(self, wanted: policy.RuntimePolicy) -> Dict[str, str]:
        self.make(self.edits(wanted))
        assert self.edits(wanted) == []
        return self.files()


@pytest.mark.parametrize("release", list(PROGRAMS), ids=["%d.%d" % release for release in PROGRAMS])
@pytest.mark.parametrize("layout", list(LAYOUTS))
def test_every_beginning_of_a_run_starts_and_its_repetition_completes(
    layout: str, release: Release, tmp_path: Path
) -> None:
    part, path = PROGRAMS[release]
    disk = Disk(tmp_path, release, str(workshop().build(part) / path))
    present, absent = wish(adopt=True, default_handler=True, handlers={"nvidia-cdi": ""}), wish(state="absent")
    disk.put(LAYOUTS[layout])
    done = disk.run(present)
    assert done != LAYOUTS[layout]
    for wanted, first, last in ((present, LAYOUTS[layout], done), (absent, done, LAYOUTS[layout])):
        disk.put(first)
        edits = disk.edits(wanted)
        for count in range(len(edits) + 1):
            disk.put(first)
            disk.make(edits[:count])
            gate.check_in_place(disk.host, disk.binary, disk.configuration())
            assert disk.run(wanted) == last
