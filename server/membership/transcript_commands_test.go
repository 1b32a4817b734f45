package membership

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	"railhead/internal/rank"
	"railhead/internal/wire"
	"railhead/symm"
)

// stage is the state of a transcript: a machine, a clock that only advance moves, and the request numbers.
type stage struct {
	machine *Machine
	start   time.Time
	now     time.Time
	numbers map[SessionID]*numbers
	roots   map[rank.Local]rank.Local // by late rank, in any group: the root of its wait-for chain
}

// numbers are a session's last request numbers: of any request, of a Join, of a WindowAlloc, of a Register.
type numbers struct{ last, join, alloc, register uint64 }

const (
	testHeapBytes    = 512 << 10
	testScratchBytes = 192 << 10
	testBlockBytes   = 8192
)

func testConfig() Config {
	return Config{
		MaxGroups: 8, MaxHistory: 8, HeapBytes: testHeapBytes, ScratchBytes: testScratchBytes, Memory: testMemory, BlockBytes: testBlockBytes,
		SpinNS:  func(world int) uint32 { return uint32(1000 * world) },
		YieldNS: func(int) uint32 { return 4000 },
		CheckForcing: func(_ wire.Device, text string) (string, error) {
			if text == "wrong" {
				return "", errors.New("algorithm \"wrong\" is not known")
			}
			return text, nil
		},

		PipeSlotBytes: func(int) uint32 { return 256 }, BroadcastSlotBytes: 256,

		CUDA: DeviceConfig{
			Memory:       wire.Memory{Kind: wire.MemoryCUDA, Granularity: symm.CUDAGranule},
			SlotBytes:    func(int) uint64 { return 128 },
			ScratchBytes: func(int) uint64 { return symm.CUDAGranule },
		},
	}
}

// testMemory is the memory of windows in tests.
var testMemory = wire.Memory{Kind: wire.MemoryCPU, Granularity: symm.WindowGranule}

// memoryOf is the kind= of memory that a call is for.
func memoryOf(c *command) wire.MemoryKind {
	return wire.MemoryKind(c.number("kind", uint64(wire.MemoryCPU)))
}

func newStage(c Config) (*stage, error) {
	roots := map[rank.Local]rank.Local{}
	c.RootOfWaitChain = func(_ GroupID, late rank.Local) rank.Local {
		if root, ok := roots[late]; ok {
			return root
		}
		return late
	}
	m, err := New(c)
	start := time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)
	return &stage{machine: m, start: start, now: start, numbers: map[SessionID]*numbers{}, roots: roots}, err
}

func (s *stage) of(id SessionID) *numbers {
	if s.numbers[id] == nil {
		s.numbers[id] = &numbers{}
	}
	return s.numbers[id]
}

// request numbers the requests of a session from 1. Attached, WindowCommitted and RegisterMapped have no number of their own: like a
// client's they carry that of their Join, WindowAlloc or Register.
func (s *stage) request(id SessionID) uint64 {
	s.of(id).last++
	return s.of(id).last
}

var commands map[string]func(*stage, *command) []string

func init() { // a map literal would be an initialization cycle: form uses the other commands
	commands = map[string]func(*stage, *command) []string{
		"new":       playNew,
		"join":      playJoin,
		"created":   playCreated,
		"attached":  playAttached,
		"form":      playForm,
		"alloc":     playAlloc,
		"committed": playCommitted,
		"free":      playFree,
		"punched":   playPunched,
		"sweep":     playSweep,
		"register":  playRegister,
		"private":   playPrivate,
		"mapped":    playMapped,
		"leave":     playLeave,
		"dead":      playDead,
		"lease":     playLease,
		"back":      playBack,
		"poisoned":  playPoisoned,
		"advance":   playAdvance,
		"tick":      playTick,
		"root":      playRoot,
		"deadline":  playDeadline,
		"drain":     playDrain,
		"snapshot":  playSnapshot,
	}
}

