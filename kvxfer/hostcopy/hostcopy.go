// Package hostcopy executes the copies of a plan in host memory: from one cache to another, or by way of a buffer that goes over a
// connection.
//
// It checks that a copy stays inside the memory that it is given. It knows no rights: who calls it has opened the blocks (kvxfer/grant).
package hostcopy

import (
	"fmt"

	"railhead/kvxfer/paged"
)

// Mover copies elements of one type to another. It is used by any number of goroutines.
type Mover struct {
	src, dst uint64      // sizes of an element
	table    *e4m3OfBF16 // nil: elements stay as they are
}

// NewMover returns a mover. Equal types are copied. bf16 becomes e4m3 divided by scale, rounded to nearest, ties to even, and saturated;
// NaN stays NaN. scale matters only then; it is finite and above 0.
func NewMover(src, dst paged.Type, scale float32) (*Mover, error) {
	m := &Mover{src: src.Bytes(), dst: dst.Bytes()}
	switch {
	case src == dst:
	case src == paged.BF16 && dst == paged.E4M3:
		if !(scale > 0) || scale > maxFloat32 {
			return nil, fmt.Errorf("KV conversion: scale %g: must be finite and above 0", scale)
		}
		m.table = newTable(scale)
	default:
		return nil, fmt.Errorf("KV conversion: %v into %v: possible are equal types, and bf16 into e4m3", src, dst)
	}
	return m, nil
}

// Move copies from the memory of the source's region to that of the destination's. They do not overlap.
func (m *Mover) Move(c *paged.Copy, from, to []byte) error {
	if err := m.inside(c, from, true); err != nil {
		return err
	}
	if err := m.inside(c, to, false); err != nil {
		return err
	}
	n := uint64(c.Elements)
	c.Each(func(src, dst uint64) { m.run(from[src:src+n*m.src], to[dst:dst+n*m.dst]) })
	return nil
}

// Bytes is the size of a copy's buffer: its elements at the destination, without gaps.
func (m *Mover) Bytes(c *paged.Copy) uint64 { return uint64(c.Runs()) * uint64(c.Elements) * m.dst }

// Gather appends to a buffer what the destination's memory is to have, in the order of the runs.
func (m *Mover) Gather(c *paged.Copy, from, buffer []byte) ([]byte, error) {
	if err := m.inside(c, from, true); err != nil {
		return buffer, err
	}
	n := uint64(c.Elements)
	c.Each(func(src, _ uint64) {
		begin := len(buffer)
		if m.table == nil {
			buffer = append(buffer, from[src:src+n*m.src]...)
			return
		}
		buffer = append(buffer, make([]byte, n*m.dst)...)
		m.run(from[src:src+n*m.src], buffer[begin:])
	})
	return buffer, nil
}

// Scatter copies a buffer of Gather to the memory of the destination's region.
func (m *Mover) Scatter(c *paged.Copy, buffer, to []byte) error {
	if want := m.Bytes(c); uint64(len(buffer)) != want {
		return fmt.Errorf("KV copy of layer %d part %d: a buffer of %d bytes, want %d", c.Layer, c.Part, len(buffer), want)
	}
	if err := m.inside(c, to, false); err != nil {
		return err
	}
	n := uint64(c.Elements) * m.dst
	c.Each(func(_, dst uint64) {
		copy(to[dst:dst+n], buffer)
		buffer = buffer[n:]
	})
	return nil
}

// run copies neighbouring elements.
func (m *Mover) run(from, to []byte) {
	if m.table == nil {
		copy(to, from)
		return
	}
	m.table.convert(from, to)
}

// inside refuses a copy that reaches behind a region's memory.
func (m *Mover) inside(c *paged.Copy, memory []byte, source bool) error {
	place, size, side := c.Dst, m.dst, "destination"
	if source {
		place, size, side = c.Src, m.src, "source"
	}
	end := place.Offset + uint64(c.Elements)*size
	for _, d := range c.Dims {
		stride := d.Dst
		if source {
			stride = d.Src
		}
		end += uint64(d.Count-1) * stride
	}
	if end > uint64(len(memory)) { // it does not wrap: paged.MaxBytes bounds each summand
		return fmt.Errorf("KV copy of layer %d part %d: the %s is bytes %d to %d of region %d, which has %d", c.Layer, c.Part, side, place.Offset, end,
			place.Region, len(memory))
	}
	return nil
}
