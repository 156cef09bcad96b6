# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The toolkit's packages on a real host, and what a person wrote into its configuration."""
from __future__ import annotations

from typing import Any, Dict, Iterator

import pytest
from laboratory import Fleet, assert_journal_is_plan, new_lab

from gpulab.topology import parse

HOST = "gpu"
SETTINGS = "/etc/nvidia-container-runtime/config.toml"
PACKAGES = "http://packages.gpulab:8480/libnvidia-container"
TOOLKIT = {"repository_url": PACKAGES + "/stable/deb/$(ARCH)", "repository_key": PACKAGES + "/gpgkey"}
MINE = """\
# Agreed with the tenants on Monday; ask before a change.
disable-require = false # as delivered
[nvidia-container-runtime]
log-level = "debug" # until ticket 7 is closed
"""


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    lab = new_lab("toolkit")
    lab.up(parse({"name": "toolkit", "control_plane": False, "hosts": [{"name": HOST, "board": "l40s", "gpus": 1}]},
                 "test_container_toolkit.py"))
    yield Fleet(lab, tmp_path_factory.mktemp("toolkit"))
    lab.down()


def toolkit(fleet: Fleet, *words: str, **options: Any) -> Dict[str, Any]:
    played = fleet.tasks(HOST, [{"gpuops.nvidia.container_toolkit": dict(TOOLKIT, **options)}], *words)
    return played.result(HOST, "container_toolkit")


def settings(fleet: Fleet) -> str:
    return fleet.say(HOST, "cat", SETTINGS)


def has_all_of_mine(text: str) -> bool:
    return all(line in text for line in MINE.splitlines())


def test_comments_survive_install_upgrade_and_removal(fleet: Fleet) -> None:
    fleet.lab.host(HOST).ssh(["sh", "-c", "mkdir -p $(dirname %s); cat > %s" % (SETTINGS, SETTINGS)], feed=MINE)
    planned = toolkit(fleet, "--check", version="1.18.0", allow_vulnerable=True)
    done = toolkit(fleet, version="1.18.0", allow_vulnerable=True)
    assert not done.get("failed"), done
    assert done["applied"] == planned["applied"]
    assert_journal_is_plan(fleet.events(HOST), planned["plan"])
    installed = settings(fleet)
    assert has_all_of_mine(installed)
    assert "accept-nvidia-visible-devices-envvar-when-unprivileged = false" in installed
    assert toolkit(fleet, version="1.18.0", allow_vulnerable=True)["changed"] is False

    upgraded = toolkit(fleet)
    assert not upgraded.get("failed"), upgraded
    assert settings(fleet) == installed
    assert "1.20.1-1" in fleet.say(HOST, "dpkg-query", "-W", "-f", "${Version}", "nvidia-container-toolkit-base")
    assert toolkit(fleet)["changed"] is False

    assert "CVE-2026-24260" in toolkit(fleet, version="1.18.0")["msg"]
    assert "which is older" in toolkit(fleet, version="1.18.0", allow_vulnerable=True)["msg"]

    assert not toolkit(fleet, state="absent").get("failed")
    assert settings(fleet) == MINE.strip()
