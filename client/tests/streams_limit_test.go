package tests

import (
	"testing"

	"railhead/client/device/threads"
	"railhead/internal/wire"
)

func TestOneStreamTooManyIsRefusedAndEndsItsThread(t *testing.T) {
	const most = 256
	for range most {
		newStream(t)
	}
	for range 20 {
		s, err := threads.NewStream()
		if err == nil {
			_ = s.Destroy()
			t.Fatal("there is one more than there can be")
		}
		wantError(t, err, wire.ResultLimit, "stream_create", "256 streams")
	}
}
