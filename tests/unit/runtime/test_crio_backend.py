# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""CRI-O as it runs: its options, its answers, its own judgement, and what is to be done."""
from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest
from made_edits import WorkedOut, work_out

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.errors import GpuOpsError
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime import backend as every_backend
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime import cri, memory, model, policy
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.crio import backend, configuration, writer

PID = 77
CONMON = "/usr/libexec/crio/conmon"
PACKAGED = "".join(
    "[crio.runtime.runtimes.%s]\nruntime_path = '/usr/libexec/crio/%s'\nmonitor_path = '%s'\n" % (name, name, CONMON)
    for name in ("crun", "runc")
)
PACKAGES_FILE = configuration.DIRECTORY + "/10-crio.conf"
# `crio config`: files merged, one value a line, the built-in handler beside others; refuses and spoils on demand
STUB = """#!%s
import json, os, sys, tomllib
root, directory = sys.argv[2], sys.argv[4]
runtime, runtimes = {}, {"crun": {"runtime_root": "/run/crun"}}
for path in [root] + sorted(os.path.join(top, name) for top, _, names in os.walk(directory) for name in names):
    with open(path, "rb") as handle:
        data = tomllib.load(handle).get("crio", {}).get("runtime", {})
    runtimes.update(data.pop("runtimes", {}))
    runtime.update(data)
if runtime.get("conmon_cgroup") == "refused":
    sys.exit('time="" level=fatal msg="cgroup refused"')
if runtime.get("log_level") == "spoiled" and "nvidia" in runtimes:
    runtime["log_level"] = "lost"
runtime["told"] = sys.argv[5:-1]
print("[crio.runtime]")
for key, value in runtime.items():
    print(key, "=", json.dumps(value))
for name, entry in runtimes.items():
    print("[crio.runtime.runtimes.%%s]" %% name)
    for key, value in entry.items():
        print(key, "=", json.dumps(value))
"""


class Client:
    """The CRI of a daemon with these handlers; None: nobody answers."""

    handlers: Optional[Tuple[str, ...]] = ("crun", "runc")
    default = "crun"

    def __init__(self, socket: str) -> None:
        self.socket = socket

    def status(self) -> cri.CriStatus:
        if self.handlers is None:
            raise cri.CriError(self.socket, "nobody")
        info = {"config": json.dumps({"crio": {"DefaultRuntime": self.default}})}
        return cri.CriStatus(True, "", self.handlers, info)

    def running_containers(self) -> Any:
        return frozenset({"c1"})


def wanted(**options: Any) -> policy.Policy:
    parameters = {name: option.get("default") for name, option in policy.ARGUMENTS.items()}
    return policy.policy_of({**parameters, **options})


class World:
    def __init__(self, top: Path) -> None:
        self.host = Host(str(top / "root"))
        self.journal = Journal(self.host)
        self.binary = top / "crio"
        self.binary.write_text(STUB % sys.executable)
        self.binary.chmod(0o755)
        self.words: Tuple[str, ...] = ()
        # no file is newer than the daemon
        self.started = time.time() + 100
        self.put(PACKAGES_FILE, PACKAGED)
        for program in (CONMON, "/usr/libexec/crio/crun", "/usr/libexec/crio/runc"):
            self.put(program, "", 0o755)

    def put(self, path: str, text: str = "", mode: int = 0o644) -> None:
        self.host.write(path, text, mode)

    def service(self, **changes: Any) -> model.Service:
        values: Dict[str, Any] = {
            "backend": "crio", "distribution": "", "unit": "crio.service", "active": True, "pid": PID,
            "started": self.started, "binary": str(self.binary), "release": (1, 34), "root": configuration.ROOT,
            "socket": "/run/crio/crio.sock", "arguments": ("/usr/bin/crio", *self.words),
        }
        return model.Service(**{**values, **changes})

    def work_out(self, **options: Any) -> WorkedOut:
        return work_out(backend.Crio(), self.host, self.journal, wanted(**options), self.service())

    def edits(self, **options: Any) -> Tuple[model.Edit, ...]:
        """Those of a change that nothing stands against."""
        planned = self.work_out(**options)
        assert planned.refusal is None
        return planned.edits

    def refusal(self, **options: Any) -> str:
        """What is found against a change, '' if nothing is."""
        planned = self.work_out(**options)
        assert planned.refusal is None or planned.edits == ()
        return planned.refusal.found if planned.refusal else ""

    def pending(self, **options: Any) -> bool:
        return backend.Crio().observe(self.host, self.journal, wanted(**options), self.service()).pending

    def make(self, edits: Any) -> None:
        for edit in edits:
            if edit.after is None:
                self.host.remove(edit.path)
            else:
                self.put(edit.path, edit.after)

    def installed(self) -> None:
        """The toolkit's program is there."""
        self.put("/usr/bin/nvidia-container-runtime", "", 0o755)


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> Any:
    class Own(Client):
        pass

    for module in (backend, every_backend):
        monkeypatch.setattr(module, "CriClient", Own)
    return Own


