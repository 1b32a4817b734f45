package client

// #include <stdlib.h>
// #include "railhead.h"
import "C"

import (
	"fmt"
	"runtime"
	"strconv"
	"time"
	"unsafe"

	"railhead/internal/wire"
)

// Result is an rh_result.
type Result = wire.Result

// Error is a failed call of the library.
type Error struct {
	Result  Result
	Message string // which rank, which operation, what happened, what to do
}

func (e *Error) Error() string { return fmt.Sprintf("%s (%s)", e.Message, e.Result) }

// call runs f and turns its result into an error. It locks the thread, because the library keeps the message per thread.
func call(f func() C.rh_result) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	r := f()
	if r == C.RH_OK {
		return nil
	}
	return &Error{Result: Result(r), Message: C.GoString(C.rh_last_error_message())}
}

// Session is a connection to the node's daemon.
type Session struct{ h *C.rh_session }

// Connect connects to the daemon; "" and 0 take rh_connect's defaults.
func Connect(socketPath string, timeout time.Duration) (*Session, error) {
	config := (*C.rh_session_config)(C.calloc(1, C.sizeof_rh_session_config))
	defer C.free(unsafe.Pointer(config))
	config.struct_size = C.sizeof_rh_session_config
	config.struct_version = 1
	config.timeout_ms = milliseconds(timeout)
	if socketPath != "" {
		config.socket_path = C.CString(socketPath)
		defer C.free(unsafe.Pointer(config.socket_path))
	}
	var s Session
	if err := call(func() C.rh_result { return C.rh_connect(config, &s.h) }); err != nil {
		return nil, err
	}
	return &s, nil
}

// milliseconds rounds up, so that a short timeout does not become 0 = the default.
func milliseconds(d time.Duration) C.uint32_t {
	return C.uint32_t((d + time.Millisecond - 1) / time.Millisecond)
}

// Close ends the session.
func (s *Session) Close() error {
	return call(func() C.rh_result { return C.rh_close(s.h) })
}

// CommConfig is rh_comm_config. A zero value is the default, except for rank and world size: there -1 means the environment.
type CommConfig struct {
	Group, Token string // "" = the environment, then the launcher's job
	Rank, World  int
	Timeout      time.Duration
	ReduceGroup  int
	HeapBytes    uint64
	Reproducible Reproducible
	Device       uint32 // kind; 0 is the CPU
	DeviceName   string // of CUDA: a number, "GPU-<uuid>" or "MIG-<uuid>"; "" = the thread's current device
}

// DeviceCUDA is the kind of a GPU.
const DeviceCUDA uint32 = C.RH_DEVICE_CUDA

// Reproducible says whether all algorithms add sums in the same order. 0 = the environment, then on.
type Reproducible uint32

// Settings of CommConfig.Reproducible.
const (
	ReproducibleOn  Reproducible = C.RH_REPRODUCIBLE_ON
	ReproducibleOff Reproducible = C.RH_REPRODUCIBLE_OFF
)

// Comm is one rank of a group.
type Comm struct {
	h      *C.rh_comm
	rank   int
	world  int
	stream unsafe.Pointer // of its calls
}

// Init joins a group and waits until all ranks have joined.
func (s *Session) Init(c CommConfig) (*Comm, error) {
	config := (*C.rh_comm_config)(C.calloc(1, C.sizeof_rh_comm_config))
	defer C.free(unsafe.Pointer(config))
	config.struct_size = C.sizeof_rh_comm_config
	config.struct_version = 1
	config.device_kind = C.int32_t(c.Device)
	config.device_ordinal, config.local_rank, config.local_size, config.node = -1, -1, -1, -1
	if n, err := strconv.ParseInt(c.DeviceName, 10, 32); err == nil {
		config.device_ordinal = C.int32_t(n)
	} else if c.DeviceName != "" {
		config.device_uuid = C.CString(c.DeviceName)
		defer C.free(unsafe.Pointer(config.device_uuid))
	}
	config.rank = C.int32_t(c.Rank)
	config.world_size = C.int32_t(c.World)
	config.timeout_ms = milliseconds(c.Timeout)
	config.reduce_group = C.uint32_t(c.ReduceGroup)
	config.heap_bytes = C.uint64_t(c.HeapBytes)
	config.reproducible = C.uint32_t(c.Reproducible)
	if c.Group != "" {
		config.group = C.CString(c.Group)
		defer C.free(unsafe.Pointer(config.group))
	}
	if c.Token != "" {
		config.token = C.CString(c.Token)
		defer C.free(unsafe.Pointer(config.token))
	}
	var h *C.rh_comm
	if err := call(func() C.rh_result { return C.rh_comm_init(s.h, config, &h) }); err != nil {
		return nil, err
	}
	return newComm(h)
}

