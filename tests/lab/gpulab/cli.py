# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The command ``lab``."""
from __future__ import annotations

import argparse
import os
import sys
from typing import Callable, Dict, List, Optional, Sequence

from . import doctor, silicon
from .cache import BuildError
from .lab import DEFAULT_NAME, Lab
from .parts.registry import ON_DEMAND, workshop
from .processes import LabError
from .topology import TOPOLOGIES, TopologyError

DESCRIPTION = """\
A Kubernetes GPU cluster without a GPU: real Debian hosts (systemd-nspawn), a real control plane, real kubelets and
NVIDIA's real programs, over a simulated board. Needs root. Everything it builds is kept in ~/.cache/gpuops."""

EXAMPLES = """\
examples:
  lab doctor                        what this machine lacks
  lab build                         build all parts (20 minutes once, then only what changed)
  lab up demo                       two GPU hosts and a control plane; again to repair what stopped
  lab shell a100 -- nvidia-smi -L   one command on a host (without --: an interactive shell)
  lab kubectl get nodes             kubectl of this lab's cluster
  lab fault a100 --help             take a GPU away, make calls fail, ...
  lab reset a100                    the host as it was delivered
  lab down                          end everything
"""


def main(argv: Optional[Sequence[str]] = None) -> int:
    arguments = _parse(list(sys.argv[1:] if argv is None else argv))
    commands: Dict[str, Callable[[argparse.Namespace], int]] = {
        "build": _build, "up": _up, "status": _status, "shell": _shell, "kubectl": _kubectl, "fault": _fault,
        "reset": _reset, "reboot": _reboot, "kill": _kill, "down": _down, "doctor": _doctor,
    }
    try:
        return commands[arguments.command](arguments)
    except (LabError, BuildError, TopologyError, silicon.SiliconError) as error:
        print("lab: %s" % error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("lab: interrupted; run the same command again, or `lab down`", file=sys.stderr)
        return 130


def _parse(words: List[str]) -> argparse.Namespace:
    """Everything behind `kubectl` is kubectl's: argparse would take a leading option for its own."""
    if "kubectl" not in words:
        return _parser().parse_args(words)
    own = words.index("kubectl") + 1
    arguments = _parser().parse_args(words[:own])
    arguments.argv = words[own:]
    return arguments


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="lab", description=DESCRIPTION, epilog=EXAMPLES,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--name", default=os.environ.get("GPULAB_NAME", DEFAULT_NAME),
                        help="which lab; several run side by side (default: $GPULAB_NAME or %s)" % DEFAULT_NAME)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    build = commands.add_parser("build", help="build parts that are missing or whose inputs changed")
    build.add_argument("parts", nargs="*", metavar="PART", help="default: all that a laboratory needs")
    build.add_argument("--list", action="store_true", help="list the parts and whether they are built; build nothing")
    build.add_argument("--prune", action="store_true", help="afterwards remove built parts that nothing uses any more")
    names = ", ".join(sorted(path.stem for path in TOPOLOGIES.glob("*.yml")))
    up = commands.add_parser("up", help="bring a topology up, or repair it when it runs")
    up.add_argument("topology", metavar="TOPOLOGY", help="%s, or the path of a YAML file" % names)
    status = commands.add_parser("status", help="what runs")
    status.add_argument("--all", action="store_true", help="every lab of this machine")
    shell = commands.add_parser("shell", help="a shell on a host, or one command there")
    _host(shell)
    shell.add_argument("argv", nargs=argparse.REMAINDER, metavar="[-- CMD ...]")
    commands.add_parser("kubectl", help="kubectl of the lab's cluster, with kubectl's own arguments", add_help=False)
    _add_fault(commands)
    _host(commands.add_parser("reset", help="make a host what it was when it was delivered"))
    _host(commands.add_parser("reboot", help="reboot a host in order and wait for it"))
    _host(commands.add_parser("kill", help="cut a host's power; `up` starts it again"))
    commands.add_parser("down", help="end everything that belongs to the lab")
    commands.add_parser("doctor", help="say what this machine lacks, and what was chosen for it")
    return parser


