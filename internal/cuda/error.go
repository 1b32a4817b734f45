package cuda

// #include "driver.h"
import "C"

import (
	"fmt"
	"strings"
)

// Error is a failed call of the driver.
type Error struct {
	Call string // the driver's function
	Code int    // CUresult
	Name string // "CUDA_ERROR_OUT_OF_MEMORY"
	Text string // the driver's
	Hint string // what to do; may be empty
}

func (e *Error) Error() string {
	s := fmt.Sprintf("%s: %s (%d): %s", e.Call, e.Name, e.Code, e.Text)
	if e.Hint != "" {
		s += "; " + e.Hint
	}
	return s
}

// Results of the driver that this package treats by name.
const (
	notReady          = 600
	errOutOfMemory    = 2
	errNoDevice       = 100
	errInvalidDevice  = 101
	errNotSupported   = 801
	errSystemNotReady = 802
	errMismatch       = 803
	errMPSConnection  = 805
	errMPSServer      = 807
	errIllegalAddress = 700
	errLaunchFailed   = 719
	errCaptureUnsafe  = 900
	errCaptureInvalid = 901
)

const afterFault = "the context of this process is lost: the kernel that ran before has a fault, so start the process again"

var hints = map[int]string{
	errOutOfMemory:    "free memory on the device, or use smaller buffers; nvidia-smi shows who uses it",
	errNoDevice:       "no GPU is visible: check nvidia-smi and CUDA_VISIBLE_DEVICES",
	errInvalidDevice:  "there are fewer GPUs: check nvidia-smi and CUDA_VISIBLE_DEVICES",
	errSystemNotReady: "the fabric of the NVSwitches is not ready: check that nvidia-fabricmanager of the driver's version runs",
	errMismatch:       "library and kernel module of the driver have different versions: load the module again, or boot",
	errMPSConnection:  "the MPS daemon of CUDA_MPS_PIPE_DIRECTORY does not answer: start it, or unset the variable",
	errMPSServer:      "the MPS server has an error: see the logs in CUDA_MPS_LOG_DIRECTORY",
	errIllegalAddress: afterFault,
	errLaunchFailed:   afterFault,
	errCaptureUnsafe:  "the call cannot be captured into a graph: make it before the capture begins",
	errCaptureInvalid: "an earlier call has ended the capture: see its error",
}

// check turns the result of a call into an error.
func check(call string, result C.int) error {
	switch {
	case result == 0:
		return nil
	case result&C.kPush != 0:
		call, result = "cuCtxPushCurrent", result&^C.kPush
	}
	if result == C.kMissing {
		return &Error{Call: call, Code: errNotSupported, Name: "CUDA_ERROR_NOT_SUPPORTED", Text: "the driver's library lacks this function",
			Hint: "install a driver for CUDA 12 or newer"}
	}
	e := &Error{Call: call, Code: int(result), Name: C.GoString(C.driver_error_name(result)),
		Text: strings.TrimSpace(C.GoString(C.driver_error_text(result))), Hint: hints[int(result)]}
	if e.Name == "" {
		e.Name = "unknown result"
	}
	if e.Text == "" {
		e.Text = "the driver has no text for it"
	}
	return e
}
