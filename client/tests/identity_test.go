package tests

import (
	"fmt"
	"hash/fnv"
	"net"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"railhead/client"
	"railhead/internal/wire"
)

// Variables that launchers set, recorded from them: those that identify rank and job, and similar ones with another meaning. Each process
// is rank 1 of 2, unless WORLD_SIZE says otherwise.
const (
	torchrunStatic = `RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 MASTER_ADDR=127.0.0.1 MASTER_PORT=29500
		TORCHELASTIC_RUN_ID=none TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_USE_AGENT_STORE=True`
	torchrunStandalone = `RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 MASTER_ADDR=localhost MASTER_PORT=33637
		TORCHELASTIC_RUN_ID=38e3c35b-dfce-4765-8d3c-44aa47aace0f TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_USE_AGENT_STORE=False`
	torchrunC10d = `RANK=1 LOCAL_RANK=1 WORLD_SIZE=2 LOCAL_WORLD_SIZE=2 GROUP_RANK=0 MASTER_ADDR=localhost MASTER_PORT=47507
		TORCHELASTIC_RUN_ID=job7 TORCHELASTIC_RESTART_COUNT=0 TORCHELASTIC_USE_AGENT_STORE=False`
	openMPI4 = `OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2
		OMPI_MCA_ess_base_jobid=1387528193 OMPI_MCA_orte_precondition_transports=77ac4f0f8ee147ea-c23091a1cb58bf91
		PMIX_NAMESPACE=1387528193 PMIX_RANK=1`
	openMPI5 = `OMPI_COMM_WORLD_RANK=1 OMPI_COMM_WORLD_SIZE=2 OMPI_COMM_WORLD_LOCAL_RANK=1 OMPI_COMM_WORLD_LOCAL_SIZE=2
		PMIX_NAMESPACE=prterun-vm-15976@1 PMIX_RANK=1`
	mpich      = `PMI_RANK=1 PMI_SIZE=2 PMI_FD=8 HYDI_CONTROL_FD=7 MPI_LOCALNRANKS=2 MPI_LOCALRANKID=1` // 4.0 and 5.0
	intelMPI   = mpich + ` I_MPI_HYDRA_UUID=8d2a0000-77f9-7a6e-8361-06004883206e`
	slurm      = `SLURM_JOB_ID=1234 SLURM_STEP_ID=0 SLURM_PROCID=1 SLURM_LOCALID=1 SLURM_NTASKS=2 SLURM_NPROCS=2 SLURM_STEP_NUM_TASKS=2`
	slurmPMI2  = slurm + ` PMI_FD=13 PMI_JOBID=1234.0 PMI_RANK=1 PMI_SIZE=2`
	slurmPMIx  = slurm + ` PMIX_NAMESPACE=slurm.pmix.1234.0 PMIX_RANK=1`
	slurmBatch = `SLURM_JOB_ID=1234 SLURM_PROCID=0 SLURM_LOCALID=0 SLURM_NTASKS=2 SLURM_NPROCS=2`
)

// launcherVariables are the variables that the tests below set. The tests clear them first, because a launcher may have started the tests.
var launcherVariables = strings.Fields(`RANK WORLD_SIZE MASTER_ADDR MASTER_PORT TORCHELASTIC_RUN_ID TORCHELASTIC_RESTART_COUNT OMPI_COMM_WORLD_RANK
	OMPI_COMM_WORLD_SIZE OMPI_MCA_orte_precondition_transports PMIX_NAMESPACE PMIX_RANK PMI_RANK PMI_SIZE PMI_JOBID I_MPI_HYDRA_UUID SLURM_PROCID
	SLURM_STEP_NUM_TASKS SLURM_NTASKS SLURM_JOB_ID SLURM_STEP_ID RAILHEAD_GROUP RAILHEAD_TOKEN`)

// launchedAs sets the variables of NAME=value words, and no others of a launcher.
func launchedAs(t *testing.T, environment string) {
	t.Helper()
	for _, v := range launcherVariables {
		t.Setenv(v, "") // counts as unset
	}
	for _, word := range strings.Fields(environment) {
		v, value, _ := strings.Cut(word, "=")
		t.Setenv(v, value)
	}
}

// joins is a daemon that records the Join messages of a client and refuses them.
type joins struct {
	session *client.Session
	seen    chan *wire.Join
}

