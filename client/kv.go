package client

// #include <stdlib.h>
// #include <string.h>
// #include "railhead.h"
import "C"

import (
	"fmt"
	"runtime"
	"time"
	"unsafe"
)

// KVReference stands for granted blocks; railhead_kv.h describes it.
type KVReference [48]byte

// KVRights say what a reader may do with granted blocks.
type KVRights uint32

// The rights.
const (
	KVRead  KVRights = C.RH_KV_READ
	KVWrite KVRights = C.RH_KV_WRITE
)

// KVAgent is an agent of KV transfer: rh_kv_agent.
type KVAgent struct{ h *C.rh_kv_agent }

// KVAgent makes this process the agent of a name. A timeout of 0 is the default.
func (s *Session) KVAgent(name string, timeout time.Duration) (*KVAgent, error) {
	config := (*C.rh_kv_agent_config)(C.calloc(1, C.sizeof_rh_kv_agent_config))
	defer C.free(unsafe.Pointer(config))
	config.struct_size, config.struct_version = C.sizeof_rh_kv_agent_config, 1
	config.name = C.CString(name)
	defer C.free(unsafe.Pointer(config.name))
	config.timeout_ms = milliseconds(timeout)
	var a KVAgent
	if err := call(func() C.rh_result { return C.rh_kv_agent_create(s.h, config, &a.h) }); err != nil {
		return nil, err
	}
	return &a, nil
}

// Destroy ends the agent. After nil nothing uses its memory any more, and memory of Alloc is unmapped.
func (a *KVAgent) Destroy() error {
	return call(func() C.rh_result { return C.rh_kv_agent_destroy(a.h) })
}

// Incarnation is a number that no other agent has.
func (a *KVAgent) Incarnation() (uint64, error) {
	var n C.uint64_t
	err := call(func() C.rh_result { return C.rh_kv_agent_incarnation(a.h, &n) })
	return uint64(n), err
}

// KVRegion is the number of registered memory.
type KVRegion uint32

// Alloc allocates zeroed memory that is registered: outside Go's heap, valid until Deregister or Destroy.
func (a *KVAgent) Alloc(bytes int) ([]byte, KVRegion, error) {
	var p unsafe.Pointer
	var region C.uint32_t
	if err := call(func() C.rh_result { return C.rh_kv_alloc(a.h, C.uint64_t(bytes), &p, &region) }); err != nil {
		return nil, 0, err
	}
	return unsafe.Slice((*byte)(p), bytes), KVRegion(region), nil
}

// Register registers memory outside Go's heap, such as a window's.
func (a *KVAgent) Register(memory []byte) (KVRegion, error) {
	if len(memory) == 0 {
		return 0, fmt.Errorf("kv_register: no memory")
	}
	var region C.uint32_t
	err := call(func() C.rh_result {
		return C.rh_kv_register(a.h, unsafe.Pointer(&memory[0]), C.uint64_t(len(memory)), &region)
	})
	return KVRegion(region), err
}

// Deregister forgets a region, when nothing uses it any more.
func (a *KVAgent) Deregister(region KVRegion) error {
	return call(func() C.rh_result { return C.rh_kv_deregister(a.h, C.uint32_t(region)) })
}

// KVForm says which tensors a cache has: RH_KV_PARTS_FIRST and so on.
type KVForm uint32

// The forms.
const (
	KVPartsFirst  KVForm = C.RH_KV_PARTS_FIRST
	KVBlocksFirst KVForm = C.RH_KV_BLOCKS_FIRST
	KVPartsApart  KVForm = C.RH_KV_PARTS_APART
	KVOneTensor   KVForm = C.RH_KV_ONE_TENSOR
	KVStrided     KVForm = C.RH_KV_STRIDED
)

// KVOrder is the order of a block's elements.
type KVOrder uint32

// The orders.
const (
	KVNHD KVOrder = C.RH_KV_NHD
	KVHND KVOrder = C.RH_KV_HND
)

