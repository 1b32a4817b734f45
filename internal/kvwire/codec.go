package kvwire

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
)

// Request is a message of a client, with its list.
type Request struct {
	Message any // *Region, *RegionPrivate, *RegionFree, *Cache, *Grant, *Revoke, *Reuse or *Missing
	Places  []Place
	Ranges  []Range
}

// CarriesFD reports whether a descriptor comes with the message.
func (r *Request) CarriesFD() bool { _, is := r.Message.(*Region); return is }

// Number is what the client called the request.
func (r *Request) Number() uint64 { return r.header().Request }

func (r *Request) header() *Header {
	switch m := r.Message.(type) {
	case *Region:
		return &m.H
	case *RegionPrivate:
		return &m.H
	case *RegionFree:
		return &m.H
	case *Cache:
		return &m.H
	case *Grant:
		return &m.H
	case *Revoke:
		return &m.H
	case *Reuse:
		return &m.H
	case *Missing:
		return &m.H
	}
	return nil
}

// types are the messages of a client.
var types = map[Type]func() any{
	TypeRegion: func() any { return new(Region) }, TypeRegionPrivate: func() any { return new(RegionPrivate) },
	TypeRegionFree: func() any { return new(RegionFree) }, TypeCache: func() any { return new(Cache) }, TypeGrant: func() any { return new(Grant) },
	TypeRevoke: func() any { return new(Revoke) }, TypeReuse: func() any { return new(Reuse) }, TypeMissing: func() any { return new(Missing) },
}

func typeOf(m any) Type {
	switch m.(type) {
	case *Hello:
		return TypeHello
	case *Result:
		return TypeResult
	case *Region:
		return TypeRegion
	case *RegionPrivate:
		return TypeRegionPrivate
	case *RegionFree:
		return TypeRegionFree
	case *Cache:
		return TypeCache
	case *Grant:
		return TypeGrant
	case *Revoke:
		return TypeRevoke
	case *Reuse:
		return TypeReuse
	case *Missing:
		return TypeMissing
	}
	return 0
}

// Encode writes a message of either side with its list: of Place, Range or Piece.
func Encode(request uint64, message any, list any) ([]byte, error) {
	kind := typeOf(message)
	if kind == 0 {
		return nil, fmt.Errorf("kvwire: %T is no message", message)
	}
	var b bytes.Buffer
	if err := binary.Write(&b, binary.LittleEndian, message); err != nil {
		return nil, err
	}
	if list != nil {
		if err := binary.Write(&b, binary.LittleEndian, list); err != nil {
			return nil, err
		}
	}
	if b.Len() > MaxMessage {
		return nil, fmt.Errorf("kvwire: a message of %d bytes: at most %d", b.Len(), MaxMessage)
	}
	h := Header{Magic: Magic, Type: kind, Size: uint32(b.Len()), Request: request}
	out := b.Bytes()
	_, err := binary.Encode(out, binary.LittleEndian, h)
	return out, err
}

// Decode reads a client's message.
func Decode(b []byte) (*Request, error) {
	var h Header
	if _, err := binary.Decode(b, binary.LittleEndian, &h); err != nil {
		return nil, fmt.Errorf("kvwire: a message of %d bytes is too short", len(b))
	}
	make, known := types[h.Type]
	switch {
	case h.Magic != Magic:
		return nil, fmt.Errorf("kvwire: magic %#x in place of %#x", h.Magic, uint32(Magic))
	case !known:
		return nil, fmt.Errorf("kvwire: a client sends no message of type %d", h.Type)
	case h.Size != uint32(len(b)) || h.Reserved != 0:
		return nil, fmt.Errorf("kvwire: message of type %d: size %d of %d bytes, reserved %#x", h.Type, h.Size, len(b), h.Reserved)
	}
	r := &Request{Message: make()}
	n, err := binary.Decode(b, binary.LittleEndian, r.Message)
	if err != nil {
		return nil, fmt.Errorf("kvwire: message of type %d: %d bytes are too few", h.Type, len(b))
	}
	if err := r.list(b[n:]); err != nil {
		return nil, fmt.Errorf("kvwire: %T: %w", r.Message, err)
	}
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("kvwire: %T: %w", r.Message, err)
	}
	return r, nil
}

// list reads the list behind a message.
func (r *Request) list(b []byte) error {
	var count, size uint32
	var into any
	switch m := r.Message.(type) {
	case *Cache:
		count, size = m.NumPlaces, uint32(binary.Size(Place{}))
	case *Grant:
		count, size = m.Ranges, uint32(binary.Size(Range{}))
	case *Reuse:
		count, size = m.Ranges, uint32(binary.Size(Range{}))
	}
	if uint64(count)*uint64(size) != uint64(len(b)) {
		return fmt.Errorf("%d entries in %d bytes", count, len(b))
	}
	if count == 0 {
		return nil
	}
	if _, is := r.Message.(*Cache); is {
		r.Places = make([]Place, count)
		into = r.Places
	} else {
		r.Ranges = make([]Range, count)
		into = r.Ranges
	}
	_, err := binary.Decode(b, binary.LittleEndian, into)
	return err
}

// check refuses reserved bytes, and values that no field can have. What needs a cache or region is checked by those that know them.
func (r *Request) check() error {
	switch m := r.Message.(type) {
	case *Region:
		if m.Bytes == 0 || m.Bytes > maxRegionByte || m.Offset > maxRegionByte {
			return fmt.Errorf("%d bytes at %d: at most %d", m.Bytes, m.Offset, uint64(maxRegionByte))
		}
	case *RegionPrivate:
		if m.Bytes == 0 || m.Bytes > maxRegionByte || m.Address > 1<<63 {
			return fmt.Errorf("%d bytes at %#x: at most %d", m.Bytes, m.Address, uint64(maxRegionByte))
		}
	case *RegionFree:
		return zero(m.Reserved0)
	case *Cache:
		for _, p := range r.Places {
			if err := zero(p.Reserved0); err != nil {
				return err
			}
		}
	case *Grant:
		if err := zero(m.Reserved0); err != nil {
			return err
		}
		return m.Reader.check()
	}
	return nil
}

func zero(reserved uint32) error {
	if reserved != 0 {
		return errors.New("reserved bytes are not 0")
	}
	return nil
}
