# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""Whether what a plan does lasts: some systems make /etc anew at every boot, and a chroot has no systemd. Pure.

What lies below /run, and what is loaded, is gone with a boot on every system, and is no matter of this.
"""
from __future__ import annotations

from typing import Iterable, Tuple

from .facts import HostFacts
from .plan import Step
from .refusal import Refusal

SETTINGS = "/etc/"
# Steps that take back what is ours do no harm where it does not last
_TAKEN_BACK = ("file.restore", "file.remove", "service.disable")


def refusals_of_what_does_not_last(steps: Iterable[Step], facts: HostFacts) -> Tuple[Refusal, ...]:
    """Why steps are not done on this system, before the first of them."""
    planned = tuple(steps)
    return (*_of_settings(planned, facts), *_of_services(planned, facts))


def _of_settings(steps: Tuple[Step, ...], facts: HostFacts) -> Tuple[Refusal, ...]:
    """A service is enabled by a link below /etc."""
    if facts.keeps_etc:
        return ()
    lost = [step.subject for step in steps if step.action not in _TAKEN_BACK and (
        step.subject.startswith(SETTINGS) or step.action == "service.enable")]
    if not lost:
        return ()
    return (Refusal(
        "host.settings_do_not_last", "%s makes /etc anew, and with it %s" % (facts.image, ", ".join(lost)),
        "settings that are there after the next boot",
        "bring them into the system by its own configuration or image, and take this role out of the play"),)


def _of_services(steps: Tuple[Step, ...], facts: HostFacts) -> Tuple[Refusal, ...]:
    services = [step.subject for step in steps if step.action.startswith("service.")]
    if facts.boots_by_systemd or not services:
        return ()
    return (Refusal(
        "host.no_systemd", "no systemd that runs (a chroot or a container), and services to be handled: %s"
        % ", ".join(dict.fromkeys(services)),
        "a host that systemd has booted",
        "make the image in a virtual machine, or boot its tree (`systemd-nspawn --boot`) before this runs"),)
