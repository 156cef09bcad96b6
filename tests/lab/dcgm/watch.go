// Copyright (c) gpuops.nvidia contributors
// SPDX-License-Identifier: GPL-3.0-or-later

package main

import (
	"context"
	"fmt"
	"log"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
)

const mebibyte = 1 << 20

// watch holds the NVML session for the life of the program: like the real exporter, it keeps the driver in use.
type watch struct {
	chosen options
	gpus   []*gpu
	driver string

	lock sync.Mutex
	xids []xidEvent
}

type gpu struct {
	device   nvml.Device
	identity []label
	uuid     string
	clocks   []clockSample
}

type xidEvent struct {
	uuid string
	code uint64
	when time.Time
}

type clockSample struct {
	reasons uint64
	when    time.Time
}

// clockEvents are the bits of NVML's reasons, under the exporter's names for them.
var clockEvents = []struct {
	name string
	bit  uint64
}{
	{"gpu_idle", 0x1}, {"clocks_setting", 0x2}, {"power_cap", 0x4}, {"hw_slowdown", 0x8}, {"sync_boost", 0x10},
	{"sw_thermal", 0x20}, {"hw_thermal", 0x40}, {"hw_power_brake", 0x80}, {"display_clocks", 0x100},
}

func openWatch(chosen options) (*watch, error) {
	if code := nvml.Init(); code != nvml.SUCCESS {
		return nil, fmt.Errorf("NVML did not start (%s): wanted a loaded driver and libnvidia-ml.so.1; in a pod, "+
			"the RuntimeClass nvidia", text(code))
	}
	opened := &watch{chosen: chosen}
	opened.driver, _ = nvml.SystemGetDriverVersion()
	count, code := nvml.DeviceGetCount()
	if code != nvml.SUCCESS {
		return nil, fmt.Errorf("NVML counts no devices: %s", text(code))
	}
	for index := 0; index < count; index++ {
		device, code := nvml.DeviceGetHandleByIndex(index)
		if code != nvml.SUCCESS {
			log.Printf("GPU %d is left out: %s", index, text(code))
			continue
		}
		opened.gpus = append(opened.gpus, identify(device, index))
	}
	return opened, nil
}

func (w *watch) close()     { nvml.Shutdown() }
func (w *watch) count() int { return len(w.gpus) }

// text names a return value without asking the library, which may be the thing that is missing.
func text(code nvml.Return) string {
	if code == nvml.ERROR_LIBRARY_NOT_FOUND {
		return "library not found"
	}
	return nvml.ErrorString(code)
}

func identify(device nvml.Device, index int) *gpu {
	uuid, _ := device.GetUUID()
	name, _ := device.GetName()
	minor, code := device.GetMinorNumber()
	if code != nvml.SUCCESS {
		minor = index
	}
	pci, _ := device.GetPciInfo()
	return &gpu{device: device, uuid: uuid, identity: []label{
		{"gpu", strconv.Itoa(index)},
		{"UUID", uuid},
		{"pci_bus_id", fmt.Sprintf("%08X:%02X:%02X.0", pci.Domain, pci.Bus, pci.Device)},
		{"device", "nvidia" + strconv.Itoa(minor)},
		{"modelName", name},
	}}
}

func (w *watch) collect() collection {
	found := collection{constants: map[string]string{"DCGM_FI_DRIVER_VERSION": w.driver}}
	migDevices := map[string]string{}
	for _, each := range w.gpus {
		round := &reading{gpu: each}
		mode, _, code := each.device.GetMigMode()
		inMig := code == nvml.SUCCESS && mode == nvml.DEVICE_MIG_ENABLE
		round.sensors()
		round.memory(each.device, nil)
		round.health()
		if inMig {
			round.instances(migDevices)
		} else {
			round.utilization()
		}
		w.events(round)
		found.samples = append(found.samples, round.samples...)
	}
	if w.chosen.kubernetes {
		pods, err := podUses(w.chosen, migDevices)
		if err != nil {
			log.Printf("pods are not known in this round: %v", err)
		}
		found.pods = pods
	}
	return found
}

