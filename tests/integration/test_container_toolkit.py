# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The toolkit's packages on a real host, and what a person wrote into its configuration."""
from __future__ import annotations

from typing import Any, Dict, Iterator

import pytest
from laboratory import Fleet, assert_journal_is_plan, new_lab

from gpulab.topology import parse

HOST, CRIO = "gpu", "crio"
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
    lab.up(parse({"name": "toolkit", "control_plane": False, "hosts": [
        {"name": HOST, "board": "l40s", "gpus": 1}, {"name": CRIO, "board": "l40s", "gpus": 1, "runtime": "cri-o"},
    ]}, "test_container_toolkit.py"))
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


def failure(result: Dict[str, Any]) -> str:
    assert result["failed"], result
    return str(result["msg"])


def write(fleet: Fleet, text: str) -> None:
    fleet.lab.host(HOST).ssh(["sh", "-c", "mkdir -p $(dirname %s); cat > %s" % (SETTINGS, SETTINGS)], feed=text)


@pytest.mark.variation
def test_the_runtimes_are_those_of_the_running_daemon(fleet: Fleet) -> None:
    assert not toolkit(fleet).get("failed")
    assert 'runtimes = ["/usr/sbin/runc"]' in settings(fleet)

    # The daemon's own PATH decides, and what an earlier run wrote is no choice of a person's
    override = "/run/systemd/system/containerd.service.d"
    fleet.say(HOST, "sh", "-c", "mkdir -p /opt/low %s; cp /usr/sbin/runc /opt/low;"
                                "printf '[Service]\\nEnvironment=PATH=/opt/low:/usr/sbin:/usr/bin\\n' > %s/path.conf;"
                                "systemctl daemon-reload; systemctl restart containerd" % (override, override))
    assert toolkit(fleet)["applied"] == ["toolkit/file.write/" + SETTINGS]
    assert 'runtimes = ["/opt/low/runc"]' in settings(fleet)
    assert toolkit(fleet)["changed"] is False
    fleet.say(HOST, "sh", "-c", "rm -r /opt/low %s; systemctl daemon-reload; systemctl restart containerd" % override)
    assert toolkit(fleet)["changed"] is True
    assert 'runtimes = ["/usr/sbin/runc"]' in settings(fleet)

    fleet.say(HOST, "sed", "-i", "s,/usr/sbin/runc,/usr/bin/true,", SETTINGS)
    assert toolkit(fleet)["changed"] is False
    assert toolkit(fleet, low_level_runtimes=["/usr/sbin/runc"])["changed"] is True
    assert "/gone/runc" in failure(toolkit(fleet, low_level_runtimes=["/gone/runc"]))


@pytest.mark.variation
def test_cri_o_keeps_its_runtime_outside_of_path(fleet: Fleet) -> None:
    wanted = "/usr/libexec/crio/runc"
    assert fleet.say(CRIO, "systemctl", "is-active", "crio") == "active"
    played = fleet.tasks(CRIO, [{"gpuops.nvidia.container_toolkit": TOOLKIT}])
    assert not played.result(CRIO, "container_toolkit").get("failed"), played.failures()
    assert 'runtimes = ["%s"]' % wanted in fleet.say(CRIO, "cat", SETTINGS)
    assert "runc version" in fleet.say(CRIO, "env", "-i", "/usr/bin/nvidia-container-runtime", "--version")
    assert fleet.tasks(CRIO, [{"gpuops.nvidia.container_toolkit": TOOLKIT}]).changed[CRIO] == 0


def test_what_the_toolkit_would_ignore_or_refuse_is_refused_before_a_write(fleet: Fleet) -> None:
    assert not toolkit(fleet).get("failed")
    before = settings(fleet)
    assert "log-level" in failure(toolkit(fleet, settings={"nvidia-container-runtime.loglevel": "debug"}))
    assert "true or false" in failure(toolkit(fleet, settings={"disable-require": "perhaps"}))
    assert settings(fleet) == before

    wanted = {"nvidia-container-runtime": {"log-level": "debug", "debug": "/var/log/gpu.log"}}
    assert toolkit(fleet, settings=wanted)["changed"] is True
    assert 'log-level = "debug"' in settings(fleet)
    assert toolkit(fleet, settings=wanted)["changed"] is False
    assert fleet.say(HOST, "ls", "/var/log/gpu.log") == ""

    # Valid TOML, and more than the toolkit's own parser can bear
    write(fleet, '"" = 1\n' + before)
    assert "nvidia-container-runtime does not take" in failure(toolkit(fleet, settings=wanted))
    assert settings(fleet) == '"" = 1\n' + before
    write(fleet, "[nvidia-container-runtime]\nruntimes = 'runc'\n")
    assert "a list of strings" in failure(toolkit(fleet))
    write(fleet, before + "\n")
    assert toolkit(fleet)["changed"] is False


@pytest.mark.parametrize("edit", [pytest.param("", marks=pytest.mark.variation), "# by the night shift\n"])
def test_an_edit_after_a_killed_upgrade_stays(fleet: Fleet, edit: str) -> None:
    assert not toolkit(fleet).get("failed")
    mine = "# by the day shift\n" + settings(fleet) + "\n"
    write(fleet, mine)
    assert toolkit(fleet)["changed"] is False
    # As a run that was killed after the packages' script leaves it
    fleet.lab.host(HOST).ssh(["python3", "-"], feed="""
import json
path = "/var/lib/gpuops/state.json"
with open(path) as file:
    state = json.load(file)
state["memory"].setdefault("toolkit", {})["configuration"] = %r
with open(path, "w") as file:
    json.dump(state, file)
""" % mine)
    fleet.say(HOST, "nvidia-ctk", "--quiet", "config", "--config-file=" + SETTINGS, "--in-place")
    assert "day shift" not in settings(fleet)
    if edit:
        write(fleet, edit + settings(fleet) + "\n")
    assert not toolkit(fleet).get("failed")
    text = settings(fleet)
    assert ("day shift" in text, "night shift" in text) == (not edit, bool(edit))
    assert toolkit(fleet)["changed"] is False
