package plan

import "railhead/internal/wire"

// Grid is the grid of a kernel.
type Grid struct{ Blocks, Threads int }

// gridShapes are what a tuner compares beside the default grid: the threads of a block, and how many tiles of 16 bytes a thread has while there are
// enough blocks. More tiles mean fewer blocks, which meet faster; more threads move more bytes.
var gridShapes = []struct{ threads, tiles int }{{64, 1}, {128, 1}, {256, 1}, {512, 1}, {256, 4}, {512, 4}}

// laneShares are the same for kernels over lanes, of 512 threads a block: of how many lanes as there can be a transfer has one in so many. From
// one that has all to one that has a single one.
var laneShares = []int{1, 2, 4, maxLanes}

// Grids lists the grids that a tuner measures for an algorithm of a collective at a size. The first is the default; the others are of one kind
// each, the same at all sizes. nil: there is no such collective on CUDA devices.
func Grids(collective string, a wire.Algo, size uint64, world, blocks int) []Grid {
	blocks = min(blocks, maxGPUBlocks)
	for i := range onGPU {
		c := &onGPU[i]
		if c.name() != collective {
			continue
		}
		count, threads := defaultGrid(c, a, size, world, blocks)
		grids := []Grid{{count, threads}}
		if a == wire.AlgoPipe {
			return append(grids, laneGrids(world, blocks)...)
		}
		return append(grids, shapedGrids(size/c.parts(world), blocks)...)
	}
	return nil
}

func shapedGrids(part uint64, blocks int) (grids []Grid) {
	for _, s := range gridShapes {
		threads := int(min(part/tileBytes/uint64(s.tiles), 1<<20)) + controlThreads
		grids = append(grids, Grid{min(blocks, (threads+s.threads-1)/s.threads), s.threads})
	}
	return grids
}

func laneGrids(world, blocks int) (grids []Grid) {
	pipes := 2 * max(world-1, 1)
	most := min(max(blocks/pipes, 1), maxLanes)
	for _, share := range laneShares {
		grids = append(grids, Grid{min(blocks, max(most/share, 1)*pipes), maxGPUThreads})
	}
	return grids
}
