package cuda

import (
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

func TestALibraryThatIsMissingIsAnErrorThatSaysWhatToDo(t *testing.T) {
	path := filepath.Join(t.TempDir(), "libcuda.so.1")
	err := open(path)
	if !errors.Is(err, ErrNoLibrary) {
		t.Fatalf("%v: want %v", err, ErrNoLibrary)
	}
	for _, want := range []string{path, "install NVIDIA's driver", LibraryVariable} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%q does not say %q", err, want)
		}
	}
}

func TestALibraryOfAnotherKindIsRefused(t *testing.T) {
	if err := open("libm.so.6"); !errors.Is(err, ErrNoLibrary) || !strings.Contains(err.Error(), "libm.so.6 has no cuGetProcAddress_v2") {
		t.Errorf("%v", err)
	}
}

// The test runs in a process of its own, in which nothing is loaded: no function is known.
func TestAFunctionThatTheLibraryLacksIsAnError(t *testing.T) {
	if os.Getenv(nothingLoaded) == "" {
		alone := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$")
		alone.Env = append(os.Environ(), nothingLoaded+"=1")
		if out, err := alone.CombinedOutput(); err != nil {
			t.Errorf("%v\n%s", err, out)
		}
		return
	}
	for _, want := range []string{"cuInit: CUDA_ERROR_NOT_SUPPORTED (801)", "lacks this function", "CUDA 12"} {
		if err := checkInit(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v: want %q", err, want)
		}
	}
	c := &Context{}
	if _, err := c.NewStream(); err == nil || !strings.Contains(err.Error(), "cuCtxPushCurrent: CUDA_ERROR_NOT_SUPPORTED") {
		t.Errorf("a call in a context: %v: want the name of the function that is missing first", err)
	}
}

func TestAnErrorNamesCallCodeTextAndHint(t *testing.T) {
	e := &Error{Call: "cuMemAlloc", Code: errOutOfMemory, Name: "CUDA_ERROR_OUT_OF_MEMORY", Text: "out of memory", Hint: hints[errOutOfMemory]}
	want := "cuMemAlloc: CUDA_ERROR_OUT_OF_MEMORY (2): out of memory; free memory on the device, or use smaller buffers; nvidia-smi shows who uses it"
	if e.Error() != want {
		t.Errorf("%q, want %q", e, want)
	}
}

func TestAUUIDIsPrintedAsTheDriversToolsPrintIt(t *testing.T) {
	if got := formatUUID([16]byte{0xde, 0xad, 0xbe, 0xef, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12}); got != "GPU-deadbeef-0102-0304-0506-0708090a0b0c" {
		t.Error(got)
	}
}
