# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The container runtime of real hosts in a cluster: pods go on, a user's settings stay, a broken change is undone."""
from __future__ import annotations

import json
import os
import shutil
import subprocess
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional

import command_count
import pytest
from laboratory import developer, new_lab
from workspace import collections_root, venv

from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime import toml
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.containerd import judge
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.libraries import archive
from gpulab.lab import Lab
from gpulab.topology import parse

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="boots hosts: needs root")

HOSTS = {"c16": "debian", "c17": "1.7", "c23": "2.3"}
EVERY_HOST = pytest.mark.parametrize("host", [
    *(pytest.param(host, marks=pytest.mark.variation) for host in ("c16", "c17")), "c23"])
# Marked lines in the user's file, and a file of our own beside it
BOTH_WAYS = ("c16", "c23")
EITHER_WAY = pytest.mark.parametrize("host", [pytest.param("c16", marks=pytest.mark.variation), "c23"])
ROOT = "/etc/containerd/config.toml"
PACKAGES = "http://packages.gpulab:8480/libnvidia-container"
TOOLKIT = {"repository_url": PACKAGES + "/stable/deb/$(ARCH)", "repository_key": PACKAGES + "/gpgkey"}
SLEEPER = {
    "apiVersion": "v1", "kind": "Pod", "metadata": {"name": ""},
    "spec": {"nodeName": "", "restartPolicy": "Never", "terminationGracePeriodSeconds": 0,
             "containers": [{"name": "c", "image": "docker.io/library/gpulab-tools:1",
                             "command": ["sleep", "100000"]}]},
}
# A person's additions to what the host was delivered with
ADDED = """
# Private registry of the machine room; the password is rotated by hand.
[%(images)s.registry.configs."r.example".auth]
  username = "robot"
  password = "s3cret"   # monthly

[%(runtime)s.containerd.runtimes.gvisor]
  runtime_type = "io.containerd.runsc.v1" # sandboxed tenants
"""


class World:
    """The laboratory and the collection's modules on its hosts."""

    def __init__(self, lab: Lab, directory: Path) -> None:
        self.lab = lab
        self.directory = directory

    def module(
        self, host: str, name: str, check: bool = False, environment: Optional[Mapping[str, str]] = None, **options: Any
    ) -> Dict[str, Any]:
        """Result of a module on a host."""
        tasks = [{"gpuops.nvidia." + name: options, "environment": dict(environment or {})}]
        book = self.directory / "play.json"
        book.write_text(json.dumps([{"hosts": host, "gather_facts": False, "tasks": tasks}]))
        done = subprocess.run(
            [str(venv() / "bin" / "ansible-playbook"), "-i", str(self.lab.inventory), str(book),
             *(["--check"] if check else []), "--diff"],
            env=dict(os.environ, ANSIBLE_COLLECTIONS_PATH="%s:%s" % (collections_root(), developer().collections),
                     ANSIBLE_STDOUT_CALLBACK="ansible.posix.json", ANSIBLE_PIPELINING="true",
                     ANSIBLE_HOME=str(self.directory)),
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
        )
        try:
            return dict(json.loads(done.stdout)["plays"][0]["tasks"][0]["hosts"][host])
        except (ValueError, IndexError):
            raise AssertionError(done.stdout + done.stderr) from None

    def runtime(self, host: str, check: bool = False, **options: Any) -> Dict[str, Any]:
        result = self.module(host, "container_runtime", check, **options)
        assert not result.get("failed"), result
        return result

    def say(self, host: str, *argv: str) -> str:
        return str(self.lab.ssh(host, list(argv), check=False).stdout)

    def files(self, host: str) -> Dict[str, str]:
        """{path: mode, owner and hash} below /etc."""
        owners = self.say(host, "find", "/etc", "-xdev", "-type", "f", "-printf", "%p  %m %U %G\\n")
        hashes = self.say(host, "find", "/etc", "-xdev", "-type", "f", "-exec", "sha256sum", "{}", "+")
        found = dict(line.split("  ", 1) for line in owners.splitlines())
        return {path: "%s %s" % (found[path], digest)
                for digest, path in (line.split("  ", 1) for line in hashes.splitlines())}

    def effective(self, host: str) -> Dict[str, Any]:
        dumped = toml.parse(host, self.say(host, "sh", "-c", "containerd config dump 2>/dev/null"))
        dumped.pop("imports")
        return dumped

    def daemon(self, host: str) -> str:
        return self.say(host, "systemctl", "show", "containerd", "--property", "MainPID").strip()

    def ready(self, host: str) -> bool:
        return self.say(host, "ctr", "version") != "" and "error" not in self.say(host, "ctr", "plugins", "ls", "-d")

    def restore(self, host: str) -> None:
        """What we did goes, whatever state a test left."""
        self.say(host, "sh", "-c", "test ! -e /root/delivered.toml || cp -p /root/delivered.toml " + ROOT)
        self.say(host, "sh", "-c", "rm -rf /etc/systemd/system/containerd.service.d /etc/containerd/conf.d "
                                   "/var/lib/gpuops; systemctl daemon-reload; systemctl restart containerd")


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    lab = new_lab("runtimetest")
    lab.up(parse({"name": "runtimes", "control_plane": True, "hosts": [
        {"name": name, "board": "l40s", "gpus": 1, "containerd": version} for name, version in HOSTS.items()
    ]}, "test_container_runtime.py"))
    for name in HOSTS:
        lab.ssh(name, ["cp", "-p", ROOT, "/root/delivered.toml"])
    yield lab
    lab.down()


