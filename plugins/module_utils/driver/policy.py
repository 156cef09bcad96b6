# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What the user wants of the driver."""
from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import Any, Dict, Mapping, Optional, Sequence, Tuple

from ..core.errors import GpuOpsError
from ..core.versions import bounds_of, is_empty
from ..packages.apt import credentials, keys
from ..packages.model import Credentials
from .sources import DEFAULT, SOURCES, Source
from .tables.sets import DKMS, PRECOMPILED

AUTO = "auto"
REQUIRE_SIGNED, ENROLL, IGNORE = "require_signed", "enroll", "ignore"
# Ways by which RDMA devices reach the GPUs' memory
DMABUF, PEER_MEMORY, NO_RDMA = "dmabuf", "peermem", "none"

ARGUMENTS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "staged", "rolled_back", "absent"],
              "default": "present"},
    "source": {"type": "str", "choices": list(SOURCES), "default": DEFAULT},
    "version": {"type": "str", "default": ""},
    "kernel_module": {"type": "str", "choices": ["auto", "open", "proprietary"], "default": "auto"},
    "build": {"type": "str", "choices": [AUTO, DKMS, PRECOMPILED], "default": AUTO},
    "flavour": {"type": "str", "choices": ["headless", "full"], "default": "headless"},
    "repository_url": {"type": "str", "default": ""},
    "repository_key": {"type": "str", "default": "", "no_log": False},
    "repository_key_fingerprint": {"type": "str", "default": "", "no_log": False},
    "runfile": {"type": "str", "default": ""},
    "runfile_checksum": {"type": "str", "default": ""},
    "fabric_manager": {"type": "str", "choices": ["auto", "present", "absent"], "default": "auto"},
    "imex": {"type": "str", "choices": ["auto", "present", "absent"], "default": "auto"},
    "extra_packages": {"type": "list", "elements": "str", "default": []},
    "module_parameters": {"type": "dict", "default": {}},
    "coherent_memory": {"type": "str", "choices": ["auto", "driver", "numa"], "default": "auto"},
    "rdma": {"type": "str", "choices": ["auto", DMABUF, PEER_MEMORY, NO_RDMA], "default": NO_RDMA},
    "gds": {"type": "bool", "default": False},
    "gdrcopy": {"type": "bool", "default": False},
    "kernel_arguments": {"type": "list", "elements": "str", "default": []},
    "kernel_headers": {"type": "bool", "default": True},
    "migrate": {"type": "bool", "default": False},
    "hold": {"type": "bool", "default": True},
    "kernel_hold": {"type": "bool", "default": False},
    "roll_back_to": {"type": "str", "default": ""},
    "secure_boot": {"type": "str", "choices": [REQUIRE_SIGNED, ENROLL, IGNORE], "default": REQUIRE_SIGNED},
    "signing_key": {"type": "str", "default": "", "no_log": False},
    "signing_certificate": {"type": "str", "default": ""},
    "enrollment_password": {"type": "str", "default": "", "no_log": True},
    "boards": {"type": "list", "elements": "str", "default": []},
}

_VERSION = re.compile(r"^\d{3}(\.\d{1,3}){0,2}$")
_MODULES = ("nvidia", "nvidia_uvm", "nvidia_modeset", "nvidia_drm", "nvidia_peermem")
_PARAMETER = re.compile(r"[A-Za-z0-9_]+")
_ARGUMENT = re.compile(r"[A-Za-z0-9_.-]+(=[^\s\"'\\$`;&|<>()]+)?")
_VALUE = re.compile(r"[^\s\"'\\#]+")
# Shim's MOK Manager, PASSWORD_MAX; it knows the keys of an American keyboard alone
_TYPED = re.compile(r"[ -~]{0,256}")
_WEB = ("http://", "https://")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PACKAGE = re.compile(r"^[a-z0-9][a-z0-9+.-]+$")


