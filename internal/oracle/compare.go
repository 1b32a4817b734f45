package oracle

import "bytes"

// NaN is the one NaN that results of a floating-point type have, in memory order.
func NaN(d Dtype) []byte {
	out := make([]byte, d.Size())
	pack(out, []uint64{floatFormat(d).nan()}, d.Size())
	return out
}

// Differences counts the elements whose bits differ.
func Differences(got, want []byte, d Dtype) int {
	if len(got) != len(want) {
		return max(len(got), len(want)) / d.Size()
	}
	if bytes.Equal(got, want) {
		return 0
	}
	different := 0
	for at, size := 0, d.Size(); at < len(got); at += size {
		if !bytes.Equal(got[at:at+size], want[at:at+size]) {
			different++
		}
	}
	return different
}

func (f *format) isNaN(pattern uint64) bool {
	last := f.largest
	if f.hasInfinity {
		last++
	}
	return pattern&(f.signBit()-1) > last
}

// Wrong compares a result with the reduction of the inputs of seeds, one a rank, and returns the number of elements that differ.
// got begins at element first of the operation. scalars are for PreMulSum; nil otherwise.
func (in Inputs) Wrong(got []byte, d Dtype, op Op, seeds []uint64, scalars [][]byte, first, reduceGroup int) int64 {
	parts := make([][]byte, len(seeds))
	for r := range parts {
		parts[r] = make([]byte, chunkElements*d.Size())
	}
	return wrongChunks(got, d, func(want []byte, at int) {
		for r := range parts {
			parts[r] = parts[r][:len(want)]
			in.fill(parts[r], d, op, seeds[r], first+at)
		}
		reduceChunk(d, op, parts, reduceGroup, scalars, want)
	})
}

// WrongSums is Wrong for a complete sum of Ordered inputs.
func WrongSums(got []byte, d Dtype, seeds []uint64, reduceGroup int) int64 {
	return Ordered.Wrong(got, d, Sum, seeds, nil, 0, reduceGroup)
}

// WrongCopies compares with the Ordered input of a seed for a sum, beginning at element first.
func WrongCopies(got []byte, d Dtype, seed uint64, first int) int64 {
	return wrongChunks(got, d, func(want []byte, at int) { Ordered.fill(want, d, Sum, seed, first+at) })
}

// wrongChunks compares chunk by chunk. expect writes the expected elements, beginning at element at of got.
func wrongChunks(got []byte, d Dtype, expect func(want []byte, at int)) (wrong int64) {
	size := d.Size()
	want := make([]byte, chunkElements*size)
	for at := 0; at < len(got); at += len(want) {
		want = want[:min(len(want), len(got)-at)]
		expect(want, at/size)
		wrong += int64(Differences(got[at:at+len(want)], want, d))
	}
	return wrong
}
