# Copyright (c) gpuops.nvidia contributors
# GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
"""What gpuops brings into a cluster: objects made by pure functions, planned and applied as a host's steps are."""
