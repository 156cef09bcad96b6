# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Our change of Docker's daemon.json, judged by dockerd itself, with nvidia-ctk on the same files for comparison."""
from __future__ import annotations

import json
import os
import subprocess
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any, Dict, List, Optional

import pytest
from made_edits import WorkedOut, make, work_out
from workspace import REPOSITORY

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.core.journal import Journal
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.docker import configuration
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.docker.backend import Docker
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.memory import MEMORY
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.model import Edit, Service
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.policy import Policy
from gpulab.parts.registry import workshop

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="dockerd validates as root alone")

FILE = configuration.FILE
BINARY = "/usr/bin/nvidia-container-runtime"
PRESENT = Policy(True, "nvidia", BINARY, False, True, "")
DOCUMENT = REPOSITORY / "docs" / "container-runtime.md"

CORPUS_DIRECTORY = Path(__file__).resolve().parent / "corpus" / "docker"


def corpus() -> Dict[str, Optional[str]]:
    """{case: what lies in /etc/docker/daemon.json}; None is no file."""
    files: Dict[str, Optional[str]] = {path.name[:-len(".json")]: path.read_text(encoding="utf-8")
                                       for path in sorted(CORPUS_DIRECTORY.glob("*.json"))}
    lines = files["the-order-of-a-careful-hand"] or ""
    return {"no-file": None, "an-empty-file": "", "blank-lines-alone": "\n\n", **files,
            "line-ends-of-windows": lines.replace("\n", "\r\n"), "a-byte-order-mark": "\ufeff" + lines}


CORPUS = corpus()
# What is refused, and with which words; all else is configured
REFUSED = {
    "tls": "dockerd refuses /etc/docker/daemon.json as it is",
    "the-same-key-twice": "daemon.json:4: the key 'debug' is there twice",
    "a-trailing-comma": "daemon.json:3: a key in double quotes is missing",
    "a-comment": "daemon.json:2: a key in double quotes is missing",
    "a-list": "daemon.json:1: the file holds no JSON object",
    "runtimes-is-a-list": "'runtimes' is no object",
    "an-unknown-key": "dockerd refuses /etc/docker/daemon.json as it is",
    "another-nvidia": "runtime 'nvidia' is",
    "nvidia-with-arguments": "runtime 'nvidia' is",
}
SECRET = "s3cret"


@pytest.fixture(scope="module")
def dockerd(tmp_path_factory: pytest.TempPathFactory) -> str:
    """dockerd looks for docker-proxy as it does on a host where its packages are installed."""
    programs = workshop().build("docker") / "bin"
    wrapper = tmp_path_factory.mktemp("docker") / "dockerd"
    wrapper.write_text('#!/bin/sh\nPATH=%s:$PATH exec dockerd "$@"\n' % programs)
    wrapper.chmod(0o755)
    return str(wrapper)


@pytest.fixture(scope="module")
def nvidia_ctk() -> str:
    return str(workshop().build("nvidia-toolkit") / "bin/nvidia-ctk")


def service_of(dockerd: str, *flags: str) -> Service:
    return Service(backend="docker", distribution="", unit="docker.service", active=False, pid=0, started=0.0,
                   binary=dockerd, release=(29, 0), root=FILE, socket="/run/docker.sock",
                   arguments=("/usr/bin/dockerd", *flags) if flags else ())


def lay_out(root: Path, text: Optional[str]) -> Host:
    host = Host(str(root))
    if text is not None:
        host.write(FILE, text, 0o600 if SECRET in text else 0o644)
    return host


