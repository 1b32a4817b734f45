package client

// #include <stdlib.h>
// #include "railhead.h"
import "C"

import (
	"fmt"
	"runtime"
	"unsafe"

	"railhead/internal/wire"
)

// EPMode is how a buffer moves tokens.
type EPMode uint32

// Modes: an LL buffer has room for the worst case, an HT buffer for a few chunks.
const (
	EPLowLatency     EPMode = C.RH_EP_LL
	EPHighThroughput EPMode = C.RH_EP_HT
)

// EPScale says how FP8 tokens are scaled.
type EPScale uint32

// One scale for each block of 128 elements, or one for all.
const (
	EPScaleF32    EPScale = C.RH_EP_SCALE_F32
	EPScaleUE8M0  EPScale = C.RH_EP_SCALE_UE8M0
	EPScaleStatic EPScale = C.RH_EP_SCALE_STATIC
)

// EPLayout is the layout of received tokens.
type EPLayout uint32

// Layouts; railhead.h describes them.
const (
	EPPadded EPLayout = C.RH_EP_PADDED
	EPFlat   EPLayout = C.RH_EP_FLAT
	EPTokens EPLayout = C.RH_EP_TOKENS
)

// EPConfig is rh_ep_config, the same on every rank.
type EPConfig struct {
	Mode              EPMode
	MaxTokensPerRank  int
	Hidden            int
	NumExperts        int
	TopK              int
	NumPhysical       int     // 0 = NumExperts
	PhysicalExpert    []int32 // nil: expert p
	PhysicalRank      []int32 // nil: in blocks
	Dtype             Dtype
	WireDtype         Dtype
	CombineDtype      Dtype
	Scale             EPScale
	StaticScale       float32
	DropInvalid       bool   // false: invalid input is an error
	DropDead          bool   // false: a death breaks the group
	RenormalizeWeight bool   // of tokens that lost an expert
	Device            uint32 // kind of the comm's device; 0 is the CPU
}

// c makes the C struct, and a function that frees the memory it points to.
func (c EPConfig) c() (*C.rh_ep_config, func()) {
	config := (*C.rh_ep_config)(C.calloc(1, C.sizeof_rh_ep_config))
	config.struct_size = C.sizeof_rh_ep_config
	config.struct_version = 1
	config.mode = C.uint32_t(c.Mode)
	config.max_tokens_per_rank = C.uint32_t(c.MaxTokensPerRank)
	config.hidden = C.uint32_t(c.Hidden)
	config.num_experts = C.uint32_t(c.NumExperts)
	config.topk = C.uint32_t(c.TopK)
	config.num_physical = C.uint32_t(c.NumPhysical)
	config.physical_expert = cInts(c.PhysicalExpert)
	config.physical_rank = cInts(c.PhysicalRank)
	config.dtype = C.rh_dtype(c.Dtype)
	config.wire_dtype = C.rh_dtype(c.WireDtype)
	config.combine_dtype = C.rh_dtype(c.CombineDtype)
	config.scale_format = C.uint32_t(c.Scale)
	config.static_scale = C.float(c.StaticScale)
	config.on_invalid = oneIf(c.DropInvalid)
	config.on_dead = oneIf(c.DropDead)
	config.lost_weights = oneIf(c.RenormalizeWeight)
	config.device_kind = C.int32_t(c.Device)
	return config, func() {
		C.free(unsafe.Pointer(config.physical_expert))
		C.free(unsafe.Pointer(config.physical_rank))
		C.free(unsafe.Pointer(config))
	}
}

func oneIf(b bool) C.uint32_t {
	if b {
		return 1
	}
	return 0
}

func cInts(values []int32) *C.int32_t {
	if values == nil {
		return nil
	}
	p := (*C.int32_t)(C.malloc(C.size_t(4*len(values) + 4)))
	copy(unsafe.Slice((*int32)(unsafe.Pointer(p)), len(values)), values)
	return p
}

// checkTables checks that the tables have as many entries as the library reads.
func (c EPConfig) checkTables() error {
	physical := c.NumPhysical
	if physical == 0 {
		physical = c.NumExperts
	}
	for name, table := range map[string][]int32{"PhysicalExpert": c.PhysicalExpert, "PhysicalRank": c.PhysicalRank} {
		if table != nil && len(table) != physical {
			return fmt.Errorf("ep: %s has %d entries for %d physical experts", name, len(table), physical)
		}
	}
	return nil
}

// EPBufferSize is the window memory that a buffer with that config uses on each of world ranks.
func EPBufferSize(c EPConfig, world int) (uint64, error) {
	if err := c.checkTables(); err != nil {
		return 0, err
	}
	config, free := c.c()
	defer free()
	var bytes C.uint64_t
	err := call(func() C.rh_result { return C.rh_ep_buffer_size(config, C.int32_t(world), &bytes) })
	return uint64(bytes), err
}

