package proxy

import (
	"errors"
	"fmt"
	"io"
	"time"

	"golang.org/x/sys/unix"

	"railhead/internal/kvwire"
	"railhead/internal/wire"
	"railhead/kvxfer/grant"
	"railhead/kvxfer/paged"
)

const answerLimit = 5 * time.Second // for the client to take an answer

// converse answers the client's requests until it goes, and then ends the agent.
func (a *Agent) converse() {
	defer a.end()
	buffer, oob := make([]byte, kvwire.MaxMessage+1), make([]byte, unix.CmsgSpace(4*4))
	for {
		n, oobn, _, _, err := a.conn.ReadMsgUnix(buffer, oob)
		if err != nil || n == 0 {
			if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, unix.ECONNRESET) {
				a.node.config.Log.Debug("KV agent's socket", "agent", a.name, "err", err)
			}
			closeAll(received(oob[:oobn]))
			return
		}
		fds := received(oob[:oobn])
		request, err := kvwire.Decode(buffer[:n])
		if err == nil && request.CarriesFD() != (len(fds) == 1) {
			err = fmt.Errorf("%T with %d descriptors", request.Message, len(fds))
		}
		if err != nil {
			closeAll(fds)
			a.node.config.Log.Warn("KV agent breaks the protocol, and is ended", "agent", a.name, "why", err)
			return
		}
		result, list := a.handle(request, fds)
		closeAll(fds)
		answer, err := kvwire.Encode(request.Number(), result, list)
		if err == nil {
			_ = a.conn.SetWriteDeadline(time.Now().Add(answerLimit))
			_, err = a.conn.Write(answer)
		}
		if err != nil {
			a.node.config.Log.Warn("KV agent takes no answer, and is ended", "agent", a.name, "why", err)
			return
		}
	}
}

// received are the descriptors of a packet.
func received(oob []byte) (fds []int) {
	messages, err := unix.ParseSocketControlMessage(oob)
	if err != nil {
		return nil
	}
	for i := range messages {
		if got, err := unix.ParseUnixRights(&messages[i]); err == nil {
			fds = append(fds, got...)
		}
	}
	return fds
}

func closeAll(fds []int) {
	for _, fd := range fds {
		_ = unix.Close(fd)
	}
}

// handle executes a request. list is what follows the result.
func (a *Agent) handle(r *kvwire.Request, fds []int) (result *kvwire.Result, list any) {
	result = new(kvwire.Result)
	var err error
	switch m := r.Message.(type) {
	case *kvwire.Region:
		result.Number, err = a.addRegion(m, fds[0])
	case *kvwire.RegionPrivate:
		err = fmt.Errorf("memory without a descriptor at %#x: use rh_kv_alloc or a window", m.Address)
	case *kvwire.RegionFree:
		err = a.freeRegion(m.Region)
	case *kvwire.Cache:
		result.Number, err = a.addCache(m, r.Places)
	case *kvwire.Grant:
		result.Reference, err = a.grant(m, r.Ranges)
	case *kvwire.Revoke:
		err = a.revoke(m.Reference)
	case *kvwire.Reuse:
		result.Number, err = a.reuse(m.Cache, r.Ranges)
	case *kvwire.Missing:
		var pieces []kvwire.Piece
		pieces, err = a.missing(m)
		result.Number, list = uint32(len(pieces)), pieces
	}
	if err != nil {
		result.Code = int32(resultOf(err))
		if errors.Is(err, unix.ENOMEM) {
			result.Code = int32(wire.ResultOutOfMemory)
		}
		result.Text = kvwire.MakeText(err.Error())
		return result, nil
	}
	a.tellGrants()
	return result, list
}

func (a *Agent) addRegion(m *kvwire.Region, fd int) (uint32, error) {
	r, err := mapRegion(fd, m.Offset, m.Bytes)
	if err != nil {
		return 0, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.regions) == kvwire.MaxRegions {
		_ = r.unmap()
		return 0, fmt.Errorf("%d regions: %w", len(a.regions), errLimit)
	}
	a.last.region++
	r.number = a.last.region
	a.regions[r.number] = r
	return r.number, nil
}

