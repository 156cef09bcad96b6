#!/usr/bin/env python3
# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What becomes of containerd configurations in our hands, or in those of nvidia-ctk, as containerd itself sees it.

Reads a job (JSON) from its input and writes one outcome a case. Runs as root in mount and network namespaces of its
own, so that /etc/containerd is an empty directory of this process, files lie at their real paths, a daemon may start:
`run_jobs` starts it that way.
"""
from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

import tomlkit
import yaml

HERE = Path(__file__).resolve().parent
CORPUS = HERE / "corpus" / "containerd"
INDEX = HERE / "corpus" / "containerd.yml"
ETC = Path("/etc/containerd")
ROOT = ETC / "config.toml"
SOCKET = "/run/containerd/containerd.sock"
EMPTIED = ("/etc/containerd", "/run", "/var/lib/containerd")
# Who may read a file of a case: all, as packages leave them, unless it holds this password.
SECRET = "s3cret"
START_SECONDS = 15.0

# The part that holds the program, and where it lies in it; the last generation is the newest released one.
PROGRAMS: Dict[str, Tuple[str, str]] = {
    "1.6": ("root-bookworm", "root/usr/bin/containerd"),
    **{name: ("containerd-" + name, "bin/containerd") for name in ("1.7", "2.0", "2.1", "2.2", "2.3", "2.4")},
}
# Cases that are no file of the corpus
NO_FILE, DEFAULT, DEFAULT_SYSTEMD = "no-file", "default", "default-systemd-cgroup"


@dataclass
class Outcome:
    """
    accepted: containerd reads the files as they were, and its CRI plugin starts with them (where it was started).
    refused:  why nothing was done, '' if something was.
    handler:  whether containerd knows the handler afterwards, as one that NVIDIA's runtime can serve.
    lost:     settings that changed and are not the handler's.
    comments: how many comments of the root file are gone.
    leaked:   files more open than the root that hold its secret.
    cri:      what the daemon started with the new files says of CRI: 'ok', else what is wrong; '' if not started.
    faults:   anything else that must not be.
    kills:    how many beginnings of a run the daemon was started with.
    """

    case: str
    release: str
    accepted: bool = False
    refused: str = ""
    handler: bool = False
    lost: List[str] = field(default_factory=list)
    comments: int = 0
    leaked: List[str] = field(default_factory=list)
    cri: str = ""
    faults: List[str] = field(default_factory=list)
    kills: int = 0


def case_names() -> List[str]:
    files = [path.name[:-len(".toml")] if path.is_file() else path.name for path in CORPUS.iterdir()]
    return [NO_FILE, DEFAULT, DEFAULT_SYSTEMD, *sorted(files)]


@functools.lru_cache(maxsize=None)
def index() -> Dict[str, Dict[str, Any]]:
    """{case: what is to become of it}, as the comment of the index tells."""
    return dict(yaml.safe_load(INDEX.read_text()))


def situation(case: str) -> str:
    """What a case is, in words."""
    if case not in (NO_FILE, DEFAULT, DEFAULT_SYSTEMD):
        path = CORPUS / case / "config.toml" if (CORPUS / case).is_dir() else CORPUS / (case + ".toml")
        comments = [line[2:] for line in path.read_text().splitlines() if line.startswith("# ")]
        return next((line for line in comments if "=" not in line), "An empty file.")
    return {NO_FILE: "No file at all.", DEFAULT: "What `containerd config default` prints.",
            DEFAULT_SYSTEMD: "The same with systemd cgroups."}[case]


def programs_of(shop: Any) -> Dict[str, str]:
    """The program of every generation, and one `ctr` that asks them all, built where they are missing."""
    found = {release: str(shop.build(part) / path) for release, (part, path) in PROGRAMS.items()}
    return {**found, "ctr": str(shop.build("containerd-2.2") / "bin" / "ctr")}


def run_jobs(jobs: Sequence[Mapping[str, Any]], programs: Mapping[str, str], imports: Sequence[str]) -> List[Outcome]:
    """Outcomes of all jobs, in a process a processor."""
    lanes = [list(jobs[number::2]) for number in range(2)]

    def lane(part: Sequence[Mapping[str, Any]]) -> List[Outcome]:
        done = subprocess.run(
            ["unshare", "--mount", "--net", "--propagation", "private", sys.executable, str(Path(__file__).resolve())],
            input=json.dumps({"jobs": part, "programs": dict(programs)}), stdout=subprocess.PIPE, text=True, check=True,
            env=dict(os.environ, PYTHONPATH=os.pathsep.join(imports)))
        return [Outcome(**each) for each in json.loads(done.stdout)]

    with ThreadPoolExecutor(len(lanes)) as pool:
        return [outcome for part in pool.map(lane, lanes) for outcome in part]


# In the namespaces


def lay_out(case: str, binary: str, files: Optional[Mapping[str, str]] = None) -> None:
    """The files of a case, or these, and nothing else, in /etc/containerd."""
    for path in ETC.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    if files is not None:
        for name, content in files.items():
            Path(name).parent.mkdir(parents=True, exist_ok=True)
            Path(name).write_text(content)
    elif case in (DEFAULT, DEFAULT_SYSTEMD):
        text = _said(binary, "config", "default")
        if case == DEFAULT_SYSTEMD:
            text = text.replace("SystemdCgroup = false", "SystemdCgroup = true")
        ROOT.write_text(text)
    elif (CORPUS / case).is_dir():
        shutil.copytree(CORPUS / case, ETC, dirs_exist_ok=True)
    elif case != NO_FILE:
        shutil.copyfile(CORPUS / (case + ".toml"), ROOT)
    for path in _files():
        path.chmod(0o600 if SECRET in path.read_text() else 0o644)


def snapshot() -> Dict[str, Tuple[int, bytes]]:
    return {str(path): (path.stat().st_mode & 0o777, path.read_bytes()) for path in _files()}


def put_back(was: Mapping[str, Tuple[int, bytes]]) -> None:
    for path in _files():
        path.unlink()
    for name, (mode, data) in was.items():
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_bytes(data)
        Path(name).chmod(mode)


def dump(binary: str) -> Optional[Dict[str, Any]]:
    """The effective configuration, None when containerd refuses the files; 1.x dumps built-in values only of a file."""
    made = not ROOT.exists()
    if made:
        ROOT.write_text("version = 2\n")
    done = subprocess.run([binary, "--config", str(ROOT), "config", "dump"], stdout=subprocess.PIPE,
                          stderr=subprocess.DEVNULL, text=True, check=False)
    if made:
        ROOT.unlink()
    if done.returncode:
        return None
    dumped = dict(_meaning(done.stdout))
    dumped.pop("imports", None)
    # A file of an older format is migrated in memory: its number says nothing of what is in effect.
    dumped.pop("version", None)
    return dumped


@functools.lru_cache(maxsize=256)
def _meaning(dumped: str) -> Dict[str, Any]:
    """To be read only: many cases are the same configuration in effect."""
    return dict(tomlkit.parse(dumped).unwrap())


def cri_after_start(binary: str, ctr: str) -> str:
    """'ok' when the daemon starts with these files and its CRI plugin loads, else what is wrong."""
    shutil.rmtree("/run/containerd", ignore_errors=True)
    with open("/run/daemon.log", "w") as log:
        daemon = subprocess.Popen([binary], stdout=log, stderr=log)
    try:
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and daemon.poll() is None:
            told = _said(ctr, "--address", SOCKET, "--timeout", "2s", "plugins", "ls")
            states = [row[-1] for row in map(str.split, told.splitlines())
                      if tuple(row[:2]) in (("io.containerd.grpc.v1", "cri"), ("io.containerd.cri.v1", "runtime"))]
            if told:
                return "ok" if states and set(states) == {"ok"} else "CRI does not load"
            time.sleep(0.03)
        return "containerd does not start"
    finally:
        daemon.terminate()
        daemon.wait()


def differences(before: Mapping[str, Any], after: Mapping[str, Any]) -> Iterator[Tuple[str, ...]]:
    """Paths of settings that are not the same; absent and empty are."""
    old, new = dict(_leaves(before)), dict(_leaves(after))
    for path in sorted({*old, *new}):
        if old.get(path) != new.get(path) and (old.get(path) or new.get(path)):
            yield path


def _leaves(data: Mapping[str, Any], prefix: Tuple[str, ...] = ()) -> Iterator[Tuple[Tuple[str, ...], Any]]:
    for key, value in data.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*prefix, key))
        else:
            yield (*prefix, key), value


def not_the_handlers(path: Tuple[str, ...], default: bool) -> bool:
    inner = path[2:]
    return not (path[0] == "plugins" and (
        inner[:3] == ("containerd", "runtimes", "nvidia") or inner in (("enable_cdi",), ("cdi_spec_dirs",))
        or default and inner == ("containerd", "default_runtime_name")))


def known_handler(dumped: Mapping[str, Any]) -> bool:
    """Whether there is a handler that NVIDIA's runtime can serve: shims of other types do not read BinaryName."""
    sections = [section.get("containerd", {}) for section in dumped.get("plugins", {}).values()]
    entries = [section["runtimes"]["nvidia"] for section in sections if "nvidia" in section.get("runtimes", {})]
    return any(entry.get("options", {}).get("BinaryName") and entry.get("runtime_type") == "io.containerd.runc.v2"
               for entry in entries)


