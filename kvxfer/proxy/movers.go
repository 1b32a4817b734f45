package proxy

import (
	"sync"

	"railhead/kvxfer/hostcopy"
	"railhead/kvxfer/paged"
)

// movers keeps movers: one that converts has a table of 64 KiB, whose making takes longer than a small transfer.
type movers struct {
	mu   sync.Mutex
	kept map[moverKey]*hostcopy.Mover
}

type moverKey struct {
	src, dst paged.Type
	scale    float32
}

const maxMovers = 64

func (m *movers) get(src, dst paged.Type, scale float32) (*hostcopy.Mover, error) {
	if src == dst {
		return hostcopy.NewMover(src, dst, scale) // costs nothing
	}
	key := moverKey{src, dst, scale}
	m.mu.Lock()
	defer m.mu.Unlock()
	if mover := m.kept[key]; mover != nil {
		return mover, nil
	}
	mover, err := hostcopy.NewMover(src, dst, scale)
	if err != nil {
		return nil, err
	}
	if m.kept == nil || len(m.kept) == maxMovers {
		m.kept = map[moverKey]*hostcopy.Mover{}
	}
	m.kept[key] = mover
	return mover, nil
}
