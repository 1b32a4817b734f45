package measure

import (
	"railhead/client"
	"railhead/internal/ncclstyle"
	"railhead/internal/oracle"
)

var timedKinds = map[ncclstyle.Operation]client.Kind{
	ncclstyle.AllReduce: client.KindAllReduce, ncclstyle.AllGather: client.KindAllGather,
	ncclstyle.ReduceScatter: client.KindReduceScatter, ncclstyle.AllToAll: client.KindAllToAll,
	ncclstyle.Broadcast: client.KindBroadcast, ncclstyle.Reduce: client.KindReduce, ncclstyle.Gather: client.KindGather,
	ncclstyle.Scatter: client.KindScatter, ncclstyle.Sendrecv: client.KindSendrecv, ncclstyle.Barrier: client.KindBarrier,
}

var dtypes = map[ncclstyle.Dtype]struct {
	client client.Dtype
	oracle oracle.Dtype
}{
	ncclstyle.Int8: {client.I8, oracle.I8}, ncclstyle.Uint8: {client.U8, oracle.U8}, ncclstyle.Int32: {client.I32, oracle.I32},
	ncclstyle.Int64: {client.I64, oracle.I64}, ncclstyle.Uint64: {client.U64, oracle.U64}, ncclstyle.Half: {client.F16, oracle.F16},
	ncclstyle.Float: {client.F32, oracle.F32}, ncclstyle.Double: {client.F64, oracle.F64}, ncclstyle.BFloat16: {client.BF16, oracle.BF16},
	ncclstyle.F8E4M3: {client.FP8E4M3, oracle.FP8E4M3}, ncclstyle.F8E5M2: {client.FP8E5M2, oracle.FP8E5M2},
}

var reductions = map[ncclstyle.Redop]struct {
	client client.Op // unused for mulsum, which is created per comm
	oracle oracle.Op
}{
	ncclstyle.Sum: {client.Sum, oracle.Sum}, ncclstyle.Prod: {client.Prod, oracle.Prod}, ncclstyle.Max: {client.Max, oracle.Max},
	ncclstyle.Min: {client.Min, oracle.Min}, ncclstyle.Avg: {client.Avg, oracle.Avg}, ncclstyle.MulSum: {oracle: oracle.PreMulSum},
}