@pytest.fixture
def world(lab: Lab, tmp_path: Path) -> Iterator[World]:
    world = World(lab, tmp_path)
    yield world


@pytest.fixture
def clean(world: World, request: pytest.FixtureRequest) -> Iterator[World]:
    """The world, and the host as delivered, before and after."""
    host = request.getfixturevalue("host")
    world.restore(host)
    yield world
    world.restore(host)


def handlers_apart(before: Dict[str, Any], after: Dict[str, Any]) -> List[str]:
    """What differs between two effective configurations, the handler nvidia and its CDI switch left out."""
    return [
        ".".join(path) for path, _old, _new in judge.differences(before, after)
        if path[2:5] != ("containerd", "runtimes", "nvidia") and path[2:] != ("enable_cdi",)
    ]


def user_text(world: World, host: str) -> str:
    new = HOSTS[host].startswith("2")
    names = {
        "images": "plugins.'io.containerd.cri.v1.images'" if new else 'plugins."io.containerd.grpc.v1.cri"',
        "runtime": "plugins.'io.containerd.cri.v1.runtime'" if new else 'plugins."io.containerd.grpc.v1.cri"',
    }
    text = world.say(host, "cat", ROOT)
    # Tests of registries: the old way of credentials excludes config_path
    lines = [line for line in text.split("\n") if "config_path" not in line and "registry]" not in line]
    return "\n".join(lines) + ADDED % names


def put(world: World, host: str, text: str, mode: str = "0600") -> None:
    world.say(host, "sh", "-c", "cat > %s <<'END'\n%s\nEND\nchmod %s %s" % (ROOT, text, mode, ROOT))
    world.say(host, "systemctl", "restart", "containerd")


@EITHER_WAY
def test_a_users_settings_stay_and_come_back(clean: World, host: str) -> None:
    put(clean, host, user_text(clean, host))
    files, before = clean.files(host), clean.effective(host)

    planned = clean.runtime(host, check=True)
    assert clean.files(host) == files
    done = clean.runtime(host)
    assert done["plan"]["steps"] == planned["plan"]["steps"]
    assert "s3cret" not in json.dumps(planned) + json.dumps(done)

    after = clean.effective(host)
    assert handlers_apart(before, after) == []
    assert judge.differences(before, after) != []
    assert clean.ready(host)
    now = clean.files(host)
    changed = {path for path in now if now[path] != files.get(path)}
    assert changed <= {ROOT, "/etc/containerd/conf.d/99-gpuops-nvidia.toml"}
    for path in changed:
        assert clean.say(host, "stat", "-c", "%a %u %g", path).strip() == "600 0 0"
    assert "s3cret" not in clean.say(host, "sh", "-c", "cat /etc/containerd/conf.d/* /var/lib/gpuops/journal.jsonl")

    clean.runtime(host, state="absent")
    assert clean.files(host) == files
    assert clean.effective(host) == before
    assert clean.ready(host)
    assert clean.runtime(host, state="absent")["changed"] is False


@EITHER_WAY
def test_a_converged_host_costs_no_command_and_no_restart(clean: World, host: str) -> None:
    watched = command_count.watch(clean.lab, host)
    assert clean.runtime(host, environment=watched)["changed"]
    words = [" ".join(argv) for argv in command_count.commands(clean.lab, host)]
    assert sum(line.endswith("config dump") for line in words) == 3
    assert [line for line in words if line.startswith("systemctl")] == ["systemctl restart containerd.service"]
    daemon = clean.daemon(host)
    for _again in range(2):
        assert clean.runtime(host, environment=watched)["changed"] is False
        assert command_count.commands(clean.lab, host) == []
        assert clean.daemon(host) == daemon
        # A later edit that changes nothing of ours, such as a comment, asks for no command either
        clean.say(host, "sh", "-c", "echo '# seen' >> " + ROOT)


