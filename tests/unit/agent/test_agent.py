# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The agent on a scratch root: what is brought is whole and private, comes back after every kill, and goes."""
from __future__ import annotations

import hashlib
import io
import json
import os
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Dict, List

import gpu_hosts
import pytest
import yaml
from documentation import example
from workspace import REPOSITORY

from ansible_collections.gpuops.nvidia.plugins.module_utils import registry, shipped
from ansible_collections.gpuops.nvidia.plugins.module_utils.agent import detector, telling, watch
from ansible_collections.gpuops.nvidia.plugins.module_utils.agent.capability import CAPABILITY
from ansible_collections.gpuops.nvidia.plugins.module_utils.agent.observation import DIRECTORY, command_text
from ansible_collections.gpuops.nvidia.plugins.module_utils.agent.policy import (
    ARGUMENTS,
    POLICY_FILE,
    options_in,
    policy_of,
    text_of,
)
from ansible_collections.gpuops.nvidia.plugins.module_utils.cluster import startup_taint
from ansible_collections.gpuops.nvidia.plugins.module_utils.core import boot_record
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.capability import Run
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.health import state as health
from ansible_collections.gpuops.nvidia.plugins.module_utils.health.problems import CONDITIONS, PLUGIN
from ansible_collections.gpuops.nvidia.plugins.plugin_utils.libraries import archive as made

DOCS = REPOSITORY / "docs"
COMMAND = str(ARGUMENTS["command"]["default"])
SECRET = "hunter2hunter2"
POLICY = {"driver": {"repository_url": "https://user:%s@mirror.example" % SECRET, "version": "580"},
          "vgpu": {"token": SECRET[::-1]}, "validation": {"expected_gpus": 8}}


class Killed(BaseException):
    pass


