/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * Stand-in of the PTX compiler library: container tools mount it by its name.
 */
const char gpusim_ptx_compiler[] = "simulated";
