# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The driver on a laboratory host: packages, DKMS builds, reloads and their way back are real."""
from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import time
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Sequence, Tuple

import pytest
import ready_ansible
from laboratory import developer, new_lab
from workspace import collections_root, venv

from gpulab.lab import Lab
from gpulab.topology import parse

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="boots hosts: needs root")

REPOSITORY = "http://packages.gpulab:8480/cuda/repos/debian12/x86_64"
GRID = "http://packages.gpulab:8480/cuda/repos/grid/x86_64"
BROKEN = "http://packages.gpulab:8480/cuda/repos/debian12-broken/x86_64"
OLD, NEW = "580.178.04", "595.91.07"
# What the collection promises not to touch in check mode, and to bring back as it was.
SYSTEM = ("/etc", "/usr", "/lib/modules", "/var/lib/apt", "/var/lib/dpkg", "/boot")
# Programs keep these for themselves: backups and locks of dpkg, of the user database, and indices that were refreshed.
OWN_LEFTOVERS = ("/etc/group-", "/etc/gshadow-", "/etc/passwd-", "/etc/shadow-", "/var/lib/dpkg/status-old",
                 "/var/lib/apt/", "/var/lib/dpkg/lock", "/var/lib/dpkg/triggers/", "/var/lib/dpkg/diversions-old",
                 "/var/lib/dpkg/statoverride-old")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = new_lab("drivertest")
    lab.up(parse({"name": "driver", "control_plane": False,
                  "hosts": [{"name": "gpu", "board": "a100-80gb-sxm", "gpus": 2},
                            {"name": "volta", "board": "v100", "gpus": 1},
                            {"name": "blackwell", "board": "b200-hgx", "gpus": 1},
                            {"name": "guest", "board": "t4-vgpu", "gpus": 1},
                            {"name": "empty"}]}, "test_driver.py"))
    yield lab
    lab.down()


class Play:
    """Runs the collection's modules on a host of the laboratory.

    system: directories of what is the system's.
    """

    system: Tuple[str, ...] = SYSTEM

    def __init__(self, lab: Lab, directory: Path, host: str = "gpu") -> None:
        self.lab = lab
        self.host = host
        self.directory = directory
        self.driver = {"version": OLD, "repository_url": REPOSITORY, "repository_key": REPOSITORY + "/gpulab.pub"}

    def command(self, tasks: Sequence[Mapping[str, Any]], check: bool = False) -> List[str]:
        play = [{"hosts": self.host, "gather_facts": False, "tasks": list(tasks)}]
        path = self.directory / "play.json"
        path.write_text(json.dumps(play))
        return [str(venv() / "bin" / "ansible-playbook"), "-i", str(self.lab.inventory), str(path),
                *(["--check", "--diff"] if check else [])]

    def environment(self) -> Dict[str, str]:
        return dict(os.environ, ANSIBLE_COLLECTIONS_PATH="%s:%s" % (collections_root(), developer().collections),
                    ANSIBLE_STDOUT_CALLBACK="ansible.posix.json", ANSIBLE_PIPELINING="true",
                    ANSIBLE_HOME=str(self.directory.parent / "home"))

    def tasks(self, tasks: Sequence[Mapping[str, Any]], check: bool = False) -> List[Dict[str, Any]]:
        """The tasks' results, in order; a failed one is the last."""
        stdout, stderr = ready_ansible.start(self.command(tasks, check), self.environment(), Path.cwd(),
                                             subprocess.PIPE, subprocess.PIPE).communicate()
        try:
            played = json.loads(stdout)["plays"][0]["tasks"]
        except (ValueError, IndexError):
            raise AssertionError(stdout + stderr) from None
        return [task["hosts"][self.host] for task in played]

    def writers(self, check: bool = False, **driver: Any) -> List[Dict[str, Any]]:
        """nouveau, driver, activation and fabric, as the roles run them."""
        results = self.tasks([
            {"gpuops.nvidia.nouveau": {}},
            {"gpuops.nvidia.gpu_driver": dict(self.driver, **driver)},
            {"gpuops.nvidia.gpu_driver_activation": {}},
            {"gpuops.nvidia.fabric_manager": {}}], check)
        assert not results[-1].get("failed"), results[-1]
        return results

    def planned(self, **driver: Any) -> Dict[str, Any]:
        """What gpu_plan answers."""
        (result,) = self.tasks([{"gpuops.nvidia.gpu_plan": {
            "nouveau": {}, "driver": dict(self.driver, **driver), "activation": {},
            "fabric": {}}}])
        assert not result.get("failed"), result
        return result

    def plan(self, **driver: Any) -> Dict[str, Any]:
        return dict(self.planned(**driver)["plan"])

    def done(self, since: int = 0) -> List[Dict[str, Any]]:
        """Steps that the journal has as done, from its line `since` on."""
        text = self.lab.ssh(self.host, ["cat", "/var/lib/gpuops/journal.jsonl"], check=False).stdout
        events = [json.loads(line) for line in text.splitlines()[since:]]
        return [event["step"] for event in events if event["event"] == "done"]

    def journal_length(self) -> int:
        return len(self.lab.ssh(self.host, ["cat", "/var/lib/gpuops/journal.jsonl"], check=False).stdout.splitlines())

    def say(self, *argv: str) -> str:
        return str(self.lab.ssh(self.host, list(argv), check=False).stdout).strip()

    def contents(self) -> Dict[str, str]:
        """{path: hash, or target of a link} of the system's files."""
        script = ('find "$@" -xdev -type f ! -name "*.pyc" -print0 | sort -zu | xargs -0 sha256sum; '
                  'find "$@" -xdev -type l -printf "-> %l  %p\\n"')
        lines = self.lab.ssh(self.host, ["sh", "-c", script, "sh", *self.system]).stdout.splitlines()
        return {path: value for value, path in (line.split("  ", 1) for line in lines)}


