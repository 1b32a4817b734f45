package cudadriver

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"railhead/internal/deep"
	"railhead/internal/librarybuild"
)

const (
	uuid1 = "fa4ec0da-0000-4000-0000-000000000001"
	uuid2 = "fa4ec0da-0000-4000-0000-000000000002"
)

func TestWhatLoadingTheDriverSays(t *testing.T) {
	notCuda := filepath.Join(t.TempDir(), "libother.so")
	if _, err := librarybuild.Tool(root, "gcc", "-shared", "-o", notCuda, "-xc", "/dev/null"); err != nil {
		t.Fatal(err)
	}
	for name, test := range map[string]struct {
		device    string
		variables []string
		want      []string
	}{
		"no library": {"0", []string{"RAILHEAD_CUDA_LIBRARY=/none/libcuda.so.1"},
			[]string{"unsupported: no CUDA driver: /none/libcuda.so.1: cannot open shared object file", "driver 550 or newer", "RAILHEAD_CUDA_LIBRARY"}},
		"another library":      {"0", []string{"RAILHEAD_CUDA_LIBRARY=" + notCuda}, []string{"unsupported: ", notCuda + " is not NVIDIA's driver library"}},
		"an old driver":        {"0", []string{"RAILHEAD_FAKE_CUDA_VERSION=12020"}, []string{"unsupported: ", "CUDA 12.2", "550 (CUDA 12.4) or newer"}},
		"the oldest driver":    {"0", []string{"RAILHEAD_FAKE_CUDA_VERSION=12040"}, []string{"driver 12040"}},
		"no device":            {"0", []string{"CUDA_VISIBLE_DEVICES="}, []string{"unsupported: cuInit: CUDA_ERROR_NO_DEVICE (100): no CUDA-capable device is detected; no GPU is visible", "CUDA_VISIBLE_DEVICES"}},
		"a fabric not ready":   {"0", []string{"RAILHEAD_FAKE_CUDA_FAIL=cuInit:1:802"}, []string{"system: cuInit: CUDA_ERROR_SYSTEM_NOT_READY (802)", "nvidia-fabricmanager"}},
		"an unknown error":     {"0", []string{"RAILHEAD_FAKE_CUDA_FAIL=cuInit:1:12345"}, []string{"system: cuInit: CUDA error (12345): the driver has no text for it"}},
		"a context is refused": {"0", []string{"RAILHEAD_FAKE_CUDA_FAIL=cuDevicePrimaryCtxRetain:1:2"}, []string{"out_of_memory: device 0: cuDevicePrimaryCtxRetain: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory; the GPU's memory is full"}},

		"by number":                {"1", nil, []string{"device 1: fake device 1, " + uuid2 + ", bus 0000:02:00.0, capability 90, 132 multiprocessors, driver 13000"}},
		"numbers of this process":  {"0", []string{"CUDA_VISIBLE_DEVICES=1"}, []string{"device 0: fake device 1, " + uuid2}},
		"visible by UUID":          {"0", []string{"CUDA_VISIBLE_DEVICES=GPU-" + uuid2 + ",0"}, []string{"device 0: fake device 1, " + uuid2}},
		"visible by MIG id":        {"0", []string{"CUDA_VISIBLE_DEVICES=MIG-" + uuid2}, []string{"device 0: fake device 1, " + uuid2}},
		"by UUID":                  {"GPU-" + uuid2, []string{"CUDA_VISIBLE_DEVICES=1,0"}, []string{"device 0: fake device 1, " + uuid2}},
		"by MIG id":                {"MIG-" + strings.ToUpper(uuid2), nil, []string{"device 1: fake device 1, " + uuid2}},
		"by the UUID's beginning":  {"GPU-fa4ec", []string{"CUDA_VISIBLE_DEVICES=1"}, []string{"device 0: fake device 1, " + uuid2}},
		"an ambiguous beginning":   {"GPU-fa4ec", nil, []string{"invalid_argument: device GPU-fa4ec: 2 of the 2 GPUs", uuid1 + ", " + uuid2}},
		"a hidden device":          {"GPU-" + uuid1, []string{"CUDA_VISIBLE_DEVICES=1"}, []string{"invalid_argument: ", "0 of the 1 GPUs of this process have that UUID: they are " + uuid2}},
		"a MIG id of old drivers":  {"MIG-GPU-" + uuid1 + "/1/0", nil, []string{"invalid_argument: ", "MIG-<uuid>"}},
		"a number too large":       {"2", nil, []string{"invalid_argument: device 2: this process has 2 GPUs"}},
		"no number":                {"first", nil, []string{"invalid_argument: device first: a number, GPU-<uuid> or MIG-<uuid>"}},
		"an old GPU":               {"0", []string{"RAILHEAD_FAKE_CUDA_ATTRIBUTES=75=7,76=5"}, []string{"unsupported: device 0 (fake device 0) has compute capability 7.5: 8.0 or newer"}},
		"no virtual memory":        {"0", []string{"RAILHEAD_FAKE_CUDA_ATTRIBUTES=102=0"}, []string{"unsupported: device 0 (fake device 0) has no virtual memory management"}},
		"no FABRIC handles":        {"1", nil, []string{"FABRIC handles: no: device 1 creates no memory with a FABRIC handle", "IMEX", "cuMemCreate: CUDA_ERROR_NOT_PERMITTED (800)"}},
		"FABRIC handles":           {"0", []string{"RAILHEAD_FAKE_CUDA_FABRIC=1"}, []string{"FABRIC handles: yes\n"}},
		"FABRIC without an export": {"0", []string{"RAILHEAD_FAKE_CUDA_FABRIC=1", "RAILHEAD_FAKE_CUDA_FAIL=cuMemExportToShareableHandle:1:801"}, []string{"FABRIC handles: no: cuMemExportToShareableHandle"}},
		"no descriptors of memory": {"0", []string{"RAILHEAD_FAKE_CUDA_ATTRIBUTES=103=0"}, []string{"unsupported: ", "POSIX descriptor"}},
	} {
		t.Run(name, func(t *testing.T) {
			out := output(t, plainBuild.command(t, "load.cc", test.variables, test.device))
			for _, want := range test.want {
				if !strings.Contains(out, want) {
					t.Errorf("%q lacks %q", out, want)
				}
			}
		})
	}
}

