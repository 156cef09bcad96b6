# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What steps of the container runtime do to a host in memory: files, and daemons that have read them.

The files are read as on a real host, by detection and backends themselves, in a scratch root. What a process tells is
the World's: who listens on a socket, what the daemon has taken in since, which containers run. A restart takes in all
files, a reload what dockerd takes in by one; Kubernetes distributions render the files of their containerd at a start.
"""
from __future__ import annotations

import contextlib
import json
import os
import re
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Dict, FrozenSet, Iterator, List, Mapping, Optional, Sequence, Tuple
from unittest.mock import patch

import tomlkit
import world
from world import Unit

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.facts import HostFacts
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import CommandResult, Host, Ownership
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal, Original
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.plan import Disruption, Step, digest
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.runtimes import KNOWN_RUNTIMES, KnownRuntime
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime import backend as any_backend
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime import detection, observation
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.containerd import configuration, rancher
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.crio import backend as crio
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.crio.configuration import load_of
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.docker import backend as docker
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.known import BACKENDS
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.capability import CAPABILITY
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.cri import CriError, CriStatus
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.memory import MEMORY
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.model import Observation, Service
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.policy import Policy

# Seconds between the boot and the start of a daemon; what is older and newer than it is so by MARGIN
STARTED, MARGIN = 1000, 500
PROGRAMS = {"k3s": "/var/lib/rancher/k3s/data/current/bin/", "rke2": "/var/lib/rancher/rke2/bin/",
            "k0s": "/var/lib/k0s/bin/", "microk8s": "/snap/microk8s/current/bin/"}
# CRI-O's own handler, as `crio config` tells it
BUILT_IN = '[crio.runtime.runtimes.crun]\nruntime_root = "/run/crun"\n'
VARIABLES = {"${SNAPSHOTTER}": "overlayfs", "${RUNTIME}": "runc", "${RUNTIME_TYPE}": "io.containerd.runc.v2"}
GUARDED = re.compile(r'\{\{ if not \(index \.ExtraRuntimes "([^"]+)"\)\.BinaryName \}\}\n(.*?)\{\{ end \}\}\n', re.S)


@dataclass
class Daemon:
    """
    Two of them are alike although one was started more often; whether it acts upon its files is asked of each.

    place:      what is known of it, but for its process.
    version:    of its program.
    words:      of its command line behind the program; of the service's, for k3s and RKE2.
    starts:     how often it was started; its process has another id each time.
    begun:      {path: text} of all files when it was started.
    read:       the same as it acts upon them now.
    programs:   those that were there when it was started.
    containers: ids of those that run.
    """

    place: KnownRuntime
    version: str
    words: Tuple[str, ...] = ()
    starts: int = field(default=0, compare=False)
    begun: Dict[str, str] = field(default_factory=dict, compare=False)
    read: Dict[str, str] = field(default_factory=dict, compare=False)
    programs: Tuple[str, ...] = field(default=(), compare=False)
    containers: Tuple[str, ...] = ()

    @property
    def unit(self) -> str:
        return self.place.units[0]

    @property
    def pid(self) -> int:
        return 1000 * (KNOWN_RUNTIMES.index(self.place) + 1) + self.starts

    @property
    def program(self) -> str:
        return PROGRAMS.get(self.place.name, "/usr/bin/") + self.place.program

    @property
    def argv(self) -> Tuple[str, ...]:
        if self.place.name in ("k3s", "rke2", "k0s", "microk8s"):
            return (self.program, "--config", self.place.root)
        return (self.program, *self.words)

    @property
    def release(self) -> Tuple[int, int]:
        major, minor = self.version.split(".")[:2]
        return int(major), int(minor)


@dataclass(frozen=True)
class Former:
    """A text before our change, what the daemon served with then, that after it, whose change it is, and how often that
    daemon had been started."""

    text: Optional[str]
    served: Optional[str]
    after: Optional[str]
    runtime: str
    starts: int


@dataclass
class World(world.World):
    """
    daemons:  {name of a runtime: its daemon}.
    programs: those that are there.
    links:    {path: what a symbolic link there leads to}.
    open:     directories that others than root may write to.
    frozen:   directories whose file system is mounted read-only.
    since:    {path that we changed since a daemon last served: what it was}.
    handlers: {name of a runtime: those that runs of ours wrote, as far as it is known}.
    verified: {name of a runtime: its process that has proved to serve, and with what}.
    ignoring: the process that does not take its files in by a reload.
    """

    capability = CAPABILITY

    daemons: Dict[str, Daemon] = field(default_factory=dict)
    programs: Tuple[str, ...] = ()
    links: Dict[str, str] = field(default_factory=dict)
    open: List[str] = field(default_factory=list)
    frozen: List[str] = field(default_factory=list)
    since: Dict[str, Former] = field(default_factory=dict, compare=False)
    handlers: Dict[str, List[str]] = field(default_factory=dict)
    verified: Dict[str, Any] = field(default_factory=dict, compare=False)
    ignoring: int = 0

    def observe(self, policy: Policy, there: HostFacts) -> Observation:
        with self.machine(self.files) as host:
            return observation.observe(host, Records(host, self), policy, there)

    def shortcoming(self, policy: Policy) -> str:
        """Whether the daemon has in effect what its files say, and these say what is wanted.

        Where handlers are to go, those of others may wait for a restart of their own.
        """
        with self.machine(self.files) as host:
            service = detection.find(host, policy.runtime, policy.config_file)
        daemon = self.daemons[service.distribution or service.backend] if service else None
        if daemon is None or not self.unit(daemon.unit).active:
            return ""
        told = self.meant(daemon, self.files, self.programs)
        serves = self.meant(daemon, daemon.read, daemon.programs)
        if daemon.place.backend == "docker" and "runtimes" not in data_of(self.files.get(daemon.place.root)):
            # a file that names none makes it forget none
            serves = replace(serves, handlers=told.handlers)
        if not policy.present:
            gone = [name for name in policy.entries if name not in told.handlers]
            serves, told = (replace(each, default=each.default if each.default in policy.entries else "", cdi=None,
                                    handlers={name: each.handlers.get(name) for name in gone})
                            for each in (serves, told))
        if serves != told:
            return "%s serves with %s, and its files say %s" % (daemon.unit, serves, told)
        for name, program in policy.entries.items() if policy.present else ():
            # CRI-O leaves a handler out whose program is still to come
            found = told.handlers.get(name, "")
            waits = daemon.place.backend == "crio" and program not in self.programs
            if found not in (program, os.path.basename(program)) and not waits:
                return "the handler %s is %s" % (name, found or "not there")
        if policy.present and policy.default_handler and told.default != policy.handler:
            return "the default handler is %s" % told.default
        # what k3s and RKE2 render takes no second table of the settings in, so there NVIDIA's runtime injects devices
        wants_cdi = policy.present and policy.cdi and daemon.place.name not in ("k3s", "rke2")
        return "no CDI device is injected" if wants_cdi and told.cdi is False else ""

    @property
    def is_touched(self) -> bool:
        return super().is_touched or any(self.handlers.values())

    def of_others(self) -> Dict[str, Any]:
        """But for what a distribution renders."""
        rendered = ["/run/k0s/containerd-cri.toml", *(
            daemon.place.root for daemon in self.daemons.values() if daemon.place.name in ("k3s", "rke2", "microk8s"))]
        return {**super().of_others(), "files": {
            path: text for path, text in self.files.items() if path not in rendered}}

    def boot(self) -> None:
        super().boot()
        for daemon in self.daemons.values():
            if self.unit(daemon.unit).active:
                self.start(daemon)

    # the daemons

    def start(self, daemon: Daemon) -> None:
        """It takes in all files, which a distribution renders before."""
        if daemon.place.name in ("k3s", "rke2"):
            self.files[daemon.place.root] = self.rendered_by_rancher(daemon)
        elif daemon.place.name == "microk8s":
            text = self.files[os.path.dirname(daemon.place.root) + "/containerd-template.toml"]
            for name, value in VARIABLES.items():
                text = text.replace(name, value)
            self.files[daemon.place.root] = text
        elif daemon.place.name == "k0s" and daemon.release < (2, 0):
            self.files["/run/k0s/containerd-cri.toml"] = self.merged_by_k0s()
        daemon.starts += 1
        daemon.begun, daemon.read, daemon.programs = dict(self.files), dict(self.files), self.programs

    def reload(self, daemon: Daemon) -> None:
        """dockerd takes what the file names, and of the features none."""
        now = data_of(self.files.get(daemon.place.root))
        read = {**data_of(daemon.read.get(daemon.place.root)), **{
            name: now[name] for name in ("runtimes", "default-runtime", "live-restore") if name in now}}
        daemon.read = {**daemon.read, daemon.place.root: json.dumps(read)}

    def keeps(self, daemon: Daemon, files: Mapping[str, str]) -> bool:
        """Whether a daemon with these files leaves containers alone when it ends, and when it starts."""
        return daemon.place.backend != "docker" or "--live-restore" in daemon.words or bool(
            data_of(files.get(daemon.place.root)).get("live-restore"))

    def meant(self, daemon: Daemon, files: Mapping[str, str], programs: Sequence[str]) -> Served:
        """What these files tell a daemon."""
        with self.machine(files) as host:
            if daemon.place.backend == "containerd":
                cri = configuration.load(host, daemon.place.root, daemon.release[0]).cri()
                return Served({name: binary_of(entry) for name, entry in configuration.handlers(cri).items()},
                              cri.get("containerd", {}).get("default_runtime_name", "runc"),
                              None if daemon.release < (1, 7) else cri.get("enable_cdi", daemon.release >= (2, 0)))
            if daemon.place.backend == "crio":
                told = load_of(host, self.service(daemon))
                return Served({name: entry["runtime_path"] for name, entry in told.handlers().items()
                               if entry["runtime_path"] in programs}, told.runtime().get("default_runtime", "crun"),
                              True)
        data = data_of(files.get(daemon.place.root))
        runtimes, features = data.get("runtimes", {}), data.get("features", {})
        return Served({name: entry["path"] for name, entry in runtimes.items()}, data.get("default-runtime", "runc"),
                      None if daemon.release < (25, 0) else features.get("cdi", daemon.release >= (28, 2)))

    def status(self, daemon: Daemon) -> CriStatus:
        served = self.meant(daemon, daemon.read, daemon.programs)
        return CriStatus(True, "", tuple(served.handlers), {
            "config": json.dumps({"crio": {"DefaultRuntime": served.default}})})

    def service(self, daemon: Daemon) -> Service:
        return Service("crio", "", daemon.unit, True, daemon.pid, 0.0, daemon.program, daemon.release,
                       daemon.place.root, daemon.place.sockets[0], daemon.argv)

    def rendered_by_rancher(self, daemon: Daemon) -> str:
        """The handlers whose programs are found are defined before what a template adds; drop-ins since 2.1."""
        stem = "%s/config%s.toml" % (os.path.dirname(daemon.place.root), "-v3" if daemon.release >= (2, 0) else "")
        version, cri_id = (3, configuration.CRI3) if daemon.release >= (2, 0) else (2, configuration.CRI2)
        found: Dict[str, str] = {}
        for name, program in rancher.DETECTED.items():
            places = ["%s/%s" % (directory, program) for directory in (
                rancher.SEARCHED_FIRST, *rancher.PATH.split(":"))]
            there = [place for place in places if place in self.programs]
            found.update({name: there[0]} if there else {})
        runtimes = {name: {"runtime_type": "io.containerd.runc.v2", "options": {"SystemdCgroup": True, **more}}
                    for name, more in (("runc", {}), *((name, {"BinaryName": path}) for name, path in found.items()))}
        section: Dict[str, Any] = {"runtimes": runtimes}
        default = self.default_runtime(daemon)
        if default:
            section = {"default_runtime_name": default, **section}
        base = tomlkit.dumps({"version": version, **(
            {"imports": [stem + ".d/*.toml"]} if daemon.release >= (2, 1) else {}),
            "plugins": {cri_id: {"containerd": section}}})
        text = GUARDED.sub(lambda each: "" if each.group(1) in found else each.group(2),
                           self.files.get(stem + ".tmpl", rancher.BASE))
        return text.replace(rancher.BASE, base)

    def default_runtime(self, daemon: Daemon) -> str:
        """What the service's options name, the last one; its command line before all."""
        options = "/etc/rancher/%s/config.yaml" % daemon.place.name
        texts = [self.files.get(options, ""), *(
            text for path, text in sorted(self.files.items()) if path.startswith(options + ".d/"))]
        named = re.findall(r"(?m)^default-runtime: (\S+)$", "".join(texts))
        return next((word.partition("=")[2] for word in daemon.words if word.startswith("--default-runtime=")),
                    named[-1] if named else "")

    def merged_by_k0s(self) -> str:
        """The handlers of all files of its directory behind its own."""
        runtimes: Dict[str, Any] = {"runc": {"runtime_type": "io.containerd.runc.v2"}}
        section: Dict[str, Any] = {"containerd": {"runtimes": runtimes}}
        for path, text in sorted(self.files.items()):
            if path.startswith("/etc/k0s/containerd.d/"):
                theirs = tomlkit.parse(text).unwrap().get("plugins", {}).get(configuration.CRI2, {})
                runtimes.update(theirs.get("containerd", {}).pop("runtimes", {}))
                section["containerd"].update(theirs.pop("containerd", {}))
                section.update(theirs)
        return tomlkit.dumps({"version": 2, "plugins": {configuration.CRI2: section}})

    @contextlib.contextmanager
    def machine(self, files: Mapping[str, str]) -> Iterator[Machine]:
        """A scratch root with these files, and the daemons that answer there."""
        with tempfile.TemporaryDirectory() as root, contextlib.ExitStack() as stack:
            host = Machine(root, self)
            host.put(files)
            for module, name, instead in (
                    (detection, "peer_pid", host.peer), (detection, "CriClient", host.client),
                    (any_backend, "CriClient", host.client), (crio, "CriClient", host.client),
                    (docker, "Engine", host.client)):
                stack.enter_context(patch.object(module, name, instead))
            yield host

    # verbs

    def runtime_config_write(self, step: Step) -> None:
        self._change(step, step.change["after"])

    def runtime_config_edit(self, step: Step) -> None:
        parameters = json.loads(json.dumps(step.parameters))
        backend, runtime = BACKENDS[parameters["kind"]], parameters["runtime"]
        brought = backend.brought(parameters["edit"])
        if brought:
            self.handlers[runtime] = sorted(brought.union(self.handlers.get(runtime, ())))
        self._change(step, backend.edited(
            step.subject, self.files.get(self._file(step.subject)), parameters["edit"]))

    def runtime_config_remove(self, step: Step) -> None:
        self._change(step, None)

    def runtime_config_forget(self, step: Step) -> None:
        assert self.originals.pop(step.subject) == self.files.get(step.subject), "%s is not as before" % step.subject

    def runtime_restart(self, step: Step) -> Disruption:
        daemon = self._daemon(step)
        keeps = all(self.keeps(daemon, files) for files in (daemon.read, self.files))
        assert keeps or not daemon.containers, "%s ends containers" % step.id
        self.start(daemon)
        self._serves(step, daemon)
        return Disruption.runtime_restart

    def runtime_reload(self, step: Step) -> Disruption:
        """dockerd takes the runtimes and the default one of a file that names them, and nothing else."""
        daemon = self._daemon(step)
        assert daemon.place.backend == "docker", "%s takes nothing in by a reload" % daemon.unit
        assert self.ignoring != daemon.pid, "%s does not take a reload in" % daemon.unit
        self.reload(daemon)
        self._serves(step, daemon)
        return Disruption.service_restart

    def runtime_wait(self, step: Step) -> Disruption:
        """k0s restarts containerd once a file has come or gone."""
        daemon = self._daemon(step)
        assert daemon.place.name == "k0s" and self.since_of("k0s"), "nobody restarts %s" % daemon.unit
        self.start(daemon)
        self._serves(step, daemon)
        return Disruption.runtime_restart

    def _change(self, step: Step, text: Optional[str]) -> None:
        path = self._file(step.subject)
        there = self.files.get(path)
        assert digest(there) == step.parameters["before"], "%s is made for another text" % step.id
        assert digest(text) == step.parameters["after"], "%s comes out otherwise" % step.id
        assert not [each for each in self.frozen if path.startswith(each + "/")], "%s: read-only file system" % path
        self.originals.setdefault(step.subject, there)
        runtime = step.parameters["runtime"]
        starts, since = self.daemons[runtime].starts, self.since_of(runtime)
        if not any(former.starts == starts for former in since.values()):
            self._forget(runtime)
        former = self.since.get(step.subject, Former(there, there, there, runtime, starts))
        before = former.text if there in (former.text, former.after) else there
        self.since[step.subject] = Former(before, former.served, text, runtime, starts)
        self.files.pop(path, None)
        if text is not None:
            self.files[path] = text
        if not step.parameters["present"]:
            del self.originals[step.subject]

    def _file(self, path: str) -> str:
        return self.links.get(path, path)

    def since_of(self, runtime: str) -> Dict[str, Former]:
        return {path: former for path, former in self.since.items() if former.runtime == runtime}

    def _forget(self, runtime: str) -> None:
        self.since = {path: former for path, former in self.since.items() if former.runtime != runtime}

    def _daemon(self, step: Step) -> Daemon:
        daemon = self.daemons[step.parameters["runtime"]]
        assert step.subject == daemon.unit and self.unit(daemon.unit).active, "%s is not running" % step.subject
        return daemon

    def _serves(self, step: Step, daemon: Daemon) -> None:
        """The daemon has to know what the step says; then that is remembered."""
        with self.machine(self.files) as host:
            service = detection.find(host, step.parameters["runtime"], step.parameters["root"])
            assert service is not None
            proved = BACKENDS[daemon.place.backend].effective_digest(host, service)
        served = self.meant(daemon, daemon.read, daemon.programs)
        unknown = [name for name in step.parameters["handlers"] if name not in served.handlers]
        assert not unknown or daemon.place.backend == "crio", "%s does not know %s" % (daemon.unit, unknown)
        runtime = step.parameters["runtime"]
        self._forget(runtime)
        self.handlers[runtime], self.ignoring = sorted(step.parameters["handlers"]), 0
        self.verified[runtime] = {"pid": daemon.pid, "digest": proved}

    # what scenarios say

    def say_runtime(self, name: str, version: str, *words: str) -> None:
        """'runtime containerd 2.1.3 [WORD...]': it runs with the files as they are, started with these words."""
        place = next(place for place in KNOWN_RUNTIMES if place.name == name)
        daemon = self.daemons[name] = Daemon(place, version, words)
        self.units[daemon.unit] = Unit(known=True, enabled=True, active=True)
        self.start(daemon)

    def say_stopped(self, name: str) -> None:
        self.units[self.daemons[name].unit] = Unit(known=True, enabled=True)

    def say_restarted(self, name: str) -> None:
        """Somebody restarts it."""
        self.start(self.daemons[name])

    def say_reloaded(self, name: str) -> None:
        """Somebody has it reload its file, or a run of ours that was killed right after it."""
        self.reload(self.daemons[name])

    def say_upgraded(self, name: str, version: str) -> None:
        self.daemons[name].version = version
        self.start(self.daemons[name])

    def say_containers(self, name: str, *ids: str) -> None:
        """These run."""
        self.daemons[name].containers = ids

    def say_reload(self, _is: str, _ignored: str) -> None:
        """'reload is ignored': an earlier run has seen that dockerd does not take its file in by one."""
        self.ignoring = self.daemons["docker"].pid

    def say_recorded(self, path: str) -> None:
        """A removal was cut short between its file and the record of it."""
        self.originals[path] = self.files.get(path)

    def say_programs(self, *paths: str) -> None:
        """These are there, and can be executed."""
        self.programs = paths

    def say_link(self, path: str, target: str) -> None:
        self.links[path] = target

    def say_open(self, directory: str) -> None:
        """Others than root may write to it."""
        self.open.append(directory)

    def say_frozen(self, directory: str) -> None:
        """Its file system is mounted read-only."""
        self.frozen.append(directory)


