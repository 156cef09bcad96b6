# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""The drain of nodes: which pods go, which stay or are waited for, what is refused, and the going itself.

policy.py        what is asked for, in the words of `kubectl drain` where it has one
observation.py   one look at the cluster: the nodes' pods, and what decides about them
users.py         which pods use GPUs, by what the API says and by what the hosts have seen
judgement.py     the fate of each pod: goes, waits, stays or is refused
budgets.py       evictions added up, per PodDisruptionBudget, over all pods and nodes
preview.py       all of that as one answer, before anything is touched
carrying_out.py  evictions, each of one pod on one node, until nothing is left to wait for

All but observation.py and carrying_out.py is pure. A preview never evicts, and a drain never cordons: whose cordon a
node has is not a matter of its pods. What kubectl does otherwise, docs/drain.md lists.
"""
