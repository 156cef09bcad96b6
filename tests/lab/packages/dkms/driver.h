/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 */
#ifndef GPULAB_DRIVER_H
#define GPULAB_DRIVER_H

#include <linux/init.h>
#include <linux/module.h>

/* One marker per module: a module that calls another's is what depmod and the kernel take for a dependency. */
extern const char *gpulab_nvidia_version(void);
extern const char *gpulab_nvidia_modeset_version(void);

#define DRIVER_MODULE(started)                          \
	static int __init driver_start(void)            \
	{                                               \
		return (started) ? 0 : -ENODEV;         \
	}                                               \
	static void __exit driver_end(void) {}          \
	module_init(driver_start);                      \
	module_exit(driver_end);                        \
	MODULE_LICENSE(DRIVER_LICENSE);                 \
	MODULE_VERSION(DRIVER_VERSION)

#endif