@dataclass(frozen=True)
class Policy:
    """The driver that is wanted, and where it comes from; nothing in it contradicts itself.

    state:                      present, staged (fetched, not installed), rolled_back or absent.
    source:                     where packages come from, see comes_from.
    version:                    '580.178.04', or a branch '580', or '' for what the source has; of a source that
                                installs nothing a range too.
    kernel_module:              auto, open or proprietary.
    build:                      auto, dkms or precompiled: who makes the kernel module.
    flavour:                    headless or full.
    repository_url:             directory with the packages, '' for NVIDIA's own.
    repository_key:             armoured text, path on the host or URL, '' for NVIDIA's table.
    repository_key_fingerprint: checked when given; NVIDIA's table has its own.
    runfile:                    path on the host or URL of NVIDIA's installer, or of its directory; '' for NVIDIA's own.
    runfile_checksum:           its SHA-256 in hexadecimal digits, '' where it is not installed.
    fabric_manager:             auto, present or absent.
    imex:                       auto, present or absent.
    extra_packages:             further packages of the same version.
    module_parameters:          {'nvidia.NVreg_ModifyDeviceFiles': value}, of the driver's kernel modules.
    coherent_memory:            auto, driver or numa: whose the memory of a coherent GPU is.
    rdma:                       auto, DMABUF, PEER_MEMORY or NO_RDMA.
    gds:                        whether GPUDirect Storage's kernel module is there too.
    gdrcopy:                    whether GDRCopy's kernel module and library are there too.
    kernel_arguments:           what kernels are started with, beside what they have.
    kernel_headers:             whether headers of every bootable kernel are installed too.
    migrate:                    whether a driver of another source, or of NVIDIA's installer, goes for this one.
    hold:                       whether the version is pinned against upgrades by others.
    kernel_hold:                whether the kernel that runs is pinned too.
    roll_back_to:               the only version that rolled_back may return to, '' for what is recorded.
    secure_boot:                REQUIRE_SIGNED, ENROLL or IGNORE.
    signing_key:                path on the host of the private key that DKMS signs with, '' for DKMS's own.
    signing_certificate:        path of its certificate; with signing_key, or ''.
    enrollment_password:        what is typed at the console to confirm the key.
    credentials:                what the repository asks for; they stood in repository_url.
    key_credentials:            what the place of the key asks for; they stood in repository_key.
    runfile_credentials:        what the place of the installer asks for; they stood in runfile.
    """

    state: str = "present"
    source: str = DEFAULT
    version: str = ""
    kernel_module: str = "auto"
    build: str = AUTO
    flavour: str = "headless"
    repository_url: str = ""
    repository_key: str = ""
    repository_key_fingerprint: str = ""
    runfile: str = ""
    runfile_checksum: str = ""
    fabric_manager: str = "auto"
    imex: str = "auto"
    extra_packages: Tuple[str, ...] = ()
    module_parameters: Mapping[str, str] = field(default_factory=dict)
    coherent_memory: str = "auto"
    rdma: str = NO_RDMA
    gds: bool = False
    gdrcopy: bool = False
    kernel_arguments: Tuple[str, ...] = ()
    kernel_headers: bool = True
    migrate: bool = False
    hold: bool = True
    kernel_hold: bool = False
    roll_back_to: str = ""
    secure_boot: str = REQUIRE_SIGNED
    signing_key: str = ""
    signing_certificate: str = ""
    enrollment_password: str = field(default="", repr=False)
    credentials: Optional[Credentials] = None
    key_credentials: Optional[Credentials] = None
    runfile_credentials: Optional[Credentials] = None

    @property
    def comes_from(self) -> Source:
        return SOURCES[self.source]

    @property
    def from_repository(self) -> bool:
        return self.comes_from.has_repository

    @property
    def exact(self) -> bool:
        """Whether the version names one driver, not a branch."""
        return "." in self.version


def policy_of(parameters: Mapping[str, Any]) -> Policy:
    values = {name: value for name, value in parameters.items() if value is not None}
    values["extra_packages"] = tuple(values.get("extra_packages", ()))
    values["module_parameters"] = _parameters(values.get("module_parameters", {}))
    values["kernel_arguments"] = _arguments(values.get("kernel_arguments", ()))
    for name in ("repository_url", "repository_key_fingerprint", "version", "roll_back_to", "runfile",
                 "runfile_checksum"):
        values[name] = str(values.get(name, "")).strip()
    if values["repository_url"]:
        bare, values["credentials"] = credentials.split(values["repository_url"])
        values["repository_url"] = bare.rstrip("/") + "/"
    if values["runfile"].startswith(_WEB):
        values["runfile"], values["runfile_credentials"] = credentials.split(values["runfile"])
    values["runfile_checksum"] = re.sub("^sha256:", "", values["runfile_checksum"].lower())
    values.update(_key(str(values.get("repository_key", "")), values.get("state") in ("absent", "rolled_back")))
    values["repository_key_fingerprint"] = values["repository_key_fingerprint"].replace(" ", "").upper()
    # A block of YAML, and many a file of a vault, ends in a line feed
    values["enrollment_password"] = str(values.get("enrollment_password", "")).rstrip("\n")
    # Of no policy: they say how the host will be, and the facts tell it
    values.pop("boards", None)
    policy = Policy(**values)
    if policy.comes_from.is_installer:
        # No package manager would bring another one
        policy = replace(policy, hold=False)
    if policy.state not in ("absent", "rolled_back"):
        _refuse_contradictions(policy)
    return policy