@pytest.fixture
def play(lab: Lab, tmp_path: Path) -> Play:
    return Play(lab, tmp_path)


def changed(results: Sequence[Mapping[str, Any]]) -> List[bool]:
    return [bool(result["changed"]) for result in results]


def different(before: Mapping[str, str], after: Mapping[str, str]) -> List[str]:
    return sorted(path for path in {*before, *after} if before.get(path) != after.get(path))


def steps_of(plan: Mapping[str, Any]) -> List[Any]:
    """The steps that are carried out: the package's own script builds the module, so that step is not needed then."""
    return [(step["id"], step["change"], step["parameters"]) for step in plan["steps"]
            if step["action"] != "dkms.build"]


@pytest.fixture(scope="module")
def delivered(lab: Lab, tmp_path_factory: pytest.TempPathFactory) -> Dict[str, str]:
    """The bare host's contents."""
    return Play(lab, tmp_path_factory.mktemp("delivered")).contents()


def test_check_mode_and_plan_change_nothing(play: Play, delivered: Dict[str, str]) -> None:
    results = play.writers(check=True)
    assert changed(results) == [True, True, False, False]
    assert [each["kind"] for each in results[2]["plan"]["requirements"]] == ["driver"]
    play.plan()
    assert different(delivered, play.contents()) == []


REFUSED: List[Tuple[Dict[str, Any], str]] = [
    ({"version": "580.1.1"}, "580.126.09, 580.178.04, 595.91.07, 610.57.04"),
    ({"version": "615", "kernel_module": "proprietary"}, "open kernel module only"),
    ({"repository_url": "http://packages.gpulab:8480/nowhere"}, "http://packages.gpulab:8480/nowhere"),
    ({"repository_key_fingerprint": "0" * 40}, "the key 0000"),
    ({"extra_packages": ["nvidia-nonsense"]}, "nvidia-nonsense"),
    ({"source": "preinstalled"}, "no kernel module"),
    ({"source": "runfile"}, "64 hexadecimal digits"),
]


def test_what_cannot_be_done_is_refused_untouched(play: Play, delivered: Dict[str, str]) -> None:
    results = play.tasks([{"gpuops.nvidia.gpu_driver": dict(play.driver, **options), "ignore_errors": True}
                          for options, _said in REFUSED])
    for result, (_options, said) in zip(results, REFUSED):
        assert result["failed"] and not result["changed"]
        assert said in result["msg"]
        assert result["found"] and result["wanted"] and result["remedy"]
    assert len(results) == len(REFUSED)
    assert different(delivered, play.contents()) == []


