package tests

import (
	"testing"
	"unsafe"

	"railhead/client"
	"railhead/internal/wire"
)

// A captured call uses each window that its buffers touch: one buffer begins in a window and ends in the next, another lies in a third. The
// windows can be freed once the graph has ended.
func TestAGraphUsesEveryWindowThatItsBuffersTouch(t *testing.T) {
	t.Parallel()
	const bytes = 1 << 16
	r := formOnStreams(t, client.CommConfig{World: 1, HeapBytes: 16 << 20})[0]
	var windows [3]*client.Window
	var local [3][]byte
	for i := range windows {
		var err error
		if windows[i], err = r.AllocWindow(bytes); err != nil {
			t.Fatal(err)
		}
		if local[i], err = windows[i].Local(); err != nil {
			t.Fatal(err)
		}
	}
	if uintptr(unsafe.Pointer(&local[1][0])) != uintptr(unsafe.Pointer(&local[0][0]))+bytes {
		t.Fatal("the second window does not begin where the first one ends")
	}
	across := unsafe.Slice(&local[0][bytes-64], 128)
	g := r.capture(t, func() error { return r.on().AllReduce(across, local[2], 32, client.F32, client.Sum) })
	for _, w := range windows {
		wantError(t, w.Free(), wire.ResultBusy, "window_free", "captured graphs")
	}
	g.end()
	for _, w := range windows {
		if err := w.Free(); err != nil {
			t.Error(err)
		}
	}
}