// new [max_groups=8] [max_history=8]: another machine, at time 0.
func playNew(s *stage, c *command) []string {
	config := testConfig()
	config.MaxGroups = int(c.number("max_groups", 8))
	config.MaxHistory = int(c.number("max_history", 8))
	fresh, err := newStage(config)
	c.fail(err)
	*s = *fresh
	return nil
}

// join s= group= rank= world= [nodes=1] [on_node=world] [device=0] [gpu=1] [token=] [timeout=5s] [reduce=0] [heap=0] [algo=auto]
// [reproducible=1]; session s has pid 100+s.
func playJoin(s *stage, c *command) []string {
	id := c.session()
	group, err := wire.MakeName(c.text("group", ""))
	c.fail(err)
	token, err := wire.MakeName(c.text("token", ""))
	c.fail(err)
	j := &wire.Join{
		Group: group,
		Common: wire.Common{
			Token: token, World: uint32(c.number("world", 0)), Nodes: uint32(c.number("nodes", 1)), ReduceGroup: uint32(c.number("reduce", 0)),
			HeapBytes: c.number("heap", 0),
		},
		Own: wire.Own{
			Place:     wire.OneNode(int(c.number("rank", 0)), int(c.number("world", 0))),
			TimeoutMS: uint32(c.duration("timeout", 5*time.Second).Milliseconds()),
			Device:    wire.Device(c.number("device", 0)),
		},
	}
	if j.Own.Device == wire.DeviceCUDA {
		j.Own.DeviceUUID, j.Own.DeviceMultiprocessors = wire.UUID{byte(c.number("gpu", 1))}, 132
	}
	j.Own.Place.LocalSize = uint32(c.number("on_node", uint64(j.Common.World)))
	j.Common.Forcing, err = wire.MakeForcing(c.text("algo", "auto"))
	c.fail(err)
	j.Common.Reproducible = uint32(c.number("reproducible", 1))
	_, err = wire.Encode(j, wire.VersionMax, 1) // the machine gets only checked messages
	c.fail(err)
	if c.err != nil {
		return nil
	}
	s.of(id).join = s.request(id)
	return printActions(s.machine.Join(s.now, id, pidOf(id), s.of(id).join, j))
}

// root late= rank=: rank is the root of the late rank's wait-for chain.
func playRoot(s *stage, c *command) []string {
	s.roots[rank.Local(c.number("late", 0))] = rank.Local(c.number("rank", 0))
	return nil
}

func pidOf(id SessionID) int { return 100 + int(id) }

// created group= [err="..."]: the daemon has made the group's memory, or could not.
func playCreated(s *stage, c *command) []string {
	var err error
	if text := c.text("err", ""); text != "" {
		err = errors.New(text)
	}
	return printActions(s.machine.GroupCreated(s.now, c.group(), err))
}

// attached s= group= [errno=0]
func playAttached(s *stage, c *command) []string {
	id := c.session()
	a := &wire.Attached{Group: uint64(c.group()), Error: int32(c.number("errno", 0))}
	return printActions(s.machine.Attached(s.now, id, s.of(id).join, a))
}

// form group= world= [first=1] [timeout=5s]: sessions first, first+1, ... become ranks 0, 1, ... of a working group.
// Prints only that it works; normal_life.txt has the steps.
func playForm(s *stage, c *command) []string {
	name, world, first := c.text("group", ""), c.number("world", 0), c.number("first", 1)
	timeout := c.duration("timeout", 5*time.Second)
	id := s.machine.nextGroup
	play := func(format string, args ...any) {
		if _, err := s.play([]string{fmt.Sprintf(format, args...)}); err != nil {
			c.fail(err)
		}
	}
	for r := range world {
		play("join s=%d group=%s rank=%d world=%d timeout=%s", first+r, name, r, world, timeout)
	}
	play("created group=%d", id)
	for r := range world {
		play("attached s=%d group=%d", first+r, id)
	}
	if g := s.machine.groups[id]; g == nil || g.state != Ready {
		c.fail(fmt.Errorf("group %d does not work", id))
	}
	return []string{fmt.Sprintf("group %d works: sessions %d..%d are its ranks 0..%d", id, first, first+world-1, world-1)}
}

