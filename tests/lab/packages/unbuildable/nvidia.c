// Copyright (c) gpuops.nvidia contributors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
//
// What keeps Debian's open module 550.163.01-2 from building on the kernels of Debian 13 since 6.12.107, and nothing
// else: they gave this function a fourth argument.
#include <linux/module.h>
#include <linux/pci.h>

int gpulab_resize_bar(struct pci_dev *device);

int gpulab_resize_bar(struct pci_dev *device)
{
	return pci_resize_resource(device, 1, 0);
}
EXPORT_SYMBOL(gpulab_resize_bar);

MODULE_DESCRIPTION("a driver that no longer builds");
MODULE_LICENSE("Dual MIT/GPL");
MODULE_VERSION("@VERSION@");