// KVPlace is where a tensor begins.
type KVPlace struct {
	Region KVRegion
	Offset uint64
}

// KVCacheConfig is rh_kv_cache_config. Strides matter with KVStrided only.
type KVCacheConfig struct {
	Layers, Parts, Blocks, BlockTokens   int
	Heads, HeadDim                       int
	Dtype                                Dtype
	FirstLayer, FirstHead                int
	Form                                 KVForm
	Order                                KVOrder
	Tensors                              []KVPlace
	BlockStride, TokenStride, HeadStride uint64
}

// KVCache is the number of a cache.
type KVCache uint32

// Cache says where a KV cache is.
func (a *KVAgent) Cache(c KVCacheConfig) (KVCache, error) {
	config := (*C.rh_kv_cache_config)(C.calloc(1, C.sizeof_rh_kv_cache_config))
	defer C.free(unsafe.Pointer(config))
	config.struct_size, config.struct_version = C.sizeof_rh_kv_cache_config, 1
	config.layers, config.parts, config.blocks, config.block_tokens = C.uint32_t(c.Layers), C.uint32_t(c.Parts), C.uint32_t(c.Blocks), C.uint32_t(c.BlockTokens)
	config.heads, config.head_dim, config.dtype = C.uint32_t(c.Heads), C.uint32_t(c.HeadDim), C.rh_dtype(c.Dtype)
	config.first_layer, config.first_head = C.uint32_t(c.FirstLayer), C.uint32_t(c.FirstHead)
	config.form, config.order, config.num_tensors = C.uint32_t(c.Form), C.uint32_t(c.Order), C.uint32_t(len(c.Tensors))
	config.block_stride, config.token_stride, config.head_stride = C.uint64_t(c.BlockStride), C.uint64_t(c.TokenStride), C.uint64_t(c.HeadStride)
	tensors := (*C.rh_kv_place)(C.calloc(C.size_t(len(c.Tensors)+1), C.sizeof_rh_kv_place))
	defer C.free(unsafe.Pointer(tensors))
	for i, t := range c.Tensors {
		unsafe.Slice(tensors, len(c.Tensors))[i] = C.rh_kv_place{offset: C.uint64_t(t.Offset), region: C.uint32_t(t.Region)}
	}
	config.tensors = tensors
	var cache C.uint32_t
	err := call(func() C.rh_result { return C.rh_kv_cache_create(a.h, config, &cache) })
	return KVCache(cache), err
}

// Pool makes a cache of plain blocks, whose tokens are granule bytes.
func (a *KVAgent) Pool(region KVRegion, offset uint64, blocks, blockBytes, granule int) (KVCache, error) {
	var cache C.uint32_t
	err := call(func() C.rh_result {
		return C.rh_kv_pool_create(a.h, C.uint32_t(region), C.uint64_t(offset), C.uint32_t(blocks), C.uint64_t(blockBytes), C.uint32_t(granule), &cache)
	})
	return KVCache(cache), err
}

// blockList is a list for the library; nil for an empty one. The caller keeps blocks alive.
func blockList(blocks []uint32) *C.uint32_t {
	return (*C.uint32_t)(unsafe.Pointer(unsafe.SliceData(blocks)))
}

// Grant lets a reader use blocks for some time; nil blocks are all of the cache.
func (a *KVAgent) Grant(cache KVCache, blocks []uint32, rights KVRights, ttl time.Duration, reader string) (ref KVReference, err error) {
	name := C.CString(reader)
	defer C.free(unsafe.Pointer(name))
	err = call(func() C.rh_result {
		return C.rh_kv_grant(a.h, C.uint32_t(cache), blockList(blocks), C.uint32_t(len(blocks)), C.uint32_t(rights), C.uint64_t(ttl/time.Millisecond), name,
			(*C.rh_kv_reference)(unsafe.Pointer(&ref)))
	})
	return ref, err
}

