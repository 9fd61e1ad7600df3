/* What are the simulated devices called, what do they draw, and which calls fail?
 *
 * stub.c lists the environment variables that decide it.
 */
#ifndef NVML_STUB_SIMULATION_H
#define NVML_STUB_SIMULATION_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum {
    SUCCESS = 0, UNINITIALIZED = 1, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, NOT_FOUND = 6,
    VERSION_MISMATCH = 25,
    MAX_DEVICES = 8, MAX_FUNCTIONS = 128, HANG_SECONDS = 30,
};
enum { UNSIGNED_INT = 1, UNSIGNED_LONG_LONG = 3 }; /* nvmlValueType_t */

typedef unsigned long long u64;
typedef struct { unsigned index; } Device;

typedef struct { u64 total, free, used; } Memory;
typedef struct { unsigned version; u64 total, reserved, free, used; } MemoryV2;
typedef struct { unsigned gpu, memory; } Utilization;
typedef struct {
    char bus_id_legacy[16];
    unsigned domain, bus, device, pci_device_id, pci_subsystem_id;
    char bus_id[32];
} PciInfo;
typedef union { double d; unsigned u; unsigned long ul; u64 ull; } Value;
typedef struct {
    unsigned field_id, scope_id;
    long long timestamp, latency_usec;
    int value_type, result;
    Value value;
} FieldValue;

static Device devices[MAX_DEVICES];
static int open_sessions;
static double started;
static double held = -1; /* the time that a test has set, or less than 0 for the real one */

/* ---- configuration ---- */

static int setting(const char *name, int otherwise) {
    const char *text = getenv(name);
    return text ? atoi(text) : otherwise;
}

static unsigned device_count(void) {
    int count = setting("STUB_NVML_COUNT", 2);
    return count > MAX_DEVICES ? MAX_DEVICES : (unsigned)count;
}

/* ---- faults ---- */

/* Points behind "name=" in a comma-separated list, or NULL. */
static const char *find_entry(const char *list, const char *name) {
    size_t length = strlen(name);
    while (list && *list) {
        if (!strncmp(list, name, length) && list[length] == '=') return list + length + 1;
        list = strchr(list, ',');
        if (list) list++;
    }
    return NULL;
}

static struct { const char *name; int calls; } counters[MAX_FUNCTIONS];

static int *calls_of(const char *name) {
    int i = 0;
    while (i < MAX_FUNCTIONS - 1 && counters[i].name && strcmp(counters[i].name, name)) i++;
    if (!counters[i].name) counters[i].name = name;
    return &counters[i].calls;
}

/* Behind the @ stands a number of calls or, in the last entry, another function to be called. */
static int fails_by_now(const char *name) {
    const char *entry = find_entry(getenv("STUB_NVML_FAIL_AFTER"), name);
    const char *after = entry ? strchr(entry, '@') : NULL;
    if (!after++) return SUCCESS;
    int number = atoi(after);
    int reached = number ? *calls_of(name) >= number : *calls_of(after) > 0;
    return reached ? atoi(entry) : SUCCESS;
}

static int injected_failure(const char *name) {
    const char *hangs = getenv("STUB_NVML_HANG");
    if (hangs && !strcmp(hangs, name)) sleep(HANG_SECONDS);
    const char *entry = find_entry(getenv("STUB_NVML_FAIL"), name);
    ++*calls_of("*");
    int code = entry ? atoi(entry) : fails_by_now(name);
    if (!code) code = fails_by_now("*");
    ++*calls_of(name);
    return code;
}

#define BEGIN                                                    \
    do {                                                         \
        int failure = injected_failure(__func__);                \
        if (failure) return failure;                             \
        if (!open_sessions) return UNINITIALIZED;                \
    } while (0)

/* ---- the simulated device ---- */

static double uptime(void) {
    if (held >= 0) return held;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec - started;
}

/* The last moment at which the sensors moved. */
static double latched(void) {
    double period = 1e-3 * setting("STUB_NVML_PERIOD_MS", 100);
    return period * (double)(long)(uptime() / period);
}

static u64 used_bytes(void) { return (u64)setting("STUB_NVML_USED_MIB", 8) << 20; }

static u64 reserved_bytes(void) { return (u64)setting("STUB_NVML_RESERVED_MIB", 600) << 20; }

static unsigned number_of(const Device *device) { return device_count() - 1 - device->index; }

static double watts(const Device *device, double at) {
    if (setting("STUB_NVML_ZERO_WATTS", 0)) return 0;
    double wave = (long)(2 * at + 1e-6) % 2 ? 300 : 100;
    return wave * (number_of(device) + 1);
}

static double joules(const Device *device, double at) {
    long halves = (long)(2 * at);
    double into = at - 0.5 * (double)halves;
    double wave = 200.0 * (double)(halves / 2) + (halves % 2 ? 50 + 300 * into : 100 * into);
    return wave * (number_of(device) + 1);
}

static u64 energy_millijoules(const Device *device) {
    double at = latched();
    double reset = 1e-3 * setting("STUB_NVML_RESET_AFTER_MS", 0);
    if (reset > 0 && at >= reset) return (u64)(1000 * (joules(device, at) - joules(device, reset)));
    return (u64)(1000 * joules(device, at)) + 5000000;
}

static void write_uuid(unsigned number, char *text, unsigned size) {
    snprintf(text, size, "GPU-%08x-1111-2222-3333-%012x", 0xabc0000 + number, number);
}

static void write_pci(unsigned index, PciInfo *info) {
    memset(info, 0, sizeof *info);
    info->bus = index + 1;
    snprintf(info->bus_id, sizeof info->bus_id, "00000000:%02X:00.0", index + 1);
    snprintf(info->bus_id_legacy, sizeof info->bus_id_legacy, "0000:%02X:00.0", index + 1);
}

#endif