// The library that the loader names by default is not there on a machine without CUDA. Where it is, a file that is no library comes before it.
func TestWithoutALibraryOfTheDriverLoadingSaysWhatIsMissing(t *testing.T) {
	load := func(env ...string) string {
		c := plainBuild.command(t, "load.cc", nil)
		c.Env = append(append(c.Env, "RAILHEAD_CUDA_LIBRARY="), env...)
		return output(t, c)
	}
	empty := t.TempDir()
	if err := os.WriteFile(filepath.Join(empty, "libcuda.so.1"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if out := load("LD_LIBRARY_PATH=" + empty); !strings.Contains(out, "libcuda.so.1: file too short") {
		t.Errorf("of a library that is none: %q", out)
	}
	if out := load(); !strings.HasPrefix(out, "device ") && !strings.Contains(out, "libcuda.so.1") {
		t.Errorf("%q does not name libcuda.so.1", out)
	}
}

func TestSanitizersFindNothingInDeviceHeapsWhoseCallsFail(t *testing.T) {
	calls := strconv.Itoa(deep.Rounds(t, 1, 1000)) // of each function that fail: the first, or all
	onEach(t, func(t *testing.T, b *build) {
		account := filepath.Join(t.TempDir(), "account")
		t.Log(output(t, b.command(t, "heaps.cc", []string{"RAILHEAD_FAKE_CUDA_ACCOUNT=" + account}, calls)))
		if text, err := os.ReadFile(account); err != nil || !strings.Contains(string(text), "contexts=") {
			t.Errorf("the account is %q: %v", text, err)
		}
	}, asanBuild, tsanBuild)
}
