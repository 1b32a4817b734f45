// Package paged describes paged KV caches, and which bytes of one belong where in another: other block ids, sizes of blocks, orders of
// elements, tensor-parallel sizes, element types.
//
// It plans; it moves nothing and knows no memory, only regions by number and offsets in them. All errors come before anything is planned.
package paged

import (
	"cmp"
	"fmt"
	"slices"
)

// The largest dimensions. They bound what a description of another process can ask for.
const (
	MaxLayers      = 4096
	MaxBlocks      = 1 << 31
	MaxBlockTokens = 1 << 16
	MaxHeads       = 1 << 14
	MaxHeadDim     = 1 << 16
	// MaxBytes bounds offsets and strides, so that sums of a few of them do not overflow.
	MaxBytes = 1 << 56
)

// Type is an element's type.
type Type uint8

// The types.
const (
	F32 Type = iota
	F16
	BF16
	E4M3
	E5M2
)

// Bytes is the size of an element.
func (t Type) Bytes() uint64 {
	switch t {
	case F32:
		return 4
	case F16, BF16:
		return 2
	default:
		return 1
	}
}

func (t Type) String() string {
	names := []string{"f32", "f16", "bf16", "e4m3", "e5m2"}
	if int(t) < len(names) {
		return names[t]
	}
	return fmt.Sprintf("type %d", uint8(t))
}

// Shape is the shape of a cache that one process has.
type Shape struct {
	Layers      int
	Parts       int // 2: keys and values; 1: MLA's latent vectors
	Blocks      int // of each layer and part
	BlockTokens int // tokens of a block
	Heads       int // KV heads of this process; MLA has 1
	HeadDim     int // elements of a head
	Type        Type
}

// blockBytes is the size of one block of one part of one layer.
func (s Shape) blockBytes() uint64 {
	return uint64(s.BlockTokens) * uint64(s.Heads) * uint64(s.HeadDim) * s.Type.Bytes()
}

func (s Shape) check() error {
	for _, d := range []struct {
		name       string
		value, max int
	}{
		{"layers", s.Layers, MaxLayers}, {"parts", s.Parts, 2}, {"blocks", s.Blocks, MaxBlocks}, {"tokens of a block", s.BlockTokens, MaxBlockTokens},
		{"heads", s.Heads, MaxHeads}, {"elements of a head", s.HeadDim, MaxHeadDim},
	} {
		if d.value < 1 || d.value > d.max {
			return fmt.Errorf("KV cache: %d %s: must be 1 to %d", d.value, d.name, d.max)
		}
	}
	if s.Type > E5M2 {
		return fmt.Errorf("KV cache: %v: must be one of f32, f16, bf16, e4m3, e5m2", s.Type)
	}
	return nil
}

// Order is the order of the elements of a block.
type Order uint8

// The orders.
const (
	NHD Order = iota // token, head, element of the head
	HND              // head, token, element of the head
)

// Form says which tensors a cache has.
type Form uint8

// The forms. Dimensions are from the outermost to the innermost; a block has the dimensions of its Order.
const (
	PartsFirst  Form = iota // a tensor for each layer: [parts, blocks, block]
	BlocksFirst             // a tensor for each layer: [blocks, parts, block]
	PartsApart              // a tensor for each part of each layer: [blocks, block]; the layer's parts follow each other
	OneTensor               // one tensor: [blocks, layers, parts, block]
)

// Place is a byte of a registered region.
type Place struct {
	Region uint32
	Offset uint64
}

// Cache says where each element of a process's cache is: element d of head h of token t of block b of a part of a layer is at the
// part's place + b BlockStride + t TokenStride + h HeadStride + d element sizes.
type Cache struct {
	Shape
	Places                               []Place // of block 0, of each part of each layer: layer 0 part 0, layer 0 part 1, layer 1 part 0...
	BlockStride, TokenStride, HeadStride uint64  // bytes
}