func seeJoins(t *testing.T) *joins {
	t.Helper()
	path := t.TempDir() + "/joins.sock"
	l, err := net.ListenUnix("unixpacket", &net.UnixAddr{Name: path, Net: "unixpacket"})
	if err != nil {
		t.Fatal(err)
	}
	j := &joins{seen: make(chan *wire.Join, 1)}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		conn, err := l.AcceptUnix()
		if err != nil {
			return
		}
		defer func() { _ = conn.Close() }()
		j.serve(t, conn)
	}()
	t.Cleanup(func() { _ = l.Close(); <-ended })
	if j.session, err = client.Connect(path, patience); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = j.session.Close() })
	return j
}

func (j *joins) serve(t *testing.T, conn *net.UnixConn) {
	in := wire.NewConn(conn)
	say := func(m wire.Message, request uint64) {
		b, err := wire.Encode(m, wire.VersionMax, request)
		if err == nil {
			_, err = conn.Write(b)
		}
		if err != nil {
			t.Error(err)
		}
	}
	for {
		m, fd, err := in.Recv()
		if fd >= 0 {
			_ = unix.Close(fd)
		}
		if err != nil {
			return // the client has closed the connection
		}
		switch m := m.(type) {
		case *wire.Hello:
			say(&wire.Welcome{Version: wire.VersionMax, Session: 1, Software: name("joins")}, wire.RequestOf(m))
		case *wire.Join:
			j.seen <- m
			say(&wire.Error{Code: wire.ResultLimit, Culprit: -1}, wire.RequestOf(m))
		}
	}
}

// of returns the Join that Init sends for a config.
func (j *joins) of(t *testing.T, config client.CommConfig) *wire.Join {
	t.Helper()
	_, err := j.session.Init(config)
	select {
	case m := <-j.seen:
		return m
	default:
		t.Fatalf("no Join was sent: %v", err)
		return nil
	}
}

var fromTheEnvironment = client.CommConfig{Rank: -1, World: -1}

// wantJoin checks the rank, the group and the token of a Join.
func wantJoin(t *testing.T, m *wire.Join, rank, world int, group, token string) {
	t.Helper()
	if int(m.Own.Place.Rank) != rank || int(m.Common.World) != world {
		t.Errorf("rank %d of %d, want %d of %d", m.Own.Place.Rank, m.Common.World, rank, world)
	}
	if m.Group.String() != group || m.Common.Token.String() != token {
		t.Errorf("group %q, token %q; want %q, %q", m.Group, m.Common.Token, group, token)
	}
}

// The job's identity is both the group's name and its token.
func TestRankAndJobComeFromTheLauncher(t *testing.T) {
	hashed := func(launcher string, facts ...string) string {
		h := fnv.New64a()
		_, _ = h.Write([]byte(strings.Join(facts, "\x00") + "\x00"))
		return fmt.Sprintf("%s/%016x", launcher, h.Sum64())
	}
	id38, id39 := strings.Repeat("x", 38), strings.Repeat("x", 39)
	j := seeJoins(t)
	for _, c := range []struct {
		name, environment string
		rank, world       int
		job               string
	}{
		{"torchrun", torchrunStatic, 1, 2, "torchrun/none/127.0.0.1/29500"},
		{"torchrun --standalone", torchrunStandalone, 1, 2, "torchrun/38e3c35b-dfce-4765-8d3c-44aa47aace0f/localhost/33637"},
		{"torchrun --rdzv_backend c10d", torchrunC10d, 1, 2, "torchrun/job7/localhost/47507"},
		{"started by hand for torch", "RANK=3 WORLD_SIZE=4 MASTER_ADDR=::1 MASTER_PORT=29500", 3, 4, "torchrun//::1/29500"},
		{"Open MPI 4.1", openMPI4, 1, 2, "openmpi/1387528193/77ac4f0f8ee147ea-c23091a1cb58bf91"},
		{"Open MPI 5.0", openMPI5, 1, 2, "openmpi/prterun-vm-15976@1"},
		{"Intel MPI", intelMPI, 1, 2, "pmi//8d2a0000-77f9-7a6e-8361-06004883206e"},
		{"srun", slurm, 1, 2, "slurm/1234/0"},
		{"srun --mpi=pmix", slurmPMIx, 1, 2, "slurm/1234/0"},
		{"srun --mpi=pmi2", slurmPMI2, 1, 2, "pmi/1234.0"},

		// Of nested launchers the inner one counts, because it started this process.
		{"torchrun in a Slurm step", slurm + " " + torchrunStatic, 1, 2, "torchrun/none/127.0.0.1/29500"},
		{"Open MPI in a Slurm batch script", slurmBatch + " " + openMPI5, 1, 2, "openmpi/prterun-vm-15976@1"},

		// Values that do not fit a name, or would make it ambiguous, are hashed.
		{"63 bytes", torchrunStandalone + " TORCHELASTIC_RUN_ID=" + id38, 1, 2, "torchrun/" + id38 + "/localhost/33637"},
		{"64 bytes", torchrunStandalone + " TORCHELASTIC_RUN_ID=" + id39, 1, 2, hashed("torchrun", id39, "localhost", "33637")},
		{"a slash", slurm + " SLURM_JOB_ID=12/34", 1, 2, hashed("slurm", "12/34", "0")},
		{"no UTF-8", slurm + " SLURM_JOB_ID=caf\xe9", 1, 2, hashed("slurm", "caf\xe9", "0")},
	} {
		t.Run(c.name, func(t *testing.T) {
			launchedAs(t, c.environment)
			wantJoin(t, j.of(t, fromTheEnvironment), c.rank, c.world, c.job, c.job)
		})
	}
}

