package alltoall

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"regexp"
	"strconv"
)

// TopK is a recorded routing: experts, [Tokens, K], not validated.
type TopK struct {
	Tokens, K int
	Idx       []int64
}

// maxNPYHeader bounds the header. numpy writes 118 bytes for two dimensions.
const maxNPYHeader = 4096

// npyHeader matches the header dictionary exactly as numpy writes it. Other forms are refused.
var npyHeader = regexp.MustCompile(
	`^\{'descr': *'([^']{1,16})', *'fortran_order': *(True|False) *, *'shape': *\(([0-9]{1,9}), *([0-9]{1,9}),?\) *,? *\} *\n$`)

// FromNPY reads a topk_idx written by numpy.save: an array [T, K] of int32 or int64 in C order, format version 1 or 2, with nothing
// after it. Its memory is bounded by the bytes that can be read, whatever the header says.
func FromNPY(r io.Reader) (TopK, error) {
	t, size, err := readNPYHeader(r)
	if err != nil {
		return TopK{}, fmt.Errorf("npy: %w", err)
	}
	data, err := io.ReadAll(io.LimitReader(r, int64(t.Tokens*t.K*size)+1))
	if err != nil {
		return TopK{}, fmt.Errorf("npy: %w", err)
	}
	if want := t.Tokens * t.K * size; len(data) < want {
		return TopK{}, fmt.Errorf("npy: %d bytes of data; want %d for shape (%d, %d)", len(data), want, t.Tokens, t.K)
	} else if len(data) > want {
		return TopK{}, fmt.Errorf("npy: there are more than %d bytes of data, the size of shape (%d, %d)", want, t.Tokens, t.K)
	}
	t.Idx = make([]int64, t.Tokens*t.K)
	for i := range t.Idx {
		if size == 4 {
			t.Idx[i] = int64(int32(binary.LittleEndian.Uint32(data[4*i:])))
		} else {
			t.Idx[i] = int64(binary.LittleEndian.Uint64(data[8*i:]))
		}
	}
	return t, nil
}

// readNPYHeader returns the shape and the size of an element.
func readNPYHeader(r io.Reader) (t TopK, size int, err error) {
	header, err := readNPYDictionary(r)
	if err != nil {
		return TopK{}, 0, err
	}
	m := npyHeader.FindSubmatch(header)
	if m == nil {
		return TopK{}, 0, fmt.Errorf("header %.200q; want {'descr': '<i4' or '<i8', 'fortran_order': False, 'shape': (T, K)}", header)
	}
	switch descr := string(m[1]); descr {
	case "<i4":
		size = 4
	case "<i8":
		size = 8
	default:
		return TopK{}, 0, fmt.Errorf("elements are %q; want '<i4' (numpy.int32) or '<i8' (numpy.int64)", descr)
	}
	if string(m[2]) == "True" {
		return TopK{}, 0, errors.New("fortran_order is True; save numpy.ascontiguousarray(array)")
	}
	t.Tokens, _ = strconv.Atoi(string(m[3])) // digits, at most nine
	t.K, _ = strconv.Atoi(string(m[4]))
	if t.Tokens > MaxTokens || t.K < 1 || t.K > MaxTopK {
		return TopK{}, 0, fmt.Errorf("shape (%d, %d); want (0..%d, 1..%d)", t.Tokens, t.K, MaxTokens, MaxTopK)
	}
	return t, size, nil
}

// readNPYDictionary reads the magic, the version and the length, and returns the dictionary.
func readNPYDictionary(r io.Reader) ([]byte, error) {
	var start [8]byte
	if _, err := io.ReadFull(r, start[:]); err != nil || !bytes.HasPrefix(start[:], []byte("\x93NUMPY")) {
		return nil, errors.New("the magic \\x93NUMPY is missing; is this a .npy file?")
	}
	var length uint32
	var err error
	switch start[6] {
	case 1:
		var short uint16
		err = binary.Read(r, binary.LittleEndian, &short)
		length = uint32(short)
	case 2:
		err = binary.Read(r, binary.LittleEndian, &length)
	default:
		return nil, fmt.Errorf("format version %d.%d; want 1.0 or 2.0", start[6], start[7])
	}
	if err != nil {
		return nil, fmt.Errorf("length of the header: %w", err)
	}
	if length > maxNPYHeader {
		return nil, fmt.Errorf("header of %d bytes; want at most %d", length, maxNPYHeader)
	}
	header := make([]byte, length)
	if _, err := io.ReadFull(r, header); err != nil {
		return nil, fmt.Errorf("header of %d bytes: %w", length, err)
	}
	return header, nil
}
