package kvwire

import (
	"fmt"
	"os"
	"os/exec"
	"reflect"
	"regexp"
	"strings"
	"testing"
)

// structs pairs those of kv.h with those of this package.
var structs = map[string]any{
	"rhk_segment": header{}, "rhk_submission": Submission{}, "rhk_completion": Completion{}, "rhk_record": Record{}, "rhk_header": Header{},
	"rhk_hello": Hello{}, "rhk_result": Result{}, "rhk_region": Region{}, "rhk_region_private": RegionPrivate{}, "rhk_region_free": RegionFree{},
	"rhk_place": Place{}, "rhk_cache": Cache{}, "rhk_range": Range{}, "rhk_grant": Grant{}, "rhk_revoke": Revoke{}, "rhk_reuse": Reuse{},
	"rhk_missing": Missing{}, "rhk_piece": Piece{},
}

// constants pairs those of kv.h with those of this package.
var constants = map[string]uint64{
	"RHK_MAGIC": Magic, "RHK_SEGMENT_MAGIC": SegmentMagic, "RHK_VERSION": Version, "RHK_NAME": NameBytes, "RHK_TEXT": TextBytes, "RHK_REFERENCE": RefBytes,
	"RHK_RINGS": RingsAt, "RHK_MAX_ENTRIES": MaxEntries, "RHK_MAX_ARENA": MaxArena, "RHK_MAX_MESSAGE": MaxMessage, "RHK_MAX_PAYLOAD": MaxPayload,
	"RHK_MAX_REGIONS": MaxRegions, "RHK_MAX_CACHES": MaxCaches, "RHK_DESCRIPTORS": Descriptors, "RHK_HELLO": uint64(TypeHello), "RHK_RESULT": uint64(TypeResult),
	"RHK_REGION": uint64(TypeRegion), "RHK_REGION_PRIVATE": uint64(TypeRegionPrivate), "RHK_REGION_FREE": uint64(TypeRegionFree), "RHK_CACHE": uint64(TypeCache),
	"RHK_GRANT": uint64(TypeGrant), "RHK_REVOKE": uint64(TypeRevoke), "RHK_REUSE": uint64(TypeReuse), "RHK_MISSING": uint64(TypeMissing), "RHK_READ": uint64(OpRead),
	"RHK_WRITE": uint64(OpWrite), "RHK_RESUME": uint64(OpResume), "RHK_CANCEL": uint64(OpCancel), "RHK_NOTIFY": uint64(OpNotify), "RHK_EACH_LAYER": EachLayer,
	"RHK_ENDED": uint64(KindEnded), "RHK_LAYERS": uint64(KindLayers), "RHK_GRANT_ENDED": uint64(KindGrantEnded), "RHK_BLOCK_FREE": uint64(KindBlockFree),
	"RHK_PARTS_FIRST": 0, "RHK_BLOCKS_FIRST": 1, "RHK_PARTS_APART": 2, "RHK_ONE_TENSOR": 3, "RHK_STRIDED": Strided,
}

// TestTheStructsOfBothLanguagesAreTheSameBytes compares sizes and offsets of all fields, in their order, and all constants.
func TestTheStructsOfBothLanguagesAreTheSameBytes(t *testing.T) {
	text, err := os.ReadFile("kv.h")
	if err != nil {
		t.Fatal(err)
	}
	source := regexp.MustCompile(`//[^\n]*`).ReplaceAllString(string(text), "")
	var program, want strings.Builder
	program.WriteString("#include <stddef.h>\n#include <stdio.h>\n#include \"kv.h\"\nint main(void) {\n")
	found := 0
	for _, m := range regexp.MustCompile(`(?s)struct (rhk_\w+) \{(.*?)\n\};`).FindAllStringSubmatch(source, -1) {
		goStruct, known := structs[m[1]]
		if !known {
			t.Errorf("%s is in kv.h, and not in the test", m[1])
			continue
		}
		found++
		fmt.Fprintf(&program, "printf(\"%s %%zu\\n\", sizeof(struct %[1]s));\n", m[1])
		for _, f := range regexp.MustCompile(`(\w+)(?:\[\w+\])?;`).FindAllStringSubmatch(m[2], -1) {
			fmt.Fprintf(&program, "printf(\"%%zu %%zu\\n\", offsetof(struct %s, %s), sizeof((struct %[1]s *)0)->%[2]s);\n", m[1], f[1])
		}
		kind := reflect.TypeOf(goStruct)
		fmt.Fprintf(&want, "%s %d\n", m[1], kind.Size())
		for i := range kind.NumField() {
			f := kind.Field(i)
			fmt.Fprintf(&want, "%d %d\n", f.Offset, f.Type.Size())
		}
	}
	if found != len(structs) {
		t.Errorf("%d structs were found, want %d", found, len(structs))
	}
	names := regexp.MustCompile(`(?m)^#define (RHK_\w+) |^  (RHK_\w+) = `).FindAllStringSubmatch(source, -1)
	if len(names) != len(constants) {
		t.Errorf("%d constants were found, want %d", len(names), len(constants))
	}
	for _, n := range names {
		name := n[1] + n[2]
		fmt.Fprintf(&program, "printf(\"%s %%llu\\n\", (unsigned long long)%[1]s);\n", name)
		fmt.Fprintf(&want, "%s %d\n", name, constants[name])
	}
	program.WriteString("return 0;\n}\n")
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/layout.c", []byte(program.String()), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("gcc", "-std=c11", "-I.", dir+"/layout.c", "-o", dir+"/layout").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	got, err := exec.Command(dir + "/layout").Output()
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want.String() {
		t.Errorf("kv.h has\n%s\nthe Go structs have\n%s", got, want.String())
	}
}
