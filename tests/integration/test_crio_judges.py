# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Our file for CRI-O, judged by CRI-O itself on many configurations, with nvidia-ctk's file for comparison."""
from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Dict, List, Tuple

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime import policy
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.backends.crio import configuration, judge, writer
from gpulab.parts.registry import workshop


def entry(name: str, **values: str) -> str:
    lines = "".join('%s = %s\n' % pair for pair in values.items())
    return "[crio.runtime.runtimes.%s]\n%s" % (name, lines)


CRUN = entry("crun", runtime_path='"/usr/libexec/crio/crun"', runtime_root='"/run/crun"',
             monitor_path='"/usr/libexec/crio/conmon"', allowed_annotations='["io.containers.trace-syscall"]')
RUNC = entry("runc", runtime_path='"/usr/libexec/crio/runc"', runtime_root='"/run/runc"',
             monitor_path='"/usr/libexec/crio/conmon"')
DEFAULT = '[crio.runtime]\ndefault_runtime = "%s"\n'

# What lies in /etc/crio: {name: text}
CORPUS: Dict[str, Dict[str, str]] = {
    "nothing": {},
    "an empty root": {"crio.conf": ""},
    "comments alone": {"crio.conf": "# [crio.runtime]\n#default_runtime = 'x'\n"},
    "what the packages ship": {
        "crio.conf.d/10-crio.conf": '[crio.image]\nsignature_policy = "/etc/crio/policy.json"\n\n'
                                    + DEFAULT % "crun" + "\n" + CRUN + "\n" + RUNC},
    "everything in the root": {
        "crio.conf": DEFAULT % "runc" + RUNC + "[crio.network]\nplugin_dirs = ['/usr/lib/cni']\n"},
    "root and directory": {"crio.conf": DEFAULT % "runc" + RUNC, "crio.conf.d/10-crun.conf": DEFAULT % "crun" + CRUN},
    "a later file empties an entry": {
        "crio.conf.d/10.conf": CRUN, "crio.conf.d/20.conf": entry("crun", runtime_root='"/run/x"')},
    "empty paths and an environment": {
        "crio.conf": entry("runc", runtime_path='""', monitor_path='""', monitor_env='["PATH=/usr/bin", "A=b"]')},
    "runc without its paths": {"crio.conf.d/01.conf": DEFAULT % "runc" + entry("runc", runtime_type='"oci"')},
    "pods are the monitors' cgroup": {
        "crio.conf.d/10.conf": "[crio.runtime]\ncgroup_manager = 'cgroupfs'\nconmon_cgroup = 'pod'\n" + CRUN},
    "monitor_cgroup of the entry": {"crio.conf.d/10.conf": CRUN + 'monitor_cgroup = "system.slice"\n'},
    "an inline entry": {"crio.conf": "[crio.runtime.runtimes]\nrunc = { runtime_path = '/usr/libexec/crio/runc' }\n"},
    "dotted keys": {"crio.conf": "crio.runtime.log_level = 'debug'\ncrio.runtime.pids_limit = 2048\n"},
    "kata beside": {"crio.conf.d/10.conf": CRUN, "crio.conf.d/50-kata.conf": entry(
        "kata", runtime_path='"/usr/bin/containerd-shim-kata-v2"', runtime_type='"vm"', runtime_root='"/run/vc"')},
    "kata is called runc": {"crio.conf": entry("runc", runtime_path='"/opt/kata"', runtime_type='"vm"')},
    "a stray backup counts": {"crio.conf.d/10-crio.conf": CRUN, "crio.conf.d/10-crio.conf.~": RUNC},
    "a directory below": {"crio.conf.d/10-site/a.conf": RUNC, "crio.conf.d/20.conf": CRUN},
    "CDI in one directory": {"crio.conf.d/10.conf": "[crio.runtime]\ncdi_spec_dirs = ['/etc/cdi']\n" + CRUN},
    "an inheriting handler": {
        "crio.conf.d/10.conf": DEFAULT % "crun" + CRUN + entry("fast", inherit_default_runtime="true")},
    "much else": {"crio.conf": "# Machine room\n[crio]\nlog_dir = '/var/log/x'\n[crio.runtime]\nselinux = false\n"
                  "default_env = ['PASSWORD=s3cret']\nhooks_dir = [\n  '/etc/hooks', # ours\n]\n"
                  "[crio.metrics]\nenable_metrics = true\n" + RUNC},
}


@pytest.fixture(scope="session")
def crio() -> str:
    return str(workshop().build("cri-o") / "bin/crio")


@pytest.fixture(scope="session")
def nvidia_ctk() -> str:
    return str(workshop().build("nvidia-toolkit") / "bin/nvidia-ctk")


def policy_with(program: Path, **changes: Any) -> policy.Policy:
    parameters = {name: option.get("default") for name, option in policy.ARGUMENTS.items()}
    return policy.policy_of(dict(parameters, handler_binary=str(program), **changes))


def lay_out(directory: Path, files: Dict[str, str]) -> configuration.Configuration:
    for name, text in files.items():
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return load(directory)


def load(directory: Path) -> configuration.Configuration:
    return configuration.load(Host(), str(directory / "crio.conf"), str(directory / "crio.conf.d"))