@pytest.mark.parametrize("host, options, said", [
    ("volta", {"kernel_module": "open"}, "proprietary module only"),
    ("volta", {"version": NEW}, "branch 580 or older"),
    ("blackwell", {"kernel_module": "proprietary"}, "open module only"),
    ("empty", {}, "no NVIDIA GPU"),
])
def test_what_the_silicon_does_not_take_is_refused(
    lab: Lab, tmp_path: Path, host: str, options: Dict[str, Any], said: str
) -> None:
    play = Play(lab, tmp_path, host)
    (result,) = play.tasks([{"gpuops.nvidia.gpu_driver": dict(play.driver, **options)}])
    assert result["failed"] and said in result["msg"]
    assert play.say("ls", "/var/lib/gpuops/journal.jsonl") == ""


def test_an_image_is_left_to_its_builder(play: Play) -> None:
    play.say("touch", "/run/ostree-booted")
    try:
        (result,) = play.tasks([{"gpuops.nvidia.gpu_driver": play.driver}])
    finally:
        play.say("rm", "/run/ostree-booted")
    assert result["failed"] and "/run/ostree-booted" in result["found"]


def test_staging_fetches_and_installs_nothing(play: Play) -> None:
    (staged,) = play.tasks([{"gpuops.nvidia.gpu_driver": dict(play.driver, state="staged")}])
    assert staged["changed"], staged
    archives = play.say("ls", "/var/cache/apt/archives")
    assert "nvidia-kernel-open-dkms_%s-1_all.deb" % OLD in archives
    assert "nvidia" not in play.say("dpkg-query", "-W", "-f", "${Package} ")
    (again,) = play.tasks([{"gpuops.nvidia.gpu_driver": dict(play.driver, state="staged")}])
    assert not again["changed"], again["text"]