def _parameters(given: Mapping[str, Any]) -> Dict[str, str]:
    """With the module's name in each; a name without one is of the module 'nvidia'."""
    found = {}
    for key, value in given.items():
        module, dot, name = str(key).rpartition(".")
        module = module.replace("-", "_") if dot else "nvidia"
        text = str(int(value)) if isinstance(value, bool) else str(value)
        if module not in _MODULES or not _PARAMETER.fullmatch(name) or not _VALUE.fullmatch(text):
            raise GpuOpsError(
                "driver.module_parameter_malformed",
                found="`module_parameters`: %s=%s" % (key, text),
                wanted="parameters as NVreg_ModifyDeviceFiles or nvidia-drm.modeset, of the modules %s, with values "
                       "without blanks and quotation marks" % ", ".join(_MODULES),
                remedy="correct the name or the value; `modinfo -p nvidia` lists them",
                option="module_parameters",
            )
        found["%s.%s" % (module, name)] = text
    return found


def _arguments(given: Sequence[Any]) -> Tuple[str, ...]:
    """Each once, in the order given."""
    found = tuple(dict.fromkeys(str(each).strip() for each in given))
    for each in found:
        if not _ARGUMENT.fullmatch(each):
            raise GpuOpsError(
                "driver.kernel_argument_malformed",
                found="`kernel_arguments`: %s" % each,
                wanted="arguments such as iommu=pt, one an entry, without blanks, quotation marks and signs of a shell",
                remedy="correct it, or set it in the boot loader's own configuration",
                option="kernel_arguments",
            )
    return found


def _key(key: str, is_needless: bool) -> Mapping[str, Any]:
    """repository_key without credentials; armoured text as it will be written, whole and with nothing beside it."""
    if keys.is_armoured(key):
        return {"repository_key": key if is_needless else keys.read(key.encode()).armoured}
    if key.startswith(_WEB):
        bare, told = credentials.split(key)
        return {"repository_key": bare, "key_credentials": told}
    return {"repository_key": key}


def _refuse_contradictions(policy: Policy) -> None:
    bounds = bounds_of(policy.version)
    if bounds and policy.comes_from.installs:
        raise GpuOpsError(
            "driver.version_range_not_for_source",
            found="`version` %s, a range, for `source` %s" % (policy.version, policy.source),
            wanted="a driver version such as 580.178.04, or a branch such as 580: a range would not say what is "
                   "installed",
            remedy="name one of them, or set `source` to `preinstalled`, which only compares",
            option="version",
        )
    if is_empty(bounds):
        raise GpuOpsError(
            "driver.version_range_empty",
            found="`version`: %s" % policy.version,
            wanted="a range that a version can be in, such as >=580.95.05,<590",
            remedy="correct its bounds",
            option="version",
        )
    if policy.version and not bounds and not _VERSION.match(policy.version):
        raise GpuOpsError(
            "driver.version_malformed",
            found="`version`: %s" % policy.version,
            wanted="a driver version such as 580.178.04, or a branch such as 580; of source preinstalled a range too, "
                   "such as >=580.95.05,<590",
            remedy="name one of them; package revisions such as '-1' are found by the collection",
            option="version",
        )
    policy.comes_from.check(policy.version, policy.repository_url, policy.repository_key)
    if not policy.comes_from.installs and (policy.module_parameters or policy.coherent_memory != "auto"):
        raise GpuOpsError(
            "driver.parameters_of_preinstalled",
            found="`module_parameters` or `coherent_memory` with `source` %s" % policy.source,
            wanted="a driver that is left as the image brought it",
            remedy="bring the parameters into the image, or choose another `source`",
            option="module_parameters",
        )
    if not policy.comes_from.installs:
        _refuse_peers(policy)
    if policy.comes_from.is_installer:
        _refuse_of_installer(policy)
    key = policy.repository_key
    if key and not (keys.is_armoured(key) or key.startswith(("/", "http://", "https://"))):
        raise GpuOpsError(
            "driver.repository_key_malformed",
            found="a `repository_key` that begins with %r" % key[:20],
            wanted="an armoured public key, an absolute path on the host, or an http(s) URL",
            remedy="set `repository_key` to one of these",
            option="repository_key",
        )
    _refuse_half_a_pair(policy)
    _refuse_build(policy)
    if not _TYPED.fullmatch(policy.enrollment_password):
        raise GpuOpsError(
            "driver.enrollment_password_malformed",
            found="an `enrollment_password` that the console of the firmware does not take",
            wanted="at most 256 letters, digits, blanks and signs of ASCII, in one line: it is typed there on an "
                   "American keyboard",
            remedy="set `enrollment_password` to such a one",
            option="enrollment_password",
        )
    for name in policy.extra_packages:
        if not _PACKAGE.match(name):
            raise GpuOpsError(
                "driver.extra_package_malformed",
                found="`extra_packages`: %r" % name,
                wanted="names of packages, without versions",
                remedy="leave the version out: every package gets the driver's own",
                option="extra_packages",
            )


