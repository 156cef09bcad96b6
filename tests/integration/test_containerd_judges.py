# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Our change of containerd's configuration, judged by containerd itself: every generation, many files."""
from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any, Dict, List, Optional, Tuple

import pytest

from ansible_collections.gpuops.nvidia.plugins.module_utils.core.host import Host
from ansible_collections.gpuops.nvidia.plugins.module_utils.runtime.containerd import (
    configuration,
    gate,
    policy,
    toml,
    writer,
)
from gpulab.parts.registry import workshop

Release = Tuple[int, int]
# The part that holds the program, and where it lies in it
PROGRAMS: Dict[Release, Tuple[str, str]] = {
    (1, 6): ("root-bookworm", "root/usr/bin/containerd"),
    (1, 7): ("containerd-1.7", "bin/containerd"),
    (2, 2): ("containerd-2.2", "bin/containerd"),
    (2, 3): ("containerd-2.3", "bin/containerd"),
}

CRI2 = 'plugins."io.containerd.grpc.v1.cri"'
CRI3 = "plugins.'io.containerd.cri.v1.runtime'"
IMAGES3 = "plugins.'io.containerd.cri.v1.images'"

ANY = {
    "no file": None,
    "empty": "",
    "comments alone": "# Nothing here yet.\n\n  # [plugins]",
    "version alone, no end": "version = 2",
    "what Debian ships": (
        "version = 2\n\n[plugins]\n  [%s]\n    [%s.cni]\n      bin_dir = \"/usr/lib/cni\"\n"
        "      conf_dir = \"/etc/cni/net.d\"\n  [plugins.\"io.containerd.internal.v1.opt\"]\n"
        "    path = \"/var/lib/containerd/opt\"\n" % (CRI2, CRI2)
    ),
    "as kubeadm's guides have it": (
        "version = 2\n[%s]\n  sandbox_image = \"registry.k8s.io/pause:3.10\" # pinned\n[%s.containerd.runtimes.runc]\n"
        "  runtime_type = \"io.containerd.runc.v2\"\n[%s.containerd.runtimes.runc.options]\n  SystemdCgroup = true\n"
        % (CRI2, CRI2, CRI2)
    ),
    "another runtime, mirrors, a private registry, comments": (
        "# Machine room. Ask first!\nversion = 2 # do not touch\nroot = '/var/lib/containerd'\noom_score = -999\n"
        "imports = [ # for the future\n  \"/nowhere/*.toml\", # none yet\n]\n"
        "[%(c)s]   # CRI\n  sandbox_image = \"registry.k8s.io/pause:3.9\"\n  max_container_log_line_size = 32768\n"
        "  [%(c)s.containerd]\n    default_runtime_name = \"runc\" # keep\n    snapshotter = \"native\"\n"
        "    [%(c)s.containerd.runtimes.runc]\n      runtime_type = \"io.containerd.runc.v2\"\n"
        "      base_runtime_spec = \"/etc/containerd/base.json\"\n"
        "      pod_annotations = [\"example.org/*\"]\n"
        "      [%(c)s.containerd.runtimes.runc.options]\n        systemdCgroup = true\n"
        "        BinaryName = \"/usr/local/sbin/runc\"\n"
        "    [%(c)s.containerd.runtimes.gvisor]\n      runtime_type = \"io.containerd.runsc.v1\"\n"
        "    [%(c)s.containerd.runtimes.kata]\n      runtime_type = \"io.containerd.kata.v2\"\n"
        "  [%(c)s.registry.mirrors.\"docker.io\"]\n    endpoint = [\"https://mirror.example/\"]\n"
        "  [%(c)s.registry.configs.\"r.example\".auth]\n    username = 'robot'\n    password = 's3cret' # rotate\n"
        "  [%(c)s.registry.configs.\"r.example\".tls]\n    insecure_skip_verify = true\n" % {"c": CRI2}
    ),
    "the default is kata": (
        "version = 2\n[%(c)s.containerd]\ndefault_runtime_name = 'kata'\n[%(c)s.containerd.runtimes.kata]\n"
        "runtime_type = 'io.containerd.kata.v2'\n[%(c)s.containerd.runtimes.kata.options]\nConfigPath = '/x.toml'\n"
        "[%(c)s.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n" % {"c": CRI2}
    ),
    "the default is crun": (
        "version = 2\n[%(c)s.containerd]\ndefault_runtime_name = 'crun'\n[%(c)s.containerd.runtimes.crun]\n"
        "runtime_type = 'io.containerd.runc.v2'\n[%(c)s.containerd.runtimes.crun.options]\n"
        "BinaryName = '/usr/bin/crun'\nSystemdCgroup = true\n" % {"c": CRI2}
    ),
    "sub-tables before their table": (
        "version = 2\n[%(c)s.containerd.runtimes.runc.options]\nSystemdCgroup = true\n"
        "[%(c)s.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n"
        "[%(c)s.containerd]\nsnapshotter = 'overlayfs'\n[%(c)s]\n"
        "enable_selinux = false\n[debug]\nlevel = 'info'\n" % {"c": CRI2}
    ),
    "an inline table of options": (
        "version = 2\n[%(c)s.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n"
        "options = { SystemdCgroup = true }\n" % {"c": CRI2}
    ),
    "other plugins alone": (
        "version = 2\n[plugins.'io.containerd.gc.v1.scheduler']\npause_threshold = 0.05\n"
        "[proxy_plugins.stargz]\ntype = 'snapshot'\naddress = '/run/s.sock'\n[timeouts]\n"
        "'io.containerd.timeout.task.state' = '3s'\n"
    ),
}
SINCE_1_7 = {
    "CDI switched off, one folder": (
        "version = 2\n[%s]\n  enable_cdi = false   # site\n  cdi_spec_dirs = [\"/etc/cdi\"]\n" % CRI2
    ),
}
SINCE_2 = {
    "version 3": (
        "version = 3\n[%s.containerd.runtimes.runc]\nruntime_type = 'io.containerd.runc.v2'\n"
        "[%s.containerd.runtimes.runc.options]\nSystemdCgroup = true\n[%s.registry]\n"
        "config_path = '/etc/containerd/certs.d'\n" % (CRI3, CRI3, IMAGES3)
    ),
    "version 3, CDI switched off": "version = 3\n[%s]\nenable_cdi = false\ncdi_spec_dirs = []\n" % CRI3,
}
SINCE_2_3 = {"version 4": "version = 4\n[%s]\nenable_selinux = false\n" % CRI3}