def judge(outcome: Outcome, before: Mapping[str, Any], was: Mapping[str, Tuple[int, bytes]], binary: str,
          default: bool) -> None:
    """What the files that are there now make of the configuration that was."""
    after = dump(binary)
    if after is None:
        outcome.lost = ["everything: containerd refuses the new files"]
    else:
        outcome.handler = known_handler(after)
        outcome.lost = [".".join(path) for path in differences(before, after) if not_the_handlers(path, default)]
    now = snapshot()
    for path, (_mode, data) in was.items():
        kept = now.get(path, (0, b""))[1].decode()
        outcome.comments += sum(1 for words in re.findall(r"(?m)#.*$", data.decode()) if words.strip() not in kept)
    if any(SECRET.encode() in data for _mode, data in was.values()):
        outcome.leaked = [path for path, (mode, data) in now.items() if SECRET.encode() in data and mode & 0o077]


class Ours:
    """The collection's edits, with the daemon given instead of asked of systemd."""

    def __init__(self, release: str, binary: str, **options: Any) -> None:
        from made_edits import work_out

        from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
        from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
        from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime import model, policy
        from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.containerd.backend import (
            Containerd,
        )

        self.host, self.backend, self.policy = Host(), Containerd(), policy
        self.journal, self.work_out = Journal(self.host), work_out
        self.options = options
        major, minor = (int(number) for number in release.split("."))
        self.service = model.Service(
            backend="containerd", distribution="", unit="containerd.service", active=True, pid=os.getpid(),
            started=time.time() + 60, binary=binary, release=(major, minor), root=str(ROOT), socket=SOCKET)

    def worked_out(self, state: str) -> Any:
        parameters = {name: option.get("default") for name, option in self.policy.ARGUMENTS.items()}
        wanted = self.policy.policy_of(dict(parameters, state=state, **self.options))
        return self.work_out(self.backend, self.host, self.journal, wanted, self.service)

    def write(self, edits: Sequence[Any]) -> None:
        for edit in edits:
            if edit.after is None:
                self.host.remove(edit.path)
            else:
                self.host.write(edit.path, edit.after, ownership=self.host.ownership(edit.like) if edit.like else None)