@pytest.fixture
def world(tmp_path: Path, client: Any) -> World:
    world = World(tmp_path)
    return world


def test_one_file_as_open_as_the_one_it_takes_from_and_a_restart(world: World) -> None:
    planned = world.work_out()
    assert planned.refusal is None
    (edit,) = planned.edits
    assert (edit.path, edit.before, edit.like) == (writer.DROP_IN, None, PACKAGES_FILE)
    assert (edit.shown_after, dict(edit.parameters)) == (edit.after, {})
    seen = planned.observation
    assert (seen.pending, seen.handlers, seen.cdi) == (False, ("crun", "runc"), True)
    assert backend.Crio().apply_verb(world.service(), seen.reading, planned.edits) == model.RESTART
    assert backend.Crio().edited("/any", "text", {}) == "text"


def test_a_daemon_that_does_not_know_its_files_is_restarted(world: World, client: Any) -> None:
    world.installed()
    world.make(world.edits())
    assert (world.edits(), world.pending()) == ((), True)
    client.handlers = ("crun", "runc", "nvidia")
    assert not world.pending()
    # the same, told by the time of the file
    world.started = time.time() - 100
    assert world.pending()
    digest = backend.Crio().effective_digest(world.host, world.service())
    world.journal.remember(memory.MEMORY, {"verified": {"pid": PID, "digest": digest}})
    assert not world.pending()
    client.handlers = None
    assert not world.pending()


def test_a_handler_waits_for_its_program(world: World, client: Any) -> None:
    world.make(world.edits())
    assert not world.pending()
    answer = backend.Crio().answer(world.host, world.service())
    assert answer == model.Answer("", frozenset({"crun", "runc", "nvidia"}), frozenset({"c1"}))
    world.installed()
    assert world.pending()
    assert backend.Crio().answer(world.host, world.service()).handlers == {"crun", "runc"}
    client.handlers = None
    assert "nobody" in backend.Crio().answer(world.host, world.service()).problem


def test_a_removal_ends_when_the_daemon_has_forgotten(world: World, client: Any) -> None:
    world.installed()
    world.make(world.edits())
    client.handlers = ("crun", "runc", "nvidia")
    assert backend.Crio().handlers(world.host, world.service()) == {"crun", "runc", "nvidia"}
    edits = world.edits(state="absent")
    assert [edit.after for edit in edits] == [None]
    world.make(edits)
    assert backend.Crio().handlers(world.host, world.service()) == {"crun", "runc"}
    # killed here: the next run restarts
    assert (world.edits(state="absent"), world.pending(state="absent")) == ((), True)
    client.handlers = ("crun", "runc")
    assert not world.pending(state="absent")
    client.default = "nvidia"
    assert world.pending(state="absent")


def test_the_command_line_is_respected_and_handed_on(world: World) -> None:
    world.words = ("--runtimes", "nvidia:/opt/x:/run/x")
    refusal = world.work_out(adopt=True).refusal
    assert refusal is not None
    assert configuration.COMMAND_LINE in refusal.found and "unit" in refusal.remedy
    world.words = ("--config-dir", "/srv/crio", "--default-runtime=crun")
    world.put("/srv/crio/10.conf", PACKAGED)
    (edit,) = world.edits()
    assert edit.path == "/srv/crio/" + writer.DROP_IN_NAME
    judged = backend.judge.effective(world.host, str(world.binary), configuration.load_of(world.host, world.service()))
    assert judged[("crio", "runtime", "told")] == ["--default-runtime=crun"]


def test_the_environment_stands_for_options(world: World) -> None:
    world.put("/proc/%d/environ" % PID, "CONTAINER_CONFIG=/srv/crio.conf\0CONTAINER_CONFIG_DIR=/srv/d\0")
    world.put("/srv/crio.conf", PACKAGED)
    (edit,) = world.edits()
    assert (edit.path, edit.like) == ("/srv/d/" + writer.DROP_IN_NAME, "/srv/crio.conf")


def test_without_a_monitor_crio_would_not_start(world: World) -> None:
    world.host.remove(PACKAGES_FILE)
    assert "conmon is in none of" in world.refusal()
    world.put("/usr/bin/conmon", "", 0o755)
    (edit,) = world.edits()
    # CRI-O's own crun is what it takes over from
    assert 'runtime_root = "/run/crun"' in (edit.after or "")
    assert "monitor_path" not in (edit.after or "")


