package server

import (
	"testing"

	"golang.org/x/sys/unix"

	"railhead/internal/wire"
	"railhead/server/membership"
)

// cudaJoin is a Join of a rank on a CUDA device of its own.
func cudaJoin(group string, rank, world int) *wire.Join {
	j := joinMessage(group, rank, world)
	j.Own.Device, j.Own.DeviceUUID, j.Own.DeviceMultiprocessors = wire.DeviceCUDA, wire.UUID{byte(rank + 1)}, 132
	return j
}

// cudaGroup is a working group of raw clients on CUDA devices.
func cudaGroup(t complainer, s *Server, group string, world int) []*rawClient {
	t.Helper()
	ranks := make([]*rawClient, world)
	for i := range ranks {
		ranks[i] = dialHello(t, s)
		ranks[i].send(cudaJoin(group, i, world))
	}
	for _, r := range ranks {
		r.attach()
	}
	for _, r := range ranks {
		expect[*wire.GroupReady](r)
	}
	return ranks
}

// created answers WindowCommit with memory that stands for that of a device: the daemon looks at none of it.
func (r *rawClient) created(m *wire.WindowCommit, content byte) {
	r.t.Helper()
	f := memfd(r.t, 4096, 0)
	if _, err := f.WriteAt([]byte{content}, 0); err != nil {
		r.t.Fatal(err)
	}
	if err := r.conn.Send(&wire.WindowCommitted{Group: m.Group, Offset: m.Offset, Memory: m.Memory}, wire.VersionMax, r.request, int(f.Fd())); err != nil {
		r.t.Fatal(err)
	}
	_ = f.Close()
}

func TestWindowsOfCUDADevicesReachTheOtherRanksAndTheDaemonKeepsNoneOfThem(t *testing.T) {
	const world, granule = 3, 2 << 20
	s, before := quietServer(t)
	group := cudaGroup(t, s, "gpus", world)
	connected := openDescriptors(t)
	j := group[0].joined
	if j.DeviceHeapBytes < granule+j.DeviceScratchBytes || j.DeviceScratchBytes < world*j.DeviceSlotBytes || j.DeviceGranularity != granule {
		t.Errorf("Joined has %+v", j)
	}
	for _, want := range []membership.WindowInfo{window(0, j.DeviceScratchBytes), window(j.DeviceScratchBytes, granule)} {
		for _, r := range group {
			r.send(&wire.WindowAlloc{Group: j.Group, Bytes: want.Bytes, Memory: wire.MemoryCUDA})
		}
		for i, r := range group {
			m := expect[*wire.WindowCommit](r)
			if m.Offset != want.Offset || m.Bytes != want.Bytes || m.Memory != wire.MemoryCUDA || m.Granularity != granule {
				t.Errorf("rank %d is asked for %+v, want %+v", i, m, want)
			}
			r.created(m, byte(100+i))
		}
		for i, r := range group {
			for range world - 1 {
				r.takePart(i, want)
			}
		}
		awaitDescriptors(t, connected) // before anybody has mapped it
		for _, r := range group {
			r.answer(&wire.RegisterMapped{Group: j.Group})
		}
		for _, r := range group {
			if m := expect[*wire.WindowReady](r); m.Offset != want.Offset {
				t.Errorf("the window is at %d, want %d", m.Offset, want.Offset)
			}
		}
	}
	g := awaitGroup(t, s, "gpus", "has windows", func(g membership.GroupInfo) bool { return len(g.Windows) == 2 })
	if g.Windows[1] != window(j.DeviceScratchBytes, granule) || g.Device != wire.DeviceCUDA || g.DeviceHeapBytes != j.DeviceHeapBytes ||
		g.Ranks[2].GPU != "GPU-03000000-0000-0000-0000-000000000000" {
		t.Errorf("the admin endpoint says %+v", g)
	}
	if got, want := metric(t, s, "railhead_device_window_bytes"), float64(world*(j.DeviceScratchBytes+granule)); got != want {
		t.Errorf("railhead_device_window_bytes is %v, want %v", got, want)
	}
	for _, r := range group {
		r.send(&wire.WindowFree{Group: j.Group, Offset: j.DeviceScratchBytes, Memory: wire.MemoryCUDA})
	}
	for _, r := range group {
		expect[*wire.WindowFreed](r)
		r.close()
	}
	awaitEmpty(t, s)
	awaitDescriptors(t, before)
}