@pytest.fixture
def archive(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """What the action plugin has shipped to every host of the test: one module, for all of them take time to compile.
    """
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as written:
        written.writestr("a.py", "A = %r\n" % ("a" * 9000))
    return sent(tmp_path, packed.getvalue(), monkeypatch)


def sent(directory: Path, content: bytes, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = directory / (hashlib.sha256(content).hexdigest()[:20] + ".zip")
    path.write_bytes(content)
    monkeypatch.setenv(shipped.VARIABLE, "/sent/" + path.name)
    return path


def host_with(root: Path, archive: Path) -> Host:
    (root / "sent").mkdir(parents=True)
    (root / "sent" / archive.name).write_bytes(archive.read_bytes())
    return Host(str(root))


@pytest.fixture
def host(tmp_path: Path, archive: Path) -> Host:
    return host_with(tmp_path / "root", archive)


def given(**options: Any) -> Dict[str, Any]:
    return {**{name: option.get("default") for name, option in ARGUMENTS.items()}, "policy": json.dumps(POLICY),
            **options}


def run(host: Host, **options: Any) -> Run:
    return Run(CAPABILITY, given(**options), host, lambda _host: gpu_hosts.facts(gpu_hosts.A100))


def files(host: Host) -> List[str]:
    root = Path(host.path("/"))
    return sorted("/%s" % path.relative_to(root) for path in root.rglob("*") if path.is_file())


def ours(host: Host) -> List[str]:
    """Beside the journal's own, and what was sent."""
    others = ("/sent/", "/var/lib/gpuops/")
    return [name for name in files(host) if not name.startswith(others) or name.startswith(DIRECTORY)]


def test_code_policy_and_command_come_and_go(host: Host, archive: Path) -> None:
    applied = run(host).apply().applied
    assert [step.split("/")[1] for step in applied] == ["agent.install", "agent.policy", "file.write"]
    there = "%s/%s" % (DIRECTORY, archive.name)
    assert ours(host) == sorted([COMMAND, POLICY_FILE, there, shipped.compiled(there)])
    assert (host.mode(COMMAND), host.mode(POLICY_FILE), host.mode(DIRECTORY)) == (0o755, 0o600, 0o700)
    assert run(host).apply().applied == []
    run(host, state="absent").apply()
    assert ours(host) == [] and not host.exists(DIRECTORY) and not host.exists("/etc/gpuops")
    assert run(host, state="absent").apply().applied == []


def test_what_was_found_of_the_hosts_health_goes_with_it(host: Host, archive: Path) -> None:
    run(host).apply()
    host.write(health.KEPT, "{}")
    host.write(health.SUMMARY, "{}")
    boot_record.end(host, boot_record.begin(host), boot_record.FAILED, "GPU 3 is ill")
    run(host, state="absent").apply()
    assert not any(map(host.exists, (health.KEPT, health.PUBLIC, boot_record.PATH)))
    assert run(host, state="absent").apply().applied == []


def test_without_an_agent_what_was_found_is_of_who_looks_and_repairs(host: Host, archive: Path) -> None:
    host.write(health.KEPT, "{}")
    host.write(health.SUMMARY, "{}")
    assert run(host, state="absent").apply().applied == []
    assert host.exists(health.KEPT) and host.exists(health.SUMMARY)


def test_what_node_problem_detector_needs_comes_and_goes(host: Host, archive: Path) -> None:
    run(host, problem_detector=True).apply()
    names = [json.loads(str(host.read(path)))["conditions"][0]["type"] for path in detector.FILES if path != PLUGIN]
    assert sorted(names) == sorted(CONDITIONS)
    assert [host.mode(path) for path in detector.FILES] == [
        0o755 if path == PLUGIN else 0o644 for path in detector.FILES]
    assert run(host, problem_detector=True).apply().applied == []
    run(host).apply()
    assert not any(map(host.exists, (*detector.FILES, detector.DIRECTORY, os.path.dirname(PLUGIN))))
    run(host, problem_detector=True).apply()
    run(host, state="absent").apply()
    assert ours(host) == [] and not host.exists("/etc/gpuops")


def test_what_a_pod_mounts_for_the_detector_holds_nothing_else(host: Host, archive: Path) -> None:
    run(host, problem_detector=True).apply()
    for directory in (detector.DIRECTORY, os.path.dirname(PLUGIN)):
        assert ["%s/%s" % (directory, name) for name in host.list(directory)] == [
            path for path in detector.FILES if os.path.dirname(path) == directory]


def test_the_pages_start_a_detector_with_what_a_host_has() -> None:
    """In a pod, every directory is there under its own name, and can only be read."""
    *_others, daemon_set = yaml.safe_load((DOCS / "node-problem-detector.yaml").read_text())["items"]
    pod = daemon_set["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    flags = ["--config.custom-plugin-monitor=" + path for path in detector.FILES if path != PLUGIN]
    assert set(flags) <= set(container["command"])
    assert all(flag in (DOCS / "health.md").read_text() for flag in flags)
    paths = {each["name"]: each["hostPath"]["path"] for each in pod["volumes"]}
    mounts = {each["mountPath"]: each for each in container["volumeMounts"]}
    assert sorted(mounts) == sorted({os.path.dirname(path) for path in (*detector.FILES, health.CONDITIONS)})
    assert all(paths[each["name"]] == path and each["readOnly"] for path, each in mounts.items())


def test_the_start_up_taint_of_the_page_is_one_that_the_collection_tolerates_and_takes_off() -> None:
    """By the prefix that cluster-autoscaler knows (cluster-autoscaler/utils/taints)."""
    page = (DOCS / "agent.md").read_text()
    [(key, value)] = re.findall(r'`(startup-taint\.cluster-autoscaler\.kubernetes\.io/\S+): "(\S+)"`', page)
    assert value == ":" + startup_taint.EFFECT
    assert startup_taint.tolerations(key) == [{"key": key, "operator": "Exists"}]
    assert startup_taint.without_taint([{"key": key, "value": "", "effect": startup_taint.EFFECT}], key) == []


def test_the_page_has_a_token_made_for_the_account_of_the_example_and_puts_it_where_the_kubeconfig_looks() -> None:
    items = yaml.safe_load((DOCS / "node-agent-token.yaml").read_text())["items"]
    account = next(item["metadata"] for item in items if item["kind"] == "ServiceAccount")
    [play] = example("agent.md", "--bound-object-kind=Node")
    made, brought = play["tasks"]
    words = made["ansible.builtin.command"]["argv"]
    assert words[:4] == ["kubectl", "create", "token", account["name"]]
    assert "--namespace=" + account["namespace"] in words and "--bound-object-kind=Node" in words
    assert made["no_log"] and brought["no_log"]
    config = example("agent.md", "tokenFile")
    placed = brought["ansible.builtin.copy"]
    assert placed["mode"] == "0600" and os.path.basename(placed["dest"]) == config["users"][0]["user"]["tokenFile"]
    [path] = re.findall(r"^# (\S+), with node_agent_kubeconfig: \1$", (DOCS / "agent.md").read_text(), re.MULTILINE)
    assert os.path.dirname(path) == os.path.dirname(placed["dest"])
    user = "system:serviceaccount:%(namespace)s:%(name)s" % account
    policy = next(item for item in items if item["kind"] == "ValidatingAdmissionPolicy")
    assert policy["spec"]["matchConditions"][0]["expression"] == "request.userInfo.username == '%s'" % user


def test_what_a_host_has_said_of_itself_is_taken_back(
    host: Host, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When it is to say nothing any more, and when it goes; an API server that does not answer is asked again."""
    asked: List[str] = []

    def take_back(there: Host) -> None:
        asked.append("asked")
        if len(asked) == 1:
            raise GpuOpsError("agent.of_a_test", "no answer", "one", "see")
        there.remove(telling.SAID)

    monkeypatch.setattr(telling, "take_back", take_back)
    for options in ({}, {"state": "absent"}):
        run(host, node_condition="cordon").apply()
        host.write(telling.SAID, json.dumps({"schema": 1, "nodes": [{"node": "gpu-1", "kubeconfig": "/etc/k", "server": "https://k"}]}))
        assert run(host, node_condition="cordon").apply().applied == []
        if not asked:
            with pytest.raises(GpuOpsError):
                run(host, **options).apply()
        assert "agent/agent.untell/gpu-1" in run(host, **options).apply().applied
        assert run(host, **options).apply().applied == []


@pytest.mark.parametrize("text", ["", "{", "[]", "null"])
def test_a_note_of_what_was_said_that_is_not_whole_is_cleared_away(host: Host, archive: Path, text: str) -> None:
    run(host).apply()
    host.write(telling.SAID, text)
    assert run(host).apply().applied == ["agent/agent.untell/?"]
    assert not host.exists(telling.SAID)


@dataclass
class Systemd:
    """What it is asked for, and what it has of the unit that watches. fails: whether that does not come up."""

    host: Host
    asked: List[str] = field(default_factory=list)
    state: str = "inactive"
    fails: bool = False

    def unit(self, name: str) -> Dict[str, str]:
        return {"ActiveState": self.state, "MainPID": str(os.getpid())} if name == watch.UNIT else {}

    def systemctl(self, *words: str) -> None:
        self.asked.append(" ".join(words))
        if words[0] in ("start", "restart") and not self.fails:
            self.watches(os.path.basename(os.environ[shipped.VARIABLE]))
        elif words[0] == "stop":
            self.state = "inactive"
        elif words[0] == "enable":
            self.host.make_link(watch.WANTS, watch.UNIT_FILE)
        elif words[0] == "disable":
            self.host.remove(watch.WANTS)

    def watches(self, code: str) -> None:
        pid = os.getpid()
        self.state = "active"
        self.host.write(watch.LOCK, watch.Watcher(code, pid, self.host.process_started(pid), self.host.boot()).text)


@pytest.fixture
def systemd(host: Host, monkeypatch: pytest.MonkeyPatch) -> Systemd:
    found = Systemd(host)
    monkeypatch.setattr(Host, "unit", lambda _host, name: found.unit(name))
    monkeypatch.setattr(Host, "systemctl", lambda _host, *words: found.systemctl(*words))
    return found


def test_what_watches_comes_is_started_anew_with_each_release_and_goes(
    host: Host, systemd: Systemd, monkeypatch: pytest.MonkeyPatch
) -> None:
    run(host, watch=True).apply()
    assert systemd.asked == ["enable --no-reload " + watch.UNIT, "start " + watch.UNIT]
    assert run(host, watch=True).apply().applied == []
    systemd.watches("0" * 20 + ".zip")
    assert run(host, watch=True).apply().applied == ["agent/service.restart/" + watch.UNIT]
    assert run(host, watch=True, watch_listen="127.0.0.1:9836").apply().applied == [
        "agent/agent.policy/" + POLICY_FILE]
    del systemd.asked[:]
    run(host).apply()
    assert systemd.asked == ["disable --no-reload " + watch.UNIT, "stop " + watch.UNIT]
    assert not any(map(host.exists, watch.FILES))
    run(host, watch=True).apply()
    run(host, state="absent").apply()
    assert ours(host) == [] and systemd.state == "inactive"


def test_what_somebody_else_watches_is_not_watched_by_the_unit(host: Host, systemd: Systemd) -> None:
    run(host, watch=True).apply()
    lock = json.loads(str(host.read(watch.LOCK)))
    host.write(watch.LOCK, json.dumps({**lock, "pid": 1, "started": host.process_started(1)}))
    assert run(host, watch=True).preview().applied == ["agent/service.restart/" + watch.UNIT]


def test_a_unit_that_does_not_watch_is_an_error(host: Host, systemd: Systemd) -> None:
    systemd.fails = True
    with pytest.raises(GpuOpsError) as caught:
        run(host, watch=True).apply()
    assert caught.value.code == "host.step_without_effect"


def test_the_policy_is_in_its_file_alone(host: Host, archive: Path) -> None:
    told = json.dumps(run(host).preview().plan.to_dict()) + json.dumps(run(host).preview().plan.diff())
    told += json.dumps(run(host).apply().plan.to_dict())
    told += json.dumps(run(host, policy=json.dumps({"mig": {}})).preview().plan.to_dict())
    told += json.dumps(run(host, state="absent").preview().plan.to_dict())
    assert SECRET not in told and SECRET[::-1] not in told
    assert [name for name in files(host) if SECRET.encode() in (host.read_bytes(name) or b"")] == [POLICY_FILE]
    assert SECRET not in repr(policy_of(given()))


def test_a_change_of_a_secret_alone_reaches_the_host(host: Host, archive: Path) -> None:
    run(host).apply()
    assert [step.split("/")[1] for step in run(
        host, policy=json.dumps({**POLICY, "vgpu": {"token": "other"}})).apply().applied] == ["agent.policy"]
    assert "other" in str(host.read(POLICY_FILE))


def test_a_policy_that_others_may_read_is_written_anew(host: Host, archive: Path) -> None:
    run(host).apply()
    Path(host.path(POLICY_FILE)).chmod(0o644)
    assert len(run(host).apply().applied) == 1
    assert host.mode(POLICY_FILE) == 0o600


@pytest.mark.parametrize("damage", ["cut", "other", "gone", "compiled"])
def test_code_that_is_not_whole_comes_again(host: Host, archive: Path, damage: str) -> None:
    run(host).apply()
    there = Path(host.path("%s/%s" % (DIRECTORY, archive.name)))
    hurt = Path(shipped.compiled(str(there))) if damage == "compiled" else there
    if damage == "gone":
        hurt.unlink()
    else:
        hurt.write_bytes(hurt.read_bytes()[:1000] if damage != "other" else b"x" + hurt.read_bytes()[1:])
    assert [step.split("/")[1] for step in run(host).apply().applied] == ["agent.install"]
    assert there.read_bytes() == archive.read_bytes()


def test_the_code_of_a_release_before_goes_once_nothing_runs_it(host: Host, archive: Path) -> None:
    host.make_directory(DIRECTORY, 0o700)
    for name in ("0" * 20 + ".zip", "0" * 20 + "-1234.zip"):
        host.write("%s/%s" % (DIRECTORY, name), "former")
    assert run(host).apply().applied[-1] == "agent/agent.tidy/" + DIRECTORY
    assert all(name.startswith(archive.stem) for name in host.list(DIRECTORY))


def test_a_command_of_another_path_takes_the_place_of_the_former(host: Host, archive: Path) -> None:
    run(host).apply()
    run(host, command="/opt/bin/gpuops").apply()
    assert not host.exists(COMMAND) and host.is_file("/opt/bin/gpuops")
    run(host, state="absent").apply()
    assert ours(host) == []


def killed_after(host: Host, writes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Run, and be killed at this replacement of a file."""
    left = iter(range(writes))
    replace = Host._replace

    def dying(self: Host, *words: Any) -> None:
        if next(left, None) is None:
            raise Killed
        replace(self, *words)

    with monkeypatch.context() as patch:
        patch.setattr(Host, "_replace", dying)
        run(host).apply()


def test_killed_at_any_write_it_comes_to_the_same_end(
    tmp_path: Path, archive: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    killed = 0
    for number in range(40):
        host = host_with(tmp_path / str(number), archive)
        try:
            killed_after(host, number, monkeypatch)
        except Killed:
            killed += 1
            run(host).apply()
        assert host.read(COMMAND) == command_text(sys.executable, archive.name)
        assert run(host).apply().applied == []
        run(host, state="absent").apply()
        assert ours(host) == []
        if killed <= number:
            break
    assert killed > 5


def test_the_policy_of_the_file_is_the_policy_that_was_given(host: Host, archive: Path) -> None:
    run(host).apply()
    text = str(host.read(POLICY_FILE))
    options = options_in(text)
    own = options.pop("agent")
    assert options == POLICY
    assert policy_of(own).text == text
    assert text_of({}, own) != text


@pytest.mark.parametrize("text", [
    "", "{", "[]", '{"schema": 1}', '{"schema": 1, "policy": 7}', '{"schema": 1, "policy": []}',
    '{"schema": 1, "policy": {"agent": []}}', "null", "\ufeff{}"])
def test_a_file_that_holds_no_policy_is_refused(text: str) -> None:
    with pytest.raises(GpuOpsError) as caught:
        options_in(text)
    assert caught.value.code == "agent.policy_unreadable"


def test_a_policy_of_a_newer_release_is_refused() -> None:
    with pytest.raises(GpuOpsError) as caught:
        options_in('{"schema": 2, "policy": {}}')
    assert caught.value.code == "agent.policy_of_another_release"


@pytest.mark.parametrize("options, code", [
    ({"command": "gpuops"}, "agent.relative_command"), ({"command": "/opt/gpu ops/gpuops"}, "agent.relative_command"),
    ({"command": "/opt/100%/gpuops"}, "agent.relative_command"), ({"command": "/opt/"}, "agent.relative_command"),
    ({"policy": "[]"}, "agent.policy_malformed"),
    ({"watch_listen": "9836"}, "agent.listen_malformed"), ({"boot_timeout": 0}, "agent.boot_without_time"),
    ({"health": {"nvml_seconds": 300}}, "health.policy_not_understood"),
    ({"problem_detector": True, "node_condition": "condition"}, "agent.told_twice"),
    ({"health": {"rounds": 0}}, "health.policy_not_understood")])
def test_what_cannot_be_is_refused(options: Dict[str, Any], code: str) -> None:
    with pytest.raises(GpuOpsError) as caught:
        policy_of(given(**options))
    assert caught.value.code == code


# the command itself, on this machine, where it only reads


@pytest.fixture
def command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """As it is on a host, with the whole archive in the scratch root."""
    host = host_with(tmp_path / "root", sent(tmp_path, made()[0], monkeypatch))
    run(host).apply()
    path = Path(host.path(COMMAND))
    path.write_text(path.read_text().replace(DIRECTORY, host.path(DIRECTORY)))
    return path


def called(path: Path, *words: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run([str(path), *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, check=False,
                          cwd="/", env={"PATH": os.environ["PATH"], **environment})


def test_the_command_needs_no_ansible(command: Path, tmp_path: Path) -> None:
    """Nor what the environment would bring in."""
    (tmp_path / "ansible.py").write_text("raise SystemExit('taken from the environment')")
    command.write_text(command.read_text().replace(sys.executable, os.path.realpath(sys.executable)))
    done = called(command, "info", "--json", PYTHONPATH=str(tmp_path))
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["observation"]["host"]["kernel"] == os.uname().release
    assert called(command, "conquer").returncode == 2


def test_the_command_says_what_is_wrong_with_its_code(command: Path) -> None:
    there = next(path for path in (command.parents[3] / DIRECTORY[1:]).iterdir() if "-" not in path.name)
    there.write_bytes(there.read_bytes()[:5000])
    cut = called(command, "info")
    there.unlink()
    gone = called(command, "info")
    assert (cut.returncode, gone.returncode) == (1, 1)
    for done in (cut, gone):
        assert "Traceback" not in done.stderr and "gpuops.nvidia.node_agent" in done.stderr


def test_the_command_says_so_of_code_that_a_disk_has_spoilt(command: Path) -> None:
    there = next(path for path in (command.parents[3] / DIRECTORY[1:]).iterdir() if "-" not in path.name)
    with zipfile.ZipFile(there) as archive:
        names = [name for name in archive.namelist() if name.endswith("/module_utils/shipped.py")]
        begins = archive.getinfo(names[0]).header_offset + 30 + len(names[0])
    content = bytearray(there.read_bytes())
    content[begins:begins + 400] = bytes(400)
    there.write_bytes(content)
    done = called(command, "info")
    assert done.returncode == 1 and "Traceback" not in done.stderr and "gpuops.nvidia.node_agent" in done.stderr


MACHINE = "/sys/class/dmi/id/product_uuid"


@pytest.mark.parametrize("now, is_its", [("b", False), ("a", True), ("", True)])
def test_what_the_machine_has_said_whose_disk_was_copied_is_left_to_that_one(
    host: Host, archive: Path, now: str, is_its: bool
) -> None:
    """No credential of this one may change that Node, so nobody could ever take it back here."""
    run(host, node_condition="cordon").apply()
    host.write(MACHINE, "a\n")
    telling._note(host, telling.Said("gpu-1", "/etc/k", "https://k", host.machine()))
    host.write(MACHINE, now)
    assert [each.node for each in telling.said_before(host)] == (["gpu-1"] if is_its else [])
    if not is_its:
        applied = run(host, state="absent").apply().applied
        assert not any("agent.untell" in step for step in applied) and not host.exists(telling.SAID)


def test_metrics_go_where_nobody_writes_them_any_more(archive: Path, host: Host) -> None:
    """They would tell the last verdict for ever."""
    for name in ("/a", "/b"):
        host.make_directory(name, 0o755)
        host.write("%s/%s" % (name, health.METRICS), "of a look")
    run(host, health_metrics_directory="/a").apply()
    run(host, health_metrics_directory="/a", health={"round_seconds": 30}).apply()
    assert host.exists("/a/" + health.METRICS)
    run(host, health_metrics_directory="/b").apply()
    assert not host.exists("/a/" + health.METRICS) and host.exists("/b/" + health.METRICS)


def test_the_policy_that_the_page_has_cloud_init_write_is_understood() -> None:
    """By those whose options it has, each by itself: in a plan the first that is wrong hides the others."""
    [file] = example("agent.md", "write_files")["write_files"]
    assert (file["path"], file["permissions"]) == (POLICY_FILE, "0600")
    given = options_in(file["content"])
    registry.options_of_validation(given.pop("validation"))
    known = {capability.name: capability for capability in registry.CAPABILITIES}
    for name, options in given.items():
        registry.options_of(known[name], options)
        known[name].policy_of(registry.options_of(known[name], options)[0])
    assert {"driver", "activation", "runtime", "mig"} <= set(given)