// New describes a cache whose tensors are dense and begin at the given places. A tensor of all layers, [layers, ...], is the layers'
// tensors behind each other.
func New(shape Shape, order Order, form Form, tensors []Place) (*Cache, error) {
	if err := shape.check(); err != nil {
		return nil, err
	}
	c := &Cache{Shape: shape}
	element, block := shape.Type.Bytes(), shape.blockBytes()
	row := uint64(shape.HeadDim) * element
	switch order {
	case NHD:
		c.HeadStride, c.TokenStride = row, row*uint64(shape.Heads)
	case HND:
		c.TokenStride, c.HeadStride = row, row*uint64(shape.BlockTokens)
	default:
		return nil, fmt.Errorf("KV cache: order %d is not known: NHD is 0, HND is 1", order)
	}
	parts, blocks := uint64(shape.Parts), uint64(shape.Blocks)
	// A tensor has this many of Places, so many bytes apart.
	var inTensor int
	var apart uint64
	switch form {
	case PartsFirst:
		inTensor, apart, c.BlockStride = shape.Parts, block*blocks, block
	case BlocksFirst:
		inTensor, apart, c.BlockStride = shape.Parts, block, block*parts
	case PartsApart:
		inTensor, apart, c.BlockStride = 1, 0, block
	case OneTensor:
		inTensor, apart, c.BlockStride = shape.Layers*shape.Parts, block, block*parts*uint64(shape.Layers)
	default:
		return nil, fmt.Errorf("KV cache: form %d is not known", form)
	}
	if want := shape.Layers * shape.Parts / inTensor; len(tensors) != want {
		return nil, fmt.Errorf("KV cache: %d tensors: this form has %d of %d layers and %d parts", len(tensors), want, shape.Layers, shape.Parts)
	}
	for _, t := range tensors {
		for i := range uint64(inTensor) {
			c.Places = append(c.Places, Place{t.Region, t.Offset + i*apart})
		}
	}
	return c, c.Check()
}

// Check refuses a cache whose dimensions or strides are out of bounds, or in which two elements of a part share a byte.
func (c *Cache) Check() error {
	if err := c.Shape.check(); err != nil {
		return err
	}
	if want := c.Layers * c.Parts; len(c.Places) != want {
		return fmt.Errorf("KV cache: %d places: there are %d parts of %d layers", len(c.Places), want, c.Layers)
	}
	type dimension struct {
		name   string
		count  int
		stride uint64
	}
	dimensions := []dimension{{"token", c.BlockTokens, c.TokenStride}, {"head", c.Heads, c.HeadStride}, {"block", c.Blocks, c.BlockStride}}
	slices.SortStableFunc(dimensions, func(a, b dimension) int { return cmp.Compare(a.stride, b.stride) })
	span := uint64(c.HeadDim) * c.Type.Bytes() // of all inner dimensions
	for _, d := range dimensions {
		if d.count == 1 {
			continue // its stride is never used
		}
		if d.stride < span {
			return fmt.Errorf("KV cache: a %s stride of %d bytes: what lies within it takes %d", d.name, d.stride, span)
		}
		if d.stride > MaxBytes/uint64(d.count) {
			return fmt.Errorf("KV cache: a %s stride of %d bytes: %d of them exceed 2^56 bytes", d.name, d.stride, d.count)
		}
		span += uint64(d.count-1) * d.stride
	}
	for i, p := range c.Places {
		if p.Offset > MaxBytes || span > MaxBytes {
			return fmt.Errorf("KV cache: layer %d part %d begins at %d of region %d: offsets are at most 2^56", i/c.Parts, i%c.Parts, p.Offset, p.Region)
		}
	}
	return nil
}

// span is the number of bytes from the first to behind the last element of a part.
func (c *Cache) span() uint64 {
	last := uint64(c.Blocks-1)*c.BlockStride + uint64(c.BlockTokens-1)*c.TokenStride + uint64(c.Heads-1)*c.HeadStride
	return last + uint64(c.HeadDim)*c.Type.Bytes()
}

// Inside refuses a cache that Check accepts if it is not inside the regions. bytesOf returns a region's size, 0 for one that is not
// known.
func (c *Cache) Inside(bytesOf func(region uint32) uint64) error {
	for i, p := range c.Places {
		if size := bytesOf(p.Region); size < c.span() || p.Offset > size-c.span() {
			return fmt.Errorf("KV cache: layer %d part %d takes %d bytes from %d on: region %d has %d", i/c.Parts, i%c.Parts, c.span(), p.Offset,
				p.Region, size)
		}
	}
	return nil
}
