# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What tells one load of the driver from another.

The kernel makes the module's directory in sysfs anew with each load, under a number that it does not use again before
the next boot. Its times tell nothing: they are those of the look at it.

  /run/gpuops/given-up  the load that is to be replaced by another one, though it is of the installed driver
"""
from __future__ import annotations

from ..core.host import Host
from ..core.lock import DIRECTORY
from ..core.plan import digest

_GIVEN_UP = DIRECTORY + "/given-up"
_DIRECTORY = "/sys/module/nvidia"


def number_of_load(host: Host) -> str:
    """The directory's number, for those who know the boot; '' without a driver."""
    found = host.stat(_DIRECTORY)
    return "" if found is None else str(found.st_ino)


def load_of(host: Host) -> str:
    """A digest of boot and load, '' without a driver."""
    number = number_of_load(host)
    return digest([host.boot(), int(number)]) if number else ""


def give_up(host: Host) -> None:
    """Say that the load that there is has to be replaced."""
    host.make_directory(DIRECTORY, 0o700)
    host.write(_GIVEN_UP, load_of(host) + "\n", 0o600)


def is_given_up(host: Host) -> bool:
    """Whether that has been said of the load that there is."""
    load = load_of(host)
    return bool(load) and (host.read(_GIVEN_UP) or "").strip() == load