func window(offset, bytes uint64) (w membership.WindowInfo) {
	w.Offset, w.Bytes, w.Memory = offset, bytes, wire.MemoryCUDA
	return w
}

// takePart receives another rank's part of a window.
func (r *rawClient) takePart(own int, of membership.WindowInfo) {
	r.t.Helper()
	m, fd, err := r.receive()
	peer, ok := m.(*wire.PeerMemory)
	if err != nil || !ok {
		r.t.Fatalf("rank %d got %T, %v", own, m, err)
	}
	got := make([]byte, 1)
	_, err = unix.Pread(fd, got, 0)
	_ = unix.Close(fd)
	if err != nil || got[0] != byte(100+peer.Local) || int(peer.Local) == own || peer.Region != 0 || peer.FdOffset != of.Offset || peer.Bytes != of.Bytes ||
		peer.Memory != wire.MemoryCUDA || peer.AllocationBytes != of.Bytes {
		r.t.Fatalf("rank %d got %+v, which reads as %d, %v", own, peer, got, err)
	}
}

// A rank dies, or breaks the protocol, while the daemon has the others' memory.
func TestTheDaemonKeepsNoMemoryOfADeviceWhenAWindowFails(t *testing.T) {
	s, before := quietServer(t)
	for name, ends := range map[string]func(r *rawClient, m *wire.WindowCommit){
		"a rank cannot create its memory": func(r *rawClient, m *wire.WindowCommit) {
			r.answer(&wire.WindowCommitted{Group: m.Group, Offset: m.Offset, Error: 2, Memory: m.Memory})
		},
		"a rank closes its session": func(r *rawClient, _ *wire.WindowCommit) { r.close() },
		"a rank sends no descriptor": func(r *rawClient, m *wire.WindowCommit) {
			r.put(packet(t, &wire.WindowCommitted{Group: m.Group, Offset: m.Offset, Memory: m.Memory}, nil))
		},
		"a rank sends a descriptor with an error": func(r *rawClient, m *wire.WindowCommit) {
			f := memfd(r.t, 4096, 0)
			r.put(packet(t, &wire.WindowCommitted{Group: m.Group, Offset: m.Offset, Error: 2, Memory: m.Memory}, nil), int(f.Fd()))
			_ = f.Close()
		},
	} {
		t.Run(name, func(t *testing.T) {
			group := cudaGroup(t, s, "gpus", 3)
			for _, r := range group {
				r.send(&wire.WindowAlloc{Group: r.joined.Group, Bytes: 1, Memory: wire.MemoryCUDA})
			}
			for i, r := range group {
				m := expect[*wire.WindowCommit](r)
				if i < 2 {
					r.created(m, 0)
				} else {
					ends(r, m)
				}
			}
			for _, r := range group[:2] {
				if e := expect[*wire.Error](r); e.Culprit != 2 {
					t.Errorf("got %+v", e)
				}
			}
			for _, r := range group {
				r.close()
			}
			awaitEmpty(t, s)
			awaitDescriptors(t, before)
		})
	}
}

func TestHandlesOfCUDAMemoryReachTheOtherRanks(t *testing.T) {
	s := startServer(t)
	group := cudaGroup(t, s, "gpus", 2)
	for i, r := range group {
		r.send(&wire.Register{Group: r.joined.Group, Bytes: 100, Memory: wire.MemoryCUDAIPC, AllocationBytes: 4096, Handle: wire.Handle{byte(i + 1)}})
	}
	for i, r := range group {
		if m := expect[*wire.PeerMemory](r); m.Handle != (wire.Handle{byte(2 - i)}) || m.Memory != wire.MemoryCUDAIPC || m.AllocationBytes != 4096 {
			t.Errorf("rank %d got %+v", i, m)
		}
		r.answer(&wire.RegisterMapped{Group: r.joined.Group, Region: 1})
	}
	for i, r := range group {
		if m := expect[*wire.Registered](r); m.StagedLocal != -1 {
			t.Errorf("rank %d got %+v", i, m)
		}
	}
	g := awaitGroup(t, s, "gpus", "has a registered window", func(g membership.GroupInfo) bool { return len(g.Registered) == 1 })
	if want := (membership.RegionInfo{Number: 1, Bytes: 100, Memory: wire.MemoryCUDA, Shared: true}); g.Registered[0] != want {
		t.Errorf("the admin endpoint says %+v, want %+v", g.Registered[0], want)
	}
}