def accepts(dockerd: str, host: Host) -> bool:
    done = subprocess.run([dockerd, "--validate", "--config-file", host.path(FILE)], check=False,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    return done.returncode == 0


def write(host: Host, journal: Journal, edits: Any) -> None:
    for edit in edits:
        journal.keep_original(MEMORY, edit.path)
    make(Docker(), host, edits)


def worked_out(host: Host, journal: Journal, policy: Policy, service: Service) -> WorkedOut:
    return work_out(Docker(), host, journal, policy, service)


def shown(edits: Any) -> str:
    return "".join("%s%s" % (edit.shown_before, edit.shown_after) for edit in edits)


@pytest.mark.parametrize("default", [False, True], ids=["beside", "as default"])
@pytest.mark.parametrize("case", [case for case in CORPUS if case not in REFUSED])
def test_only_the_runtime_comes_and_goes(case: str, default: bool, dockerd: str, tmp_path: Path) -> None:
    text, service = CORPUS[case], service_of(dockerd)
    host = lay_out(tmp_path, text)
    assert text is None or accepts(dockerd, host)
    journal, wanted = Journal(host), replace(PRESENT, default_handler=default)
    before = configuration.parse(FILE, text or "")
    mode = host.mode(FILE)

    present = worked_out(host, journal, wanted, service)
    assert present.refusal is None
    write(host, journal, present.edits)
    assert accepts(dockerd, host)
    assert mode in (None, host.mode(FILE))
    assert SECRET not in shown(present.edits)
    after = configuration.parse(FILE, host.read(FILE) or "")
    assert after["runtimes"]["nvidia"]["path"] in (BINARY, "nvidia-container-runtime")
    assert configuration.injects_cdi(after, service.release)
    assert after.get("default-runtime", "runc") == ("nvidia" if default else before.get("default-runtime", "runc"))
    assert [key for key in after if key in before] == list(before)
    for key in set(before) - {"runtimes", "features", "default-runtime"}:
        assert after[key] == before[key]
    for key in ("runtimes", "features"):
        assert {name: value for name, value in after.get(key, {}).items() if name not in ("nvidia", "cdi")} == {
            name: value for name, value in before.get(key, {}).items() if name not in ("nvidia", "cdi")}

    assert worked_out(host, journal, wanted, service).edits == ()
    gone = worked_out(host, journal, replace(wanted, present=False), service)
    write(host, journal, gone.edits)
    assert host.read(FILE) == text


@pytest.mark.parametrize("case", list(REFUSED))
def test_what_cannot_be_changed_is_refused_with_its_reason(case: str, dockerd: str, tmp_path: Path) -> None:
    host = lay_out(tmp_path, CORPUS[case])
    refused = worked_out(host, Journal(host), PRESENT, service_of(dockerd))
    assert refused.refusal is not None and REFUSED[case] in refused.refusal.found
    assert refused.edits == () and host.read(FILE) == CORPUS[case]


@pytest.mark.parametrize("case", ["another-nvidia", "nvidia-with-arguments"])
def test_another_runtime_is_taken_over_when_told(case: str, dockerd: str, tmp_path: Path) -> None:
    host = lay_out(tmp_path, CORPUS[case])
    journal, told = Journal(host), replace(PRESENT, adopt=True)
    write(host, journal, worked_out(host, journal, told, service_of(dockerd)).edits)
    assert accepts(dockerd, host)
    assert json.loads(host.read(FILE) or "")["runtimes"]["nvidia"]["path"] == BINARY
    write(host, journal, worked_out(host, journal, replace(told, present=False), service_of(dockerd)).edits)
    assert host.read(FILE) == CORPUS[case]


@pytest.mark.parametrize(("flags", "text", "told"), [
    (("-H", "unix:///run/docker.sock"), '{"hosts": ["unix:///run/docker.sock"]}', "hosts"),
    (("--default-runtime=runc",), "{}", "--default-runtime"),
    (("--config-file", FILE, "--add-runtime=crun=/usr/bin/crun"), "{}", ""),
])
def test_flags_and_file_that_contradict_are_told_before_the_next_start_fails(
    flags: Any, text: str, told: str, dockerd: str, tmp_path: Path
) -> None:
    host = lay_out(tmp_path, text)
    refusal = worked_out(
        host, Journal(host), replace(PRESENT, default_handler=True), service_of(dockerd, *flags)).refusal
    assert (refusal is None) is (told == "")
    assert told in (refusal.found if refusal else "")


# The rival

# What is counted, and how often it happens to nvidia-ctk 1.20.1 in the files of the corpus that dockerd reads
RIVAL = {
    "files that dockerd reads": 44,
    "refused": 3,
    "order of keys changed": 14,
    "layout of other lines changed": 36,
    "a runtime nvidia of another program, or with arguments, replaced without a word": 2,
    "features of others lost": 0,
    "readable for more than before": 0,
    "dockerd refuses the result": 0,
}


def losses(case: str, dockerd: str, nvidia_ctk: str, root: Path) -> List[str]:
    """What nvidia-ctk loses of a file, in the words of RIVAL."""
    text = CORPUS[case]
    host = lay_out(root, text)
    if text is not None and not accepts(dockerd, host):
        return []
    os.makedirs(os.path.dirname(host.path(FILE)), exist_ok=True)
    before, mode = _data(text), host.mode(FILE) or 0o644
    done = subprocess.run([nvidia_ctk, "runtime", "configure", "--runtime=docker", "--config=" + host.path(FILE),
                           "--cdi.enabled"], check=False, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    after = _data(host.read(FILE))
    found = ["files that dockerd reads"]
    if done.returncode or "nvidia" not in after.get("runtimes", {}):
        return [*found, "refused"]
    if [key for key in after if key in before] != list(before):
        found.append("order of keys changed")
    kept = _lines(host.read(FILE))
    if any(line not in kept for line in _lines(text)):
        found.append("layout of other lines changed")
    there = before.get("runtimes", {}).get("nvidia", {"path": "nvidia-container-runtime"})
    if os.path.basename(there["path"]) != "nvidia-container-runtime" or there.get("runtimeArgs"):
        found.append("a runtime nvidia of another program, or with arguments, replaced without a word")
    if set(before.get("features", {})) - set(after.get("features", {})):
        found.append("features of others lost")
    if (host.mode(FILE) or 0) & ~mode:
        found.append("readable for more than before")
    if not accepts(dockerd, host):
        found.append("dockerd refuses the result")
    return found


def _lines(text: Optional[str]) -> List[str]:
    """Lines that hold something, without a comma that a further key takes."""
    lines = [line.rstrip(" \t\r,") for line in (text or "").split("\n")]
    return [line for line in lines if line.strip(" \t{}")]


def _data(text: Optional[str]) -> Dict[str, Any]:
    """As dockerd reads it: of a key that is there twice, the last one counts."""
    bare = (text or "").strip("\ufeff \t\r\n")
    return dict(json.loads(bare)) if bare else {}


def test_what_nvidia_ctk_loses_is_what_the_document_tells(dockerd: str, nvidia_ctk: str, tmp_path: Path) -> None:
    counts = Counter(loss for number, case in enumerate(CORPUS)
                     for loss in losses(case, dockerd, nvidia_ctk, tmp_path / str(number)))
    assert dict(counts) == {loss: count for loss, count in RIVAL.items() if count}
    document = DOCUMENT.read_text()
    for loss, count in RIVAL.items():
        assert "| %s | %d |" % (loss, count) in document


def test_the_edit_is_of_this_file_alone(dockerd: str, tmp_path: Path) -> None:
    host = lay_out(tmp_path, CORPUS["a-proxy-with-its-password"])
    edit, = worked_out(host, Journal(host), PRESENT, service_of(dockerd)).edits
    assert isinstance(edit, Edit) and edit.path == FILE
    assert SECRET in (edit.after or "") and SECRET not in json.dumps(edit.parameters)
