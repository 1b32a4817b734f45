package wire

import (
	"encoding/json"
	"testing"
)

func TestOperationsAreWordsInJSON(t *testing.T) {
	for n := range Ops + 2 {
		op := Op(n)
		text, err := json.Marshal(op)
		if err != nil || string(text) != `"`+op.String()+`"` {
			t.Fatalf("%d: %s, %v", n, text, err)
		}
		var back Op
		if err := json.Unmarshal(text, &back); err != nil || back != op {
			t.Errorf("%s: read as %d, %v", text, back, err)
		}
	}
	for _, text := range []string{`"nosuch"`, `""`, `"op_"`, `"op_-1"`, `"3"`, `"op_4294967296"`} {
		var op Op
		if err := json.Unmarshal([]byte(text), &op); err == nil {
			t.Errorf("%s is read as %d", text, op)
		}
	}
}

func TestNamesOfDevicesAndMemoryReadBack(t *testing.T) {
	for d := DeviceCPU; d.Known(); d++ {
		text, _ := d.MarshalText()
		if back := Device(99); back.UnmarshalText(text) != nil || back != d {
			t.Errorf("device %d is %q, which reads as %d", d, text, back)
		}
	}
	for k := MemoryCPU; k.Known(); k++ {
		text, _ := k.MarshalText()
		if back := MemoryKind(99); back.UnmarshalText(text) != nil || back != k {
			t.Errorf("memory %d is %q, which reads as %d", k, text, back)
		}
	}
	for _, bad := range []string{"", "gpu", "device_9", "memory_9", "CUDA"} {
		var d Device
		var k MemoryKind
		if d.UnmarshalText([]byte(bad)) == nil || k.UnmarshalText([]byte(bad)) == nil {
			t.Errorf("%q is read as a device or a kind of memory", bad)
		}
	}
	if Device(9).Known() || MemoryKind(0).Known() || MemoryKind(9).Known() || MemoryCUDAIPC.HasFD() || MemoryKind(9).HasFD() {
		t.Error("an unknown device or kind of memory is known, or has a descriptor")
	}
	u := UUID{0x12, 0x34, 0x56, 0x78, 0x9a, 0xbc, 0xde, 0xf0, 1, 2, 3, 4, 5, 6, 7, 8}
	if s := u.String(); s != "GPU-12345678-9abc-def0-0102-030405060708" || (UUID{}).String() != "" {
		t.Errorf("a UUID is written %q", s)
	}
}
