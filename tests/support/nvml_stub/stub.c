/* A stand-in for libnvidia-ml.so.1: the questions that the suite asks, answered without a GPU.
 *
 * Every device draws a square wave of 100 W and 300 W (half a second each), times its number + 1.
 * The energy counter and the power sensor move once per period only, as on real devices.
 * Devices are numbered against NVML's order: the last NVML index carries number 0. Code that
 * takes an index for an identity therefore shows a wrong name, UUID and power.
 *
 *   STUB_NVML_COUNT=2              devices
 *   STUB_NVML_FAIL=fn=code,...     these functions return the code; "field:74" is a single field
 *   STUB_NVML_FAIL_AFTER=fn=code@N ... after N calls of it; "*" counts and fails every function;
 *                                  another function's name in place of N: once that was called
 *   STUB_NVML_HANG=fn              this function sleeps for 30 s first
 *   STUB_NVML_PERIOD_MS=100        between two moves of the sensors
 *   STUB_NVML_RESET_AFTER_MS=...   the energy counter restarts at zero then
 *   STUB_NVML_USED_MIB=8           device memory that processes use
 *   STUB_NVML_RESERVED_MIB=600     device memory that the driver reserves
 *   STUB_NVML_MIG=1                every device is cut into MIG slices
 *   STUB_NVML_CAPABILITY=90        compute capability, here 9.0
 *   STUB_NVML_NVLINK=1             devices 0 and 1 of NVML's order are joined by NVLink
 *   STUB_NVML_ZERO_WATTS=1         the power sensors show 0 W
 */
#define _GNU_SOURCE
#include "simulation.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int diagnose_nvml_stub = 1; /* its presence tells this library from the real one */

/* From now on it is as late as a test says, so that what the sensors show is known exactly. */
void diagnose_nvml_stub_hold_uptime(double seconds) { held = seconds; }

/* As if the library had just been loaded, for tests that share a process. */
void diagnose_nvml_stub_reset(void) {
    open_sessions = 0;
    held = -1;
    memset(counters, 0, sizeof counters);
}

/* ---- library ---- */

int nvmlInitWithFlags(unsigned flags) {
    (void)flags;
    int failure = injected_failure(__func__);
    if (failure) return failure;
    if (!open_sessions++) {
        started = 0;
        started = uptime();
        for (unsigned i = 0; i < MAX_DEVICES; i++) devices[i].index = i;
    }
    return SUCCESS;
}

int nvmlInit_v2(void) { return nvmlInitWithFlags(0); }

int nvmlShutdown(void) {
    BEGIN;
    open_sessions--;
    return SUCCESS;
}

const char *nvmlErrorString(int code) { return code ? "stub error" : "success"; }

int nvmlSystemGetDriverVersion(char *text, unsigned size) {
    BEGIN;
    snprintf(text, size, "999.01");
    return SUCCESS;
}

int nvmlSystemGetCudaDriverVersion_v2(int *version) {
    BEGIN;
    *version = 12020;
    return SUCCESS;
}

/* ---- identity ---- */

int nvmlDeviceGetCount_v2(unsigned *count) {
    BEGIN;
    *count = device_count();
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, Device **device) {
    BEGIN;
    if (index >= device_count()) return INVALID_ARGUMENT;
    *device = &devices[index];
    return SUCCESS;
}

