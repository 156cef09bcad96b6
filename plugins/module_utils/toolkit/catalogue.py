# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Versions, packages and places of the NVIDIA container toolkit."""
from __future__ import annotations

DEFAULT_VERSION = "1.20.1"

# (first version without it, CVE): all of them let a container out or give it more of the host than was asked for.
# NVIDIA security bulletin 5850 (June 2026) for the newest; the public CVE records for the others.
VULNERABILITIES = (
    ("1.16.2", "CVE-2024-0132"),
    ("1.16.2", "CVE-2024-0133"),
    ("1.17.0", "CVE-2024-0134"),
    ("1.17.4", "CVE-2025-23359"),
    ("1.17.8", "CVE-2025-23266"),
    ("1.17.8", "CVE-2025-23267"),
    ("1.19.1", "CVE-2026-24260"),
)
SAFE_VERSION = VULNERABILITIES[-1][0]

# The four depend on each other by exact version (NVIDIA Container Toolkit installation guide, "Installing with Apt")
PACKAGES = (
    "libnvidia-container-tools",
    "libnvidia-container1",
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
)

REPOSITORY_URL = "https://nvidia.github.io/libnvidia-container/stable/deb/$(ARCH)"
REPOSITORY_KEY = "https://nvidia.github.io/libnvidia-container/gpgkey"

NAME = "gpuops-nvidia-container-toolkit"
KEYRING = "/etc/apt/keyrings/%s.asc" % NAME
SOURCES = "/etc/apt/sources.list.d/%s.sources" % NAME
PIN = "/etc/apt/preferences.d/%s" % NAME
AUTH = "/etc/apt/auth.conf.d/%s.conf" % NAME

CONFIGURATION = "/etc/nvidia-container-runtime/config.toml"

# Every key of the configuration and the type of its value (api/config/v1 of NVIDIA/nvidia-container-toolkit 1.20.1).
# The programs ignore other keys without a word, so a slip of the pen would have no effect and no error.
KEYS = {
    "accept-nvidia-visible-devices-as-volume-mounts": bool,
    "accept-nvidia-visible-devices-envvar-when-unprivileged": bool,
    "disable-require": bool,
    "features.allow-cuda-compat-libs-from-container": bool,
    "features.allow-ldconfig-from-container": bool,
    "features.allow-unknown-oci-spec-fields": bool,
    "features.disable-cuda-compat-lib-hook": bool,
    "features.disable-imex-channel-creation": bool,
    "features.ignore-imex-channel-requests": bool,
    "features.no-additional-gids-for-device-nodes": bool,
    "nvidia-container-cli.debug": str,
    "nvidia-container-cli.environment": list,
    "nvidia-container-cli.ldcache": str,
    "nvidia-container-cli.ldconfig": str,
    "nvidia-container-cli.load-kmods": bool,
    "nvidia-container-cli.no-cgroups": bool,
    "nvidia-container-cli.no-pivot": bool,
    "nvidia-container-cli.path": str,
    "nvidia-container-cli.root": str,
    "nvidia-container-cli.user": str,
    "nvidia-container-runtime-hook.path": str,
    "nvidia-container-runtime-hook.skip-mode-detection": bool,
    "nvidia-container-runtime.debug": str,
    "nvidia-container-runtime.log-level": str,
    "nvidia-container-runtime.mode": str,
    "nvidia-container-runtime.modes.cdi.annotation-prefixes": list,
    "nvidia-container-runtime.modes.cdi.default-kind": str,
    "nvidia-container-runtime.modes.cdi.spec-dirs": list,
    "nvidia-container-runtime.modes.csv.compat-container-root": str,
    "nvidia-container-runtime.modes.csv.mount-spec-path": str,
    "nvidia-container-runtime.modes.jit-cdi.nvcdi-disable-hooks": list,
    "nvidia-container-runtime.modes.jit-cdi.nvcdi-feature-flags": list,
    "nvidia-container-runtime.modes.legacy.cuda-compat-mode": str,
    "nvidia-container-runtime.runtimes": list,
    "nvidia-ctk.path": str,
    "supported-driver-capabilities": str,
    "swarm-resource": str,
}
# Those with an option of their own
OPTIONS = {
    "accept-nvidia-visible-devices-envvar-when-unprivileged": "accept_envvar_when_unprivileged",
    "nvidia-container-runtime.mode": "mode",
    "nvidia-container-runtime.runtimes": "low_level_runtimes",
}
