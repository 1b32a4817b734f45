package cuda

// #cgo CFLAGS: -std=c17 -Wall -Wextra
// #cgo LDFLAGS: -ldl
// #include <stdlib.h>
// #include "driver.h"
import "C"

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync"
	"unsafe"
)

// LibraryVariable is the environment variable with the path of the driver's library, for tests and unusual installations.
const LibraryVariable = "RAILHEAD_CUDA_LIBRARY"

const defaultLibrary = "libcuda.so.1"

// ErrNoLibrary is wrapped by the error of Load where the driver's library cannot be opened.
var ErrNoLibrary = errors.New("no CUDA driver")

var (
	loading sync.Mutex
	loaded  bool
)

// Load opens the driver's library and initializes it, once a process. A load that fails is tried again by the next call.
func Load() error {
	loading.Lock()
	defer loading.Unlock()
	if loaded {
		return nil
	}
	path := os.Getenv(LibraryVariable)
	if path == "" {
		path = defaultLibrary
	}
	if err := open(path); err != nil {
		return err
	}
	if err := checkInit(); err != nil {
		return err
	}
	loaded = true
	return nil
}

func checkInit() error { return check("cuInit", C.driver_init()) }

func open(path string) error {
	const capacity = 512 // bytes of the loader's message
	message := (*C.char)(C.calloc(1, capacity))
	defer C.free(unsafe.Pointer(message))
	name := C.CString(path)
	defer C.free(unsafe.Pointer(name))
	if C.driver_open(name, message, capacity) == 0 {
		return nil
	}
	return fmt.Errorf("%w: %s; install NVIDIA's driver, give the container its GPUs, or set %s to the library's path", ErrNoLibrary,
		strings.TrimSpace(C.GoString(message)), LibraryVariable)
}

// DriverVersion is the newest version of CUDA that the driver supports, 13000 for 13.0.
func DriverVersion() (int, error) {
	if err := Load(); err != nil {
		return 0, err
	}
	var v C.int
	err := check("cuDriverGetVersion", C.driver_version(&v))
	return int(v), err
}
