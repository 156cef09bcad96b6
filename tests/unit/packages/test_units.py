# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Debian's own helper enables a unit in a scratch root; a power cut empties its record; our removal leaves no link."""
from __future__ import annotations

from pathlib import Path
from typing import List

import pytest
from scratch_apt import Repository, Root, build

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.steps import packages_step
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.apt import units
from ansible_collections.gpuops.nvidia.plugins.module_utils.packages.provenance import Provenance

UNIT = b"[Service]\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\nAlias=gpu-daemon.service\n"
# As debhelper's dh_installsystemd writes them
POSTINST = 'deb-systemd-helper unmask {0} >/dev/null\nif deb-systemd-helper --quiet was-enabled {0}; then\n' \
           'deb-systemd-helper enable {0} >/dev/null\nelse deb-systemd-helper update-state {0} >/dev/null\nfi'
POSTRM = 'if [ "$1" = purge ]; then deb-systemd-helper purge {0} >/dev/null; fi'
DAEMON = "gpu-persistenced.service"


@pytest.fixture(autouse=True)
def daemons(repository: Repository, root: Root) -> None:
    for name, unit in (("daemon", DAEMON), ("of-his", "his.service")):
        build(repository.directory, name, "1", files={"lib/systemd/system/" + unit: UNIT},
              scripts={"postinst": POSTINST.format(unit), "postrm": POSTRM.format(unit)})
    repository.publish()
    root.trust(repository)
    root.apt("update")
    root.install("daemon", "of-his")
    (root.path / "etc/systemd/system/hand-made.wants").mkdir()
    (root.path / "etc/systemd/system/hand-made.wants" / DAEMON).symlink_to("/lib/systemd/system/" + DAEMON)


def links(root: Root) -> List[str]:
    directory = root.path / "etc/systemd/system"
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_symlink())


def record(root: Root, unit: str = DAEMON) -> Path:
    return root.path / units.RECORDS.lstrip("/") / (unit + ".dsh-also")


def removed(root: Root) -> List[str]:
    """Our removal of the daemon; the links that are left."""
    step = packages_step("driver", "driver", {"daemon": "1"}, {"daemon": None}, "a test", manager="apt",
                         request={"daemon": "1"}, purge=True)
    opened = Provenance().opened(root.host, step)
    root.apt("--purge", "remove", "daemon")
    Provenance().settle(root.host, Journal(root.host), step, opened)
    return links(root)


HIS = ["hand-made.wants/" + DAEMON, "multi-user.target.wants/his.service"]


@pytest.mark.parametrize("left", [None, b"", b"\0" * 4096])
def test_a_record_that_a_power_cut_has_emptied_costs_no_link(root: Root, left: "bytes | None") -> None:
    assert len(links(root)) > len(HIS) and record(root).read_bytes()
    if left is not None:
        record(root).write_bytes(left)
    kept = removed(root)
    assert [link for link in kept if DAEMON in link or "his" in link] == HIS
    assert not record(root).exists() and record(root, "his.service").read_bytes()


def test_without_us_the_link_stays(root: Root) -> None:
    record(root).write_bytes(b"")
    root.apt("--purge", "remove", "daemon")
    assert "multi-user.target.wants/" + DAEMON in links(root)


def test_a_unit_that_an_admin_has_replaced_is_the_admins(root: Root) -> None:
    (root.path / "etc/systemd/system" / DAEMON).write_bytes(UNIT)
    record(root).write_bytes(b"")
    assert "multi-user.target.wants/" + DAEMON in removed(root)


def test_records_of_other_packages_are_left_alone(root: Root) -> None:
    record(root, "his.service").write_bytes(b"")
    removed(root)
    assert record(root, "his.service").read_bytes() == b""