def kill_runs(world: World, host: str) -> Dict[str, Any]:
    """What becomes of runs on a host that are killed before each of their changes."""
    there = Path("/proc/%d/root/root/kills" % (world.lab.host(host).init_pid or 0))
    inner = Path("ansible_collections", "gpuops", "nvidia", "plugins", "module_utils")
    shutil.copytree(collections_root() / inner, there / inner, ignore=shutil.ignore_patterns("__pycache__"))
    (there / "libraries.zip").write_bytes(archive()[0])
    shutil.copy(Path(__file__).parent / "runtime_kills.py", there)
    # So many restarts in a row are no fault here
    world.say(host, "sh", "-c", "mkdir -p /etc/systemd/system/containerd.service.d; printf '[Unit]\\n"
                                "StartLimitIntervalSec=0\\n' > /etc/systemd/system/containerd.service.d/limit.conf; "
                                "systemctl daemon-reload")
    root = world.say(host, "cat", ROOT)
    foreign = "%s[%s.containerd.runtimes.nvidia]\nruntime_type = 'io.containerd.runc.v2'\n" \
              "[%s.containerd.runtimes.nvidia.options]\nBinaryName = '/opt/old' # theirs\n"
    if HOSTS[host].startswith("2"):
        table = "plugins.'io.containerd.cri.v1.runtime'"
        files = {ROOT: root.replace("version = 3\n", "version = 3\nimports = ['/etc/containerd/site.toml']\n", 1),
                 "/etc/containerd/site.toml": foreign % ("version = 3\n", table, table)}
    else:
        table = 'plugins."io.containerd.grpc.v1.cri"'
        files = {ROOT: foreign % (root, table, table)}
    options = {"adopt": True, "default_handler": True, "handlers": {"nvidia-cdi": ""}}
    done = world.lab.host(host).ssh(["python3", "/root/kills/runtime_kills.py"],
                                    feed=json.dumps({"files": files, "options": options}))
    return dict(json.loads(done.stdout))


@pytest.mark.variation
def test_killed_before_any_change_containerd_starts_and_the_next_run_completes(world: World) -> None:
    for host in BOTH_WAYS:
        world.restore(host)
    try:
        with ThreadPoolExecutor(len(BOTH_WAYS)) as pool:
            found = dict(zip(BOTH_WAYS, pool.map(lambda host: kill_runs(world, host), BOTH_WAYS)))
    finally:
        for host in BOTH_WAYS:
            world.restore(host)
            world.say(host, "rm", "-f", "/etc/containerd/site.toml")
    for host, told in found.items():
        assert told["faults"] == [], host
        assert min(told["changes"].values()) >= 8, host


@pytest.mark.parametrize("host", ["c23"])
def test_what_the_host_does_not_allow_is_refused_untouched(clean: World, host: str) -> None:
    directory = os.path.dirname(ROOT)
    template = "printf '{{ template \"base\" . }}\\n' >> " + ROOT
    for prepare, undo, told in (
        ("systemctl stop containerd", "systemctl start containerd", "containerd.service is not running"),
        ("mount --bind %s %s; mount -o remount,bind,ro %s" % (directory, directory, directory), "umount " + directory,
         ROOT + " lies on a file system that is mounted read-only"),
        (template, "true", "' belongs to a Go template"),
    ):
        clean.say(host, "sh", "-c", prepare)
        files, daemon = clean.files(host), clean.daemon(host)
        result = clean.module(host, "container_runtime")
        assert result["failed"] and told in result["found"], prepare
        assert result["remedy"]
        assert (clean.files(host), clean.daemon(host)) == (files, daemon)
        clean.say(host, "sh", "-c", undo)


@EITHER_WAY
def test_a_broken_file_is_refused_untouched_with_its_line(clean: World, host: str) -> None:
    text = clean.say(host, "cat", ROOT)
    clean.say(host, "sh", "-c", "printf '[broken\\n' >> %s" % ROOT)
    files, daemon = clean.files(host), clean.daemon(host)
    for check in (True, False):
        result = clean.module(host, "container_runtime", check)
        assert result["failed"]
        assert "%s:%d: " % (ROOT, text.count("\n") + 1) in result["msg"]
        assert result["remedy"]
    assert (clean.files(host), clean.daemon(host)) == (files, daemon)


