/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * The part of NVML's binary interface that the simulated library serves. Layouts are those of API version 13; the unit
 * tests call the library through nvidia-ml-py, whose own structures would not fit if these did not.
 */
#ifndef GPUSIM_NVML_H
#define GPUSIM_NVML_H

typedef struct handle *nvmlDevice_t;
typedef struct handle *nvmlGpuInstance_t;
typedef struct handle *nvmlComputeInstance_t;
typedef struct event_set *nvmlEventSet_t;
typedef int nvmlReturn_t;
typedef unsigned int u32;
typedef unsigned long long u64;

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    NOT_FOUND = 6,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    TIMEOUT = 10,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16,
    LIB_RM_VERSION_MISMATCH = 18,
    IN_USE = 19,
    INSUFFICIENT_RESOURCES = 23,
    ARGUMENT_VERSION_MISMATCH = 25,
    UNKNOWN_ERROR = 999
};

enum { ARCH_HOPPER = 9 };
enum { EVENT_SINGLE_BIT_ECC = 1, EVENT_DOUBLE_BIT_ECC = 2, EVENT_XID = 8 };

typedef struct {
    char busIdLegacy[16];
    u32 domain, bus, device, pciDeviceId, pciSubSystemId;
    char busId[32];
} nvmlPciInfo_t;

typedef struct {
    nvmlPciInfo_t pci;
    char uuid[80];
} nvmlExcludedDeviceInfo_t;

typedef struct {
    u64 total, free, used;
} nvmlMemory_t;

typedef struct {
    u32 version;
    u64 total, reserved, free, used;
} nvmlMemory_v2_t;

typedef struct {
    u64 total, free, used;
} nvmlBAR1Memory_t;

typedef struct {
    u32 gpu, memory;
} nvmlUtilization_t;

typedef struct {
    u32 pid;
    u64 usedGpuMemory;
} nvmlProcessInfo_v1_t;

typedef struct {
    u32 pid;
    u64 usedGpuMemory;
    u32 gpuInstanceId, computeInstanceId;
} nvmlProcessInfo_t;

typedef struct {
    u32 multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount, sharedEncoderCount, sharedJpegCount;
    u32 sharedOfaCount, gpuInstanceSliceCount, computeInstanceSliceCount;
    u64 memorySizeMB;
} nvmlDeviceAttributes_t;

typedef struct {
    u32 max, high, partial, low, none;
} nvmlRowRemapperHistogramValues_t;

typedef struct {
    u32 year;
    unsigned short month, day, hour, min, sec;
    unsigned char status;
} nvmlGridLicenseExpiry_t;

typedef struct {
    u32 featureCode, featureState;
    char licenseInfo[128], productName[128];
    u32 featureEnabled;
    nvmlGridLicenseExpiry_t licenseExpiry;
} nvmlGridLicensableFeature_t;

typedef struct {
    int isGridLicenseSupported;
    u32 licensableFeaturesCount;
    nvmlGridLicensableFeature_t gridLicensableFeatures[3];
} nvmlGridLicensableFeatures_t;

typedef struct {
    u64 l1Cache, l2Cache, deviceMemory, registerFile;
} nvmlEccErrorCounts_t;

typedef struct {
    u32 version;
    u64 aggregateUncParity, aggregateUncSecDed, aggregateCor, volatileUncParity, volatileUncSecDed, volatileCor;
    u64 aggregateUncBucketL2, aggregateUncBucketSm, aggregateUncBucketPcie, aggregateUncBucketMcu;
    u64 aggregateUncBucketOther;
    u32 bThresholdExceeded;
} nvmlEccSramErrorStatus_t;

typedef struct {
    nvmlDevice_t device;
    u64 eventType, eventData;
    u32 gpuInstanceId, computeInstanceId;
} nvmlEventData_t;

typedef struct {
    unsigned char clusterUuid[16];
    nvmlReturn_t status;
    u32 cliqueId;
    unsigned char state;
} nvmlGpuFabricInfo_t;

typedef struct {
    u32 version;
    unsigned char clusterUuid[16];
    nvmlReturn_t status;
    u32 cliqueId;
    unsigned char state;
    u32 healthMask;
    unsigned char healthSummary; /* from version 3 on */
} nvmlGpuFabricInfoV_t;

typedef struct {
    u32 start, size;
} nvmlPlacement_t;

typedef struct {
    u32 id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount;
    u32 encoderCount, jpegCount, ofaCount;
    u64 memorySizeMB;
} nvmlGpuInstanceProfileInfo_t;

typedef struct {
    u32 version, id, isP2pSupported, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount;
    u32 encoderCount, jpegCount, ofaCount;
    u64 memorySizeMB;
    char name[96];
} nvmlGpuInstanceProfileInfo_v2_t;

typedef struct {
    u32 version, id, sliceCount, instanceCount, multiprocessorCount, copyEngineCount, decoderCount;
    u32 encoderCount, jpegCount, ofaCount;
    u64 memorySizeMB;
    char name[96];
    u32 capabilities;
} nvmlGpuInstanceProfileInfo_v3_t;

typedef struct {
    nvmlDevice_t device;
    u32 id, profileId;
    nvmlPlacement_t placement;
} nvmlGpuInstanceInfo_t;

typedef struct {
    u32 id, sliceCount, instanceCount, multiprocessorCount, sharedCopyEngineCount, sharedDecoderCount;
    u32 sharedEncoderCount, sharedJpegCount, sharedOfaCount;
} nvmlComputeInstanceProfileInfo_t;

typedef struct {
    u32 version;
    nvmlComputeInstanceProfileInfo_t info;
    char name[96];
    u32 capabilities; /* from version 3 on */
} nvmlComputeInstanceProfileInfoV_t;

typedef struct {
    nvmlDevice_t device;
    nvmlGpuInstance_t gpuInstance;
    u32 id, profileId;
    nvmlPlacement_t placement;
} nvmlComputeInstanceInfo_t;

/* The version word of a versioned structure: its size, and its number in the top byte. */
#define STRUCT_VERSION(size, number) ((u32)((size) | ((u32)(number) << 24)))

/* Not of NVML: what nvidia-smi and the daemons need from the silicon. */
nvmlReturn_t gpusimResetGpu(nvmlDevice_t device, u32 by_bus);
const char *gpusimLibraryVersion(void);
nvmlReturn_t gpusimDeferMemoryClock(nvmlDevice_t device, u32 mhz);

#endif