// alloc s= group= bytes= [kind=1]
func playAlloc(s *stage, c *command) []string {
	id := c.session()
	w := &wire.WindowAlloc{Group: uint64(c.group()), Bytes: c.number("bytes", 0), Memory: memoryOf(c)}
	s.of(id).alloc = s.request(id)
	return printActions(s.machine.WindowAlloc(s.now, id, s.of(id).alloc, w))
}

// committed s= group= offset= [errno=0] [kind=1] [file=]
func playCommitted(s *stage, c *command) []string {
	id := c.session()
	w := &wire.WindowCommitted{Group: uint64(c.group()), Offset: c.number("offset", 0), Error: int32(c.number("errno", 0)), Memory: memoryOf(c)}
	return printActions(s.machine.WindowCommitted(id, s.of(id).alloc, w, FileID(c.number("file", 0))))
}

// punched group=: the pages of a decommit have been released.
func playPunched(s *stage, c *command) []string { return printActions(s.machine.Punched(c.group())) }

// sweep group=: a heap has come back, and its unused ranges are swept; punched follows.
func playSweep(s *stage, c *command) []string {
	return []string{fmt.Sprintf("sweep %d", s.machine.Sweep(c.group()))}
}

// register s= group= bytes= file= or handle= [offset=0] [kind=1] [allocation=0]
func playRegister(s *stage, c *command) []string {
	id := c.session()
	w := &wire.Register{Group: uint64(c.group()), Bytes: c.number("bytes", 0), FdOffset: c.number("offset", 0), Memory: memoryOf(c),
		AllocationBytes: c.number("allocation", 0), Handle: wire.Handle{byte(c.number("handle", 0))}}
	s.of(id).register = s.request(id)
	return printActions(s.machine.Register(s.now, id, s.of(id).register, w, FileID(c.number("file", 0))))
}

// private s= group= bytes= reason="..."
func playPrivate(s *stage, c *command) []string {
	id := c.session()
	w := &wire.RegisterPrivate{
		Group: uint64(c.group()), Bytes: c.number("bytes", 0), Reason: wire.MakeReason(c.text("reason", "")),
	}
	s.of(id).register = s.request(id)
	return printActions(s.machine.RegisterPrivate(s.now, id, s.of(id).register, w))
}

// mapped s= group= region= [errno=0]: of region 0, a window of CUDA memory.
func playMapped(s *stage, c *command) []string {
	id := c.session()
	w := &wire.RegisterMapped{Group: uint64(c.group()), Region: uint32(c.number("region", 0)), Error: int32(c.number("errno", 0))}
	request := s.of(id).register
	if w.Region == 0 {
		request = s.of(id).alloc
	}
	return printActions(s.machine.RegisterMapped(id, request, w))
}

// free s= group= offset= [kind=1] or region=
func playFree(s *stage, c *command) []string {
	id := c.session()
	w := &wire.WindowFree{Group: uint64(c.group()), Offset: c.number("offset", 0) | c.number("region", 0)<<wire.RegionShift}
	if w.Offset>>wire.RegionShift == 0 {
		w.Memory = memoryOf(c)
	}
	return printActions(s.machine.WindowFree(s.now, id, s.request(id), w))
}

// leave s= group=: finalize.
func playLeave(s *stage, c *command) []string {
	id := c.session()
	return printActions(s.machine.Leave(s.now, id, s.request(id), &wire.Leave{Group: uint64(c.group())}))
}

// dead s= how=: the session has ended.
func playDead(s *stage, c *command) []string {
	return printActions(s.machine.SessionEnded(c.session(), c.text("how", "socket")))
}

// lease group= rank= [op=none]: the kernel has marked the rank's lease; op is the operation in its rank line.
func playLease(s *stage, c *command) []string {
	finalizing := wire.Op(c.enum("op", opNamed)) == wire.OpFinalize
	return printActions(s.machine.LeaseLost(c.group(), rank.Local(c.number("rank", 0)), finalizing))
}