// Revoke ends a grant.
func (a *KVAgent) Revoke(ref KVReference) error {
	return call(func() C.rh_result { return C.rh_kv_revoke(a.h, (*C.rh_kv_reference)(unsafe.Pointer(&ref))) })
}

// Reuse uses blocks again, and returns how many are still being written.
func (a *KVAgent) Reuse(cache KVCache, blocks []uint32) (waiting int, err error) {
	var n C.uint32_t
	err = call(func() C.rh_result {
		return C.rh_kv_reuse(a.h, C.uint32_t(cache), blockList(blocks), C.uint32_t(len(blocks)), &n)
	})
	return int(n), err
}

// KVTransfer is rh_kv_transfer.
type KVTransfer struct {
	Op               KVRights // KVRead or KVWrite
	Cache            KVCache
	Peer             string
	Reference        KVReference
	Blocks           []uint32
	Places           []uint32 // nil: the grant's, from its first one on
	Token, PeerToken int
	Tokens           int // 0: to the end of Blocks
	FirstLayer       int
	Layers           int // 0: all
	Priority         int
	EachLayer        bool
	Scale            float32 // 0: 1
	Timeout          time.Duration
	Notification     []byte
}

// Submit submits a transfer, and returns its number.
func (a *KVAgent) Submit(t KVTransfer) (uint64, error) {
	c := C.rh_kv_transfer{
		struct_size: C.sizeof_rh_kv_transfer, struct_version: 1, op: C.uint32_t(t.Op), cache: C.uint32_t(t.Cache), num_blocks: C.uint32_t(len(t.Blocks)),
		num_places: C.uint32_t(len(t.Places)), token: C.uint32_t(t.Token), peer_token: C.uint32_t(t.PeerToken), tokens: C.uint32_t(t.Tokens),
		first_layer: C.uint32_t(t.FirstLayer), layers: C.uint32_t(t.Layers), priority: C.uint32_t(t.Priority), scale: C.float(t.Scale),
		timeout_ms: milliseconds(t.Timeout), notification_bytes: C.uint32_t(len(t.Notification)),
	}
	if t.EachLayer {
		c.flags = C.RH_KV_EACH_LAYER
	}
	if t.Scale == 0 {
		c.scale = 1
	}
	c.peer = C.CString(t.Peer)
	defer C.free(unsafe.Pointer(c.peer))
	var pinned runtime.Pinner
	defer pinned.Unpin()
	pinned.Pin(&t.Reference)
	c.reference = (*C.rh_kv_reference)(unsafe.Pointer(&t.Reference))
	for list, to := range map[*[]uint32]**C.uint32_t{&t.Blocks: &c.blocks, &t.Places: &c.places} {
		if len(*list) > 0 {
			pinned.Pin(&(*list)[0])
			*to = blockList(*list)
		}
	}
	if len(t.Notification) > 0 {
		pinned.Pin(&t.Notification[0])
		c.notification = unsafe.Pointer(&t.Notification[0])
	}
	var id C.uint64_t
	err := call(func() C.rh_result { return C.rh_kv_submit(a.h, &c, &id) })
	return uint64(id), err
}

// Resume submits what is missing of a transfer that has failed.
func (a *KVAgent) Resume(failed uint64, timeout time.Duration) (uint64, error) {
	var id C.uint64_t
	err := call(func() C.rh_result { return C.rh_kv_resume(a.h, C.uint64_t(failed), milliseconds(timeout), &id) })
	return uint64(id), err
}

// Cancel cancels a transfer.
func (a *KVAgent) Cancel(id uint64) error {
	return call(func() C.rh_result { return C.rh_kv_cancel(a.h, C.uint64_t(id)) })
}

// Notify sends a notification.
func (a *KVAgent) Notify(peer string, payload []byte) (uint64, error) {
	name := C.CString(peer)
	defer C.free(unsafe.Pointer(name))
	var id C.uint64_t
	err := call(func() C.rh_result {
		return C.rh_kv_notify(a.h, name, unsafe.Pointer(unsafe.SliceData(payload)), C.uint32_t(len(payload)), &id)
	})
	return uint64(id), err
}