// The config has priority over RAILHEAD_GROUP and RAILHEAD_TOKEN, and these over the launcher. A named group still has the job as its token.
func TestExplicitNamesHavePriorityOverTheLaunchers(t *testing.T) {
	const job = "torchrun/none/127.0.0.1/29500"
	j := seeJoins(t)
	for _, c := range []struct {
		name, environment string
		config            client.CommConfig
		rank, world       int
		group, token      string
	}{
		{"RAILHEAD_GROUP", torchrunStatic + " RAILHEAD_GROUP=tp", fromTheEnvironment, 1, 2, "tp", job},
		{"RAILHEAD_GROUP where nothing tells jobs apart", mpich + " RAILHEAD_GROUP=tp", fromTheEnvironment, 1, 2, "tp", ""},
		{"RAILHEAD_TOKEN", torchrunStatic + " RAILHEAD_TOKEN=t", fromTheEnvironment, 1, 2, job, "t"},
		{"railhead run in torchrun", torchrunStatic + " RANK=5 WORLD_SIZE=6 RAILHEAD_GROUP=run-1f RAILHEAD_TOKEN=2e", fromTheEnvironment, 5, 6, "run-1f", "2e"},
		{"the config's group", torchrunStatic + " RAILHEAD_GROUP=other", client.CommConfig{Group: "tp", Rank: -1, World: -1}, 1, 2, "tp", job},
		{"the config's token", torchrunStatic + " RAILHEAD_TOKEN=other", client.CommConfig{Token: "t", Rank: -1, World: -1}, 1, 2, job, "t"},
		{"the config's rank", torchrunStatic, client.CommConfig{Group: "pp", Rank: 0, World: -1}, 0, 2, "pp", job},
		{"the config's rank and size", torchrunStatic, client.CommConfig{Rank: 0, World: 1}, 0, 1, job, job},
		{"all in the config", "", client.CommConfig{Group: "tp", Rank: 2, World: 3}, 2, 3, "tp", ""},
	} {
		t.Run(c.name, func(t *testing.T) {
			launchedAs(t, c.environment)
			wantJoin(t, j.of(t, c.config), c.rank, c.world, c.group, c.token)
		})
	}
}

func TestJobsThatDifferInAnyVariableHaveDifferentGroups(t *testing.T) {
	j := seeJoins(t)
	group := func(environment string) string {
		launchedAs(t, environment)
		return j.of(t, fromTheEnvironment).Group.String()
	}
	for _, c := range []struct{ name, environment, rank, same string }{
		{"torchrun", torchrunStatic, "RANK", "TORCHELASTIC_RUN_ID MASTER_ADDR MASTER_PORT"},
		{"torchrun --standalone", torchrunStandalone, "RANK", "TORCHELASTIC_RUN_ID MASTER_ADDR MASTER_PORT"}, // hashed
		{"Open MPI 4", openMPI4, "OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE OMPI_MCA_orte_precondition_transports"},
		{"Open MPI 5", openMPI5, "OMPI_COMM_WORLD_RANK", "PMIX_NAMESPACE"},
		{"Intel MPI", intelMPI, "PMI_RANK", "I_MPI_HYDRA_UUID"},
		{"PMI-2", slurmPMI2, "PMI_RANK", "PMI_JOBID"},
		{"Slurm", slurm, "SLURM_PROCID", "SLURM_JOB_ID SLURM_STEP_ID"},
	} {
		t.Run(c.name, func(t *testing.T) {
			mine := group(c.environment)
			if other := group(c.environment + " " + c.rank + "=0"); other != mine {
				t.Errorf("rank 0 is in %q, rank 1 in %q", other, mine)
			}
			for _, fact := range strings.Fields(c.same) {
				if other := group(c.environment + " " + fact + "=8"); other == mine {
					t.Errorf("a job with another %s is in %q too", fact, mine)
				}
			}
		})
	}
	// torchrun ends all ranks before it restarts them, so the name is free. Agents may count restarts differently, so the count is ignored.
	if first, again := group(torchrunStatic), group(torchrunStatic+" TORCHELASTIC_RESTART_COUNT=1"); first != again {
		t.Errorf("%q after a restart, %q before", again, first)
	}
}

