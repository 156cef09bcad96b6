# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Parameters of NVIDIA's kernel modules: what files of modprobe.d(5) set them to, and what is loaded.

A parameter is named as on the kernel's command line, 'nvidia.NVreg_ModifyDeviceFiles', whatever a distribution calls
the module. Loaded values are those of /proc/driver/nvidia/params (open-gpu-kernel-modules, kernel-open/nvidia/
nv-procfs.c), where NVreg_ is left out; of other modules those of /sys/module.
"""
from __future__ import annotations

import re
import time
from typing import Dict, Iterable, Mapping, Tuple

from ..core.host import Host

# Whole ours, and read by who tells whether the loaded module has what it says
PARAMETERS_FILE = "/etc/modprobe.d/gpuops-nvidia-driver.conf"
# modprobe.d(5), in the order in which they count
DIRECTORIES = ("/etc/modprobe.d", "/run/modprobe.d", "/usr/local/lib/modprobe.d", "/usr/lib/modprobe.d",
               "/lib/modprobe.d")
# Whose the memory of a coherent GPU is, 'driver' or 'numa' (NVIDIA's documentation of coherent driver-based memory)
COHERENT_MODE = "nvidia.NVreg_CoherentGPUMemoryMode"
LOADED_FILE = "/proc/driver/nvidia/params"
_DEBIANS = re.compile(r"^nvidia_(current|tesla(_\d+)?)(_open)?")
_PREFIX = "NVreg_"
_LINE = re.compile(r"^(\w+): ?(.*)$", re.MULTILINE)


def configuration_files(host: Host) -> Tuple[str, ...]:
    """A file stands in for those of its name in later directories: so an administrator switches them off."""
    first: Dict[str, str] = {}
    for directory in DIRECTORIES:
        for name in host.list(directory):
            if name.endswith(".conf"):
                first.setdefault(name, "%s/%s" % (directory, name))
    return tuple(first.values())


def parameters_in(text: str) -> Dict[str, str]:
    """{parameter: value} of NVIDIA's modules in a file of modprobe.d."""
    found = {}
    for line in text.replace("\\\n", " ").splitlines():
        words = line.split()
        if len(words) > 2 and words[0] == "options" and words[1].startswith("nvidia"):
            module = _DEBIANS.sub("nvidia", words[1].replace("-", "_"))
            for word in words[2:]:
                name, _equals, value = word.partition("=")
                found["%s.%s" % (module, name)] = value.strip('"')
    return found


def loaded_parameters(host: Host, names: Iterable[str]) -> Dict[str, str]:
    """{parameter: value} of those that a loaded module tells."""
    told = {name: value.strip().strip('"') for name, value in _LINE.findall(host.read(LOADED_FILE) or "")}
    found = {}
    for name in names:
        module, _dot, parameter = name.partition(".")
        if module == "nvidia" and parameter.startswith(_PREFIX) and parameter[len(_PREFIX):] in told:
            found[name] = told[parameter[len(_PREFIX):]]
            continue
        text = host.read("/sys/module/%s/parameters/%s" % (module, parameter))
        if text is not None:
            found[name] = text.strip()
    return found


def differing(wanted: Mapping[str, str], loaded: Mapping[str, str]) -> Tuple[str, ...]:
    """'nvidia.NVreg_EnableMSI=1' of parameters whose loaded value is told and is another one than wanted."""
    return tuple(sorted("%s=%s" % (name, value) for name, value in wanted.items()
                        if name in loaded and not is_same(value, loaded[name])))


def is_same(one: str, other: str) -> bool:
    """Whether two values are one to the kernel: '0x10' and '16', '0666' and '438', 'Y' and '1'."""
    return _meaning(one) == _meaning(other)


def _meaning(value: str) -> str:
    if value in ("Y", "y", "N", "n"):
        return "1" if value in "Yy" else "0"
    # A zero makes it octal (include/linux/kstrtox.h), which Python writes with an 'o'
    number = re.sub(r"^(-?)0(?=[0-7]+$)", r"\g<1>0o", value)
    try:
        return str(int(number, 0))
    except ValueError:
        return value


def is_older_than_boot(host: Host) -> bool:
    """Whether our file was last written before this boot: whatever is loaded has been loaded with it since."""
    found = host.stat(PARAMETERS_FILE)
    uptime = (host.read("/proc/uptime") or "").split()
    return found is not None and bool(uptime) and found.st_mtime < time.time() - float(uptime[0])


def stale_parameters(host: Host) -> Tuple[str, ...]:
    """Those of our file that the loaded modules do not have yet; see HostFacts.parameters_differ."""
    wanted = parameters_in(host.read(PARAMETERS_FILE) or "")
    return differing(wanted, loaded_parameters(host, wanted))