def entry_of(dumped: Dict[Tuple[str, ...], Any], handler: str = "nvidia") -> Dict[str, Any]:
    return {path[-1]: value for path, value in dumped.items() if path[:-1] == judge.RUNTIMES + (handler,)}


@pytest.fixture
def program(tmp_path: Path) -> Path:
    """CRI-O drops a handler whose program is not there."""
    path = tmp_path / "nvidia-container-runtime"
    shutil.copyfile("/bin/true", path)
    path.chmod(0o755)
    return path


@pytest.mark.parametrize("default_handler", [False, True], ids=["beside", "as default"])
@pytest.mark.parametrize("name", list(CORPUS))
def test_only_the_handler_comes_and_goes(
    name: str, default_handler: bool, crio: str, program: Path, tmp_path: Path
) -> None:
    host, wanted = Host(), policy_with(program, default_handler=default_handler)
    before = lay_out(tmp_path / "etc", CORPUS[name])
    assert writer.conflict(before, wanted) == ("", "")
    text = writer.wanted_text(before, wanted, judge.built_in(host, crio, before))
    judge.judge(host, crio, before, {writer.our_paths(before)[0]: text}, wanted)
    assert text is not None
    assert "s3cret" not in text

    target = Path(writer.our_paths(before)[0])
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text)
    there = load(tmp_path / "etc")
    dumped = judge.effective(host, crio, there)
    got = entry_of(dumped)
    assert (got["runtime_path"], got["runtime_type"]) == (str(program), "oci")
    assert not got.get("inherit_default_runtime")
    assert (dumped.get(judge.DEFAULT) == "nvidia") is default_handler
    known = before.handlers()
    source = next((known[each] for each in ("runc", "crun") if known.get(each, {}).get("runtime_type", "oci") == "oci"
                   and each in known), {})
    for key in ("runtime_root", "monitor_path"):
        assert got.get(key, "") == source.get(key, "") or not source.get(key)
    assert writer.wanted_text(there, wanted, judge.built_in(host, crio, there)) == text

    judge.judge(host, crio, there, {str(target): None}, policy_with(program))
    target.unlink()
    assert load(tmp_path / "etc").files == before.files


# What a handler needs of the one that it stands in for
TAKEN_OVER = ("runtime_root", "monitor_path", "monitor_cgroup", "monitor_env", "allowed_annotations")
PAGE = Path(__file__).resolve().parents[2] / "docs" / "container-runtime.md"


@dataclass(frozen=True)
class Loss:
    """Settings of runc (else crun) that the handler lacks: ours, and that of nvidia-ctk."""

    ours: List[str]
    theirs: List[str]


def loss(name: str, crio: str, nvidia_ctk: str, program: Path, directory: Path) -> Loss:
    """nvidia-ctk as it is called by default: it reads crio.conf alone."""
    before = lay_out(directory / "etc", CORPUS[name])
    text = writer.wanted_text(before, policy_with(program), judge.built_in(Host(), crio, before)) or ""
    rival = directory / "rival.toml"
    subprocess.run([nvidia_ctk, "runtime", "configure", "--runtime=crio", "--config=%s" % (directory / "etc/crio.conf"),
                    "--drop-in-config=%s" % rival, "--nvidia-runtime-path=%s" % program], check=True,
                   stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    base = judge.effective(Host(), crio, before)
    sources = (entry_of(base, handler) for handler in ("runc", "crun"))
    source = next((each for each in sources if each and each.get("runtime_type", "") in ("", "oci")), {})
    files = ((writer.our_paths(before)[0], text), (before.directory + "/99-nvidia.toml", rival.read_text()))
    entries = [entry_of(judge.effective(Host(), crio, before.but(dict([file])))) for file in files]
    return Loss(*([key for key in TAKEN_OVER if source.get(key) and not entry.get(key)] for entry in entries))


def test_what_nvidia_ctk_loses_and_we_do_not(
    crio: str, nvidia_ctk: str, program: Path, tmp_path: Path
) -> None:
    losses = {name: loss(name, crio, nvidia_ctk, program, tmp_path / str(number))
              for number, name in enumerate(CORPUS)}
    assert {name: each.ours for name, each in losses.items() if each.ours} == {}
    counts = {"no monitor": 0, "other settings lost": 0, "nothing lost": 0}
    for each in losses.values():
        counts["no monitor" if "monitor_path" in each.theirs else "other settings lost" if each.theirs
               else "nothing lost"] += 1
    page = PAGE.read_text()
    assert counts == {told: int(page.partition("| nvidia-ctk: %s | " % told)[2].split(" ", 1)[0]) for told in counts}
    assert "%d configurations of CRI-O" % len(CORPUS) in page


@pytest.mark.parametrize(("text", "told"), [
    ("[crio\n", "crio.conf.d/50.conf"), (DEFAULT % "none", "default_runtime set to"),
], ids=["no TOML", "an undefined default"])
def test_what_crio_refuses_is_refused_with_its_words(text: str, told: str, crio: str, tmp_path: Path) -> None:
    directory = str(tmp_path / "crio.conf.d")
    file = configuration.File(directory + "/50.conf", text, {})
    config = configuration.Configuration(str(tmp_path / "crio.conf"), directory, (file,))
    with pytest.raises(judge.GpuOpsError) as caught:
        judge.effective(Host(), crio, config)
    assert told in caught.value.found