@dataclass(frozen=True)
class Served:
    """Handlers with their programs, the default one, and whether CDI devices are injected, None where none can be."""

    handlers: Mapping[str, Optional[str]]
    default: str
    cdi: Optional[bool]


class Machine(Host):
    """The scratch root. No program is run there; what one would tell, the World tells."""

    def __init__(self, root: str, there: World) -> None:
        super().__init__(root)
        self.world = there

    def put(self, files: Mapping[str, str]) -> None:
        since_boot = time.clock_gettime(time.CLOCK_BOOTTIME)
        for path, text in files.items():
            self._put(path, text, time.time() - since_boot + STARTED + (
                MARGIN if any(daemon.begun.get(path) != text for daemon in self.world.daemons.values()) else -MARGIN))
        for path in self.world.programs:
            os.chmod(self._put(path, ""), 0o755)
        for path, target in self.world.links.items():
            self._place(path).symlink_to(os.path.relpath(target, os.path.dirname(path)))
        for directory in self.world.open:
            os.chmod(self._place(directory + "/."), 0o777)
        for daemon in self.world.daemons.values():
            if self.world.unit(daemon.unit).active:
                self._run(daemon)

    def _run(self, daemon: Daemon) -> None:
        """Its process, and the socket on which it listens."""
        self._put(daemon.place.sockets[0], "")
        process = "/proc/%d/" % daemon.pid
        self._put(process + "cmdline", "".join(word + "\0" for word in daemon.argv))
        self._put(process + "cgroup", "0::/system.slice/%s\n" % daemon.unit)
        self._put(process + "stat", "%d (x) S %s %d 0" % (daemon.pid, "0 " * 18, STARTED * os.sysconf("SC_CLK_TCK")))
        self._place(process + "exe").symlink_to(daemon.program)
        self._place(process + "cwd").symlink_to("/")

    def _place(self, name: str) -> Path:
        path = Path(self.root) / name.lstrip("/")
        path.parent.mkdir(parents=True, exist_ok=True)
        return path

    def _put(self, name: str, text: str, changed: float = 0.0) -> str:
        path = self._place(name)
        path.write_text(text)
        os.utime(path, (changed, changed))
        return str(path)

    def unit(self, name: str) -> Dict[str, str]:
        there = self.world.unit(name)
        pid = next((daemon.pid for daemon in self.world.daemons.values() if daemon.unit == name), 0)
        return {"LoadState": "loaded" if there.known else "not-found", "MainPID": str(pid if there.active else 0),
                "ActiveState": "active" if there.active else "inactive"}

    def is_read_only(self, directory: str) -> bool:
        return any((directory + "/").startswith(each + "/") for each in self.world.frozen)

    def which(self, program: str) -> Optional[str]:
        return next((daemon.program for daemon in self.world.daemons.values() if daemon.place.program == program),
                    None)

    def run(self, argv: Sequence[str], *words: Any, **options: Any) -> CommandResult:
        for daemon in self.world.daemons.values():
            told = {(daemon.program, "--version"): "%s version %s\n" % (daemon.place.program, daemon.version),
                    (daemon.program, "config"): BUILT_IN,
                    ("systemctl", "ExecStart"): "ExecStart={ path=/x ; argv[]=%s ; }\n" % " ".join(
                        ("/usr/local/bin/" + daemon.place.name, *daemon.words))}.get((argv[0], argv[-1]))
            if told is not None and (argv[0] != "systemctl" or daemon.unit in argv):
                return CommandResult(tuple(argv), 0, told, "")
        raise AssertionError("a program is run: %s" % " ".join(argv))

    def peer(self, socket_path: str) -> int:
        daemon = self._behind(socket_path)
        return daemon.pid if daemon else 0

    def client(self, socket_path: str, timeout: float = 0) -> Client:
        return Client(self.world, socket_path, self._behind(socket_path))

    def _behind(self, socket_path: str) -> Optional[Daemon]:
        return next((daemon for daemon in self.world.daemons.values() if self.world.unit(daemon.unit).active
                     and socket_path == self.path(daemon.place.sockets[0])), None)