@EVERY_HOST
def test_a_pod_goes_on_through_the_restart(clean: World, host: str) -> None:
    pod = json.loads(json.dumps(SLEEPER))
    pod["metadata"]["name"], pod["spec"]["nodeName"] = "stays-" + host, host
    clean.lab.kubectl(["apply", "-f", "-"], feed=json.dumps(pod))
    clean.lab.kubectl(["wait", "--for=condition=Ready", "pod/stays-" + host, "--timeout=60s"])
    processes = clean.say(host, "pgrep", "-f", "sleep 100000")
    daemon = clean.daemon(host)
    clean.runtime(host)
    assert clean.daemon(host) != daemon
    assert clean.say(host, "pgrep", "-f", "sleep 100000") == processes != ""
    status = clean.lab.kubectl(["get", "pod", "stays-" + host, "-o", "json"]).stdout
    assert [each["restartCount"] for each in json.loads(status)["status"]["containerStatuses"]] == [0]
    clean.lab.kubectl(["delete", "pod", "stays-" + host, "--wait=false"])


@pytest.mark.variation
@EITHER_WAY
def test_a_restart_that_was_put_off_is_remembered(clean: World, host: str) -> None:
    daemon = clean.daemon(host)
    result = clean.runtime(host, allowed_disruption="service_restart")
    assert [step["action"] for step in result["deferred"]] == ["runtime.restart"]
    assert clean.daemon(host) == daemon
    again = clean.runtime(host)
    assert again["applied"] == ["runtime/runtime.restart/containerd.service"]
    assert clean.daemon(host) != daemon


@EITHER_WAY
def test_a_runtime_that_does_not_come_up_gets_its_files_back(clean: World, host: str) -> None:
    clean.say(host, "sh", "-c", "mkdir -p /etc/systemd/system/containerd.service.d; printf '%s\\n' '[Service]' "
                                "\"ExecStartPre=/bin/sh -c '! grep -rq nvidia-container-runtime /etc/containerd'\" "
                                "> /etc/systemd/system/containerd.service.d/trap.conf; systemctl daemon-reload")
    files = clean.files(host)
    result = clean.module(host, "container_runtime")
    assert result["failed"]
    assert "the files were put back and containerd is up again" in result["remedy"]
    assert clean.files(host) == files
    deadline = time.monotonic() + 20
    while not clean.ready(host) and time.monotonic() < deadline:
        time.sleep(1)
    assert clean.ready(host)


@pytest.mark.variation
@EITHER_WAY
def test_the_toolkit_comes_configured_and_goes_without_a_trace(clean: World, host: str) -> None:
    files = clean.files(host)
    planned = clean.module(host, "container_toolkit", check=True, **TOOLKIT)
    assert clean.files(host) == files
    done = clean.module(host, "container_toolkit", **TOOLKIT)
    assert not done.get("failed"), done
    assert done["plan"]["steps"] == planned["plan"]["steps"]
    assert done["applied"] == [step["id"] for step in planned["plan"]["steps"]]
    settings = clean.say(host, "cat", "/etc/nvidia-container-runtime/config.toml")
    assert 'mode = "cdi"' in settings
    assert "accept-nvidia-visible-devices-envvar-when-unprivileged = false" in settings
    assert "1.20.1" in clean.say(host, "nvidia-ctk", "--version")
    assert clean.module(host, "container_toolkit", **TOOLKIT)["changed"] is False

    for options, told in (
        ({"version": "1.18.0"}, "CVE-2026-24260"),
        ({"version": "1.18.0", "allow_vulnerable": True}, "which is older"),
        ({"version": "1.99.0"}, "1.20.1-1, 1.18.0-1"),
        ({"version": "1.99.0", "repository_url": "http://127.0.0.1:9/deb"}, "http://127.0.0.1:9/deb"),
    ):
        refused = clean.module(host, "container_toolkit", **{**TOOLKIT, **options})
        assert refused["failed"]
        assert told in refused["msg"]

    gone = clean.module(host, "container_toolkit", state="absent")
    assert not gone.get("failed"), gone
    assert {path: line for path, line in clean.files(host).items() if "/etc/ld.so.cache" not in path} == {
        path: line for path, line in files.items() if "/etc/ld.so.cache" not in path
    }
    assert clean.say(host, "dpkg-query", "-W", "nvidia-container*", "libnvidia-container*").strip() == ""
