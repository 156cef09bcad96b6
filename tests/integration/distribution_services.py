# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Stand-ins for the services of Kubernetes distributions, as far as their containerd goes: it is the real one.

Runs on a laboratory host as the main process of their units. Each does with containerd's configuration what the sources
of its distribution do: k3s and RKE2 render it (pkg/agent/containerd), k0s imports a directory that it watches, three
seconds behind a change (pkg/component/worker/containerd), MicroK8s fills in a template (run-containerd-with-args).
"""
from __future__ import annotations

import glob
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List

STORE = "/var/lib/containerd/"
FOUND = {"nvidia": "nvidia-container-runtime", "nvidia-cdi": "nvidia-container-runtime.cdi", "crun": "crun"}


def k3s(name: str) -> List[str]:
    """Render config.toml with the handlers whose programs are found; the command that serves it."""
    data = "/var/lib/rancher/%s" % name
    directory = data + "/agent/etc/containerd"
    os.environ["PATH"] = "%s/data/current/bin:%s" % (data, os.environ["PATH"])
    path = "/usr/local/nvidia/toolkit:/opt/kwasm/bin:" + os.environ["PATH"]
    programs = {handler: shutil.which(program, path=path) for handler, program in FOUND.items()}
    options: Dict[str, str] = {}
    config_yaml = "/etc/rancher/%s/config.yaml" % name
    for file in [config_yaml, *sorted(glob.glob(config_yaml + ".d/*.yaml"))]:
        if os.path.exists(file):
            with open(file) as text:
                options.update(re.findall(r"(?m)^([a-z-]+): (.*)$", text.read()))
    with open(directory + "/generation") as generation:
        base, program = generation.read().split()
    own = directory + ("/config-v3.toml.tmpl" if base == "base-v3" else "/config.toml.tmpl")
    config = {
        "Program": program, "Folder": directory, "SystemdCgroup": True,
        "ExtraRuntimes": {handler: {"RuntimeType": "io.containerd.runc.v2", "BinaryName": found}
                          for handler, found in programs.items() if found},
        "NodeConfig": {"DefaultRuntime": options.get("default-runtime", "")},
    }
    rendered = subprocess.run(
        ["/usr/local/bin/k3s-render", "%s/%s.tmpl" % (directory, base), *([own] if os.path.exists(own) else [])],
        input=json.dumps(config), stdout=subprocess.PIPE, check=True, text=True).stdout
    write(directory + "/config.toml", rendered)
    return [data + "/data/current/bin/containerd", "-c", directory + "/config.toml",
            "-a", "/run/k3s/containerd/containerd.sock", "--state", "/run/k3s/containerd", "--root", STORE + name]


def microk8s() -> List[str]:
    """Fill in the template; the command that serves it."""
    directory = "/var/snap/microk8s/current/args"
    with open(directory + "/containerd-template.toml") as template:
        text = template.read()
    for name, value in (("RUNTIME", "runc"), ("SNAPSHOTTER", "native"), ("RUNTIME_TYPE", "io.containerd.runc.v2"),
                        ("SNAP_DATA", "/var/snap/microk8s/current")):
        text = text.replace("${%s}" % name, value)
    write(directory + "/containerd.toml", text)
    return ["/snap/microk8s/current/bin/containerd", "--config", directory + "/containerd.toml",
            "--address", "/var/snap/microk8s/common/run/containerd.sock", "--state", "/run/microk8s",
            "--root", STORE + "microk8s"]


def k0s() -> List[str]:
    write("/etc/k0s/containerd.toml", '# k0s_managed=true\n# A placeholder of k0s.\nversion = 3\n'
          'imports = ["/etc/k0s/containerd.d/*.toml"]\n[plugins."io.containerd.cri.v1.images"]\n'
          '  snapshotter = "native"\n')
    os.makedirs("/etc/k0s/containerd.d", exist_ok=True)
    return ["/var/lib/k0s/bin/containerd", "--root=%sk0s" % STORE, "--state=/run/k0s/containerd",
            "--address=/run/k0s/containerd.sock", "--config=/etc/k0s/containerd.toml"]


def supervise(command: List[str], watched: str) -> None:
    """Keep containerd running; where a directory is watched, it gets a SIGHUP three seconds behind the last change."""
    children: List[Any] = []
    signal.signal(signal.SIGTERM, lambda *_: (children[-1].terminate(), children[-1].wait(), sys.exit(0)))
    while True:
        known = seen = state_of(watched)
        children.append(subprocess.Popen(command))
        changed = 0.0
        while children[-1].poll() is None:
            time.sleep(0.2)
            now = state_of(watched)
            if now != seen:
                seen, changed = now, time.monotonic()
            if seen != known and time.monotonic() - changed > 3:
                known = seen
                children[-1].send_signal(signal.SIGHUP)
        time.sleep(0.5)


def state_of(directory: str) -> Any:
    return [(path, os.stat(path).st_mtime) for path in sorted(glob.glob(directory + "/*"))] if directory else None


def write(path: str, text: str) -> None:
    with open(path, "w") as file:
        file.write(text)


def main() -> None:
    name = sys.argv[1]
    command = {"k3s": lambda: k3s("k3s"), "rke2": lambda: k3s("rke2"), "k0s": k0s, "microk8s": microk8s}[name]()
    for option in ("-a", "--address", "--address=/run/k0s/containerd.sock"):
        if option in command:
            address = option.partition("=")[2] or command[command.index(option) + 1]
            os.makedirs(os.path.dirname(address), exist_ok=True)
    supervise(command, "/etc/k0s/containerd.d" if name == "k0s" else "")


if __name__ == "__main__":
    main()
