/* Half of libnvidia-ml: two GPUs, the second of which is lost while it is read. What is not here is
 * a missing symbol. Signatures are those of nvml.h. */
#include <string.h>

#define SUCCESS 0
#define INVALID_ARGUMENT 2
#define NOT_FOUND 6
#define GPU_IS_LOST 15

typedef struct gpu {
    const char *uuid;
    unsigned long long memory;
    int lost;
} *device_t;

static struct gpu gpus[2] = {
    {"GPU-11111111-2222-3333-4444-555555555555", 42949672960ULL, 0},
    {"GPU-66666666-7777-8888-9999-000000000000", 0, 1},
};

int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }

int nvmlDeviceGetCount_v2(unsigned *count) { *count = 2; return SUCCESS; }

int nvmlDeviceGetHandleByIndex_v2(unsigned index, device_t *device) {
    if (index > 1) return INVALID_ARGUMENT;
    *device = &gpus[index];
    return SUCCESS;
}

int nvmlDeviceGetUUID(device_t device, char *uuid, unsigned length) {
    strncpy(uuid, device->uuid, length);
    return SUCCESS;
}

int nvmlDeviceGetMemoryInfo(device_t device, unsigned long long memory[3]) {
    if (device->lost) return GPU_IS_LOST;
    memory[0] = memory[1] = device->memory;
    memory[2] = 0;
    return SUCCESS;
}

int nvmlDeviceGetCudaComputeCapability(device_t device, int *major, int *minor) {
    (void)device;
    *major = 8;
    *minor = 0;
    return SUCCESS;
}

int nvmlDeviceGetMigMode(device_t device, unsigned *current, unsigned *pending) {
    (void)device;
    *current = *pending = 1;
    return SUCCESS;
}

int nvmlDeviceGetMaxMigDeviceCount(device_t device, unsigned *count) {
    (void)device;
    *count = 1;
    return SUCCESS;
}

int nvmlDeviceGetMigDeviceHandleByIndex(device_t device, unsigned index, device_t *slice) {
    static struct gpu slices[1] = {{"MIG-12121212-3434-5656-7878-909090909090", 5100273664ULL, 0}};
    if (index || device != &gpus[0]) return NOT_FOUND;
    *slice = &slices[0];
    return SUCCESS;
}

int nvmlDeviceGetName(device_t device, char *name, unsigned length) {
    strncpy(name, device->memory < (1ULL << 33) ? "A100 MIG 1g.5gb" : "A100", length);
    return SUCCESS;
}