// freeRegion ends the caches that lie in a region, and returns when no piece uses it any more.
func (a *Agent) freeRegion(number uint32) error {
	a.mu.Lock()
	r := a.regions[number]
	if r == nil || r.freed {
		a.mu.Unlock()
		return fmt.Errorf("region %d is not known", number)
	}
	r.freed = true
	for _, c := range a.caches {
		for _, p := range c.side.Places {
			c.freed = c.freed || p.Region == number
		}
	}
	for r.uses > 0 {
		a.idle.Wait() // bounded: pieces that are being copied, each at most a few MiB
	}
	delete(a.regions, number)
	a.mu.Unlock()
	return r.unmap()
}

func (a *Agent) addCache(m *kvwire.Cache, places []kvwire.Place) (uint32, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if len(a.caches) == kvwire.MaxCaches {
		return 0, fmt.Errorf("%d caches: %w", len(a.caches), errLimit)
	}
	c, err := a.newCache(m, places)
	if err != nil {
		return 0, err
	}
	if c.side.Blocks > maxCacheBlocks {
		return 0, fmt.Errorf("a cache of %d blocks: at most %d: %w", c.side.Blocks, maxCacheBlocks, errLimit)
	}
	if err := a.grants.AddCache(a.last.cache+1, c.side.Blocks); err != nil {
		return 0, err
	}
	a.last.cache++
	c.number = a.last.cache
	a.caches[c.number] = c
	return c.number, nil
}

// maxCacheBlocks bounds the memory for the generations of a cache's blocks, 32 bytes each.
const maxCacheBlocks = 4 << 20

func (a *Agent) grant(m *kvwire.Grant, ranges []kvwire.Range) (ref kvwire.Reference, err error) {
	if len(ranges) == 0 {
		c, err := a.cacheOf(m.Cache)
		if err != nil {
			return ref, err
		}
		ranges = []kvwire.Range{{Count: uint32(c.side.Blocks)}}
	}
	blocks, err := blocksOf(ranges)
	if err != nil {
		return ref, err
	}
	if m.TTLNs == 0 || m.TTLNs > maxTTL {
		return ref, fmt.Errorf("KV grant: for %d ns: must be 1 ns to 1 year", m.TTLNs)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	r, err := a.grants.Grant(m.Cache, blocks, grant.Rights(min(m.Rights, 255)), a.node.now()+int64(m.TTLNs), m.Reader.String())
	if err != nil {
		return ref, err
	}
	copy(ref[:], r.Append(nil))
	return ref, nil
}

const maxTTL = uint64(365 * 24 * time.Hour)

// blocksOf lists the blocks of ranges.
func blocksOf(ranges []kvwire.Range) ([]uint32, error) {
	total := uint64(0)
	for _, r := range ranges {
		total += uint64(r.Count)
		if uint64(r.First)+uint64(r.Count) > paged.MaxBlocks || total > grant.MaxGrantBlocks {
			return nil, fmt.Errorf("%d blocks from %d on: at most %d blocks at once, of numbers below 2^31", r.Count, r.First, grant.MaxGrantBlocks)
		}
	}
	blocks := make([]uint32, 0, total)
	for _, r := range ranges {
		for i := range r.Count {
			blocks = append(blocks, r.First+i)
		}
	}
	return blocks, nil
}

func (a *Agent) revoke(reference kvwire.Reference) error {
	r, err := grant.ParseReference(reference[:])
	if err != nil {
		return err
	}
	if r.Incarnation != a.incarnation {
		return grant.ErrForeign
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.grants.Revoke(r.Number)
	return nil
}

// reuse makes what was granted of blocks stale, and counts those that are still being written. A completion comes for each of them.
func (a *Agent) reuse(cache uint32, ranges []kvwire.Range) (waiting uint32, err error) {
	blocks, err := blocksOf(ranges)
	if err != nil {
		return 0, err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, b := range blocks {
		free, err := a.grants.Reuse(cache, b)
		if err != nil {
			return waiting, err
		}
		if !free {
			waiting++
		}
	}
	return waiting, nil
}

// tellGrants tells the client what has become of its grants.
func (a *Agent) tellGrants() {
	a.mu.Lock()
	events := a.grants.Events()
	a.mu.Unlock()
	for _, e := range events {
		if e.Ended != 0 {
			a.out.complete(kvwire.Completion{Kind: kvwire.KindGrantEnded, Grant: e.Number, Reason: uint32(e.Ended), Cache: e.Cache})
			continue
		}
		for _, b := range e.Blocks {
			a.out.complete(kvwire.Completion{Kind: kvwire.KindBlockFree, Cache: e.Cache, Block: b})
		}
	}
}
