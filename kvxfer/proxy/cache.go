package proxy

import (
	"fmt"

	"railhead/internal/kvwire"
	"railhead/kvxfer/paged"
)

// cache is a KV cache of an agent.
type cache struct {
	number uint32
	side   paged.Side
	freed  bool // one of its regions was freed
}

// newCache checks a description. The caller holds mu.
func (a *Agent) newCache(m *kvwire.Cache, places []kvwire.Place) (*cache, error) {
	if m.Dtype > uint32(paged.E5M2) {
		return nil, fmt.Errorf("element type %d is not known", m.Dtype)
	}
	const most = paged.MaxLayers * 2
	if m.NumPlaces > most || m.FirstLayer > paged.MaxLayers || m.FirstHead > paged.MaxHeads {
		return nil, fmt.Errorf("%d places, first layer %d, first head %d: at most %d, %d and %d", m.NumPlaces, m.FirstLayer, m.FirstHead, most, paged.MaxLayers,
			paged.MaxHeads)
	}
	shape := paged.Shape{
		Layers: int(m.Layers), Parts: int(m.Parts), Blocks: int(m.Blocks), BlockTokens: int(m.BlockTokens), Heads: int(m.Heads),
		HeadDim: int(m.HeadDim), Type: paged.Type(m.Dtype),
	}
	var tensors []paged.Place
	for _, p := range places {
		tensors = append(tensors, paged.Place{Region: p.Region, Offset: p.Offset})
	}
	c, err := layOut(m, shape, tensors)
	if err != nil {
		return nil, err
	}
	err = c.Inside(func(region uint32) uint64 {
		if r := a.regions[region]; r != nil && !r.freed {
			return uint64(len(r.memory))
		}
		return 0
	})
	if err != nil {
		return nil, err
	}
	side := paged.Side{Cache: c, FirstLayer: int(m.FirstLayer), Heads: paged.Heads{First: int(m.FirstHead), Count: c.Heads}}
	return &cache{side: side}, nil
}

// layOut says where a cache's elements are.
func layOut(m *kvwire.Cache, shape paged.Shape, tensors []paged.Place) (*paged.Cache, error) {
	if m.Form == kvwire.Strided {
		c := &paged.Cache{Shape: shape, Places: tensors, BlockStride: m.BlockStride, TokenStride: m.TokenStride, HeadStride: m.HeadStride}
		return c, c.Check()
	}
	if m.BlockStride|m.TokenStride|m.HeadStride != 0 {
		return nil, fmt.Errorf("strides with form %d: only the strided form has them", m.Form)
	}
	return paged.New(shape, paged.Order(min(m.Order, 255)), paged.Form(min(m.Form, 255)), tensors)
}

// pin keeps the memory of a layer of a cache while a piece moves bytes of it, for unpin.
func (a *Agent) pin(c *cache, layer int) ([]*region, error) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.ended:
		return nil, errPeerGone
	case c.freed:
		return nil, fmt.Errorf("cache %d of agent %s: %w", c.number, a.name, errFreed)
	}
	parts := c.side.Parts
	places := c.side.Places[(layer-c.side.FirstLayer)*parts:][:parts]
	regions := make([]*region, parts)
	for i, p := range places {
		regions[i] = a.regions[p.Region]
		regions[i].uses++
	}
	return regions, nil
}

func (a *Agent) unpin(regions []*region) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, r := range regions {
		r.uses--
	}
	a.idle.Broadcast()
}
