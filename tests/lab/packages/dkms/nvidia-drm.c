// Copyright (c) gpuops.nvidia contributors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
#include <linux/moduleparam.h>

#include "driver.h"

/* On by default since branch 595 in NVIDIA's source; the laboratory has no console to pin. */
static bool modeset = true;
module_param(modeset, bool, 0);
static bool fbdev = true;
module_param(fbdev, bool, 0);

DRIVER_MODULE(gpulab_nvidia_modeset_version());
