// Code generated from algorithms.txt by `go generate ./internal/wire`. DO NOT EDIT.

package wire

// Algorithms.
const (
	AlgoAuto    Algo = 0
	AlgoOneshot Algo = 1
	AlgoTwoshot Algo = 2
	AlgoPull    Algo = 3
	AlgoPipe    Algo = 4
	AlgoRing    Algo = 5
	AlgoTree    Algo = 6
	AlgoCopy    Algo = 7
)

var algorithms = [...]algorithm{
	AlgoAuto:    {name: "auto"},
	AlgoOneshot: {name: "oneshot", windows: false, adds: RankOrder, cpu: []Op{OpAllReduce, OpReduceScatter, OpAllGather, OpAllToAll}, cuda: []Op{OpAllReduce, OpReduceScatter, OpAllGather, OpAllToAll, OpBroadcast}},
	AlgoTwoshot: {name: "twoshot", windows: false, adds: RankOrder, cpu: []Op{OpAllReduce}, cuda: []Op{OpAllReduce}},
	AlgoPull:    {name: "pull", windows: true, adds: RankOrder, cpu: []Op{OpAllReduce, OpReduceScatter, OpAllGather, OpAllToAll}, cuda: []Op{OpAllReduce, OpReduceScatter, OpAllGather, OpAllToAll, OpBroadcast}},
	AlgoPipe:    {name: "pipe", windows: false, adds: RankOrder, cpu: []Op{OpBroadcast, OpReduce, OpGather, OpScatter, OpSend, OpRecv}, cuda: []Op{OpAllGather, OpAllToAll, OpBroadcast, OpReduce, OpGather, OpScatter, OpSend, OpRecv}},
	AlgoRing:    {name: "ring", windows: false, adds: ChainOrder, cpu: []Op{OpAllReduce, OpReduceScatter, OpAllGather, OpBroadcast}, cuda: []Op{}},
	AlgoTree:    {name: "tree", windows: false, adds: OwnOrder, cpu: []Op{OpAllReduce, OpReduceScatter, OpAllGather, OpBroadcast}, cuda: []Op{}},
	AlgoCopy:    {name: "copy", windows: true, adds: RankOrder, cpu: []Op{}, cuda: []Op{OpAllGather, OpAllToAll, OpBroadcast}},
}