// newComm reads rank and world size from the library, because the caller may have left them to the environment.
func newComm(h *C.rh_comm) (*Comm, error) {
	var rank, world C.int32_t
	if err := call(func() C.rh_result { return C.rh_comm_rank(h, &rank) }); err != nil {
		return nil, err
	}
	if err := call(func() C.rh_result { return C.rh_comm_world_size(h, &world) }); err != nil {
		return nil, err
	}
	return &Comm{h: h, rank: int(rank), world: int(world)}, nil
}

// Rank is this comm's rank.
func (c *Comm) Rank() int { return c.rank }

// WorldSize is the number of ranks.
func (c *Comm) WorldSize() int { return c.world }

// OnStream returns the same comm with its calls queued on a stream of its device. They return before they have run, so their buffers
// must be memory that Go neither moves nor frees. Buffers of a GPU's comm are slices with the GPU's addresses, which Go code must not read.
func (c *Comm) OnStream(stream unsafe.Pointer) *Comm {
	on := *c
	on.stream = stream
	return &on
}

// Finalize waits for every rank's Finalize and frees the comm.
func (c *Comm) Finalize() error { return call(func() C.rh_result { return C.rh_comm_finalize(c.h) }) }

// Abort breaks the group for all ranks.
func (c *Comm) Abort() error { return call(func() C.rh_result { return C.rh_comm_abort(c.h) }) }

// Status is rh_comm_status.
type Status struct {
	Result           Result
	Culprit          int
	Reporter         int
	Operation        uint64
	Bytes            uint64
	WaitingFor       []int // ranks, ascending
	OperationName    string
	CulpritOperation string
	Algorithm        string // of the last collective that moved data
	Why              string // it was chosen
	Message          string
}

// Status says what the rank is doing, or why the group is broken.
func (c *Comm) Status() (Status, error) {
	st := (*C.rh_comm_status)(C.calloc(1, C.sizeof_rh_comm_status))
	defer C.free(unsafe.Pointer(st))
	st.struct_size = C.sizeof_rh_comm_status
	st.struct_version = 1
	if err := call(func() C.rh_result { return C.rh_comm_get_status(c.h, st) }); err != nil {
		return Status{}, err
	}
	waitingFor, err := ranksOf(c.world, func(ranks *C.int32_t, capacity C.int32_t, count *C.int32_t) C.rh_result {
		return C.rh_comm_get_waiting_for(c.h, ranks, capacity, count)
	})
	if err != nil {
		return Status{}, err
	}
	return Status{
		Result: Result(st.result), Culprit: int(st.culprit), Reporter: int(st.reporter),
		Operation: uint64(st.operation), Bytes: uint64(st.bytes), WaitingFor: waitingFor,
		OperationName:    C.GoString(&st.operation_name[0]),
		CulpritOperation: C.GoString(&st.culprit_operation_name[0]),
		Algorithm:        C.GoString(&st.algorithm_name[0]),
		Why:              C.GoString(&st.algorithm_why[0]),
		Message:          C.GoString(&st.message[0]),
	}, nil
}

// ranksOf reads a set of at most world ranks.
func ranksOf(world int, ask func(ranks *C.int32_t, capacity C.int32_t, count *C.int32_t) C.rh_result) ([]int, error) {
	list := make([]C.int32_t, world)
	var count C.int32_t
	if err := call(func() C.rh_result { return ask(&list[0], C.int32_t(world), &count) }); err != nil {
		return nil, err
	}
	return goRanks(list[:count]), nil
}