// reading gathers the samples of one GPU in one round.
type reading struct {
	gpu     *gpu
	samples []sample
}

func (r *reading) add(field string, code nvml.Return, value float64, extra ...label) {
	if code != nvml.SUCCESS {
		return
	}
	labels := append(append([]label{}, r.gpu.identity...), extra...)
	r.samples = append(r.samples, sample{field, labels, value})
}

func (r *reading) sensors() {
	device := r.gpu.device
	clock, code := device.GetClockInfo(nvml.CLOCK_SM)
	r.add("DCGM_FI_DEV_SM_CLOCK", code, float64(clock))
	clock, code = device.GetClockInfo(nvml.CLOCK_MEM)
	r.add("DCGM_FI_DEV_MEM_CLOCK", code, float64(clock))
	degrees, code := device.GetTemperature(nvml.TEMPERATURE_GPU)
	r.add("DCGM_FI_DEV_GPU_TEMP", code, float64(degrees))
	milliwatts, code := device.GetPowerUsage()
	r.add("DCGM_FI_DEV_POWER_USAGE", code, float64(milliwatts)/1000)
	milliwatts, code = device.GetEnforcedPowerLimit()
	r.add("DCGM_FI_DEV_ENFORCED_POWER_LIMIT", code, float64(milliwatts)/1000)
	energy, code := device.GetTotalEnergyConsumption()
	r.add("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", code, float64(energy))
	replays, code := device.GetPcieReplayCounter()
	r.add("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", code, float64(replays))
	values := []nvml.FieldValue{{FieldId: nvml.FI_DEV_MEMORY_TEMP}}
	if code = device.GetFieldValues(values); code == nvml.SUCCESS {
		r.add("DCGM_FI_DEV_MEMORY_TEMP", nvml.Return(values[0].NvmlReturn), float64(values[0].Value[0]))
	}
}

func (r *reading) memory(device nvml.Device, instance []label) {
	info, code := device.GetMemoryInfo_v2()
	r.add("DCGM_FI_DEV_FB_TOTAL", code, float64(info.Total/mebibyte), instance...)
	r.add("DCGM_FI_DEV_FB_FREE", code, float64(info.Free/mebibyte), instance...)
	r.add("DCGM_FI_DEV_FB_USED", code, float64(info.Used/mebibyte), instance...)
	r.add("DCGM_FI_DEV_FB_RESERVED", code, float64(info.Reserved/mebibyte), instance...)
}

// utilization has no meaning for a GPU that is cut into instances: NVML answers it for whole GPUs only.
func (r *reading) utilization() {
	device := r.gpu.device
	rates, code := device.GetUtilizationRates()
	r.add("DCGM_FI_DEV_GPU_UTIL", code, float64(rates.Gpu))
	r.add("DCGM_FI_DEV_MEM_COPY_UTIL", code, float64(rates.Memory))
	r.add("DCGM_FI_PROF_GR_ENGINE_ACTIVE", code, float64(rates.Gpu)/100)
	percent, _, code := device.GetEncoderUtilization()
	r.add("DCGM_FI_DEV_ENC_UTIL", code, float64(percent))
	percent, _, code = device.GetDecoderUtilization()
	r.add("DCGM_FI_DEV_DEC_UTIL", code, float64(percent))
}

