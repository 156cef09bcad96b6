// Copyright (c) gpuops.nvidia contributors
// GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
#include <linux/moduleparam.h>
#include <linux/pci.h>

#include "driver.h"

const char *gpulab_nvidia_version(void)
{
	return DRIVER_VERSION;
}
EXPORT_SYMBOL(gpulab_nvidia_version);

/* The classes NVIDIA's module claims: VGA and 3D controllers, and NVSwitches (other bridges). */
#define NVIDIA_CLASS(class) { PCI_DEVICE(PCI_VENDOR_ID_NVIDIA, PCI_ANY_ID), PCI_CLASS_EXACT(class) }
#define PCI_CLASS_EXACT(code) .class = (code) << 8, .class_mask = ~0

static const struct pci_device_id nvidia_pci_table[] = {
	NVIDIA_CLASS(PCI_CLASS_DISPLAY_VGA),
	NVIDIA_CLASS(PCI_CLASS_DISPLAY_3D),
	NVIDIA_CLASS(PCI_CLASS_BRIDGE_OTHER),
	{ }
};
MODULE_DEVICE_TABLE(pci, nvidia_pci_table);

#define REGISTRY_NUMBER(name, initial)                  \
	static int NVreg_##name = (initial);            \
	module_param(NVreg_##name, int, 0)
#define REGISTRY_TEXT(name)                             \
	static char *NVreg_##name;                      \
	module_param(NVreg_##name, charp, 0)

REGISTRY_NUMBER(RestrictProfilingToAdminUsers, 1);
REGISTRY_NUMBER(EnableGpuFirmware, 18);
REGISTRY_NUMBER(EnableStreamMemOPs, 0);
REGISTRY_NUMBER(ModifyDeviceFiles, 1);
REGISTRY_NUMBER(DeviceFileUID, 0);
REGISTRY_NUMBER(DeviceFileGID, 0);
REGISTRY_NUMBER(DeviceFileMode, 438);
REGISTRY_NUMBER(ImexChannelCount, 2048);
REGISTRY_NUMBER(CreateImexChannel0, 0);
REGISTRY_NUMBER(GrdmaPciTopoCheckOverride, 0);
REGISTRY_TEXT(RegistryDwords);
REGISTRY_TEXT(RegistryDwordsPerDevice);
REGISTRY_TEXT(CoherentGPUMemoryMode);

MODULE_FIRMWARE("nvidia/" DRIVER_VERSION "/gsp_ga10x.bin");
MODULE_FIRMWARE("nvidia/" DRIVER_VERSION "/gsp_tu10x.bin");

DRIVER_MODULE(gpulab_nvidia_version());
