# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What NVIDIA's programs make of a config.toml: the text that a package's script leaves, and whether it is accepted."""
from __future__ import annotations

from ..core.host import Host
from .configuration import DEBUG, with_settings

# Where the programs look for it below XDG_CONFIG_HOME (api/config/v1 of NVIDIA/nvidia-container-toolkit)
RELATIVE = "nvidia-container-runtime/config.toml"

# internal/runtime/runtime.go and internal/oci/runtime_low_level.go of the same
REJECTION = "error loading config: "
NO_RUNTIME = "no runtime binary found"


def is_rewritten(host: Host, text: str, kept: str) -> bool:
    """Whether a file is the kept text still, or what the post-install script of the packages makes of it.

    The script calls 'nvidia-ctk config --in-place'; anything else in the file was written by somebody.
    """
    if text == kept:
        return True
    if host.which("nvidia-ctk") is None:
        return False
    with host.scratch() as directory:
        path = "%s/%s" % (directory, RELATIVE)
        host.write(path, kept)
        made = host.run(["nvidia-ctk", "--quiet", "config", "--config-file=" + path], check=False)
    return made.rc == 0 and made.stdout == text


def objection(host: Host, text: str) -> str:
    """What NVIDIA's runtime says against a file, '' when it takes it or is not installed.

    It reads the whole file before it looks at its arguments. Its log file is a device here: this changes nothing.
    """
    program = host.which("nvidia-container-runtime")
    if program is None:
        return ""
    with host.scratch() as directory:
        path = "%s/%s" % (directory, RELATIVE)
        host.write(path, with_settings(path, text, {DEBUG: "/dev/null"}))
        judged = host.run([program, "--version"], check=False,
                          env={"NVIDIA_CTK_CONFIG_FILE_PATH": path, "XDG_CONFIG_HOME": directory})
    # A host that has no low-level runtime yet makes it fail too, which says nothing of the file
    if judged.rc == 0 or NO_RUNTIME in judged.stderr:
        return ""
    lines = judged.stderr.strip().splitlines() or ["it ended with %d" % judged.rc]
    return lines[0].rpartition(REJECTION)[2].rstrip('"')