// EP is a buffer for expert parallelism.
type EP struct {
	h           *C.rh_ep
	stream      unsafe.Pointer // stream of its calls; nil on the CPU
	world       int
	config      EPConfig
	local       int
	columns     int // scales of a row
	physical    int
	bufferBytes uint64
	private     uint64
}

// NewEP creates a buffer on every rank; collective.
func (c *Comm) NewEP(config EPConfig) (*EP, error) {
	if err := config.checkTables(); err != nil {
		return nil, err
	}
	cc, free := config.c()
	defer free()
	ep := &EP{config: config, world: c.world}
	if err := call(func() C.rh_result { return C.rh_ep_create(c.h, cc, &ep.h) }); err != nil {
		return nil, err
	}
	info, err := ep.info()
	if err != nil {
		return nil, err
	}
	ep.local, ep.columns, ep.physical = int(info.local_experts), int(info.scale_columns), int(info.num_physical)
	ep.bufferBytes, ep.private = uint64(info.buffer_bytes), uint64(info.private_bytes)
	return ep, nil
}

func (e *EP) info() (C.rh_ep_info, error) {
	var info C.rh_ep_info
	info.struct_size = C.sizeof_rh_ep_info
	info.struct_version = 1
	err := call(func() C.rh_result { return C.rh_ep_get_info(e.h, &info) })
	return info, err
}

// Destroy frees the buffer; collective.
func (e *EP) Destroy() error { return call(func() C.rh_result { return C.rh_ep_destroy(e.h) }) }

// LocalExperts is how many physical experts this rank holds.
func (e *EP) LocalExperts() int { return e.local }

// ScaleColumns is how many scales a received row has; 0 = none.
func (e *EP) ScaleColumns() int { return e.columns }

// BufferBytes is the size of the buffer's window memory.
func (e *EP) BufferBytes() uint64 { return e.bufferBytes }

// PrivateBytes is the size of the buffer's private memory.
func (e *EP) PrivateBytes() uint64 { return e.private }

// Masked returns the ranks that are excluded, ascending.
func (e *EP) Masked() ([]int, error) {
	return ranksOf(e.world, func(ranks *C.int32_t, capacity C.int32_t, count *C.int32_t) C.rh_result {
		return C.rh_ep_get_masked(e.h, ranks, capacity, count)
	})
}

// Mask excludes a rank permanently.
func (e *EP) Mask(rank int) error {
	return call(func() C.rh_result { return C.rh_ep_mask_rank(e.h, C.int32_t(rank)) })
}

// Load returns how many token copies all ranks, and this rank, have sent to each physical expert.
func (e *EP) Load() (total, local []uint64, err error) {
	total, local = make([]uint64, e.physical), make([]uint64, e.physical)
	err = call(func() C.rh_result {
		return C.rh_ep_get_load(e.h, (*C.uint64_t)(&total[0]), (*C.uint64_t)(&local[0]), C.uint32_t(e.physical))
	})
	return total, local, err
}

// EPReport is rh_ep_report.
type EPReport struct {
	Result                                                                      wire.Result // result of the call
	Dispatch                                                                    int         // sequence number in the buffer, from 1; 0 = none began
	Rows, Tokens                                                                uint64      // received
	LostRanks                                                                   []int
	LostCopies, InvalidIDs, DuplicateIDs, ExcessTokens, NonFinite, OverCapacity uint64
	Message                                                                     string
}

// newReport makes a report with room for every rank.
func (e *EP) newReport(pins *pinned) *C.rh_ep_report {
	lost := make([]int32, e.world)
	r := &C.rh_ep_report{struct_size: C.sizeof_rh_ep_report, struct_version: 1, lost_capacity: C.int32_t(e.world)}
	pins.Pin(r)
	r.lost_ranks = (*C.int32_t)(pin(pins, lost))
	return r
}

func reportOf(r *C.rh_ep_report) EPReport {
	return EPReport{
		Result: wire.Result(r.result), Dispatch: int(r.dispatch), Rows: uint64(r.rows), Tokens: uint64(r.tokens),
		LostRanks: goRanks(unsafe.Slice(r.lost_ranks, r.lost_count)), LostCopies: uint64(r.lost_copies), InvalidIDs: uint64(r.invalid_ids),
		DuplicateIDs: uint64(r.duplicate_ids), ExcessTokens: uint64(r.excess_tokens), NonFinite: uint64(r.non_finite),
		OverCapacity: uint64(r.over_capacity), Message: C.GoString(&r.message[0]),
	}
}

// pinned pins the memory that C uses.
type pinned struct{ runtime.Pinner }

func pin[T any](p *pinned, s []T) unsafe.Pointer {
	if len(s) == 0 {
		return nil
	}
	p.Pin(&s[0])
	return unsafe.Pointer(&s[0])
}