// back s= rank= [group=1] [timeout=5s] [known=]: a rank comes back from another daemon. known= is the number of its group here; without
// it, the ledger has name= world= [incarnation=1] [token=] [reduce=world] [heap=720896] [window=offset] [window_bytes=65536] [region=]
// [staged=-1] [finalized=0] [says=world] [device=0] [device_heap=] [device_window=offset].
func playBack(s *stage, c *command) []string {
	id := c.session()
	a := &wire.Reannounce{
		Group: c.number("group", 1), Nodes: 1,
		TimeoutMS: uint32(c.duration("timeout", 5*time.Second).Milliseconds()),
	}
	known := GroupID(c.number("known", 0))
	world := c.number("world", 2)
	a.World = uint32(c.number("says", world)) // where it contradicts its ledger
	a.Place, a.ControlBytes = wire.OneNode(int(c.number("rank", 0)), int(a.World)), wire.ControlBytes(int(a.World))
	r := &Recovered{
		Group: GroupID(a.Group), Name: c.text("name", ""), Token: c.text("token", ""), Incarnation: c.number("incarnation", 1),
		World: int(world), ReduceGroup: uint32(c.number("reduce", world)), HeapBytes: c.number("heap", testHeapBytes+testScratchBytes),
		Scratch: testScratchBytes, Memory: testMemory, PIDs: make([]int, world), Finalized: c.number("finalized", 0) != 0,
	}
	for i := range r.PIDs {
		r.PIDs[i] = 900 + i
	}
	if offset := c.number("window", 0); offset != 0 {
		r.Windows = append(r.Windows, symm.Window{Offset: offset, Bytes: c.number("window_bytes", symm.WindowGranule)})
	}
	if r.Device = wire.Device(c.number("device", 0)); r.Device != wire.DeviceCPU {
		r.DeviceMemory, r.DeviceHeapBytes = testConfig().CUDA.Memory, c.number("device_heap", 0)
	}
	if offset := c.text("device_window", ""); offset != "" {
		at, err := strconv.ParseUint(offset, 0, 64)
		c.fail(err)
		r.DeviceWindows = append(r.DeviceWindows, symm.Window{Offset: at, Bytes: symm.CUDAGranule})
	}
	if n := c.number("region", 0); n != 0 {
		staged := c.rank("staged")
		r.Regions = map[uint32]RecoveredRegion{uint32(n): {Bytes: 4096, Staged: rank.Local(staged)}}
	}
	return printActions(s.machine.Reannounce(s.now, id, pidOf(id), s.request(id), a, known, r))
}

// poisoned group= code= [op=none] [culprit=-1] [reporter=-1]: the abort word was set. code and op are names or numbers.
func playPoisoned(s *stage, c *command) []string {
	a := wire.Abort{
		Code: wire.Result(c.enum("code", resultNamed)), Op: wire.Op(c.enum("op", opNamed)),
		Culprit: rank.World(c.rank("culprit")), Reporter: rank.World(c.rank("reporter")),
	}
	return printActions(s.machine.Poisoned(c.group(), a))
}

// advance DURATION: moves the clock, and nothing else.
func playAdvance(s *stage, c *command) []string {
	s.now = s.now.Add(c.positionalDuration())
	return nil
}

func playTick(s *stage, _ *command) []string { return printActions(s.machine.Tick(s.now)) }

// deadline: the next deadline, from the scenario's beginning.
func playDeadline(s *stage, _ *command) []string {
	at, ok := s.machine.NextDeadline()
	if !ok {
		return []string{"no deadline"}
	}
	return []string{fmt.Sprintf("deadline at %s", at.Sub(s.start))}
}

func playDrain(s *stage, _ *command) []string {
	s.machine.Drain()
	return nil
}

func playSnapshot(s *stage, _ *command) []string { return printSnapshot(s.machine) }