int nvmlDeviceGetHandleByUUID(const char *uuid, Device **device) {
    BEGIN;
    char text[96];
    for (unsigned i = 0; i < device_count(); i++) {
        write_uuid(number_of(&devices[i]), text, sizeof text);
        *device = &devices[i];
        if (!strcmp(text, uuid)) return SUCCESS;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetHandleByPciBusId_v2(const char *bus_id, Device **device) {
    BEGIN;
    PciInfo info;
    for (unsigned i = 0; i < device_count(); i++) {
        write_pci(i, &info);
        *device = &devices[i];
        if (!strcmp(info.bus_id, bus_id)) return SUCCESS;
    }
    return NOT_FOUND;
}

int nvmlDeviceGetUUID(Device *device, char *text, unsigned size) {
    BEGIN;
    write_uuid(number_of(device), text, size);
    return SUCCESS;
}

int nvmlDeviceGetIndex(Device *device, unsigned *index) {
    BEGIN;
    *index = device->index;
    return SUCCESS;
}

int nvmlDeviceGetName(Device *device, char *text, unsigned size) {
    BEGIN;
    snprintf(text, size, "Stub GPU %u", number_of(device));
    return SUCCESS;
}

int nvmlDeviceGetPciInfo_v3(Device *device, PciInfo *info) {
    BEGIN;
    write_pci(device->index, info);
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(Device *device, int *major, int *minor) {
    BEGIN;
    (void)device;
    int capability = setting("STUB_NVML_CAPABILITY", 90);
    *major = capability / 10;
    *minor = capability % 10;
    return SUCCESS;
}

/* ---- state ---- */

/* The older form counts what the driver reserves as used. */
int nvmlDeviceGetMemoryInfo(Device *device, Memory *memory) {
    BEGIN;
    (void)device;
    memory->total = 16ull << 30;
    memory->used = used_bytes() + reserved_bytes();
    memory->free = memory->total - memory->used;
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo_v2(Device *device, MemoryV2 *memory) {
    BEGIN;
    (void)device;
    if (memory->version != (sizeof *memory | 2u << 24)) return VERSION_MISMATCH;
    memory->total = 16ull << 30;
    memory->reserved = reserved_bytes();
    memory->used = used_bytes();
    memory->free = memory->total - memory->used - memory->reserved;
    return SUCCESS;
}

int nvmlDeviceGetUtilizationRates(Device *device, Utilization *utilization) {
    BEGIN;
    (void)device;
    utilization->gpu = 40;
    utilization->memory = 20;
    return SUCCESS;
}

/* Clock types: 1 is the SM clock, 2 the memory clock. Both in MHz. */
int nvmlDeviceGetClockInfo(Device *device, int type, unsigned *clock) {
    BEGIN;
    (void)device;
    *clock = type == 1 ? 1410 : 1215;
    return SUCCESS;
}

int nvmlDeviceGetMaxClockInfo(Device *device, int type, unsigned *clock) {
    BEGIN;
    (void)device;
    *clock = type == 1 ? 1980 : 2619;
    return SUCCESS;
}

int nvmlDeviceGetTemperature(Device *device, int sensor, unsigned *celsius) {
    BEGIN;
    (void)device;
    (void)sensor;
    *celsius = 61;
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksEventReasons(Device *device, u64 *mask) {
    BEGIN;
    (void)device;
    *mask = 0x4; /* software power cap */
    return SUCCESS;
}

int nvmlDeviceGetCurrentClocksThrottleReasons(Device *device, u64 *mask) {
    BEGIN;
    (void)device;
    *mask = 0x4;
    return SUCCESS;
}

/* A getter of one or two constants, which is what most questions are. */
#define GETTER(name, type, constant)             \
    int name(Device *device, type *value) {      \
        BEGIN;                                   \
        (void)device;                            \
        *value = constant;                       \
        return SUCCESS;                          \
    }
#define PAIR_GETTER(name, first, second)                            \
    int name(Device *device, unsigned *one, unsigned *other) {      \
        BEGIN;                                                      \
        (void)device;                                               \
        *one = first;                                               \
        *other = second;                                            \
        return SUCCESS;                                             \
    }

GETTER(nvmlDeviceGetPowerManagementLimit, unsigned, 350000)
GETTER(nvmlDeviceGetPowerManagementDefaultLimit, unsigned, 400000)
GETTER(nvmlDeviceGetCurrPcieLinkGeneration, unsigned, 4)
GETTER(nvmlDeviceGetMaxPcieLinkGeneration, unsigned, 5)
GETTER(nvmlDeviceGetCurrPcieLinkWidth, unsigned, 8)
GETTER(nvmlDeviceGetMaxPcieLinkWidth, unsigned, 16)
GETTER(nvmlDeviceGetPersistenceMode, unsigned, 1)
GETTER(nvmlDeviceGetComputeMode, unsigned, 0)
PAIR_GETTER(nvmlDeviceGetPowerManagementLimitConstraints, 100000, 450000)
PAIR_GETTER(nvmlDeviceGetEccMode, 1, 1)
PAIR_GETTER(nvmlDeviceGetMigMode, (unsigned)setting("STUB_NVML_MIG", 0), 0)

/* ---- power and energy ---- */

int nvmlDeviceGetPowerUsage(Device *device, unsigned *milliwatts) {
    BEGIN;
    *milliwatts = (unsigned)(1000 * watts(device, latched()));
    return SUCCESS;
}

int nvmlDeviceGetTotalEnergyConsumption(Device *device, u64 *millijoules) {
    BEGIN;
    *millijoules = energy_millijoules(device);
    return SUCCESS;
}

static int answer_field(const Device *device, FieldValue *field) {
    char name[32];
    snprintf(name, sizeof name, "field:%u", field->field_id);
    const char *entry = find_entry(getenv("STUB_NVML_FAIL"), name);
    if (entry) return atoi(entry);
    field->value_type = UNSIGNED_LONG_LONG;
    switch (field->field_id) {
    case 83:
        field->value.ull = energy_millijoules(device);
        return SUCCESS;
    case 74: /* capped by power for a quarter of the time, in nanoseconds */
        field->value.ull = (u64)(1e9 * 0.25 * uptime());
        return SUCCESS;
    case 76:
    case 269:
    case 271:
        field->value.ull = 0;
        return SUCCESS;
    case 186: /* instant power of the GPU alone */
        if (field->scope_id != 0) return NOT_SUPPORTED;
        field->value_type = UNSIGNED_INT;
        field->value.u = (unsigned)(1000 * watts(device, latched()));
        return SUCCESS;
    default:
        return NOT_SUPPORTED;
    }
}

int nvmlDeviceGetFieldValues(Device *device, int count, FieldValue *fields) {
    BEGIN;
    for (int i = 0; i < count; i++) fields[i].result = answer_field(device, &fields[i]);
    return SUCCESS;
}

/* ---- connections ---- */

static int linked(const Device *device) {
    return setting("STUB_NVML_NVLINK", 0) && device->index < 2;
}

int nvmlDeviceGetNvLinkState(Device *device, unsigned link, unsigned *active) {
    BEGIN;
    if (link >= 4) return INVALID_ARGUMENT;
    *active = linked(device) && link == 1;
    return SUCCESS;
}

int nvmlDeviceGetNvLinkRemotePciInfo_v2(Device *device, unsigned link, PciInfo *info) {
    BEGIN;
    if (!linked(device) || link != 1) return NOT_SUPPORTED;
    write_pci(1 - device->index, info);
    return SUCCESS;
}

int nvmlDeviceGetP2PStatus(Device *first, Device *second, int capability, int *status) {
    BEGIN;
    enum { OK = 0, CHIPSET_NOT_SUPPORTED = 1, NVLINK = 2, NOT_SUPPORTED_AT_ALL = 5 };
    int neighbours = first->index / 2 == second->index / 2;
    *status = neighbours ? OK : CHIPSET_NOT_SUPPORTED;
    if (capability == NVLINK && !(linked(first) && linked(second))) *status = NOT_SUPPORTED_AT_ALL;
    return SUCCESS;
}

/* Pairs (0,1), (2,3), ... share a switch; everything else is a socket apart. */
int nvmlDeviceGetTopologyCommonAncestor(Device *first, Device *second, int *level) {
    BEGIN;
    *level = first->index / 2 == second->index / 2 ? 10 : 50;
    return SUCCESS;
}