class Client:
    """What a daemon answers: by the CRI, and dockerd by its own interface."""

    def __init__(self, there: World, socket_path: str, daemon: Optional[Daemon]) -> None:
        self.world = there
        self.socket_path = socket_path
        self.daemon = daemon

    def version(self) -> Tuple[str, str]:
        return self._daemon("docker").place.program, self._daemon("docker").version

    def status(self) -> CriStatus:
        return self.world.status(self._daemon("docker"))

    def info(self) -> Dict[str, Any]:
        daemon = self._daemon("")
        served = self.world.meant(daemon, daemon.read, daemon.programs)
        return {"Runtimes": dict(served.handlers), "DefaultRuntime": served.default,
                "LiveRestoreEnabled": self.world.keeps(daemon, daemon.read)}

    def running_containers(self) -> FrozenSet[str]:
        return frozenset(self._daemon("").containers)

    def _daemon(self, without: str) -> Daemon:
        if self.daemon is None or self.daemon.place.backend == without:
            raise CriError(self.socket_path, "nobody answers")
        return self.daemon


class Records(Journal):
    """The World's."""

    def __init__(self, host: Host, there: World) -> None:
        super().__init__(host)
        self.world = there

    def originals(self, capability: str) -> List[Original]:
        return [Original(path, MEMORY, None if text is None else text.encode(), Ownership(0, 0, 0o644), ())
                for path, text in self.world.originals.items()]

    def recall(self, capability: str) -> Dict[str, Any]:
        there = self.world
        return {name: {
            "undo": {path: {"boot": self.host.boot(), "text": former.text, "served": former.served,
                            "up": STARTED + (MARGIN if former.starts == daemon.starts else -MARGIN)}
                     for path, former in there.since_of(name).items()},
            "handlers": there.handlers.get(name, []), "verified": there.verified.get(name, {}),
            "reload_ignored": there.ignoring} for name, daemon in there.daemons.items()}


def binary_of(handler: Mapping[str, Any]) -> str:
    """containerd takes names of options in any case."""
    return str(next((value for key, value in handler.get("options", {}).items() if key.lower() == "binaryname"), ""))


def data_of(text: Optional[str]) -> Dict[str, Any]:
    return dict(json.loads(text or "{}"))
