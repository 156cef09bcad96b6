# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""How a fleet is changed: who next, how many at once, when, and what everybody else waits for. Pure.

Policy   what the user says of it (policy.py), windows among it (windows.py).
Change   what a host's plan does, without its name: what hosts have in common that are changed alike (change.py).
Host     a host with its change, its Node, and what the cluster's record knows of it (hosts.py makes it).
Unit     hosts that are changed at once: one, a clique, or a job group.
Rollout  the units of a run in their order, and who is beside it or refused: plan() of planner.py.
Present  how things stand; decide() of planner.py says who may begin then.
Record   what all controllers share (budget.py): the limits, the open rollout, the slots, what canaries have proved.

A host that begins asks; nobody pushes. So a run that dies, a slice that is late and a person who runs it by hand keep
to the same limits, and what is decided is decided of the record and the Nodes as they are then.
"""
