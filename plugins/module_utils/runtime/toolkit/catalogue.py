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

CONFIGURATION = "/etc/nvidia-container-runtime/config.toml"
LOW_LEVEL_RUNTIMES = ("runc", "crun")

DEBIAN_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