_NUMBERS = {"nth": "first failing call", "times": "how often it fails, 0 for ever",
            "code": "what the function answers, a Xid, or a recovery action", "ms": "milliseconds",
            "mib": "MiB of GPU memory", "pid": "process number that holds the GPU", "sm": "a multiprocessor",
            "at": "a byte", "percent": "of its rate"}


def _add_fault(commands: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    kinds = "\n".join("  %-16s %s" % pair for pair in silicon.FAULT_KINDS.items())
    fault = commands.add_parser("fault", help="break a host's board, or mend it", epilog="kinds of faults:\n" + kinds,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    _host(fault)
    fault.add_argument("kind", nargs="?", metavar="KIND", help="none: list the faults there are")
    fault.add_argument("--clear", action="store_true", help="undo every fault of the host")
    fault.add_argument("--gpu", type=int, help="index of the GPU; default: all of the host")
    fault.add_argument("--call", help="name of a function of NVML or libcuda")
    for name, text in _NUMBERS.items():
        fault.add_argument("--%s" % name, type=int, help=text)


def _host(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("host", metavar="HOST")


def _build(arguments: argparse.Namespace) -> int:
    shop = workshop()
    names: List[str] = arguments.parts or sorted(set(shop.parts).difference(ON_DEMAND))
    if arguments.list:
        for name in shop.order(names):
            print("%-24s %-8s %s" % (name, "built" if shop.ready(name) else "missing", shop.parts[name].title))
        return 0
    for name in shop.order(names):
        shop.build(name)
    if arguments.prune:
        doctor.prune(shop)
    return 0


def _up(arguments: argparse.Namespace) -> int:
    problems = doctor.problems()
    if problems:
        raise LabError("this machine lacks something:\n  %s" % "\n  ".join(problems))
    Lab(arguments.name).up(arguments.topology)
    return 0


def _status(arguments: argparse.Namespace) -> int:
    from .status import report

    return report(arguments.name, arguments.all)


def _shell(arguments: argparse.Namespace) -> int:
    import shlex

    words = arguments.argv[1:] if arguments.argv[:1] == ["--"] else arguments.argv
    host = Lab(arguments.name).host(arguments.host)
    command = host.ssh_command(*(() if words or not sys.stdin.isatty() else ("-t",)))
    # One word may be a whole command line, as with ssh itself; several are one command and its arguments.
    line = words if len(words) < 2 else [shlex.join(words)]
    os.execvp(command[0], [*command, *line])


def _kubectl(arguments: argparse.Namespace) -> int:
    command = Lab(arguments.name).kubectl_command(arguments.argv)
    os.execv(command[0], command)


def _fault(arguments: argparse.Namespace) -> int:
    directory = Lab(arguments.name).host(arguments.host).silicon
    if arguments.clear:
        print("cleared: %s" % (", ".join(silicon.clear_faults(directory)) or "nothing"))
    elif arguments.kind is None:
        for fault in silicon.list_faults(directory):
            print(" ".join("%s=%s" % pair for pair in fault.items()))
    else:
        details = {name: getattr(arguments, name) for name in ("call", *_NUMBERS)}
        print(silicon.inject_fault(directory, arguments.kind, arguments.gpu, **details))
    return 0


def _reset(arguments: argparse.Namespace) -> int:
    Lab(arguments.name).reset(arguments.host)
    return 0


def _reboot(arguments: argparse.Namespace) -> int:
    Lab(arguments.name).reboot(arguments.host)
    return 0


def _kill(arguments: argparse.Namespace) -> int:
    Lab(arguments.name).kill(arguments.host)
    return 0


def _down(arguments: argparse.Namespace) -> int:
    Lab(arguments.name).down()
    return 0


def _doctor(arguments: argparse.Namespace) -> int:
    return doctor.report()