func TestTheErrorOfAnUnidentifiedJobSaysWhatToSet(t *testing.T) {
	j := seeJoins(t)
	explicit := client.CommConfig{Rank: 0, World: 2}
	for _, c := range []struct {
		name, environment string
		config            client.CommConfig
		words             []string
	}{
		{"a loop in a shell", "RANK=0 WORLD_SIZE=2", fromTheEnvironment, []string{"rank 0", "$RANK", "$MASTER_PORT", "set RAILHEAD_GROUP", "two jobs"}},
		{"a run id alone", "RANK=0 WORLD_SIZE=2 TORCHELASTIC_RUN_ID=none MASTER_ADDR=a", fromTheEnvironment, []string{"$MASTER_PORT", "set RAILHEAD_GROUP"}},
		{"MPICH", mpich, fromTheEnvironment, []string{"rank 1", "$PMI_RANK", "$PMI_JOBID", "$I_MPI_HYDRA_UUID", "set RAILHEAD_GROUP"}},
		{"MPICH in a Slurm step", slurm + " " + mpich, fromTheEnvironment, []string{"$PMI_RANK", "set RAILHEAD_GROUP"}},
		{"RANK in a Slurm step", slurm + " RANK=1 WORLD_SIZE=2", fromTheEnvironment, []string{"$RANK", "$MASTER_PORT", "set RAILHEAD_GROUP"}},
		{"no launcher", "", explicit, []string{"rank 0", "$RANK", "$OMPI_COMM_WORLD_RANK", "$PMI_RANK", "$SLURM_PROCID", "set RAILHEAD_GROUP"}},
		{"a token alone", "RAILHEAD_TOKEN=t", explicit, []string{"set RAILHEAD_GROUP"}},

		{"nothing", "", fromTheEnvironment, []string{"no rank", "$RANK", "$OMPI_COMM_WORLD_RANK", "$PMI_RANK", "$SLURM_PROCID", "torchrun"}},
		{"no size", "RANK=1", fromTheEnvironment, []string{"no world size", "$RANK", "$WORLD_SIZE"}},
		{"no rank", "OMPI_COMM_WORLD_SIZE=2", fromTheEnvironment, []string{"no rank", "$OMPI_COMM_WORLD_SIZE", "$OMPI_COMM_WORLD_RANK"}},
		{"the size of another launcher", slurm + " RANK=1", fromTheEnvironment, []string{"no world size", "$WORLD_SIZE"}},
		{"a Slurm batch script", slurmBatch, fromTheEnvironment, []string{"no world size", "$SLURM_PROCID", "$SLURM_STEP_NUM_TASKS"}},
		{"a rank too many", "RANK=2 WORLD_SIZE=2 MASTER_PORT=1", fromTheEnvironment, []string{"rank 2 is outside 0..1, because the world size is 2; correct one of them"}},
		{"no number", slurm + " SLURM_PROCID=0x1", fromTheEnvironment, []string{"SLURM_PROCID=0x1 is no rank; set it to a number, or the rank in the config"}},
		{"a negative size", openMPI5 + " OMPI_COMM_WORLD_SIZE=-3", fromTheEnvironment, []string{"OMPI_COMM_WORLD_SIZE=-3 is no world size; set it to a number"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			launchedAs(t, c.environment)
			_, err := j.session.Init(c.config)
			wantError(t, err, wire.ResultInvalidArgument, append(c.words, "comm_init")...)
			if len(j.seen) != 0 {
				t.Error("Init sent a Join")
			}
		})
	}
}
