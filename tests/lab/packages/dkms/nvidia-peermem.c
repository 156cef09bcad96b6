// Copyright (c) gpuops.nvidia contributors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
#include "driver.h"

DRIVER_MODULE(gpulab_nvidia_version());