// KVEventKind is what an event says.
type KVEventKind uint32

// The kinds.
const (
	KVEnded      KVEventKind = C.RH_KV_ENDED
	KVLayers     KVEventKind = C.RH_KV_LAYERS
	KVGrantEnded KVEventKind = C.RH_KV_GRANT_ENDED
	KVBlockFree  KVEventKind = C.RH_KV_BLOCK_FREE
)

// KVEvent is rh_kv_event.
type KVEvent struct {
	ID      uint64
	Kind    KVEventKind
	Result  Result
	Layers  int
	Missing int
	Bytes   uint64
	Grant   uint64
	Cache   KVCache
	Block   uint32
	Reason  uint32
	Text    string
}

// Err is the error of a KVEnded event; nil: it is done.
func (e *KVEvent) Err() error {
	if e.Kind != KVEnded || e.Result == C.RH_OK {
		return nil
	}
	return &Error{Result: e.Result, Message: e.Text}
}

const eventsAtOnce = 64

// Poll takes events. Without any it waits for one; it returns none after the timeout, or when a notification waits.
func (a *KVAgent) Poll(timeout time.Duration) ([]KVEvent, error) {
	var events [eventsAtOnce]C.rh_kv_event
	var count C.uint32_t
	if err := call(func() C.rh_result { return C.rh_kv_poll(a.h, &events[0], eventsAtOnce, milliseconds(timeout), &count) }); err != nil {
		return nil, err
	}
	list := make([]KVEvent, count)
	for i := range list {
		e := &events[i]
		list[i] = KVEvent{
			ID: uint64(e.id), Kind: KVEventKind(e.kind), Result: Result(e.result), Layers: int(e.layers), Missing: int(e.missing), Bytes: uint64(e.bytes),
			Grant: uint64(e.grant), Cache: KVCache(e.cache), Block: uint32(e.block), Reason: uint32(e.reason), Text: C.GoString(&e.text[0]),
		}
	}
	return list, nil
}

// KVNotification is a notification that has arrived.
type KVNotification struct {
	Sender      string
	Incarnation uint64
	Sequence    uint64
	Payload     []byte
}

// Receive takes the oldest notification that has arrived; nil: none.
func (a *KVAgent) Receive() (*KVNotification, error) {
	header := C.rh_kv_notification{struct_size: C.sizeof_rh_kv_notification, struct_version: 1}
	payload := make([]byte, C.RH_KV_MAX_PAYLOAD)
	err := call(func() C.rh_result {
		return C.rh_kv_receive(a.h, &header, unsafe.Pointer(&payload[0]), C.uint32_t(len(payload)))
	})
	if err != nil || header.there == 0 {
		return nil, err
	}
	return &KVNotification{
		Sender: C.GoString(&header.sender[0]), Incarnation: uint64(header.incarnation), Sequence: uint64(header.sequence), Payload: payload[:header.bytes:header.bytes],
	}, nil
}

// KVPiece is a part of a transfer that has not arrived.
type KVPiece struct{ Layer, FirstBlock, Blocks int }

// Missing lists what has not arrived of a transfer that has failed.
func (a *KVAgent) Missing(failed uint64) ([]KVPiece, error) {
	const most = 4096
	pieces := make([]C.rh_kv_piece, most)
	var list []KVPiece
	for {
		var count C.uint32_t
		err := call(func() C.rh_result {
			return C.rh_kv_missing(a.h, C.uint64_t(failed), C.uint32_t(len(list)), &pieces[0], most, &count)
		})
		if err != nil {
			return nil, err
		}
		for _, p := range pieces[:count] {
			list = append(list, KVPiece{int(p.layer), int(p.first_block), int(p.blocks)})
		}
		if count < most {
			return list, nil
		}
	}
}
