# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Versions, packages and places of the NVIDIA container toolkit."""
from __future__ import annotations

DEFAULT_VERSION = "1.20.1"

# NVIDIA security bulletin 5850 (June 2026): CVE-2026-24260, fixed in 1.19.1
SAFE_VERSION = "1.19.1"
SAFE_VERSION_REASON = "CVE-2026-24260"

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