func (r *reading) health() {
	device := r.gpu.device
	correctable, uncorrectable, pending, failed, code := device.GetRemappedRows()
	r.add("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", code, float64(correctable))
	r.add("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", code, float64(uncorrectable))
	r.add("DCGM_FI_DEV_ROW_REMAP_PENDING", code, truth(pending))
	r.add("DCGM_FI_DEV_ROW_REMAP_FAILURE", code, truth(failed))
	for _, each := range []struct {
		field string
		kind  nvml.MemoryErrorType
		since nvml.EccCounterType
	}{
		{"DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.VOLATILE_ECC},
		{"DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.VOLATILE_ECC},
		{"DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", nvml.MEMORY_ERROR_TYPE_CORRECTED, nvml.AGGREGATE_ECC},
		{"DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", nvml.MEMORY_ERROR_TYPE_UNCORRECTED, nvml.AGGREGATE_ECC},
	} {
		errors, code := device.GetTotalEccErrors(each.kind, each.since)
		r.add(each.field, code, float64(errors))
	}
}

func truth(value bool) float64 {
	if value {
		return 1
	}
	return 0
}

// instances reads each MIG device and notes which instance its UUID names, for the kubelet knows only the UUID.
func (r *reading) instances(known map[string]string) {
	count, code := r.gpu.device.GetMaxMigDeviceCount()
	if code != nvml.SUCCESS {
		return
	}
	for index := 0; index < count; index++ {
		device, code := r.gpu.device.GetMigDeviceHandleByIndex(index)
		if code != nvml.SUCCESS {
			continue
		}
		instance, code := device.GetGpuInstanceId()
		if code != nvml.SUCCESS {
			continue
		}
		name, _ := device.GetName()
		_, profile, _ := strings.Cut(name, "MIG ")
		if uuid, code := device.GetUUID(); code == nvml.SUCCESS {
			known[uuid] = r.gpu.uuid + "/" + strconv.Itoa(instance)
		}
		r.memory(device, []label{{"GPU_I_PROFILE", profile}, {"GPU_I_ID", strconv.Itoa(instance)}})
	}
}

// events adds what is counted over time: clock limits seen in past rounds, and XIDs that the driver reported.
func (w *watch) events(round *reading) {
	now := time.Now()
	one := round.gpu
	reasons, code := one.device.GetCurrentClocksEventReasons()
	round.add("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", code, float64(reasons))
	round.add("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", code, float64(reasons))
	one.clocks = append(recent(one.clocks, now.Add(-w.chosen.clkWindow)), clockSample{reasons, now})
	for _, event := range clockEvents {
		seen := 0
		for _, past := range one.clocks {
			if past.reasons&event.bit != 0 {
				seen++
			}
		}
		if seen > 0 {
			round.add("DCGM_EXP_CLOCK_EVENTS_COUNT", nvml.SUCCESS, float64(seen), label{"clock_event", event.name})
		}
	}
	w.addXids(round, now)
}

func recent(samples []clockSample, oldest time.Time) []clockSample {
	for len(samples) > 0 && samples[0].when.Before(oldest) {
		samples = samples[1:]
	}
	return samples
}

func (w *watch) addXids(round *reading, now time.Time) {
	w.lock.Lock()
	defer w.lock.Unlock()
	last, counts := uint64(0), map[uint64]int{}
	for _, event := range w.xids {
		if event.uuid != round.gpu.uuid {
			continue
		}
		last = event.code
		if now.Sub(event.when) <= w.chosen.xidWindow {
			counts[event.code]++
		}
	}
	round.add("DCGM_FI_DEV_XID_ERRORS", nvml.SUCCESS, float64(last))
	for code, count := range counts {
		round.add("DCGM_EXP_XID_ERRORS_COUNT", nvml.SUCCESS, float64(count), label{"xid", strconv.FormatUint(code, 10)})
	}
}

// followXids waits for the driver's critical events; a library that has none leaves the last XID at 0.
func (w *watch) followXids(ending context.Context) {
	set, code := nvml.EventSetCreate()
	if code != nvml.SUCCESS {
		return
	}
	for _, each := range w.gpus {
		each.device.RegisterEvents(nvml.EventTypeXidCriticalError, set)
	}
	for ending.Err() == nil {
		event, code := set.Wait(1000)
		if code != nvml.SUCCESS {
			// A library may answer "nothing" at once instead of after the time asked for.
			time.Sleep(200 * time.Millisecond)
			continue
		}
		w.note(event)
	}
}

// note finds the GPU by its handle: one that has fallen off the bus no longer answers what its UUID is.
func (w *watch) note(event nvml.EventData) {
	w.lock.Lock()
	defer w.lock.Unlock()
	for _, each := range w.gpus {
		if each.device == event.Device {
			w.xids = append(w.xids, xidEvent{each.uuid, event.EventData, time.Now()})
		}
	}
}
