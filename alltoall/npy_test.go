package alltoall

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"slices"
	"strings"
	"testing"
)

// npy is a file as numpy.save writes it.
func npy(version byte, descr, shape string, data any) []byte {
	header := fmt.Sprintf("{'descr': '%s', 'fortran_order': False, 'shape': %s, }", descr, shape)
	header += strings.Repeat(" ", 117-len(header)) + "\n" // 128 bytes with version 1
	file := append([]byte("\x93NUMPY"), version, 0)
	if version == 1 {
		file = binary.LittleEndian.AppendUint16(file, uint16(len(header)))
	} else {
		file = binary.LittleEndian.AppendUint32(file, uint32(len(header)))
	}
	file, _ = binary.Append(append(file, header...), binary.LittleEndian, data)
	return file
}

func TestARoutingOfNumpyIsRead(t *testing.T) {
	want := []int64{3, -1, 0, 255, 7, 2}
	narrow := []int32{3, -1, 0, 255, 7, 2}
	for name, file := range map[string][]byte{
		"int64": npy(1, "<i8", "(3, 2)", want), "int32": npy(1, "<i4", "(3, 2)", narrow), "version 2": npy(2, "<i8", "(3, 2)", want),
	} {
		got, err := FromNPY(bytes.NewReader(file))
		if err != nil || got.Tokens != 3 || got.K != 2 || !slices.Equal(got.Idx, want) {
			t.Errorf("%s: %v, %v", name, got, err)
		}
	}
	if got, err := FromNPY(bytes.NewReader(npy(1, "<i4", "(0, 8)", []int32{}))); err != nil || got.Tokens != 0 || got.K != 8 {
		t.Errorf("no tokens: %v, %v", got, err)
	}
}

func TestErrorsOfInvalidFilesSayWhatIsWrong(t *testing.T) {
	fine := npy(1, "<i4", "(1, 2)", []int32{1, 2})
	for _, c := range []struct {
		file []byte
		want string
	}{
		{nil, "is this a .npy file?"},
		{[]byte("\x93NUMPY\x01\x00"), "length of the header: EOF"},
		{[]byte("PK\x03\x04 a zip file"), "is this a .npy file?"},
		{[]byte("\x93NUMPY\x03\x00\x00\x00\x00\x00"), "format version 3.0; want 1.0 or 2.0"},
		{[]byte("\x93NUMPY\x02\x00\xff\xff\xff\xff"), "header of 4294967295 bytes; want at most 4096"},
		{fine[:40], "header of 118 bytes: unexpected EOF"},
		{fine[:len(fine)-1], "7 bytes of data; want 8 for shape (1, 2)"},
		{append(slices.Clone(fine), 0), "there are more than 8 bytes of data"},
		{npy(1, "<f4", "(1, 2)", []float32{1, 2}), "elements are \"<f4\"; want '<i4' (numpy.int32) or '<i8' (numpy.int64)"},
		{npy(1, ">i4", "(1, 2)", []int32{1, 2}), "elements are \">i4\""},
		{npy(1, "<i4", "(2,)", []int32{1, 2}), "'shape': (T, K)"},
		{npy(1, "<i4", "(1, 1, 2)", []int32{1, 2}), "'shape': (T, K)"},
		{npy(1, "<i4", "(-1, 2)", []int32{1, 2}), "'shape': (T, K)"},
		{npy(1, "<i4", "(1, 65)", []int32{1, 2}), "shape (1, 65); want (0..1048576, 1..64)"},
		{npy(1, "<i4", "(1, 0)", []int32{}), "shape (1, 0); want"},
		{npy(1, "<i4", "(999999999, 1)", []int32{}), "shape (999999999, 1); want"},
		{npy(1, "<i8", "(1048576, 64)", []int64{1}), "8 bytes of data; want 536870912"},
		{bytes.Replace(fine, []byte("False"), []byte("True "), 1), "fortran_order is True"},
	} {
		if _, err := FromNPY(bytes.NewReader(c.file)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%.60q: %v; want %s", c.file, err, c.want)
		}
	}
}

func FuzzNPY(f *testing.F) {
	f.Add(npy(1, "<i4", "(1, 2)", []int32{1, -1}))
	f.Add(npy(2, "<i8", "(2, 1)", []int64{1, 1 << 40}))
	f.Add(npy(1, "<i8", "(1048576, 64)", []int64{1}))
	f.Fuzz(func(t *testing.T, file []byte) {
		got, err := FromNPY(bytes.NewReader(file))
		if err != nil {
			return
		}
		if len(got.Idx) != got.Tokens*got.K || len(got.Idx)*4 > len(file) {
			t.Fatalf("%d entries of shape (%d, %d) in %d bytes", len(got.Idx), got.Tokens, got.K, len(file))
		}
		again, err := FromNPY(bytes.NewReader(npy(1, "<i8", fmt.Sprintf("(%d, %d)", got.Tokens, got.K), got.Idx)))
		if err != nil || !slices.Equal(again.Idx, got.Idx) {
			t.Fatalf("written again: %v, %v", again, err)
		}
	})
}
