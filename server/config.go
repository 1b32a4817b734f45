package server

import (
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"time"

	"railhead/internal/wire"
	"railhead/server/membership"
	"railhead/symm"
)

// Version is what the daemon calls itself.
const Version = "0.1.0"

// Bounds of the daemon.
const (
	MaxSessions = 8192 // connections at a time: 64 groups of 64 ranks, twice
	MaxGroups   = 1024 // groups at a time
	maxHistory  = 64   // ended groups that /v1/groups remembers

	maxTraces    = 8               // ended groups whose flight record /v1/trace remembers,
	endedRecords = 64              // and how many operations of each rank
	stallAfter   = 5 * time.Second // in one operation, and a group counts as stalled

	helloTimeout = 5 * time.Second // from connect to Hello
	writeTimeout = 5 * time.Second // for a client to take a message
	sendQueue    = 4096            // messages waiting for a client: the answers to Join of 63 groups of 64 ranks
	eventQueue   = 1024            // events waiting for the core; a session that finds it full waits

	inFlightPause = 5 * time.Millisecond // before another attempt to send a descriptor

	maxSocketPath = 107 // bytes, of sockaddr_un
)

// What the daemon decides for its groups.
const (
	defaultHeapBytes = 16 << 30 // address space of a rank's windows; pages come with windows only
	// blockBytes is what the one-shot algorithm publishes at a time: two of a rank's blocks and a reader's share of them
	// fit in a second-level cache.
	blockBytes = 64 << 10
	// A broadcast is read by all ranks; its four slots stay in a second-level cache.
	broadcastSlotBytes = 32 << 10
)

// Config of a daemon. The zero value of a field is its default.
type Config struct {
	SocketPath  string // of clients; "" = DefaultSocketPath()
	AdminSocket string // of the admin endpoint; "" = admin.sock beside SocketPath
	AdminAddr   string // TCP, loopback only, "127.0.0.1:0" picks a port; "" = none
	TuneDir     string // of tuning tables; "" = tuner.TableDir()
	Log         *slog.Logger
}

// DefaultSocketPath is where clients look when nobody tells them.
func DefaultSocketPath() string {
	if dir := os.Getenv("XDG_RUNTIME_DIR"); dir != "" {
		return filepath.Join(dir, "railhead", "railhead.sock")
	}
	return "/run/railhead/railhead.sock"
}

func (c *Config) fill() error {
	if c.SocketPath == "" {
		c.SocketPath = DefaultSocketPath()
	}
	if c.AdminSocket == "" {
		c.AdminSocket = AdminSocketBeside(c.SocketPath)
	}
	for _, p := range []string{c.SocketPath, c.AdminSocket} {
		if len(p) > maxSocketPath {
			return fmt.Errorf("server: socket path of %d bytes, at most %d fit: %s", len(p), maxSocketPath, p)
		}
	}
	if filepath.Clean(c.SocketPath) == filepath.Clean(c.AdminSocket) {
		return fmt.Errorf("server: clients and the admin endpoint cannot share the socket %s", c.SocketPath)
	}
	if c.Log == nil {
		c.Log = slog.New(slog.DiscardHandler)
	}
	return nil
}

// AdminSocketBeside is the default admin socket of a daemon whose clients use socketPath.
func AdminSocketBeside(socketPath string) string {
	return filepath.Join(filepath.Dir(socketPath), "admin.sock")
}

// groupsPerMS is how many groups a daemon could form in a millisecond, and more. So their numbers go on above those of the
// daemons before, which the ranks of their groups bring along, and which are in the names of split groups.
const groupsPerMS = 64

func machineConfig(start time.Time) membership.Config {
	var scratch uint64
	for world := 1; world <= wire.MaxWorld; world++ {
		scratch = max(scratch, wire.ScratchNeed(world, blockBytes, broadcastSlotBytes, pipeSlotBytes(world)))
	}
	return membership.Config{
		MaxGroups:  MaxGroups,
		MaxHistory: maxHistory,
		FirstGroup: membership.GroupID(start.UnixMilli() * groupsPerMS),
		HeapBytes:  defaultHeapBytes,
		BlockBytes: blockBytes,
		SpinNS:     spinNS,
		YieldNS:    yieldNS,

		CheckForcing: checkForcing,

		PipeSlotBytes:      pipeSlotBytes,
		BroadcastSlotBytes: broadcastSlotBytes,

		ScratchBytes: (scratch + symm.WindowGranule - 1) / symm.WindowGranule * symm.WindowGranule,
	}
}

// spinNS is how long a wait looks before it sleeps. With a core for every rank a wait is short and waking up is the
// expensive part. With more ranks than cores a rank that spins keeps the one it waits for from running, but not one that
// yields: passing the core on costs a fraction of a sleep and a wake-up, and a turn of all ranks takes longer.
func spinNS(world int) uint32 {
	if world <= runtime.NumCPU() {
		return 50_000
	}
	return 500_000
}

// yieldNS is from when on a spinning wait yields: at once with more ranks than cores, else when it takes longer than a rank
// that runs would keep it waiting.
func yieldNS(world int) uint32 {
	if world <= runtime.NumCPU() {
		return 4_000
	}
	return 0
}

// pipeSlotBytes is the size of a slot of the pipe between two ranks. All pipes of a rank together are at most 1 MiB.
func pipeSlotBytes(world int) uint32 {
	const all, most = 1 << 20, 32 << 10
	return uint32(min(all/wire.PipeSlots/wire.PipeSets/world/1024*1024, most))
}