def with_ours(outcome: Outcome, before: Mapping[str, Any], binary: str, ctr: str, job: Mapping[str, Any]) -> None:
    was = snapshot()
    ours = Ours(outcome.release, binary, default_handler=job["default"])
    present = ours.worked_out("present")
    if present.refusal:
        outcome.refused = present.refusal.found
        outcome.faults += [] if snapshot() == was else ["a refusal wrote"]
        return
    ours.write(present.edits)
    judge(outcome, before, was, binary, job["default"])
    if ours.worked_out("present").edits:
        outcome.faults.append("a second run would change something")
    if job["start"]:
        outcome.cri = cri_after_start(binary, ctr)
    gone = ours.worked_out("absent")
    ours.write(gone.edits)
    outcome.faults += [] if snapshot() == was else ["removal does not give the bytes back"]


def with_kills(outcome: Outcome, binary: str, ctr: str) -> None:
    """Every beginning of a run, as a kill leaves it: containerd starts with it, and the same run again completes it."""
    delivered = snapshot()
    ours = Ours(outcome.release, binary, default_handler=True, adopt=True, handlers={"nvidia-cdi": ""})
    ours.write(ours.worked_out("present").edits)
    installed = snapshot()
    outcome.handler = installed != delivered
    for state, first, last in (("present", delivered, installed), ("absent", installed, delivered)):
        put_back(first)
        edits = ours.worked_out(state).edits
        for count in range(len(edits) + 1):
            put_back(first)
            ours.write(edits[:count])
            outcome.kills += 1
            told = cri_after_start(binary, ctr)
            ours.write(ours.worked_out(state).edits)
            complete = snapshot() == last and not ours.worked_out(state).edits
            if told != "ok" or not complete:
                outcome.faults.append("%s, killed after %d of %d writes: %s, %s" % (
                    state, count, len(edits), told, "completed" if complete else "not completed"))


