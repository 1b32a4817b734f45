package oracle

import "bytes"

// The functions below compute the outputs of all ranks from the inputs of all ranks. A rank without an output has nil.

// AllReduce: every rank has the reduction.
func AllReduce(d Dtype, op Op, inputs [][]byte, reduceGroup int, scalars [][]byte) [][]byte {
	return everyone(len(inputs), Reduce(d, op, inputs, reduceGroup, scalars))
}

// ReduceScatter: every rank has its part of the reduction.
func ReduceScatter(d Dtype, op Op, inputs [][]byte, reduceGroup int, scalars [][]byte) [][]byte {
	return split(Reduce(d, op, inputs, reduceGroup, scalars), len(inputs))
}

// AllGather: every rank has all inputs, in rank order.
func AllGather(inputs [][]byte) [][]byte {
	return everyone(len(inputs), bytes.Join(inputs, nil))
}

// AllToAll: rank r has part r of every input.
func AllToAll(inputs [][]byte) [][]byte {
	outputs := make([][]byte, len(inputs))
	for _, input := range inputs {
		for r, part := range split(input, len(inputs)) {
			outputs[r] = append(outputs[r], part...)
		}
	}
	return outputs
}

// Broadcast: every rank has root's input.
func Broadcast(inputs [][]byte, root int) [][]byte {
	return everyone(len(inputs), inputs[root])
}

// Gather: root has all inputs, in rank order.
func Gather(inputs [][]byte, root int) [][]byte {
	return only(len(inputs), root, bytes.Join(inputs, nil))
}

// Scatter: every rank has its part of root's input.
func Scatter(inputs [][]byte, root int) [][]byte {
	return split(inputs[root], len(inputs))
}

// ReduceToRoot: root has the reduction.
func ReduceToRoot(d Dtype, op Op, inputs [][]byte, root, reduceGroup int, scalars [][]byte) [][]byte {
	return only(len(inputs), root, Reduce(d, op, inputs, reduceGroup, scalars))
}

func everyone(world int, output []byte) [][]byte {
	outputs := make([][]byte, world)
	for r := range outputs {
		outputs[r] = output
	}
	return outputs
}

func only(world, root int, output []byte) [][]byte {
	outputs := make([][]byte, world)
	outputs[root] = output
	return outputs
}

// split divides into equal parts.
func split(whole []byte, parts int) [][]byte {
	each := len(whole) / parts
	out := make([][]byte, parts)
	for i := range out {
		out[i] = whole[i*each : (i+1)*each]
	}
	return out
}