def _refuse_build(policy: Policy) -> None:
    idle = [name for name, is_set in (
        ("build", policy.build != AUTO), ("kernel_hold", policy.kernel_hold), ("migrate", policy.migrate)) if is_set]
    if idle and not policy.comes_from.installs:
        raise GpuOpsError(
            "driver.option_of_preinstalled",
            found="`%s` with `source` %s" % (idle[0], policy.source),
            wanted="a driver and a kernel that are left as the image brought them",
            remedy="leave `%s` out, or choose another `source`" % idle[0],
            option=idle[0],
        )
    if policy.build == PRECOMPILED and policy.signing_key:
        raise GpuOpsError(
            "driver.signing_key_of_precompiled",
            found="`signing_key` with `build` %s" % policy.build,
            wanted="modules that are signed by who made them, or by a key of your own",
            remedy="leave `signing_key` and `signing_certificate` empty, or set `build` to `dkms`",
            option="build",
        )


def _refuse_of_installer(policy: Policy) -> None:
    asked = [name for name, is_set in (
        ("build", policy.build == PRECOMPILED), ("extra_packages", bool(policy.extra_packages)), ("gds", policy.gds),
        ("gdrcopy", policy.gdrcopy), ("fabric_manager", policy.fabric_manager == "present"),
        ("imex", policy.imex == "present")) if is_set]
    if asked:
        raise GpuOpsError(
            "driver.option_of_runfile",
            found="`%s` with `source` %s" % (asked[0], policy.source),
            wanted="what NVIDIA's installer has: the driver alone, whose kernel module DKMS builds",
            remedy="leave `%s` out, or set `source` to `nvidia_repository` or `local_repository`" % asked[0],
            option=asked[0],
        )
    if not _SHA256.fullmatch(policy.runfile_checksum):
        raise GpuOpsError(
            "driver.runfile_checksum_malformed",
            found="`runfile_checksum`: %r" % policy.runfile_checksum,
            wanted="the SHA-256 of the file, as sha256: and 64 hexadecimal digits: nobody has signed it, and it runs "
                   "as root",
            remedy="set `runfile_checksum` to what `sha256sum` tells of a file that you trust",
            option="runfile_checksum",
        )
    if policy.runfile and not policy.runfile.startswith(("/", "file:///", *_WEB)):
        raise GpuOpsError(
            "driver.runfile_place_malformed",
            found="`runfile`: %s" % policy.runfile,
            wanted="an absolute path on the host, or a URL (http, https or file), of the file or of its directory "
                   "with a / at the end",
            remedy="correct `runfile`, or leave it out for NVIDIA's own directory",
            option="runfile",
        )


def _refuse_peers(policy: Policy) -> None:
    asked = [name for name, value in (
        ("rdma", policy.rdma != NO_RDMA), ("gds", policy.gds), ("gdrcopy", policy.gdrcopy),
        ("kernel_arguments", policy.kernel_arguments)) if value]
    if asked:
        raise GpuOpsError(
            "driver.peers_of_preinstalled",
            found="`%s` with `source` %s" % (asked[0], policy.source),
            wanted="a driver that is left as the image brought it",
            remedy="bring them into the image, or choose another `source`",
            option=asked[0],
        )


def _refuse_half_a_pair(policy: Policy) -> None:
    pair = {"signing_key": policy.signing_key, "signing_certificate": policy.signing_certificate}
    wrong = [name for name, path in pair.items() if any(pair.values()) and not path.startswith("/")]
    if wrong:
        raise GpuOpsError(
            "driver.signing_pair_incomplete",
            # A PIN may stand there in a URI
            found="`%s`: %r" % (wrong[0], pair[wrong[0]].partition("?")[0]),
            wanted="the absolute paths of a private key and of its certificate, both or neither",
            remedy="set `signing_key` and `signing_certificate`, or leave both empty for the key of DKMS, whose "
                   "configuration may name one in a PKCS#11 token",
            option=wrong[0],
        )
