package cuda

// #include "driver.h"
import "C"

import (
	"encoding/hex"
	"fmt"
	"runtime"
	"strings"
	"unsafe"
)

// Device is a GPU, or a slice of one (MIG), that this process can see.
type Device struct {
	Ordinal     int
	Name        string
	UUID        string // "GPU-" and the digits, as nvidia-smi prints it; of a slice with MIG too
	BusID       string // of PCI: "0000:1b:00.0"
	SM          int    // compute capability, 90 for 9.0
	Processors  int    // streaming multiprocessors
	MemoryBytes uint64

	handle C.int
}

// Attributes of a device.
const (
	attributeProcessors = 16
	attributeMajor      = 75
	attributeMinor      = 76
)

// Devices lists the devices that this process can see, by ordinal. There being none is no error.
func Devices() ([]Device, error) {
	if err := Load(); err != nil {
		if e, ok := err.(*Error); ok && e.Code == errNoDevice {
			return nil, nil
		}
		return nil, err
	}
	var n C.int
	if err := check("cuDeviceGetCount", C.driver_device_count(&n)); err != nil {
		return nil, err
	}
	devices := make([]Device, n)
	for i := range devices {
		if err := devices[i].describe(i); err != nil {
			return nil, fmt.Errorf("CUDA device %d: %w", i, err)
		}
	}
	return devices, nil
}

func (d *Device) describe(ordinal int) error {
	d.Ordinal = ordinal
	if err := check("cuDeviceGet", C.driver_device_get(&d.handle, C.int(ordinal))); err != nil {
		return err
	}
	var text [256]C.char
	if err := check("cuDeviceGetName", C.driver_device_name(&text[0], C.int(len(text)), d.handle)); err != nil {
		return err
	}
	d.Name = C.GoString(&text[0])
	if err := check("cuDeviceGetPCIBusId", C.driver_device_bus_id(&text[0], C.int(len(text)), d.handle)); err != nil {
		return err
	}
	d.BusID = strings.ToLower(C.GoString(&text[0]))
	var uuid [16]byte
	if err := check("cuDeviceGetUuid", C.driver_device_uuid((*C.uchar)(unsafe.Pointer(&uuid[0])), d.handle)); err != nil {
		return err
	}
	d.UUID = formatUUID(uuid)
	var bytes C.size_t
	if err := check("cuDeviceTotalMem", C.driver_device_memory(&bytes, d.handle)); err != nil {
		return err
	}
	d.MemoryBytes = uint64(bytes)
	major, err := d.attribute(attributeMajor)
	if err != nil {
		return err
	}
	minor, err := d.attribute(attributeMinor)
	if err != nil {
		return err
	}
	d.SM = 10*major + minor
	d.Processors, err = d.attribute(attributeProcessors)
	return err
}

func (d *Device) attribute(which C.int) (int, error) {
	var v C.int
	err := check("cuDeviceGetAttribute", C.driver_device_attribute(&v, which, d.handle))
	return int(v), err
}

// formatUUID prints a UUID as nvidia-smi does.
func formatUUID(b [16]byte) string {
	s := hex.EncodeToString(b[:])
	return "GPU-" + strings.Join([]string{s[:8], s[8:12], s[12:16], s[16:20], s[20:]}, "-")
}

// Context is a device's primary context, which all libraries of a process share.
type Context struct {
	Device Device
	h      *C.context
}

// Retain returns the device's primary context, which Release gives back.
func (d Device) Retain() (*Context, error) {
	c := &Context{Device: d}
	if err := check("cuDevicePrimaryCtxRetain", C.driver_context_retain(&c.h, d.handle)); err != nil {
		return nil, fmt.Errorf("CUDA device %d: %w", d.Ordinal, err)
	}
	return c, nil
}

// Release gives the context back. What was made in it must have ended.
func (c *Context) Release() error {
	return check("cuDevicePrimaryCtxRelease", C.driver_context_release(c.Device.handle))
}

// Bind locks the goroutine to its thread and makes the context current there, for calls of other libraries.
func (c *Context) Bind() error {
	runtime.LockOSThread()
	return check("cuCtxPushCurrent", C.driver_context_push(c.h))
}