func goRanks(list []C.int32_t) []int {
	var ranks []int
	for _, r := range list {
		ranks = append(ranks, int(r))
	}
	return ranks
}

// Info is rh_comm_info.
type Info struct {
	Device       uint32 // kind
	Ordinal      int    // -1 = the device has none
	Granularity  uint64
	StopWord     *uint32 // nil on the CPU
	Staged       bool
	StagedReason string
	Fabric       bool
	FabricReason string // why not
}

// Info says on which device the comm runs, and how.
func (c *Comm) Info() (Info, error) {
	info := (*C.rh_comm_info)(C.calloc(1, C.sizeof_rh_comm_info))
	defer C.free(unsafe.Pointer(info))
	info.struct_size = C.sizeof_rh_comm_info
	info.struct_version = 1
	if err := call(func() C.rh_result { return C.rh_comm_get_info(c.h, info) }); err != nil {
		return Info{}, err
	}
	return Info{
		Device: uint32(info.device_kind), Ordinal: int(info.device_ordinal), Granularity: uint64(info.granularity),
		StopWord: (*uint32)(unsafe.Pointer(info.stop_word)), Staged: info.device_staged != 0,
		StagedReason: C.GoString(&info.device_staged_reason[0]), Fabric: info.device_fabric != 0, FabricReason: C.GoString(&info.device_fabric_reason[0]),
	}, nil
}

// Choice is rh_comm_get_choice: the algorithm of an operation ("all_reduce") of that size, and why it was chosen.
func (c *Comm) Choice(operation string, bytes uint64, inWindows bool) (algorithm, why string, err error) {
	choice := (*C.rh_choice)(C.calloc(1, C.sizeof_rh_choice))
	defer C.free(unsafe.Pointer(choice))
	choice.struct_size = C.sizeof_rh_choice
	choice.struct_version = 1
	name := C.CString(operation)
	defer C.free(unsafe.Pointer(name))
	var windows C.int32_t
	if inWindows {
		windows = 1
	}
	if err := call(func() C.rh_result { return C.rh_comm_get_choice(c.h, name, C.size_t(bytes), windows, choice) }); err != nil {
		return "", "", err
	}
	return C.GoString(&choice.algorithm[0]), C.GoString(&choice.why[0]), nil
}

// Window is symmetric memory.
type Window struct {
	h     *C.rh_window
	bytes int
	rank  int
}

// Memory is a kind of memory, RH_MEMORY_...
type Memory int32

// Kinds of memory of a window.
const (
	MemoryDefault Memory = C.RH_MEMORY_DEFAULT
	MemoryHost    Memory = C.RH_MEMORY_HOST
	MemoryDevice  Memory = C.RH_MEMORY_DEVICE
)

// AllocWindow allocates memory of the device's default kind on every rank; collective.
func (c *Comm) AllocWindow(bytes int) (*Window, error) { return c.AllocWindowIn(bytes, MemoryDefault) }

// AllocWindowIn is AllocWindow with a kind of memory.
func (c *Comm) AllocWindowIn(bytes int, memory Memory) (*Window, error) {
	w := &Window{bytes: bytes, rank: c.rank}
	config := C.rh_window_config{struct_size: C.sizeof_rh_window_config, struct_version: 1, memory: C.int32_t(memory)}
	if err := call(func() C.rh_result { return C.rh_window_alloc(c.h, C.size_t(bytes), &config, &w.h) }); err != nil {
		return nil, err
	}
	return w, nil
}

// Free frees the window; collective.
func (w *Window) Free() error { return call(func() C.rh_result { return C.rh_window_free(w.h) }) }

// Offset is the offset of the window in every rank's heap.
func (w *Window) Offset() (uint64, error) {
	info := C.rh_window_info{struct_size: C.sizeof_rh_window_info, struct_version: 1}
	err := call(func() C.rh_result { return C.rh_window_get_info(w.h, &info) })
	return uint64(info.offset), err
}