def with_rival(outcome: Outcome, before: Mapping[str, Any], binary: str, ctr: str, job: Mapping[str, Any]) -> None:
    was = snapshot()
    more = ["--set-as-default"] if job["default"] else []
    done = subprocess.run([job["rival"], "runtime", "configure", "--runtime=containerd", "--cdi.enabled", *more],
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    if done.returncode:
        outcome.refused = done.stdout.strip().splitlines()[-1]
        outcome.faults += [] if snapshot() == was else ["a refusal wrote"]
        return
    judge(outcome, before, was, binary, job["default"])
    # The comment that begins each file is the corpus's own: a file that was written anew lost it too.
    outcome.comments -= 1 if outcome.comments else 0
    if job["start"]:
        outcome.cri = cri_after_start(binary, ctr)


def one(job: Mapping[str, Any], programs: Mapping[str, str]) -> Outcome:
    binary, ctr = programs[job["release"]], programs["ctr"]
    outcome = Outcome(job["case"], job["release"])
    lay_out(job["case"], binary, job.get("files"))
    if job.get("kill"):
        with_kills(outcome, binary, ctr)
        return outcome
    before = dump(binary)
    outcome.accepted = before is not None and (not job["start"] or cri_after_start(binary, ctr) == "ok")
    (with_rival if job.get("rival") else with_ours)(outcome, before or {}, binary, ctr, job)
    return outcome


def _files() -> List[Path]:
    return sorted(path for path in ETC.rglob("*") if path.is_file())


def _said(*argv: str) -> str:
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""


def main() -> None:
    for directory in EMPTIED:
        os.makedirs(directory, exist_ok=True)
        subprocess.run(["mount", "-t", "tmpfs", "tmpfs", directory], check=True)
    subprocess.run(["ip", "link", "set", "lo", "up"], check=True)
    told = json.load(sys.stdin)
    json.dump([asdict(one(job, told["programs"])) for job in told["jobs"]], sys.stdout)


if __name__ == "__main__":
    main()