def corpus() -> List[Any]:
    cases = []
    for release in PROGRAMS:
        texts: Dict[str, Optional[str]] = dict(ANY)
        for since, more in (((1, 7), SINCE_1_7), ((2, 0), SINCE_2), ((2, 3), SINCE_2_3)):
            texts.update(more if release >= since else {})
        texts["its own default"] = "(default)"
        cases.extend(pytest.param(release, text, id="%d.%d: %s" % (*release, name)) for name, text in texts.items())
    return cases


@pytest.fixture(scope="session")
def programs() -> Dict[Release, str]:
    shop = workshop()
    return {release: str(shop.build(part) / path) for release, (part, path) in PROGRAMS.items()}


def wish(**changes: Any) -> policy.RuntimePolicy:
    parameters = {name: option.get("default") for name, option in policy.ARGUMENTS.items()}
    return policy.policy_of(dict(parameters, **changes))


def after(config: configuration.Configuration, root: str, edits: List[writer.Edit]) -> configuration.Configuration:
    """The configuration once the edits are done."""
    texts: Dict[str, Optional[str]] = {file.path: file.text for file in config.files}
    texts.setdefault(root, None)
    texts.update({edit.path: edit.after for edit in edits})
    files = [configuration.File(path, text, toml.parse(path, text)) for path, text in texts.items() if text is not None]
    return configuration.Configuration(tuple(files), (), config.major)


@pytest.mark.parametrize("default_handler", [False, True], ids=["beside", "as default"])
@pytest.mark.parametrize(("release", "text"), corpus())
def test_only_the_handler_comes_and_only_the_handler_goes(
    release: Release, text: Optional[str], default_handler: bool, programs: Dict[Release, str], tmp_path: Path
) -> None:
    host, binary, wanted = Host(), programs[release], wish(default_handler=default_handler)
    root = tmp_path / "config.toml"
    if text == "(default)":
        text = subprocess.run([binary, "config", "default"], check=True, stdout=subprocess.PIPE, text=True).stdout
    if text is not None:
        root.write_text(text)
    before = configuration.load(host, str(root), release[0])

    edits = writer.present_edits(before, None, str(root), wanted, release, False)
    gate.judge(host, binary, before, edits, wanted)
    assert not [edit for edit in edits if "s3cret" in "%s%s" % (edit.shown_before, edit.shown_after)]
    there = after(before, str(root), edits)
    dumped = gate.effective(host, binary, there, {})
    plugins = [dumped["plugins"].get(name, {}) for name in (configuration.CRI2, configuration.CRI3)]
    section = next(each["containerd"] for each in plugins if "runtimes" in each.get("containerd", {}))
    assert section["runtimes"]["nvidia"]["options"]["BinaryName"] == "/usr/bin/nvidia-container-runtime"
    assert section["runtimes"]["nvidia"]["runtime_type"] == "io.containerd.runc.v2"
    assert (section["default_runtime_name"] == "nvidia") is default_handler

    ours = next((edit.after for edit in edits if edit.path == writer.DROP_IN), None)
    assert writer.present_edits(there, ours, str(root), wanted, release, False) == []

    back = writer.absent_edits(there, ours)
    gate.judge(host, binary, there, back, wish())
    assert {file.path: file.text for file in after(there, str(root), back).files} == (
        {} if text is None else {str(root): text}
    )


@pytest.mark.parametrize("release", list(PROGRAMS), ids=["%d.%d" % release for release in PROGRAMS])
def test_a_default_handler_that_is_not_defined_is_found(
    release: Release, programs: Dict[Release, str], tmp_path: Path
) -> None:
    root = tmp_path / "config.toml"
    root.write_text("version = 2\n[%s.containerd]\ndefault_runtime_name = 'none'\n" % CRI2)
    config = configuration.load(Host(), str(root), release[0])
    edits = writer.present_edits(config, None, str(root), wish(), release, False)
    with pytest.raises(gate.GpuOpsError) as caught:
        gate.judge(Host(), programs[release], config, edits, wish())
    assert "default handler 'none'" in caught.value.found