OTHER = "[crio.runtime.runtimes.other]\nruntime_path = '/usr/libexec/crio/runc'\n"


@pytest.mark.parametrize(("text", "told"), [
    (OTHER, "the handler 'other' with no monitor_path"),
    (OTHER + "monitor_path = '/opt/conmon'\n", "the monitor /opt/conmon, which is not there"),
    (OTHER + "monitor_path = 'usr/libexec/crio/conmon'\n", ""),
    (OTHER + "runtime_type = 'vm'\n", ""),
    (OTHER.replace("crio/runc", "crio/gone"), ""),
    (OTHER.replace("crio/runc", "crio/gone") + "[crio.runtime]\ndefault_runtime = 'other'\n",
     "a program that is not there, and is the default"),
    ("[crio.runtime.runtimes.other]\nmonitor_path = '%s'\n[crio.runtime]\ndefault_runtime = 'other'\n" % CONMON,
     "a program that is not there, and is the default"),
    ("[crio.runtime.runtimes.other]\ninherit_default_runtime = true\nmonitor_path = '%s'\n" % CONMON, ""),
    ("[crio.runtime]\nconmon = '/opt/conmon'\n", "the monitor /opt/conmon, which is not there"),
])
def test_a_crio_that_would_not_start_again_is_left_alone(world: World, text: str, told: str) -> None:
    """Whatever somebody else has written since CRI-O was started: our restart is not to bring it to light."""
    world.make(world.edits())
    world.put(configuration.DIRECTORY + "/40-other.conf", text)
    for options in ({"state": "absent"}, {"handlers": {"nvidia-cdi": ""}}):
        found = world.refusal(**options)
        assert bool(found) is bool(told)
        assert found.startswith("CRI-O would not start again: " if told else "") and told in found
    if told:
        with pytest.raises(GpuOpsError):
            backend.Crio().inspect(world.host, world.service())


def test_a_default_whose_program_is_to_come_is_planned_but_not_started_with(world: World) -> None:
    world.make(world.edits(default_handler=True))
    with pytest.raises(GpuOpsError) as caught:
        backend.Crio().inspect(world.host, world.service())
    assert "a program that is not there, and is the default" in caught.value.found
    world.installed()
    backend.Crio().inspect(world.host, world.service())


@pytest.mark.parametrize(("text", "told"), [
    ("[crio.runtime]\nconmon_cgroup = 'refused'\n", "cgroup refused"),
    ("[crio.runtime]\nlog_level = 'spoiled'\n", "would also change crio.runtime.log_level"),
    ("[crio.runtime\n", "20.conf:1: "),
    ("[crio.runtime]\nconmon_cgroup = 'refused'\n[crio.runtime.runtimes.runc]\nmonitor_env = 1\nmonitor_path = '%s'\n"
     % CONMON, "cgroup refused"),
])
def test_the_judge_has_the_last_word(world: World, text: str, told: str) -> None:
    world.put(configuration.DIRECTORY + "/20.conf", text)
    assert told in world.refusal()


def test_links_are_no_files_of_ours_and_no_directories_of_crios(world: World, tmp_path: Path) -> None:
    directory = tmp_path / "root" / configuration.DIRECTORY.lstrip("/")
    ours = directory / writer.DROP_IN_NAME
    ours.symlink_to("../elsewhere.conf")
    for state in ("present", "absent"):
        assert "is a link to ../elsewhere.conf, which is no file" in world.refusal(state=state)
    world.put("/etc/crio/elsewhere.conf", "")
    assert world.refusal().endswith("99-gpuops-nvidia.conf is a link to ../elsewhere.conf")
    ours.unlink()
    (directory / "20-site").symlink_to("/etc")
    assert "20-site is a link to /etc, which is no file" in world.refusal()


def test_a_converged_host_costs_a_question_and_no_program(
    world: World, client: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world.installed()
    world.make(world.edits())
    client.handlers = ("crun", "runc", "nvidia")
    monkeypatch.setattr(world.host, "run", lambda *_words, **_options: pytest.fail("a program was run"))
    assert (world.edits(), world.pending()) == ((), False)


def test_a_stray_file_is_told_and_a_broken_one_stops_a_restart(world: World) -> None:
    stray = configuration.DIRECTORY + "/10-crio.conf.~"
    world.put(stray, "")
    reading = world.work_out().observation.reading
    notes: List[str] = list(backend.Crio().notes(world.service(), reading, wanted(), ()))
    assert len(notes) == 1 and stray in notes[0]
    backend.Crio().inspect(world.host, world.service())
    world.put(stray, "[")
    with pytest.raises(GpuOpsError):
        backend.Crio().inspect(world.host, world.service())
