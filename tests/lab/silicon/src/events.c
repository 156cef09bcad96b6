/* Copyright (c) gpuops.nvidia contributors
 * GNU General Public License v3.0+ (see LICENSE or https://www.gnu.org/licenses/gpl-3.0.txt)
 *
 * NVML event sets. Events are kept on the board as a short ring, event.SLOT = number,gpu,type,data: a set remembers the
 * number of the last event that it handed out and looks for younger ones.
 */
#define _GNU_SOURCE
#include "library.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { RING = 32, POLL_MS = 100 };

struct event_set {
    long long last;
    u64 wanted[MAX_GPUS];
};

void raise_event(int gpu, u64 type, u64 data) {
    long long number = board_number(0, "event.last") + 1;
    char text[96];

    snprintf(text, sizeof text, "%lld,%d,%llu,%llu", number, gpu, type, data);
    board_set(text, "event.%lld", number % RING);
    board_set_number(number, "event.last");
}

nvmlReturn_t nvmlEventSetCreate(nvmlEventSet_t *set) {
    nvmlReturn_t answer = begin(__func__, NULL, 0, READING);
    if (answer != SUCCESS)
        return answer;
    if (set == NULL)
        return finish(INVALID_ARGUMENT);
    *set = calloc(1, sizeof **set);
    if (*set != NULL)
        (*set)->last = board_number(0, "event.last");
    return finish(*set != NULL ? SUCCESS : UNKNOWN_ERROR);
}

nvmlReturn_t nvmlEventSetFree(nvmlEventSet_t set) {
    nvmlReturn_t answer = begin(__func__, NULL, 0, READING);
    if (answer != SUCCESS)
        return answer;
    free(set);
    return finish(SUCCESS);
}

static u64 supported_events(int gpu) {
    u64 events = EVENT_XID | 4 | 16;

    if (gpu_text(gpu, NULL, "ecc_default") != NULL)
        events |= EVENT_SINGLE_BIT_ECC | EVENT_DOUBLE_BIT_ECC;
    return events;
}

nvmlReturn_t nvmlDeviceGetSupportedEventTypes(nvmlDevice_t device, u64 *events) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (events == NULL)
        return finish(INVALID_ARGUMENT);
    *events = supported_events(device->gpu);
    return finish(SUCCESS);
}

nvmlReturn_t nvmlDeviceRegisterEvents(nvmlDevice_t device, u64 events, nvmlEventSet_t set) {
    nvmlReturn_t answer = begin(__func__, device, IS_DEVICE, READING);
    if (answer != SUCCESS)
        return answer;
    if (set == NULL)
        return finish(INVALID_ARGUMENT);
    if ((events & ~supported_events(device->gpu)) != 0)
        return finish(NOT_SUPPORTED);
    set->wanted[device->gpu] |= events;
    return finish(SUCCESS);
}

/* Hands out the oldest event that is younger than the set's last one and wanted by it. */
static int take_event(nvmlEventSet_t set, nvmlEventData_t *data) {
    long long newest = board_number(0, "event.last");

    if (set->last < newest - RING)
        set->last = newest - RING;
    while (set->last < newest) {
        long long number;
        int gpu;
        u64 type;
        u64 detail;

        set->last++;
        if (sscanf(board_text("", "event.%lld", set->last % RING), "%lld,%d,%llu,%llu", &number, &gpu, &type,
                   &detail) != 4 || number != set->last || gpu < 0 || gpu >= MAX_GPUS)
            continue;
        if ((set->wanted[gpu] & type) == 0)
            continue;
        data->device = device_handle(gpu);
        data->eventType = type;
        data->eventData = detail;
        data->gpuInstanceId = data->computeInstanceId = 0xffffffff;
        return 1;
    }
    return 0;
}

static nvmlReturn_t wait_for_event(const char *call, nvmlEventSet_t set, nvmlEventData_t *data, u32 timeout_ms) {
    struct timespec pause = {0, POLL_MS * 1000000};
    u64 waited = 0;

    for (;;) {
        nvmlReturn_t answer = begin(call, NULL, 0, READING);
        int taken;

        if (answer != SUCCESS)
            return answer;
        if (set == NULL || data == NULL)
            return finish(INVALID_ARGUMENT);
        taken = take_event(set, data);
        finish(SUCCESS);
        if (taken)
            return SUCCESS;
        if (waited >= timeout_ms)
            return TIMEOUT;
        nanosleep(&pause, NULL);
        waited += POLL_MS;
    }
}

nvmlReturn_t nvmlEventSetWait_v2(nvmlEventSet_t set, nvmlEventData_t *data, u32 timeout_ms) {
    return wait_for_event(__func__, set, data, timeout_ms);
}

nvmlReturn_t nvmlEventSetWait(nvmlEventSet_t set, nvmlEventData_t *data, u32 timeout_ms) {
    return wait_for_event(__func__, set, data, timeout_ms);
}
