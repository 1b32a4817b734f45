package tests

import (
	"testing"

	"railhead/client/device/threads"
	"railhead/internal/wire"
)

func TestTheNumberOfStreamsIsLimited(t *testing.T) {
	const most = 256
	for range most {
		newStream(t)
	}
	for range 20 {
		s, err := threads.NewStream()
		if err == nil {
			_ = s.Destroy()
			t.Fatalf("stream %d was created", most+1)
		}
		wantError(t, err, wire.ResultLimit, "stream_create", "256 streams")
	}
}