def test_a_killed_transaction_is_finished_by_the_next_run(play: Play) -> None:
    """dpkg dies in the middle, and the module's process with it."""
    started = subprocess.Popen(play.command([{"gpuops.nvidia.gpu_driver": play.driver}]), env=play.environment(),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 300
    while not play.say("sh", "-c", "ls /var/lib/dpkg/info | grep -x libgcc-12-dev:amd64.list"):
        assert time.monotonic() < deadline and started.poll() is None, "the transaction never began"
        time.sleep(0.2)
    play.say("pkill", "-KILL", "-x", "dpkg")
    play.say("pkill", "-KILL", "-x", "apt-get")
    started.wait(120)
    assert play.say("dpkg", "--audit") or play.say("ls", "/var/lib/dpkg/updates")


def test_the_install_is_exactly_the_plan(play: Play) -> None:
    lines = play.journal_length()
    planned = play.plan()
    assert planned["refusals"] == []
    assert planned["disruption"] == "none"
    play.writers()
    assert [(step["id"], step["change"], step["parameters"]) for step in play.done(lines)] == steps_of(planned)
    assert play.say("cat", "/sys/module/nvidia/version") == OLD
    assert play.say("systemctl", "is-active", "nvidia-persistenced", "nvidia-fabricmanager") == "active\nactive"
    assert len(play.say("nvidia-smi", "-L").splitlines()) == 2


def test_a_converged_host_is_left_alone_without_network(play: Play) -> None:
    before = play.contents()
    play.say("sed", "-i.away", "s/packages.gpulab/packages.away/", "/etc/hosts")
    try:
        assert changed(play.writers()) == [False] * 4
    finally:
        play.say("mv", "/etc/hosts.away", "/etc/hosts")
    assert play.plan()["steps"] == []
    assert different(before, play.contents()) == []


def test_a_module_that_a_power_cut_left_empty_is_built_anew(play: Play) -> None:
    """DKMS syncs nothing: seconds after a build, a cut leaves its files empty and its own record saying installed."""
    built = "$(find /usr/lib/modules/*/updates/dkms /var/lib/dkms/nvidia -type f -name '*.ko')"
    assert play.say("sh", "-c", "truncate --size 0 %s && echo cut" % built) == "cut"
    assert changed(play.writers()) == [False, True, False, False]
    assert play.say("modinfo", "-F", "version", "nvidia") == OLD
    assert play.say("sh", "-c", "find %s -size 0" % built) == ""


AWAY_WITH_COMPILERS = "mkdir -p /root/away && mv /usr/bin/*gcc* /usr/bin/cc /usr/bin/cpp* /root/away/"
BUILT_AHEAD = "built ahead"


def test_what_is_staged_is_exchanged_without_network_and_without_a_compiler(play: Play) -> None:
    kernel = play.say("uname", "-r")
    staged = "/var/cache/gpuops/staged/" + kernel
    stage: Mapping[str, Any] = {"gpuops.nvidia.gpu_driver": dict(play.driver, version=NEW, state="staged")}
    before = play.contents()
    (checked,) = play.tasks([stage], check=True)
    assert "module.stage" in [step["action"] for step in checked["plan"]["steps"]]
    assert different(before, play.contents()) == [] and play.say("ls", staged) == ""
    (done,) = play.tasks([stage])
    assert "driver/module.stage/" + kernel in done["applied"], done
    assert play.say("cat", "/sys/module/nvidia/version") == OLD
    assert play.say("dkms", "status") == "nvidia/%s, %s, x86_64: installed" % (OLD, kernel)
    assert changed(play.tasks([stage])) == [False]
    play.say("sed", "-i.away", "s/packages.gpulab/packages.away/", "/etc/hosts")
    play.say("sh", "-c", "cp %s/modules/nvidia.ko /root/staged.ko; %s" % (staged, AWAY_WITH_COMPILERS))
    try:
        assert play.say("sh", "-c", "command -v cc gcc gcc-12") == ""
        results = play.writers(version=NEW)
        assert changed(results)[1:3] == [True, True]
    finally:
        play.say("sh", "-c", "mv /etc/hosts.away /etc/hosts; mv /root/away/* /usr/bin/")
    assert play.say("cat", "/sys/module/nvidia/version") == NEW
    assert BUILT_AHEAD in play.say("cat", "/var/lib/dkms/nvidia/%s/%s/x86_64/log/make.log" % (NEW, kernel))
    # Without the signature, which DKMS puts behind what it takes
    compare = "strip -g -o /tmp/b.ko $(modinfo -F filename nvidia); cmp /tmp/a.ko /tmp/b.ko && echo same"
    assert play.say("sh", "-c", "strip -g -o /tmp/a.ko /root/staged.ko; " + compare) == "same"
    assert play.say("modinfo", "-F", "signer", "nvidia") == "DKMS module signing key"
    assert play.say("sh", "-c", "ls -d %s /etc/dkms/nvidia*" % staged) == ""
    assert changed(play.writers(version=NEW)) == [False] * 4


@contextlib.contextmanager
def busy(play: Play) -> Iterator[None]:
    """A GPU of the host is in use."""
    # There is no kernel behind the simulated nodes: a descriptor of the path alone is all that can be had.
    hold = "import os, time; os.open('/dev/nvidia0', os.O_PATH); time.sleep(600)"
    play.say("systemd-run", "--unit", "trainer", "python3", "-c", hold)
    try:
        yield
    finally:
        play.say("systemctl", "stop", "trainer")


def test_whoever_holds_a_gpu_is_named(play: Play) -> None:
    with busy(play):
        results = play.writers(version=OLD)
        assert results[2]["reboot_required"]
        why = results[2]["plan"]["requirements"][0]["why"]
        assert "/dev/nvidia0" in why and "python3 (pid " in why and "trainer.service" in why
    play.writers(version=OLD)
    assert play.say("cat", "/sys/module/nvidia/version") == OLD


def test_a_reboot_brings_the_driver_back(play: Play) -> None:
    play.lab.reboot("gpu")
    assert changed(play.writers(version=OLD)) == [False] * 4
    assert play.say("cat", "/sys/module/nvidia/version") == OLD
    assert play.say("sh", "-c", "ls /dev/nvidia0 /dev/nvidia-uvm").splitlines() == ["/dev/nvidia-uvm", "/dev/nvidia0"]


def exchanged_as_planned(play: Play, before: str, version: str) -> None:
    lines = play.journal_length()
    planned = play.plan(version=version)
    assert planned["disruption"] == "driver_reload"
    refused = play.tasks([{"gpuops.nvidia.gpu_driver": dict(
        play.driver, version=version, allowed_disruption="service_restart")}])[0]
    assert {name.split("/")[1] for name in refused["applied"]} <= {"packages.download", "module.stage"}
    assert [step["id"] for step in refused["deferred"]] == [
        step["id"] for step in planned["steps"]
        if step["capability"] == "driver" and step["action"] not in ("packages.download", "module.stage")]
    assert play.say("cat", "/sys/module/nvidia/version") == before
    play.writers(version=version)
    # What disturbs nothing was done already by the run that was allowed no more
    expected = sorted(steps_of(planned), key=lambda step: "/packages.download/" not in step[0])
    assert [(step["id"], step["change"], step["parameters"]) for step in play.done(lines)] == expected
    assert play.say("cat", "/sys/module/nvidia/version") == version
    kernel = play.say("uname", "-r")
    assert play.say("dkms", "status") == "nvidia/%s, %s, x86_64: installed" % (version, kernel)
    assert "%s-1" % before not in play.say("dpkg-query", "-W", "-f", "${Package} ${Version}\n")
    assert changed(play.writers(version=version)) == [False] * 4


def test_the_plan_of_an_upgrade_tells_what_an_administrator_asks_of_a_busy_node(play: Play) -> None:
    """Versions, packages, what stops, whether it reboots and why, and how to go back."""
    there = [line.split() for line in play.say("dpkg-query", "-W", "-f", "${Package} ${Version}\n").splitlines()]
    packages = ["       %s: %s-1 -> %s-1" % (name, OLD, NEW) for name, version in there if version == OLD + "-1"]
    with busy(play):
        text = str(play.planned(version=NEW)["text"])
    idle = str(play.planned(version=NEW)["text"])
    for each in (text, idle):
        assert "Driver %s with the open kernel module takes the place of %s, in one transaction." % (NEW, OLD) in each
        assert len(packages) >= 5 and set(packages) <= set(each.splitlines())
        assert ("returns to: driver %s with the open kernel module of %s/, from package files on this host" % (
            OLD, REPOSITORY)) in each
    assert {"nvidia-persistenced.service", "nvidia-fabricmanager.service"} <= set(
        re.findall(r"service.stop (\S+)", idle))
    assert "module.unload nvidia\n" in idle and "reboot" not in idle
    assert re.search(r"\[reboot\] a reboot for driver 595\.91\.07\n.*python3 \(pid \d+, trainer\.service\) "
                     r"has /dev/nvidia0 open", text), text
    assert "module.unload" not in text


@pytest.mark.variation
def test_an_exchange_is_exactly_the_plan(play: Play) -> None:
    exchanged_as_planned(play, OLD, NEW)


AWAY: List[Mapping[str, Any]] = [
    {"gpuops.nvidia.fabric_manager": {"state": "absent"}},
    {"gpuops.nvidia.gpu_driver_activation": {"state": "absent"}},
    {"gpuops.nvidia.gpu_driver": {"state": "absent", "repository_url": REPOSITORY}},
    {"gpuops.nvidia.nouveau": {"state": "absent"}}]


def other_than(play: Play, delivered: Mapping[str, str]) -> List[str]:
    """Paths of what is not as it was delivered."""
    return [path for path in different(delivered, play.contents()) if not path.startswith(OWN_LEFTOVERS)]


def test_everything_goes_and_the_host_is_as_it_was(play: Play, delivered: Dict[str, str]) -> None:
    assert changed(play.tasks(AWAY)) == [True] * 4
    assert changed(play.tasks(AWAY)) == [False] * 4
    assert other_than(play, delivered) == []
    assert "nvidia" not in play.say("ls", "/var/lib/apt/lists")


@pytest.mark.variation
def test_a_driver_that_does_not_build_is_named_and_can_go(play: Play, delivered: Dict[str, str]) -> None:
    broken = dict(play.driver, version="580.999.99", repository_url=BROKEN)
    (result,) = play.tasks([{"gpuops.nvidia.gpu_driver": broken}])
    assert result["failed"] and "driver 580.999.99" in result["wanted"]
    (again,) = play.tasks([{"gpuops.nvidia.gpu_driver": broken}])
    assert again["failed"] and "this driver does not compile" in again["msg"]
    (away,) = play.tasks([{"gpuops.nvidia.gpu_driver": {"state": "absent", "repository_url": BROKEN}}])
    assert away["changed"] and not away.get("failed"), away
    assert play.say("dpkg", "--audit") == ""
    assert other_than(play, delivered) == []


@pytest.mark.variation
def test_a_guest_gets_its_driver_and_its_license(lab: Lab, tmp_path: Path) -> None:
    guest = Play(lab, tmp_path, "guest")
    before = guest.contents()
    refused = guest.tasks([{"gpuops.nvidia.gpu_driver": guest.driver}])[0]
    assert refused["code"] == "driver.guest_of_vgpu" and "580.126" in refused["found"]
    token = "eyJhbGciOiJS.dGhlLXNlY3JldA.bGljZW5zZQ"
    bring: List[Mapping[str, Any]] = [
        {"gpuops.nvidia.nouveau": {}},
        {"gpuops.nvidia.gpu_driver": {"source": "local_repository", "version": OLD, "repository_url": GRID,
                                      "repository_key": GRID + "/gpulab.pub"}},
        {"gpuops.nvidia.gpu_driver_activation": {}},
        {"gpuops.nvidia.vgpu_license": {"token": token, "timeout": 10}}]
    results = guest.tasks(bring)
    assert not any(result.get("failed") for result in results), results[-1]
    assert [step.split("/")[1] for step in results[3]["applied"]] == [
        "token.write", "file.write", "service.enable", "service.start", "license.wait"]
    assert guest.say("nvidia-smi", "-L").startswith("GPU 0: GRID T4-16C")
    assert token not in json.dumps(results)
    assert guest.say("stat", "-c", "%a %U", "/etc/nvidia/ClientConfigToken/client_configuration_token_gpuops.tok") \
        == "600 root"
    assert changed(guest.tasks(bring)) == [False] * 4
    planned = guest.tasks([{"gpuops.nvidia.gpu_plan": {"vgpu": {"token": token[::-1]}}}])[0]
    assert [step["action"] for step in planned["plan"]["steps"]] == ["token.write", "service.restart", "license.wait"]
    assert token[::-1] not in json.dumps(planned)
    lab.reboot("guest")
    assert changed(guest.tasks(bring)) == [False] * 4
    unknown = guest.tasks([{"gpuops.nvidia.vgpu_license": {"token": "x" + token, "timeout": 2}}])[0]
    assert unknown["code"] == "vgpu.unlicensed" and "no answer from the server" in unknown["found"]
    guest.tasks([{"gpuops.nvidia.vgpu_license": {"state": "absent"}}, *AWAY[1:2], {"gpuops.nvidia.gpu_driver": {
        "state": "absent", "source": "local_repository", "repository_url": GRID,
        "repository_key": GRID + "/gpulab.pub"}}, AWAY[3]])
    assert other_than(guest, before) == []


@pytest.mark.variation
def test_an_upgrade_without_staging_is_exactly_the_plan(play: Play) -> None:
    play.writers(version=OLD)
    exchanged_as_planned(play, OLD, NEW)


# In the build's own make, once: the build is in the midst of it, however fast it is
KILLS = "#!/bin/sh\nrm /usr/local/bin/make\nkill -KILL %s $(pgrep -x dkms)\nexit 1\n"
THE_MODULE = r"""$(sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' /run/gpuops/lock.json)"""


@pytest.mark.variation
def test_a_staging_that_is_killed_or_torn_is_never_used(play: Play) -> None:
    """dkms dies, alone and with the module; then a module is torn under a staging that was whole."""
    play.writers(version=NEW)
    kernel = play.say("uname", "-r")
    staged = "/var/cache/gpuops/staged/" + kernel
    stage: Mapping[str, Any] = {"gpuops.nvidia.gpu_driver": dict(play.driver, version=OLD, state="staged")}

    def killed(more: str) -> Dict[str, Any]:
        play.say("sh", "-c", 'printf %s "$1" > /usr/local/bin/make; chmod 755 /usr/local/bin/make', "sh", KILLS % more)
        (result,) = play.tasks([stage])
        assert play.say("ls", "/usr/local/bin/make") == "" and play.say("ls", staged + "/stage.json") == ""
        assert result.get("failed"), result
        return result

    assert "signal 9" in killed("")["msg"]
    assert "signal 9" not in killed(THE_MODULE)["msg"]
    assert changed(play.tasks([stage])) == [True] and changed(play.tasks([stage])) == [False]
    play.say("sh", "-c", "truncate --size 100 %s/modules/nvidia-uvm.ko" % staged)
    assert "module.stage" in [step["action"] for step in play.plan(version=OLD)["steps"]]
    play.writers(version=OLD)
    assert play.say("cat", "/sys/module/nvidia/version") == OLD
    assert BUILT_AHEAD in play.say("cat", "/var/lib/dkms/nvidia/%s/%s/x86_64/log/make.log" % (OLD, kernel))
    assert play.say("sh", "-c", "ls -d %s /etc/dkms/nvidia*" % staged) == ""
